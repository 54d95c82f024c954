// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_GROUP_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_GROUP_CUH_

#include "tensor/kernels/cuda/cuda_threads.h"

namespace {

constexpr int kWidth = CHOIR__CUDA_GROUP;

// Elements that one access moves, 16 bytes of f32.
template <typename Element>
struct alignas(sizeof(Element) * kWidth) GroupOf {
  Element at[kWidth];
};
typedef GroupOf<float> Group;

}  // namespace

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_GROUP_CUH_
