// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_
#define CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_

#include "tensor/kernels/element_math.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the formulas of tensor/kernels/element_formulas.def stand on, for hosts
// and GPUs.

#define CHOIR__HALF_SQRT2 0.70710678118654752440f
#define CHOIR__INV_SQRT_2PI 0.39894228040143267794f

// Their numbers.
typedef enum choir__formula_e {
#define CHOIR__UNARY(OP, name, formula) CHOIR__FORMULA_##OP,
#define CHOIR__BINARY(OP, name, formula) CHOIR__FORMULA_##OP,
#include "tensor/kernels/element_formulas.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
  CHOIR__FORMULA_COUNT
} choir__formula_t;

// What a formula may want beside its elements, and where its value goes.
typedef struct choir__element_params_s {
  float factor;
  float shift;
  bool accumulate;
} choir__element_params_t;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_FORMULAS_H_
