// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_UNARY_OP(TANH, tanh, "hyperbolic tangent of x", .tolerance = 2e-6);
