// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double sigmoid_real(double x) { return 1 / (1 + exp(-x)); }

CHOIR_UNARY_OP(SIGMOID, sigmoid, "1 / (1 + e^-x)", sigmoid_real,
               .tolerance = 2e-6);
