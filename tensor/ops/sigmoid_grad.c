// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static double sigmoid_grad_real(double y, double dy) {
  return dy * y * (1 - y);
}

CHOIR_GRADIENT_OP(SIGMOID_GRAD, sigmoid_grad, "dx = dy * y * (1 - y)",
                  sigmoid_grad_real, .tolerance = 1e-6);
