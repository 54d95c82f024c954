// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROWS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROWS_H_

#include <stdbool.h>
#include <stdint.h>

// What the host hands the kernels of cuda_rows.cu. A row is the classes of one
// sample, and lies densely.
typedef struct choir__cuda_rows_s {
  const float* x;  // (rows, columns); for gradients what the op gave
  const float* dy;
  float* y;  // (rows, columns)
  const void* labels;
  double* values;  // of each row, for a second kernel to add up; of norms two
  const float* scale;  // norms: (columns)
  const float* bias;   // NULL: none
  float* dscale;
  float* dbias;  // NULL: none
  double epsilon;
  void* result;  // that kernel's: f32, or i64
  double divisor;
  int64_t x_stride;  // from row to row
  int64_t dy_stride;
  int64_t y_stride;
  int64_t label_stride;
  uint32_t rows;
  uint32_t columns;
  uint32_t members;  // threads of a row, a power of two
  bool labels_are_i64;
  bool by_groups;  // mse_loss: of CHOIR__CUDA_GROUP elements
  bool centred;    // norms: by the mean too
  bool accumulate;
} choir__cuda_rows_t;

// mse_loss: elements of a block.
enum { CHOIR__CUDA_MSE_CHUNK = 4096 };

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROWS_H_
