// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(FLOOR, floor, "the next integer below or at x",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 0);
