// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double abs_grad_real(double x, double dy) {
  return x > 0 ? dy : x < 0 ? -dy : 0;
}

CHOIR_GRADIENT_OP(ABS_GRAD, abs_grad, "dx = dy * sign(x)", abs_grad_real,
                  .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
