// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t abs_integer(int64_t x, int64_t b) {
  (void)b;
  return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}

CHOIR_UNARY_NUMERIC_OP(ABS, abs, "|x|", abs_integer,
                       .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
