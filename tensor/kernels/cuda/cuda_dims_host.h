// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_HOST_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_HOST_H_

#include "tensor/kernels/cuda/cuda_dims.h"

#ifdef __cplusplus
extern "C" {
#endif

// One more dimension, inside of those so far. Begin with zeros.
void choir__cuda_dims_add(choir__cuda_dims_t* dims, int64_t size, int64_t src,
                          int64_t dst);
// That was all of them.
void choir__cuda_dims_end(choir__cuda_dims_t* dims);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_HOST_H_
