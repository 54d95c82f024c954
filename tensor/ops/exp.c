// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_UNARY_OP(EXP, exp, "e to the power x", .tolerance = 2e-6);
