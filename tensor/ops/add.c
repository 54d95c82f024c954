// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double add_real(double a, double b) { return a + b; }
static int64_t add_integer(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a + (uint64_t)b);
}

CHOIR_BINARY_NUMERIC_OP(ADD, add, "a + b", add_real, add_integer,
                        .tolerance = 2e-7);
