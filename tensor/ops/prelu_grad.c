// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_TERNARY_OP(PRELU_GRAD, prelu_grad, "dx = dy above 0, else slope dy",
                       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
