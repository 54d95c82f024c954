// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_

#include "tensor/kernels/cuda/cuda_nest.h"
#include "tensor/kernels/cuda/cuda_threads.h"
#include "tensor/ops/optimizer_steps.h"

enum {
  // Parameters of one launch: what it takes lies in the launch itself, which
  // has room for 4 KiB.
  CHOIR__CUDA_UPDATES = 96,
  // Elements of a block: each is of one parameter, so large ones have many.
  CHOIR__CUDA_UPDATE_SHARE = 4 * CHOIR__CUDA_THREADS * CHOIR__CUDA_GROUP,
};

// One parameter of many. All operands lie densely, in one order.
typedef struct choir__cuda_update_s {
  void* data[CHOIR__CUDA_NEST_OPERANDS];  // first elements; NULL: not used
  uint32_t count;
  uint32_t first_block;
} choir__cuda_update_t;

// What the host hands the kernels of cuda_optimizer.cu, choir__cuda_sgd_t and
// so on: the parameter, its gradient, what is kept. And choir__cuda_sgd_many_t
// for many parameters, in the order of their blocks.
#define CHOIR__UPDATE(T, NAME, name, states, doc)      \
  typedef struct choir__cuda_##name##_s {              \
    choir__cuda_nest_t nest;                           \
    choir__##name##_f32_t factors;                     \
  } choir__cuda_##name##_t;                            \
  typedef struct choir__cuda_##name##_many_s {         \
    choir__##name##_f32_t factors;                     \
    uint32_t count;                                    \
    choir__cuda_update_t updates[CHOIR__CUDA_UPDATES]; \
  } choir__cuda_##name##_many_t;
CHOIR_OPTIMIZER_LIST(CHOIR__UPDATE, )
#undef CHOIR__UPDATE

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_OPTIMIZER_H_
