// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_GRADIENT_OP(TANH_GRAD, tanh_grad, "dx = dy * (1 - y^2)",
                  .tolerance = 1e-6);
