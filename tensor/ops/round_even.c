// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// In the usual rounding mode.
CHOIR_PLAIN_UNARY_OP(ROUND_EVEN, round_even,
                     "the nearest integer, of two the even one",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 0);
