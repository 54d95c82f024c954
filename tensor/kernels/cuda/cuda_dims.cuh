// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_CUH_

#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_dims.h"

namespace {

// How far place number `index` is from the first, by dims.src or dims.dst.
CHOIR__GPU int64_t offset_of(const choir__cuda_dims_t& dims,
                             const int64_t* strides, uint32_t index) {
  int64_t offset = 0;
  for (int k = dims.ndim - 1; k > 0; --k) {
    const uint32_t rest = index / dims.shape[k];
    offset += (index - rest * dims.shape[k]) * strides[k];
    index = rest;
  }
  return offset + index * strides[0];
}

}  // namespace

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_DIMS_CUH_
