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

#define BODY(name, sources, real, formula)                                 \
  struct name##_body {                                                     \
    static constexpr int kOperands = (sources) + 1;                        \
    const choir__element_params_t* p;                                      \
    CHOIR__GPU_METHOD void operator()(float* operands) const {             \
      const real x = operands[1], a = x;                                   \
      const real b = operands[(sources) > 1 ? 2 : 1];                      \
      const real c = operands[(sources) > 2 ? 3 : 1];                      \
      (void)a, (void)b, (void)c;                                           \
      const real value = static_cast<real>(formula);                       \
      operands[0] =                                                        \
          static_cast<float>(p->accumulate ? operands[0] + value : value); \
    }                                                                      \
  };
#define CHOIR__FORMULA(OP, name, sources, formula, ...) \
  BODY(name, sources, float, formula)
#define CHOIR__FUNCTION(OP, name, sources, formula, ...) \
  BODY(name, sources, double, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"

}  // namespace

#define CHOIR__FORMULA(OP, name, sources, formula, ...)                \
  CHOIR__KERNEL(choir_##name##_dense, choir__cuda_elementwise_t) {     \
    dense(params.nest, name##_body{&params.element}, CHOIR__THREAD);   \
  }                                                                    \
  CHOIR__KERNEL(choir_##name##_strided, choir__cuda_elementwise_t) {   \
    strided(params.nest, name##_body{&params.element}, CHOIR__THREAD); \
  }
#define CHOIR__FUNCTION CHOIR__FORMULA
#include "tensor/kernels/cuda/cuda_elementwise.def"
