// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/softmax_shared.h"

static choir_status_t log_softmax_grad_infer(const choir_view_t* srcs,
                                             int32_t src_count,
                                             const void* attrs,
                                             choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__softmax_grad_infer("log_softmax_grad", srcs, &dsts[0]);
}

static choir_status_t log_softmax_grad_reference(const choir_record_t* record,
                                                 choir_stream_t* stream) {
  int64_t rows = choir__softmax_rows(choir_record_src(record, 0));
  int64_t classes = choir__softmax_classes(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t row = 0; row < rows; ++row) {
    const double* y = dense.srcs[0] + row * classes;
    const double* dy = dense.srcs[1] + row * classes;
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += dy[i];
    for (int64_t i = 0; i < classes; ++i)
      dense.dsts[0][row * classes + i] = dy[i] - exp(y[i]) * sum;
  }
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_log_softmax_grad = {
    .op = CHOIR_OP_LOG_SOFTMAX_GRAD,
    .name = "log_softmax_grad",
    .doc = "y, dy -> dx = dy - e^y sum of dy",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .infer = log_softmax_grad_infer,
    .reference = log_softmax_grad_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 1e-5,
    .cases = choir__softmax_grad_cases,
};
