// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t square_integer(int64_t x, int64_t b) {
  (void)b;
  return (int64_t)((uint64_t)x * (uint64_t)x);
}

CHOIR_UNARY_NUMERIC_OP(SQUARE, square, "x * x", square_integer,
                       .tolerance = 2e-7);
