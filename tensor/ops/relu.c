// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// A NaN stays one, so that it shows.
static double relu_real(double x) { return x < 0 ? 0 : x; }
static int64_t relu_integer(int64_t x) { return x < 0 ? 0 : x; }

CHOIR_UNARY_NUMERIC_OP(RELU, relu, "max(x, 0)", relu_real, relu_integer,
                       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
