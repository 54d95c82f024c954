// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(TAN, tan, "the tangent of x radians", CHOIR_DTYPES_FLOAT,
                     NULL, .domains = {CHOIR_DOMAIN_UNIT}, .tolerance = 2e-6);
