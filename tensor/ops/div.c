// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_BINARY_OP(DIV, div, "a / b",
                .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_NO_KINK},
                .tolerance = 2e-7);
