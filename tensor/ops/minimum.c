// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// A NaN on either side is the result.
static double minimum_real(double a, double b) {
  return a < b || a != a ? a : b;
}
static int64_t minimum_integer(int64_t a, int64_t b) { return a < b ? a : b; }

CHOIR_BINARY_NUMERIC_OP(MINIMUM, minimum, "the smaller of a and b",
                        minimum_real, minimum_integer,
                        .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_NO_KINK},
                        .tolerance = 2e-7);
