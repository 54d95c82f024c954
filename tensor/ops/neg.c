// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t neg_integer(int64_t x, int64_t b) {
  (void)b;
  return (int64_t)(0 - (uint64_t)x);
}

CHOIR_UNARY_NUMERIC_OP(NEG, neg, "-x", neg_integer, .tolerance = 2e-7);
