// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(SINH, sinh, "(e^x - e^-x) / 2", CHOIR_DTYPES_FLOAT, NULL,
                     .tolerance = 2e-6);
