// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/labels.h"
#include "tensor/ops/softmax_shared.h"

static choir_status_t softmax_cross_entropy_infer(const choir_view_t* srcs,
                                                  int32_t src_count,
                                                  const void* attrs,
                                                  choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(choir__need_labels("softmax_cross_entropy", &srcs[0], &srcs[1]));
  int64_t one = 1;
  CHOIR_TRY(choir__infer_shape("softmax_cross_entropy", srcs[0].dtype, 1, &one,
                               &dsts[0]));
  return choir__infer_like("softmax_cross_entropy", &srcs[0], &dsts[1]);
}

static choir_status_t losses(const choir_record_t* record,
                             choir__dense_t* dense) {
  int64_t rows = choir_record_src(record, 0)->shape[0];
  int64_t classes = choir_record_src(record, 0)->shape[1];
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t label;
    CHOIR_TRY(choir__label_load("softmax_cross_entropy", record, row, classes,
                                &label));
    const double* x = dense->srcs[0] + row * classes;
    double largest;
    const double log_sum = choir__softmax_row(
        x, classes, dense->dsts[1] + row * classes, &largest);
    sum += log_sum + (largest - x[label]);
  }
  dense->dsts[0][0] = rows > 0 ? sum / (double)rows : 0;
  return NULL;
}

static choir_status_t softmax_cross_entropy_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__SOURCE(0), &dense));
  return choir__dense_end(&dense, losses(record, &dense));
}

const choir_op_def_t choir_op_def_softmax_cross_entropy = {
    .op = CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
    .name = "softmax_cross_entropy",
    .doc = "x, labels -> mean of -log softmax(x)[label] (0 of no rows), p",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 2,
    .infer = softmax_cross_entropy_infer,
    .reference = softmax_cross_entropy_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_LABEL,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_LABELS},
    .tolerance = 2e-6,
    .cases = choir__labels_cases,
};
