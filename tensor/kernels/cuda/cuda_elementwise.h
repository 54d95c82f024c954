// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_

#include "tensor/kernels/cuda/cuda_nest.h"
#include "tensor/kernels/element_formulas.h"

// What the host hands the kernels of cuda_elementwise.cu: the destination, then
// the sources.
typedef struct choir__cuda_elementwise_s {
  choir__cuda_nest_t nest;
  choir__element_params_t element;
} choir__cuda_elementwise_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_
