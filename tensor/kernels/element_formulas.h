// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_
#define CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_

#include "tensor/kernels/element_math.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the formulas of tensor/elementwise.def stand on, for hosts and GPUs.

// The function for the type of x. GPUs compute formulas in f32 alone.
#if defined(__cplusplus)
#define CHOIR__BY_TYPE(x, of_float, of_double) of_float(x)
#define CHOIR__ABS(x) fabsf(x)
#define CHOIR__LIKE(x, value) static_cast<float>(value)
#else
// A number in the type of x.
#define CHOIR__LIKE(x, value) ((__typeof__(x))(value))
#define CHOIR__BY_TYPE(x, of_float, of_double) \
  _Generic((x), float : of_float, double : of_double)(x)
#define CHOIR__ABS(x) \
  _Generic((x), float : fabsf, double : fabs, int64_t : choir__math_abs_i64)(x)
// Wraps around.
static inline int64_t choir__math_abs_i64(int64_t x) {
  return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}
static inline double choir__math_sigmoid_f64(double x) {
  return 1 / (1 + exp(-x));
}
static inline double choir__math_unit_scale_f64(double x) {
  int exponent = 0;
  if (x == 0 || !isfinite(x)) return 1;
  (void)frexp(x, &exponent);
  const int power = 1 - exponent;
  return ldexp(1, power < -126 ? -126 : power > 127 ? 127 : power);
}
static inline double choir__math_gelu_f64(double x) {
  return 0.5 * x * erfc(-x * 0.70710678118654752440);
}
static inline double choir__math_gelu_slope_f64(double x) {
  return 0.5 * erfc(-x * 0.70710678118654752440) +
         x * 0.39894228040143267794 * exp(-0.5 * x * x);
}
#endif
#define CHOIR__EXP(x) CHOIR__BY_TYPE(x, choir__math_exp, exp)
#define CHOIR__LOG(x) CHOIR__BY_TYPE(x, choir__math_log, log)
#define CHOIR__SQRT(x) CHOIR__BY_TYPE(x, sqrtf, sqrt)
#define CHOIR__TANH(x) CHOIR__BY_TYPE(x, choir__math_tanh, tanh)
#define CHOIR__GELU(x) CHOIR__BY_TYPE(x, choir__math_gelu, choir__math_gelu_f64)
#define CHOIR__GELU_SLOPE(x) \
  CHOIR__BY_TYPE(x, choir__math_gelu_slope, choir__math_gelu_slope_f64)
#define CHOIR__CEIL(x) CHOIR__BY_TYPE(x, ceilf, ceil)
#define CHOIR__FLOOR(x) CHOIR__BY_TYPE(x, floorf, floor)
#define CHOIR__ROUND(x) CHOIR__BY_TYPE(x, roundf, round)
#define CHOIR__ROUND_EVEN(x) CHOIR__BY_TYPE(x, rintf, rint)
#define CHOIR__SIGMOID(x) \
  CHOIR__BY_TYPE(x, choir__math_sigmoid, choir__math_sigmoid_f64)
// sigmoid(v) with v = 2 sqrt(2/pi) (x + 0.044715 x^3), and v's slope.
#define CHOIR__GELU_TANH_SHARE(x)                             \
  CHOIR__SIGMOID((x) * (CHOIR__LIKE(x, 1.59576912160573071) + \
                        CHOIR__LIKE(x, 0.0713548162726002527) * (x) * (x)))
#define CHOIR__GELU_TANH_SLOPE(x)        \
  (CHOIR__LIKE(x, 1.59576912160573071) + \
   CHOIR__LIKE(x, 0.214064448817800758) * (x) * (x))
#define CHOIR__UNIT_SCALE(x) \
  CHOIR__BY_TYPE(x, choir__math_unit_scale, choir__math_unit_scale_f64)
// A NaN stays one; `high` wins where it is below `low`.
#define CHOIR__CLIP(x, low, high)                  \
  ((x) < (low) ? ((low) > (high) ? (high) : (low)) \
               : ((x) > (high) ? (high) : (x)))

#define CHOIR__NUMBER(i, x) CHOIR__LIKE(x, p->number[i])

// Their numbers.
typedef enum choir__formula_e {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) CHOIR__FORMULA_##OP,
#include "tensor/elementwise.def"
  CHOIR__FORMULA_COUNT
} choir__formula_t;

// What a formula may want beside its elements, and where its value goes.
typedef struct choir__element_params_s {
  double number[2];  // the op's attributes, in their order
  bool accumulate;
} choir__element_params_t;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_
