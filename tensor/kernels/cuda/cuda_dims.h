// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_H_

#include <stdint.h>

// Dimensions whose places have numbers, as the host hands them over and
// threads read them (cuda_dims.cuh).

enum { CHOIR__CUDA_DIMS = 8 };

// Row-major, neighbours merged, at least one.
typedef struct choir__cuda_dims_s {
  int32_t ndim;
  uint32_t shape[CHOIR__CUDA_DIMS];
  int64_t src[CHOIR__CUDA_DIMS];  // strides of a source
  int64_t dst[CHOIR__CUDA_DIMS];  // and of a result
} choir__cuda_dims_t;

#ifdef __cplusplus
extern "C" {
#endif

// Of the host: one more dimension, inside of those so far. Begin with zeros.
void choir__cuda_dims_add(choir__cuda_dims_t* dims, int64_t size, int64_t src,
                          int64_t dst);
// That was all of them.
void choir__cuda_dims_end(choir__cuda_dims_t* dims);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_H_
