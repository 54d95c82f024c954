// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_

#include "tensor/kernels/element_formulas.h"

// What the host and the kernels of cuda_elementwise.cu share.

enum {
  CHOIR__CUDA_ELEMENTWISE_SRCS = 2,
  CHOIR__CUDA_ELEMENTWISE_NDIM = 8,
  // Elements of a thread where operands lie densely.
  CHOIR__CUDA_ELEMENTWISE_WIDTH = 4,
};

// The parameter of each kernel: a nest (tensor/kernels/nest.h), row-major.
typedef struct choir__cuda_elementwise_s {
  float* dst;
  const float* srcs[CHOIR__CUDA_ELEMENTWISE_SRCS];
  uint32_t count;
  int32_t ndim;
  uint32_t shape[CHOIR__CUDA_ELEMENTWISE_NDIM];
  // Elements, of the destination and then of the sources.
  int64_t strides[1 + CHOIR__CUDA_ELEMENTWISE_SRCS]
                 [CHOIR__CUDA_ELEMENTWISE_NDIM];
  choir__element_params_t element;
} choir__cuda_elementwise_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_ELEMENTWISE_H_
