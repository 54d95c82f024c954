// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_GRADIENT_OP(SIGMOID_GRAD, sigmoid_grad, "dx = dy * y * (1 - y)",
                  .tolerance = 1e-6);
