// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double exp_real(double x) { return exp(x); }

CHOIR_UNARY_OP(EXP, exp, "e to the power x", exp_real, .tolerance = 2e-6);
