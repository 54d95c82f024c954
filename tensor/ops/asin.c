// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ASIN, asin,
                     "the angle between -pi/2 and pi/2 whose sine is x",
                     CHOIR_DTYPES_FLOAT, NULL, .domains = {CHOIR_DOMAIN_UNIT},
                     .tolerance = 2e-6);
