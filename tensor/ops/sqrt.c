// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_UNARY_OP(SQRT, sqrt, "square root of x",
               .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-7);
