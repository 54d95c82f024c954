// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t logical_or_integer(int64_t a, int64_t b) {
  return a != 0 || b != 0;
}

CHOIR_PLAIN_BINARY_OP(LOGICAL_OR, logical_or,
                      "1 where a or b is not 0, else 0, in the dtype of a",
                      CHOIR_DTYPES_ALL, logical_or_integer,
                      .domains = {CHOIR_DOMAIN_CONDITION,
                                  CHOIR_DOMAIN_CONDITION},
                      .tolerance = 0);
