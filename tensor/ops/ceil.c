// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(CEIL, ceil, "the next integer above or at x",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 0);
