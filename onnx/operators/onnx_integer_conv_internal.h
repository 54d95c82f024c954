// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_INTEGER_CONV_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_INTEGER_CONV_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// A convolution by the node's attributes (auto_pad, dilations, group, pads,
// strides) of x (n, c, 1 to 3 more) and w, both of one dtype; bias: (o), or
// NULL.
choir_var_t* choir__onnx_wide_conv(choir__onnx_call_t* c, choir_var_t* x,
                                   choir_var_t* w, choir_var_t* bias);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_INTEGER_CONV_INTERNAL_H_
