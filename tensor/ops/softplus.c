// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Neither side overflows, and small results keep their digits.
static double softplus_real(double x) {
  return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

CHOIR_PLAIN_UNARY_OP(SOFTPLUS, softplus, "log(1 + e^x)", CHOIR_DTYPES_FLOAT,
                     softplus_real, NULL, .tolerance = 2e-6);
