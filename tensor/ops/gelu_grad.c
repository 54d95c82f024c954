// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

#define SQRT_HALF 0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794

static double gelu_grad_real(double x, double dy) {
  return dy * (0.5 * (1 + erf(x * SQRT_HALF)) +
               x * INV_SQRT_2PI * exp(-0.5 * x * x));
}

CHOIR_GRADIENT_OP(
    GELU_GRAD, gelu_grad,
    "dx = dy * (P(x) + x p(x)) with P, p of the normal distribution",
    gelu_grad_real, .tolerance = 2e-6);
