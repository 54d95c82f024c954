// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double tanh_real(double x) { return tanh(x); }

CHOIR_UNARY_OP(TANH, tanh, "hyperbolic tangent of x", tanh_real,
               .tolerance = 2e-6);
