// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t sign_integer(int64_t x, int64_t b) {
  (void)b;
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

// A NaN stays one.
CHOIR_PLAIN_UNARY_OP(SIGN, sign, "-1, 0 or 1", CHOIR__DTYPES_NUMERIC,
                     sign_integer, .domains = {CHOIR_DOMAIN_NO_KINK},
                     .tolerance = 0);
