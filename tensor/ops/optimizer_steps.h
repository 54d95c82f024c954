// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_
#define CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_

#include <math.h>

#include "tensor/optimizers.h"

// The entries of tensor/optimizers.h as code, for every kernel: the struct of
// factors choir__<name>_f32_t, one element's step choir__<name>_step_f32, and
// both in f64. States that an optimizer does not have may be any pointer.
#if defined(__CUDACC__)
#define CHOIR__STEP static inline __host__ __device__
#else
// Part of the loop around it, whatever instruction set that is for.
#define CHOIR__STEP static inline __attribute__((always_inline))
#endif

#define CHOIR__FACTOR_MEMBER(T, name, value) T name;
#define CHOIR__STEP_DEFINE(suffix, T, FMA, SQRT, NAME, name)          \
  typedef struct choir__##name##_##suffix##_s {                       \
    CHOIR_##NAME##_FACTORS(CHOIR__FACTOR_MEMBER, T)                   \
  } choir__##name##_##suffix##_t;                                     \
                                                                      \
  CHOIR__STEP void choir__##name##_step_##suffix(                     \
      const choir__##name##_##suffix##_t* f, T* p, T g, T* s, T* d) { \
    (void)s;                                                          \
    (void)d;                                                          \
    CHOIR_##NAME##_STEP(T, FMA, SQRT)                                 \
  }
#define CHOIR__STEP_BOTH(A, NAME, name, states, doc)      \
  CHOIR__STEP_DEFINE(f32, float, fmaf, sqrtf, NAME, name) \
  CHOIR__STEP_DEFINE(f64, double, fma, sqrt, NAME, name)
CHOIR_OPTIMIZER_LIST(CHOIR__STEP_BOTH, )
#undef CHOIR__STEP_BOTH
#undef CHOIR__STEP_DEFINE
#undef CHOIR__FACTOR_MEMBER

#endif  // CHOIR_TENSOR_OPS_OPTIMIZER_STEPS_H_
