// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double square_real(double x) { return x * x; }
static int64_t square_integer(int64_t x) {
  return (int64_t)((uint64_t)x * (uint64_t)x);
}

CHOIR_UNARY_NUMERIC_OP(SQUARE, square, "x * x", square_real, square_integer,
                       .tolerance = 2e-7);
