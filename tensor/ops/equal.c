// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static int64_t equal_integer(int64_t a, int64_t b) { return a == b; }

CHOIR_BINARY_NUMERIC_OP(EQUAL, equal,
                        "1 where a == b, else 0, in the dtype of a",
                        equal_integer, .tolerance = 0);
