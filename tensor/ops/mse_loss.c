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
    {";", NULL},
    {"1;1", NULL},
    {"7;7", NULL},
    {"15;15", NULL},
    {"16;16", NULL},
    {"17;17", NULL},
    {"64;64", NULL},
    {"257;257", NULL},
    {"1025;1025", NULL},
    {"0;0", NULL},
    {"3,5;3,5", NULL},
    {"1,9;1,9", NULL},
    {"9,1;9,1", NULL},
    {"33,17;33,17", NULL},
    {"2,0,3;2,0,3", NULL},
    {"5,1,7;5,1,7", NULL},
    {"4,3,7,5;4,3,7,5", NULL},
    {"2,16,5,5;2,16,5,5", NULL},
    {"2,20,12,12;2,20,12,12", NULL},
    {"5,4,3,2,3;5,4,3,2,3", NULL},
    {"2,1,3,1,2,1,2,2;2,1,3,1,2,1,2,2", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_mse_loss = {
    .op = CHOIR_OP_MSE_LOSS,
    .name = "mse_loss",
    .doc = "x, t -> mean of (x - t)^2 over all elements (0 of none)",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .infer = mse_loss_infer,
    .reference = mse_loss_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 5e-6,
    .cases = cases,
};
