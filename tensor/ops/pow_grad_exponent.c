// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_TERNARY_OP(POW_GRAD_EXPONENT, pow_grad_exponent,
                       "db = a^b log(a) dy, 0 where a is not above 0",
                       .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-6);
