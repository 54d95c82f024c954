// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double log_real(double x) { return log(x); }

CHOIR_UNARY_OP(LOG, log, "natural logarithm of x", log_real,
               .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-6);
