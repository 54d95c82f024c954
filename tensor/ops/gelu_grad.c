// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

#define SQRT_HALF 0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794

CHOIR_GRADIENT_OP(
    GELU_GRAD, gelu_grad,
    "dx = dy * (P(x) + x p(x)) with P, p of the normal distribution",
    .tolerance = 2e-6);
