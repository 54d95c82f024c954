// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/batch_norm_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__BATCH_NORM_STRUCT_DEF("batch_norm_grad");

static choir_status_t batch_norm_grad_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  static const char* const names[] = {"x", "scale", "mean", "var"};
  const choir_view_t* x = &srcs[0];
  CHOIR_TRY(choir__batch_norm_check("batch_norm_grad", x, true));
  for (int32_t i = 1; i < 4; ++i) {
    CHOIR_TRY(
        choir__need_vector("batch_norm_grad", names[i], &srcs[i], x->shape[1]));
  }
  CHOIR_TRY(choir__need_same_shape("batch_norm_grad", "dy", &srcs[4], "x", x));
  CHOIR_TRY(choir__infer_like("batch_norm_grad", x, &dsts[0]));
  for (int32_t i = 1; i < 3; ++i) {
    CHOIR_TRY(choir__infer_shape("batch_norm_grad", x->dtype, 1, &x->shape[1],
                                 &dsts[i]));
  }
  return NULL;
}

static choir_status_t batch_norm_grad_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  choir__channels_t sizes = choir__channels_of(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t c = 0; c < sizes.channels; ++c) {
    choir__batch_norm_channel_grad(
        &sizes, c, dense.srcs[0], dense.srcs[4], dense.srcs[1][c],
        dense.srcs[2][c], 1 / sqrt(dense.srcs[3][c] + attrs->epsilon),
        dense.dsts[0], &dense.dsts[1][c], &dense.dsts[2][c]);
  }
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {
    {"4,3;3;3;3;4,3", "epsilon=0.001"},
    {"1,5;5;5;5;1,5", NULL},
    {"2,1;1;1;1;2,1", NULL},
    {"33,17;17;17;17;33,17", "epsilon=0.001"},
    {"16,8;8;8;8;16,8", NULL},
    {"100,2;2;2;2;100,2", NULL},
    {"7,33;33;33;33;7,33", "epsilon=0.001"},
    {"2,3,4;3;3;3;2,3,4", NULL},
    {"3,2,1;2;2;2;3,2,1", NULL},
    {"2,16,9;16;16;16;2,16,9", "epsilon=0.001"},
    {"5,1,7;1;1;1;5,1,7", NULL},
    {"4,3,7,5;3;3;3;4,3,7,5", NULL},
    {"2,20,6,6;20;20;20;2,20,6,6", "epsilon=0.001"},
    {"3,1,5,5;1;1;1;3,1,5,5", NULL},
    {"2,16,3,3;16;16;16;2,16,3,3", NULL},
    {"1,8,4,4;8;8;8;1,8,4,4", "epsilon=0.001"},
    {"2,33,2,3;33;33;33;2,33,2,3", NULL},
    {"1,3,9,1;3;3;3;1,3,9,1", NULL},
    {"1,4,1,1;4;4;4;1,4,1,1", "epsilon=0.001"},
    {"2,3,2,3,2;3;3;3;2,3,2,3,2", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_batch_norm_grad = {
    .op = CHOIR_OP_BATCH_NORM_GRAD,
    .name = "batch_norm_grad",
    .doc = "x, scale, mean, var, dy -> dx, dscale, dbias",
    .src_min = 5,
    .src_max = 5,
    .dst_count = 3,
    .infer = batch_norm_grad_infer,
    .reference = batch_norm_grad_reference,
    .attrs = &attrs_def,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_POSITIVE},
    .tolerance = 2e-5,
    .cases = cases,
};
