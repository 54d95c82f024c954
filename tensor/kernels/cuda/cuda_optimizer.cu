// SPDX-License-Identifier: Apache-2.0
// Optimizer steps, by the definition of each (tensor/ops/optimizer_steps.h):
// every rank applies them itself, so their bits are those of all other
// processors.
#include "tensor/kernels/cuda/cuda_optimizer.h"

#include "tensor/kernels/cuda/cuda_nest.cuh"

namespace {

#define STEP_1(name, f, x) choir__##name##_step_f32(f, &x[0], x[1], &x[2])
#define STEP_2(name, f, x) \
  choir__##name##_step_f32(f, &x[0], x[1], &x[2], &x[3])
#define CHOIR__UPDATE(OP, name, kept)                   \
  struct name##_update {                                \
    static constexpr int kOperands = 2 + kept;          \
    const choir__##name##_f32_t* factors;               \
    CHOIR__GPU_METHOD void operator()(float* x) const { \
      STEP_##kept(name, factors, x);                    \
    }                                                   \
  };
#include "tensor/kernels/cuda/cuda_optimizer.def"
#undef CHOIR__UPDATE

}  // namespace

#define CHOIR__UPDATE(OP, name, kept)                                    \
  CHOIR__KERNEL(choir_##name##_update_dense, choir__cuda_##name##_t) {   \
    dense(params.nest, name##_update{&params.factors}, CHOIR__THREAD);   \
  }                                                                      \
  CHOIR__KERNEL(choir_##name##_update_strided, choir__cuda_##name##_t) { \
    strided(params.nest, name##_update{&params.factors}, CHOIR__THREAD); \
  }
#include "tensor/kernels/cuda/cuda_optimizer.def"
#undef CHOIR__UPDATE
