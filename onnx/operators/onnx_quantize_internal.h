// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_QUANTIZE_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_QUANTIZE_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// The least and the largest number of an integer type of up to 16 bits; false:
// it is none.
bool choir__onnx_quantized_range(int32_t type, double* out_low,
                                 double* out_high);
// saturate(round(quotient) + zero) as integers of `type`, half to even; zero of
// quotient's dtype, or NULL.
choir_var_t* choir__onnx_quantize(choir__onnx_call_t* c, choir_var_t* quotient,
                                  choir_var_t* zero, int32_t type);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_QUANTIZE_INTERNAL_H_
