// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_SHAPES_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_SHAPES_INTERNAL_H_

#include "onnx/operators/onnx_sizes_internal.h"

// What operators that move elements share. After a failure they return a failed
// variable.

// start, start + step, ... (count) as an I64 constant.
choir_var_t* choir__shapes_range(choir__onnx_call_t* c, int64_t start,
                                 int64_t step, int64_t count);
// x repeated to a larger shape.
choir_var_t* choir__shapes_expand(choir__onnx_call_t* c, choir_var_t* x,
                                  int32_t ndim, const int64_t* shape);
choir_var_t* choir__shapes_gather(choir__onnx_call_t* c, choir_var_t* x,
                                  choir_var_t* indices, int64_t axis);
// start, start + step, ... before stop along an axis of x, as Slice says it:
// negative places count from the end, those outside are moved to the nearest
// one inside; step is not 0.
choir_var_t* choir__shapes_cut(choir__onnx_call_t* c, choir_var_t* x,
                               int64_t axis, int64_t start, int64_t stop,
                               int64_t step);
// A 1-D variable as a tensor of `ndim` dimensions that has its elements along
// `axis` and 1 elsewhere.
choir_var_t* choir__shapes_along(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t ndim, int64_t axis);
// indices (..., k) of the elements of x behind its first `batch` dimensions,
// which indices have too -> i64 (...): the rows that they name of x as
// (rows, rest), where the last of a row's dimensions is batch + k - 1. An index
// outside becomes a row that there is not.
choir_var_t* choir__shapes_rows(choir__onnx_call_t* c, choir_var_t* indices,
                                int32_t batch, const choir_view_t* x,
                                int64_t* out_rows);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_SHAPES_INTERNAL_H_
