// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_UNARY_OP(SIGMOID, sigmoid, "1 / (1 + e^-x)", .tolerance = 2e-6);
