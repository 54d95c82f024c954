// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t less_equal_integer(int64_t a, int64_t b) { return a <= b; }

CHOIR_PLAIN_BINARY_OP(LESS_EQUAL, less_equal,
                      "1 where a <= b, else 0, in the dtype of a",
                      CHOIR__DTYPES_NUMERIC, less_equal_integer,
                      .tolerance = 0);
