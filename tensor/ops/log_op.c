// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_UNARY_OP(LOG, log, "natural logarithm of x",
               .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-6);
