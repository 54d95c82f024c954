// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_GRADIENT_OP(ABS_GRAD, abs_grad, "dx = dy * sign(x)",
                  .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
