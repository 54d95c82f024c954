// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_BINARY_OP(PRELU, prelu, "x above 0, else slope x",
                      CHOIR_DTYPES_FLOAT, NULL,
                      .domains = {CHOIR_DOMAIN_NO_KINK}, .tolerance = 2e-7);
