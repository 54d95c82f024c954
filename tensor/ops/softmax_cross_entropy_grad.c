// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/labels.h"

static choir_status_t softmax_cross_entropy_grad_infer(const choir_view_t* srcs,
                                                       int32_t src_count,
                                                       const void* attrs,
                                                       choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(
      choir__need_labels("softmax_cross_entropy_grad", &srcs[0], &srcs[1]));
  CHOIR_TRY(
      choir__need_vector("softmax_cross_entropy_grad", "dy", &srcs[2], 1));
  return choir__infer_like("softmax_cross_entropy_grad", &srcs[0], &dsts[0]);
}

static choir_status_t grads(const choir_record_t* record,
                            choir__dense_t* dense) {
  int64_t rows = choir_record_src(record, 0)->shape[0];
  int64_t classes = choir_record_src(record, 0)->shape[1];
  double share = dense->srcs[2][0] / (double)rows;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t label;
    CHOIR_TRY(choir__label_load("softmax_cross_entropy_grad", record, row,
                                classes, &label));
    const double* p = dense->srcs[0] + row * classes;
    double* dx = dense->dsts[0] + row * classes;
    for (int64_t i = 0; i < classes; ++i)
      dx[i] = share * (p[i] - (i == label ? 1 : 0));
  }
  return NULL;
}

static choir_status_t softmax_cross_entropy_grad_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               CHOIR__SOURCE(0) | CHOIR__SOURCE(2), &dense));
  return choir__dense_end(&dense, grads(record, &dense));
}

const choir_op_def_t choir_op_def_softmax_cross_entropy_grad = {
    .op = CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD,
    .name = "softmax_cross_entropy_grad",
    .doc = "p, labels, dy -> dx = dy (p - one at the label) / rows",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .infer = softmax_cross_entropy_grad_infer,
    .reference = softmax_cross_entropy_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_LABEL,
    .domains = {CHOIR_DOMAIN_PROBABILITY, CHOIR_DOMAIN_LABELS},
    .tolerance = 2e-6,
    .cases = choir__labels_grad_cases,
};
