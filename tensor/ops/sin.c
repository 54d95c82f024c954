// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(SIN, sin, "the sine of x radians", CHOIR_DTYPES_FLOAT,
                     NULL, .tolerance = 2e-6);
