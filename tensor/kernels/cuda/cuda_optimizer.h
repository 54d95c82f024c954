// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_

#include "tensor/kernels/cuda/cuda_nest.h"
#include "tensor/ops/optimizer_steps.h"

// What the host hands the kernels of cuda_optimizer.cu, choir__cuda_sgd_t and
// so on: the parameter, its gradient, what is kept.
#define CHOIR__UPDATE(OP, name, kept)     \
  typedef struct choir__cuda_##name##_s { \
    choir__cuda_nest_t nest;              \
    choir__##name##_f32_t factors;        \
  } choir__cuda_##name##_t;
#include "tensor/kernels/cuda/cuda_optimizer.def"
#undef CHOIR__UPDATE

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_
