// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(SOFTSIGN, softsign, "x / (1 + |x|)", CHOIR_DTYPES_FLOAT,
                     NULL, .domains = {CHOIR_DOMAIN_NO_KINK},
                     .tolerance = 2e-6);
