// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

// Neither side overflows, and small results keep their digits.
CHOIR_PLAIN_UNARY_OP(SOFTPLUS, softplus, "log(1 + e^x)", CHOIR_DTYPES_FLOAT,
                     NULL, .tolerance = 2e-6);
