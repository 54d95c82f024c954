// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t maximum_integer(int64_t a, int64_t b) { return a > b ? a : b; }

// A NaN on either side is the result.
CHOIR_BINARY_NUMERIC_OP(MAXIMUM, maximum, "the larger of a and b",
                        maximum_integer,
                        .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_NO_KINK},
                        .tolerance = 2e-7);
