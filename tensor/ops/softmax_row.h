// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_SOFTMAX_ROW_H_
#define CHOIR_TENSOR_OPS_SOFTMAX_ROW_H_

#include "tensor/ops/elements.h"

// One row of x: probabilities into p; returns the logarithm of the sum of
// e^(x - largest), so that log p[i] = (x[i] - largest) - result. The two are
// not added: next to a large x the logarithm would be rounded away. p and
// out_largest may be NULL.
double choir__softmax_row(const double* x, int64_t classes, double* p,
                          double* out_largest);

#endif  // CHOIR_TENSOR_OPS_SOFTMAX_ROW_H_
