// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, equation 1.
static double gelu_real(double x) {
  return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
}

CHOIR_UNARY_OP(GELU, gelu, "x/2 (1 + erf(x / sqrt 2)), the exact form",
               gelu_real, .tolerance = 2e-6);
