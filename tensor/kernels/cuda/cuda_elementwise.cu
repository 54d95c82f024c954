// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place, from the formulas
// of cuda_elementwise.def: two kernels each, one for operands that lie densely
// in the same order or are one number, a few elements a thread, and one for all
// others. Built without contraction, so that the bits are the CPU's.
//
// Plain enough for the host too, where tests run the threads one after the
// other.
#include "tensor/kernels/cuda/cuda_elementwise.h"

#include "tensor/kernels/cuda/cuda_nest.cuh"

namespace {

#define CHOIR__UNARY(OP, name, formula)                          \
  struct name##_body {                                           \
    static constexpr int kOperands = 2;                          \
    const choir__element_params_t* p;                            \
    CHOIR__GPU_METHOD void operator()(float* operands) const {   \
      const float x = operands[1];                               \
      (void)x;                                                   \
      const float value = formula;                               \
      operands[0] = p->accumulate ? operands[0] + value : value; \
    }                                                            \
  };
#define CHOIR__BINARY(OP, name, formula)                         \
  struct name##_body {                                           \
    static constexpr int kOperands = 3;                          \
    const choir__element_params_t* p;                            \
    CHOIR__GPU_METHOD void operator()(float* operands) const {   \
      const float a = operands[1], b = operands[2];              \
      const float value = formula;                               \
      operands[0] = p->accumulate ? operands[0] + value : value; \
    }                                                            \
  };
#include "tensor/kernels/cuda/cuda_elementwise.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY

}  // namespace

#define CHOIR__UNARY(OP, name, formula)                                \
  CHOIR__KERNEL(choir_##name##_dense, choir__cuda_elementwise_t) {     \
    dense(params.nest, name##_body{&params.element}, CHOIR__THREAD);   \
  }                                                                    \
  CHOIR__KERNEL(choir_##name##_strided, choir__cuda_elementwise_t) {   \
    strided(params.nest, name##_body{&params.element}, CHOIR__THREAD); \
  }
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
