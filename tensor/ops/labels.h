// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_LABELS_H_
#define CHOIR_TENSOR_OPS_LABELS_H_

#include "tensor/ops/elements.h"

// Class labels: i32 or i64, one for each row of scores.

#define CHOIR__DTYPES_LABEL (CHOIR_DTYPE_MASK(I32) | CHOIR_DTYPE_MASK(I64))

// Fails unless scores are (n, classes) and labels (n).
choir_status_t choir__need_labels(const char* op, const choir_view_t* scores,
                                  const choir_view_t* labels);

// The label of one row of source 1; OUT_OF_RANGE with its place
// ("cross_entropy: label 12 at row 3; needs 0 .. 9") when it is no class.
choir_status_t choir__label_load(const char* op, const choir_record_t* record,
                                 int64_t row, int64_t classes,
                                 int64_t* out_label);

// Shapes of scores, labels, and of scores, labels, dy.
extern const choir_op_case_t choir__labels_cases[];
extern const choir_op_case_t choir__labels_grad_cases[];

#endif  // CHOIR_TENSOR_OPS_LABELS_H_
