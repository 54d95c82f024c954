// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t logical_not_integer(int64_t x, int64_t b) {
  (void)b;
  return x == 0;
}

CHOIR_PLAIN_UNARY_OP(LOGICAL_NOT, logical_not,
                     "1 where x is 0, else 0, in the dtype of x",
                     CHOIR_DTYPES_ALL, logical_not_integer,
                     .domains = {CHOIR_DOMAIN_CONDITION}, .tolerance = 0);
