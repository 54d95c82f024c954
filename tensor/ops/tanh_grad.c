// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double tanh_grad_real(double y, double dy) { return dy * (1 - y * y); }

CHOIR_GRADIENT_OP(TANH_GRAD, tanh_grad, "dx = dy * (1 - y^2)", tanh_grad_real,
                  .tolerance = 1e-6);
