// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROTARY_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROTARY_H_

#include <stdbool.h>
#include <stdint.h>

#include "tensor/kernels/cuda/cuda_dims.h"

// What the host hands the kernels of cuda_rotary.cu.
typedef struct choir__cuda_rotary_s {
  const float* x;
  float* y;
  choir__cuda_dims_t dims;  // of pairs: (..., rows, half)
  int64_t x_half, y_half;   // from a pair's first column to its second
  float* table;  // (rows, half, 2): the cosine and the sine of each angle
  uint32_t rows, half, pairs;
  double theta, offset;
  double direction;  // 1, of the gradient -1
  bool accumulate;
} choir__cuda_rotary_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_ROTARY_H_
