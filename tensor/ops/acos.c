// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ACOS, acos, "the angle between 0 and pi whose cosine is x",
                     CHOIR_DTYPES_FLOAT, NULL, .domains = {CHOIR_DOMAIN_UNIT},
                     .tolerance = 2e-6);
