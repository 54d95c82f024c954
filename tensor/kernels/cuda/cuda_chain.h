// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_CHAIN_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_CHAIN_H_

#include "tensor/kernels/chain.h"

// What the host hands the kernels of cuda_chain.cu.
typedef struct choir__cuda_chain_s {
  void* data[CHOIR__CHAIN_OPERANDS];  // first elements
  uint32_t count;
  choir__chain_t chain;
} choir__cuda_chain_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_CHAIN_H_
