// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Within what a normal f32 can be, whatever the dtype.
CHOIR_UNARY_OP(UNIT_SCALE, unit_scale,
               "the power of two that brings |x| to [1, 2); 1 where none does",
               .tolerance = 0);
