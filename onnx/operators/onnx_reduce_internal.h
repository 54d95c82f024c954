// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_REDUCE_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_REDUCE_INTERNAL_H_

#include "onnx/operators/onnx_sizes_internal.h"

// What reductions and operators built of them share (onnx_reduce_common.c, and
// onnx_linear.c has the product).

// Axes that are reduced.
typedef struct choir__onnx_axes_s {
  bool has[CHOIR_MAX_NDIM];
  int32_t count;
} choir__onnx_axes_t;
// From a list with negative ones, each named once; an empty list: all. False:
// it failed.
bool choir__onnx_axes_set(choir__onnx_call_t* c, const int64_t* list,
                          int32_t count, int32_t ndim,
                          choir__onnx_axes_t* out_axes);

// choir_var_sum and the like.
typedef choir_var_t* (*choir__onnx_fold_t)(choir_scope_t* scope, choir_var_t* x,
                                           const choir_reduce_attrs_t* attrs);
// x with these axes made one and reduced by `fold`, in one call.
choir_var_t* choir__onnx_fold(choir__onnx_call_t* c, choir_var_t* x,
                              const choir__onnx_axes_t* axes, bool keep_dims,
                              choir__onnx_fold_t fold);
// Elements of x that become one of the result.
int64_t choir__onnx_fold_size(const choir_view_t* x,
                              const choir__onnx_axes_t* axes);

// x as floats of 32 bits or more: integers become F64.
choir_var_t* choir__onnx_wide(choir__onnx_call_t* c, choir_var_t* x);
// The square root of numbers from 0 on; where they are 0 the gradient is 0.
choir_var_t* choir__onnx_root(choir__onnx_call_t* c, choir_var_t* x);
// x, with elements of this ONNX type, as numbers of which `max` finds the
// largest, or the smallest where is_min: unsigned ones of 64 bits lie in I64,
// and there is no op for a minimum. The same function leads back.
choir_var_t* choir__onnx_ranked(choir__onnx_call_t* c, choir_var_t* x,
                                int32_t type, bool is_min);
// matmul, of integers as well (by a loop of the host's, modulo their size).
choir_var_t* choir__onnx_matmul(choir__onnx_call_t* c, choir_var_t* a,
                                choir_var_t* b,
                                const choir_matmul_attrs_t* attrs);
// The same as numpy.matmul: a vector is a row in front, a column behind.
choir_var_t* choir__onnx_numpy_matmul(choir__onnx_call_t* c, choir_var_t* a,
                                      choir_var_t* b);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_REDUCE_INTERNAL_H_
