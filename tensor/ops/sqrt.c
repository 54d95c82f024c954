// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double sqrt_real(double x) { return sqrt(x); }

CHOIR_UNARY_OP(SQRT, sqrt, "square root of x", sqrt_real,
               .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-7);
