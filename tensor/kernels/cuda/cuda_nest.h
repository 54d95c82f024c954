// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_H_

#include <stdbool.h>
#include <stdint.h>

// Operands of a kernel that goes through their elements place by place, as the
// host hands them over (cuda_nest_host.h) and threads read them
// (cuda_nest.cuh).

enum {
  CHOIR__CUDA_NEST_OPERANDS = 4,
  CHOIR__CUDA_NEST_NDIM = 8,
};

// A nest (tensor/kernels/nest.h), row-major.
typedef struct choir__cuda_nest_s {
  void* data[CHOIR__CUDA_NEST_OPERANDS];  // first elements
  // Operands whose elements are read, and stored; a bit each.
  uint32_t read;
  uint32_t written;
  uint32_t count;
  int32_t ndim;
  int32_t operand_count;
  uint32_t shape[CHOIR__CUDA_NEST_NDIM];
  int64_t strides[CHOIR__CUDA_NEST_OPERANDS][CHOIR__CUDA_NEST_NDIM];
} choir__cuda_nest_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_H_
