// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double logical_not_real(double x) { return x == 0; }
static int64_t logical_not_integer(int64_t x) { return x == 0; }

CHOIR_PLAIN_UNARY_OP(LOGICAL_NOT, logical_not,
                     "1 where x is 0, else 0, in the dtype of x",
                     CHOIR_DTYPES_ALL, logical_not_real, logical_not_integer,
                     .domains = {CHOIR_DOMAIN_CONDITION}, .tolerance = 0);
