// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double neg_real(double x) { return -x; }
static int64_t neg_integer(int64_t x) { return (int64_t)(0 - (uint64_t)x); }

CHOIR_UNARY_NUMERIC_OP(NEG, neg, "-x", neg_real, neg_integer,
                       .tolerance = 2e-7);
