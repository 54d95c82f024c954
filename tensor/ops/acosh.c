// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ACOSH, acosh, "the number from 0 on whose cosh is x",
                     CHOIR_DTYPES_FLOAT, NULL,
                     .domains = {CHOIR_DOMAIN_ABOVE_ONE}, .tolerance = 2e-6);
