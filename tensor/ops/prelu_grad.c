// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double prelu_grad_real(double x, double slope, double dy) {
  return x <= 0 ? slope * dy : dy;
}

CHOIR_PLAIN_TERNARY_OP(PRELU_GRAD, prelu_grad, "dx = dy above 0, else slope dy",
                       prelu_grad_real, .domains = {CHOIR_DOMAIN_NO_KINK},
                       .tolerance = 2e-7);
