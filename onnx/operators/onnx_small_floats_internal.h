// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_

#include <stdbool.h>
#include <stdint.h>

// The number of a type of 8 or 4 bits (choir_onnx_type_t FLOAT8E4M3FN,
// FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1, FLOAT8E8M0) that is
// nearest to value, of two the even one. Beyond the largest number: with
// `saturate` that number, else an infinity or, in types that have none, a NaN.
// FLOAT4E2M1 saturates always; FLOAT8E8M0 takes a power of two, of two at the
// same distance the larger. Values of other types come back as they are.
float choir__onnx_round_small(int32_t type, float value, bool saturate);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_
