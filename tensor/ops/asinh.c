// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ASINH, asinh, "the number whose sinh is x",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 2e-6);
