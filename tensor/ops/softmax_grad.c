// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/softmax_shared.h"

static choir_status_t softmax_grad_infer(const choir_view_t* srcs,
                                         int32_t src_count, const void* attrs,
                                         choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__softmax_grad_infer("softmax_grad", srcs, &dsts[0]);
}

static choir_status_t softmax_grad_reference(const choir_record_t* record,
                                             choir_stream_t* stream) {
  int64_t rows = choir__softmax_rows(choir_record_src(record, 0));
  int64_t classes = choir__softmax_classes(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t row = 0; row < rows; ++row) {
    const double* y = dense.srcs[0] + row * classes;
    const double* dy = dense.srcs[1] + row * classes;
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += y[i] * dy[i];
    for (int64_t i = 0; i < classes; ++i)
      dense.dsts[0][row * classes + i] = y[i] * (dy[i] - sum);
  }
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_softmax_grad = {
    .op = CHOIR_OP_SOFTMAX_GRAD,
    .name = "softmax_grad",
    .doc = "y, dy -> dx = y (dy - sum of y dy)",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .infer = softmax_grad_infer,
    .reference = softmax_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .domains = {CHOIR_DOMAIN_PROBABILITY},
    .tolerance = 5e-6,
    .cases = choir__softmax_grad_cases,
};
