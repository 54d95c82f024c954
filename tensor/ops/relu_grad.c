// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double relu_grad_real(double y, double dy) { return y > 0 ? dy : 0; }

CHOIR_GRADIENT_OP(RELU_GRAD, relu_grad, "dx = dy where y > 0, else 0",
                  relu_grad_real, .domains = {CHOIR_DOMAIN_NO_KINK},
                  .tolerance = 2e-7);
