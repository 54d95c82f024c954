// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t relu_integer(int64_t x, int64_t b) {
  (void)b;
  return x < 0 ? 0 : x;
}

// A NaN stays one, so that it shows.
CHOIR_UNARY_NUMERIC_OP(RELU, relu, "max(x, 0)", relu_integer,
                       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
