// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double softsign_real(double x) {
  return isinf(x) ? copysign(1, x) : x / (1 + fabs(x));
}

CHOIR_PLAIN_UNARY_OP(SOFTSIGN, softsign, "x / (1 + |x|)", CHOIR_DTYPES_FLOAT,
                     softsign_real, NULL, .domains = {CHOIR_DOMAIN_NO_KINK},
                     .tolerance = 2e-6);
