// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double div_real(double a, double b) { return a / b; }

CHOIR_BINARY_OP(DIV, div, "a / b", div_real,
                .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_NO_KINK},
                .tolerance = 2e-7);
