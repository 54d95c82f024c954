// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// a^0 has no slope, also where a is 0.
static double pow_grad_base_real(double a, double b, double dy) {
  return b == 0 ? 0 : b * pow(a, b - 1) * dy;
}

CHOIR_PLAIN_TERNARY_OP(POW_GRAD_BASE, pow_grad_base, "da = b a^(b - 1) dy",
                       pow_grad_base_real, .domains = {CHOIR_DOMAIN_POSITIVE},
                       .tolerance = 2e-6);
