// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_

#include "onnx/operators/onnx_math_internal.h"

// Whether it is a floating-point type of 8 or 4 bits.
bool choir__onnx_is_small_float(int32_t type);
// x, of any dtype, as F32 with the nearest numbers of rule->type, a small
// float, of two the even one. Beyond the largest number: with
// rule->does_saturate that number, else an infinity or, in types that have
// none, a NaN. FLOAT4E2M1 saturates always; FLOAT8E8M0 takes powers of two, as
// rule->round says.
choir_var_t* choir__onnx_round_small(choir__onnx_call_t* c, choir_var_t* x,
                                     const choir__onnx_cast_rule_t* rule);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_SMALL_FLOATS_INTERNAL_H_
