// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ERF, erf,
                     "2 / sqrt(pi) times the integral of e^-t^2 from 0 to x",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 2e-6);
