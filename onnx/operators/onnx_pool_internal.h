// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_POOL_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_POOL_INTERNAL_H_

#include "onnx/operators/onnx_window_internal.h"

// Where the maxima of the windows of x (n, c, ...) are, the first of equal
// ones: out[0] within their images; out[1] in all of x, with `by_columns` with
// the images' dimensions in the reverse order.
void choir__onnx_find_maxima(choir__onnx_call_t* c, choir_var_t* x,
                             const choir__onnx_window_t* window,
                             bool by_columns, choir_var_t** out);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_POOL_INTERNAL_H_
