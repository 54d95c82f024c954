// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_
#define CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_

#include "tensor/op_def.h"
#include "tensor/ops/optimizer_steps.h"

// 1 - beta^step by repeated squaring, so that no libm decides its bits.
static inline double choir__bias_correction(double beta, int64_t step) {
  double power = 1;
  double square = beta;
  for (; step > 0; step >>= 1) {
    if (step & 1) power *= square;
    square *= square;
  }
  return 1 - power;
}

// What the steps take of their op's attributes: computed in double and rounded
// once to the type. choir__<name>_make_f32 and choir__<name>_make_f64; and
// choir__<name>_keeps: whether these attributes need the states.
#define CHOIR__FACTOR_VALUE(T, name, value) .name = (T)(value),
#define CHOIR__FACTORS_MAKE(suffix, T, NAME, name)                          \
  static inline choir__##name##_##suffix##_t choir__##name##_make_##suffix( \
      const choir_##name##_update_attrs_t* a) {                             \
    return (choir__##name##_##suffix##_t){                                  \
        CHOIR_##NAME##_FACTORS(CHOIR__FACTOR_VALUE, T)};                    \
  }
#define CHOIR__FACTORS_BOTH(A, NAME, name, states, doc) \
  CHOIR__FACTORS_MAKE(f32, float, NAME, name)           \
  CHOIR__FACTORS_MAKE(f64, double, NAME, name)          \
  static inline bool choir__##name##_keeps(             \
      const choir_##name##_update_attrs_t* a) {         \
    (void)a;                                            \
    return CHOIR_##NAME##_KEEPS(a);                     \
  }
CHOIR_OPTIMIZER_LIST(CHOIR__FACTORS_BOTH, )
#undef CHOIR__FACTORS_BOTH
#undef CHOIR__FACTORS_MAKE
#undef CHOIR__FACTOR_VALUE

#endif  // CHOIR_TENSOR_OPS_OPTIMIZER_FACTORS_H_
