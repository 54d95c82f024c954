// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_BINARY_OP(POW, pow, "a to the power b", CHOIR_DTYPES_FLOAT, NULL,
                      .domains = {CHOIR_DOMAIN_POSITIVE}, .tolerance = 2e-6);
