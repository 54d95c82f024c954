// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_MOVE_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_MOVE_H_

#include "tensor/kernels/cuda/cuda_nest.h"

// What the host hands the kernels of cuda_move.cu: the destination, then the
// source, if there is one; of `where` condition, x and y.
typedef struct choir__cuda_move_s {
  choir__cuda_nest_t nest;
  uint64_t value;  // of a fill: the bits of one element, from the lowest
  // Of `where`: bytes of a condition, which is true if it has a bit of `value`.
  int32_t condition_bytes;
  bool accumulate;
} choir__cuda_move_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_MOVE_H_
