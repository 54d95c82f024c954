// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Within what a normal f32 can be, whatever the dtype.
static double unit_scale_real(double x) {
  if (x == 0 || !isfinite(x)) return 1;
  int exponent;
  (void)frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int power = 1 - exponent;
  return ldexp(1, power < -126 ? -126 : power > 127 ? 127 : power);
}

CHOIR_UNARY_OP(UNIT_SCALE, unit_scale,
               "the power of two that brings |x| to [1, 2); 1 where none does",
               unit_scale_real, .tolerance = 0);
