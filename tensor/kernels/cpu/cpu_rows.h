// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_ROWS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_ROWS_H_

#include "tensor/kernels/cpu/cpu_internal.h"

// Rows along the last axis, as softmax, norms and the losses take them.

// Rows of f32, each dense.
typedef struct choir__rows_s {
  const float* x;
  const float* dy;
  float* y;  // may be x
  int64_t x_stride, dy_stride, y_stride;
  int64_t columns;
  bool log;  // log_softmax
  // Of norms.
  const float* scale;
  const float* bias;
  float epsilon;
  bool centred;
  float* sums;  // dscale, and dbias behind it
} choir__rows_t;

// Softmax of each row, or its logarithm.
void choir__cpu_softmax_rows(const choir__rows_t* rows, int64_t begin,
                             int64_t end);

// Whether the last dimension is dense, and of more than two dimensions all.
bool choir__rows_fit(const choir_view_t* view);
static inline int64_t choir__row_count(const choir_view_t* view) {
  return choir_view_count(view) / view->shape[view->ndim - 1];
}
static inline int64_t choir__row_stride(const choir_view_t* view) {
  return view->ndim == 2 ? view->strides[0] : view->shape[view->ndim - 1];
}
// Rows that are worth a thread of their own.
static inline int64_t choir__row_grain(int64_t columns) {
  const int64_t grain = CHOIR__CPU_GRAIN / 8 / columns;
  return grain > 1 ? grain : 1;
}

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_ROWS_H_
