// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_CONV_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_CONV_INTERNAL_H_

#include "onnx/onnx_call_def.h"

// The convolution of x (n, c, ...) and w (o, c / group, ...), of one
// floating-point dtype and 1 to 3 spatial dimensions, with the node's
// kernel_shape, strides, dilations, pads, auto_pad and group; bias (o) or NULL.
choir_var_t* choir__onnx_convolve(choir__onnx_call_t* c, choir_var_t* x,
                                  choir_var_t* w, choir_var_t* bias_or_null);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_CONV_INTERNAL_H_
