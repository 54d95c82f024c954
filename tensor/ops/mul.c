// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t mul_integer(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}

CHOIR_BINARY_NUMERIC_OP(MUL, mul, "a * b", mul_integer, .tolerance = 2e-7);
