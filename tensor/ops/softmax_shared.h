// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_SOFTMAX_SHARED_H_
#define CHOIR_TENSOR_OPS_SOFTMAX_SHARED_H_

#include "tensor/ops/elements.h"

// What the ops around softmax share.

// One row of x: probabilities into p; returns the logarithm of the sum of
// e^(x - largest), so that log p[i] = (x[i] - largest) - result. The two are
// not added: next to a large x the logarithm would be rounded away. p and
// out_largest may be NULL.
double choir__softmax_row(const double* x, int64_t classes, double* p,
                          double* out_largest);

// y = shape of x, which has at least one dimension.
choir_status_t choir__softmax_infer(const char* op, const choir_view_t* x,
                                    choir_view_t* y);
// The same for y, dy -> dx.
choir_status_t choir__softmax_grad_infer(const char* op,
                                         const choir_view_t* srcs,
                                         choir_view_t* dx);
// Elements along the last axis, and how many such rows.
int64_t choir__softmax_classes(const choir_view_t* x);
int64_t choir__softmax_rows(const choir_view_t* x);

extern const choir_op_case_t choir__softmax_cases[];
extern const choir_op_case_t choir__softmax_grad_cases[];

#endif  // CHOIR_TENSOR_OPS_SOFTMAX_SHARED_H_
