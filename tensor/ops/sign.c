// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// A NaN stays one.
static double sign_real(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static int64_t sign_integer(int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

CHOIR_PLAIN_UNARY_OP(SIGN, sign, "-1, 0 or 1", CHOIR__DTYPES_NUMERIC, sign_real,
                     sign_integer, .domains = {CHOIR_DOMAIN_NO_KINK},
                     .tolerance = 0);
