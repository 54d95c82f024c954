// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/labels.h"

static choir_status_t cross_entropy_grad_infer(const choir_view_t* srcs,
                                               int32_t src_count,
                                               const void* attrs,
                                               choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(choir__need_labels("cross_entropy_grad", &srcs[0], &srcs[1]));
  CHOIR_TRY(choir__need_vector("cross_entropy_grad", "dy", &srcs[2], 1));
  return choir__infer_like("cross_entropy_grad", &srcs[0], &dsts[0]);
}

static choir_status_t grads(const choir_record_t* record,
                            choir__dense_t* dense) {
  int64_t rows = choir_record_src(record, 0)->shape[0];
  int64_t classes = choir_record_src(record, 0)->shape[1];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t label;
    CHOIR_TRY(
        choir__label_load("cross_entropy_grad", record, row, classes, &label));
    int64_t place = row * classes + label;
    dense->dsts[0][place] =
        -dense->srcs[2][0] / ((double)rows * dense->srcs[0][place]);
  }
  return NULL;
}

static choir_status_t cross_entropy_grad_reference(const choir_record_t* record,
                                                   choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               CHOIR__SOURCE(0) | CHOIR__SOURCE(2), &dense));
  return choir__dense_end(&dense, grads(record, &dense));
}

const choir_op_def_t choir_op_def_cross_entropy_grad = {
    .op = CHOIR_OP_CROSS_ENTROPY_GRAD,
    .name = "cross_entropy_grad",
    .doc = "p, labels, dy -> dp = -dy / (rows p) at the label, else 0",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .infer = cross_entropy_grad_infer,
    .reference = cross_entropy_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_LABEL,
    .domains = {CHOIR_DOMAIN_PROBABILITY, CHOIR_DOMAIN_LABELS},
    .tolerance = 2e-6,
    .cases = choir__labels_grad_cases,
};
