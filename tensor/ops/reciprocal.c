// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(RECIPROCAL, reciprocal, "1 / x", CHOIR_DTYPES_FLOAT, NULL,
                     .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
