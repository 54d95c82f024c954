// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t not_equal_integer(int64_t a, int64_t b) { return a != b; }

CHOIR_PLAIN_BINARY_OP(NOT_EQUAL, not_equal,
                      "1 where a and b differ, else 0, in the dtype of a",
                      CHOIR__DTYPES_NUMERIC, not_equal_integer, .tolerance = 0);
