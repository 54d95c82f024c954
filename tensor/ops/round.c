// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

CHOIR_PLAIN_UNARY_OP(ROUND, round,
                     "the nearest integer, of two the one away from 0",
                     CHOIR_DTYPES_FLOAT, NULL, .tolerance = 0);
