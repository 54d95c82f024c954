// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ATAN, atan,
                     "the angle between -pi/2 and pi/2 whose tangent is x",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 2e-6);
