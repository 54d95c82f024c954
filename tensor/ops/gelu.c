// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, equation 1.
CHOIR_UNARY_OP(GELU, gelu, "x/2 (1 + erf(x / sqrt 2)), the exact form",
               .tolerance = 2e-6);
