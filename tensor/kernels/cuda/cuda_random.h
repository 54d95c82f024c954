// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_RANDOM_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_RANDOM_H_

#include <stdbool.h>
#include <stdint.h>

#include "tensor/kernels/cuda/cuda_dims.h"

// What the host hands the kernels of cuda_random.cu: elements in row-major
// order, `sample_size` to a sample.
typedef struct choir__cuda_random_s {
  const float* x;  // dropout
  float* y;
  choir__cuda_dims_t dims;
  uint32_t key[2];
  uint32_t step;
  uint32_t samples;
  uint64_t first_sample;
  uint32_t sample_size;
  float low, range;
  // Dropout: upper 24 bits of a word that is kept, and what x is multiplied by.
  uint32_t threshold;
  float factor;
  bool by_groups;  // a block of words is a group of elements
  bool accumulate;
} choir__cuda_random_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_RANDOM_H_
