// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// a^0 has no slope, also where a is 0.
CHOIR_PLAIN_TERNARY_OP(POW_GRAD_BASE, pow_grad_base, "da = b a^(b - 1) dy",
                       .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-6);
