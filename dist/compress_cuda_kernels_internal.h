// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMPRESS_CUDA_KERNELS_INTERNAL_H_
#define CHOIR_DIST_COMPRESS_CUDA_KERNELS_INTERNAL_H_

#include <stdint.h>

// What the host hands the kernels of compress_cuda.cu. Arrays that a thread
// goes through in groups begin on 16 bytes.

typedef struct choir__cuda_half_s {
  float* floats;
  uint16_t* halves;
  uint32_t* clipped;  // of an encode: how many so far
  uint64_t count;
  float scale;
  float limit;
} choir__cuda_half_t;

typedef struct choir__cuda_pass_s {
  float* y;
  const float* x;
  const int32_t* indices;  // [count], of elements of y; none of them twice
  uint64_t count;
  float factor;
} choir__cuda_pass_t;

typedef struct choir__cuda_momentum_s {
  float* u;
  float* v;
  const float* gradient;
  uint64_t count;
  float momentum;
  float factor;
} choir__cuda_momentum_t;

#endif  // CHOIR_DIST_COMPRESS_CUDA_KERNELS_INTERNAL_H_
