// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

static choir_status_t mse_loss_infer(const choir_view_t* srcs,
                                     int32_t src_count, const void* attrs,
                                     choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(choir__need_same_shape("mse_loss", "t", &srcs[1], "x", &srcs[0]));
  int64_t one = 1;
  return choir__infer_shape("mse_loss", srcs[0].dtype, 1, &one, &dsts[0]);
}

static choir_status_t mse_loss_reference(const choir_record_t* record,
                                         choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  int64_t count = choir_view_count(choir_record_src(record, 0));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    double difference = dense.srcs[0][i] - dense.srcs[1][i];
    sum += difference * difference;
  }
  dense.dsts[0][0] = count > 0 ? sum / (double)count : 0;
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {
    CHOIR__CASES(CHOIR__TWICE, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    {NULL, NULL}};

CHOIR_OP_DEFINE(MSE_LOSS, mse_loss, 2, 1,
                "x, t -> mean of (x - t)^2 over all elements (0 of none)",
                .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 5e-6,
                .cases = cases);
