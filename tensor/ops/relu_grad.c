// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_GRADIENT_OP(RELU_GRAD, relu_grad, "dx = dy where y > 0, else 0",
                  .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
