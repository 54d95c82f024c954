// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/batch_norm_shared.h"

// relu_grad and batch_norm_grad in one, for a batch_norm_relu with a residual;
// y is its result. What reaches the residual is a result too. dy2 is a second
// gradient of y.

static const choir_struct_def_t attrs_def =
    CHOIR__BATCH_NORM_STRUCT_DEF("batch_norm_add_relu_grad");

static choir_status_t batch_norm_add_relu_grad_infer(const choir_view_t* srcs,
                                                     int32_t src_count,
                                                     const void* attrs,
                                                     choir_view_t* dsts) {
  (void)attrs;
  static const char* const names[] = {"x", "scale", "mean", "var",
                                      "y", "dy",    "dy2"};
  const char* name = "batch_norm_add_relu_grad";
  const choir_view_t* x = &srcs[0];
  CHOIR_TRY(choir__batch_norm_check(name, x, true));
  for (int32_t i = 1; i < 4; ++i)
    CHOIR_TRY(choir__need_vector(name, names[i], &srcs[i], x->shape[1]));
  for (int32_t i = 4; i < src_count && i < 7; ++i)
    CHOIR_TRY(choir__need_same_shape(name, names[i], &srcs[i], "x", x));
  CHOIR_TRY(choir__infer_like(name, x, &dsts[0]));
  for (int32_t i = 1; i < 3; ++i)
    CHOIR_TRY(choir__infer_shape(name, x->dtype, 1, &x->shape[1], &dsts[i]));
  return choir__infer_like(name, x, &dsts[3]);
}

static choir_status_t batch_norm_add_relu_grad_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  choir__channels_t sizes = choir__channels_of(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  double* g = dense.dsts[3];
  int64_t count = sizes.batch * sizes.channels * sizes.image;
  for (int64_t i = 0; i < count; ++i) {
    double dy = dense.srcs[5][i];
    if (record->src_count > 6) dy += dense.srcs[6][i];
    g[i] = dense.srcs[4][i] > 0 ? dy : 0;
  }
  for (int64_t c = 0; c < sizes.channels; ++c) {
    choir__batch_norm_channel_grad(
        &sizes, c, dense.srcs[0], g, dense.srcs[1][c], dense.srcs[2][c],
        1 / sqrt(dense.srcs[3][c] + attrs->epsilon), dense.dsts[0],
        &dense.dsts[1][c], &dense.dsts[2][c]);
  }
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {
    {"4,3;3;3;3;4,3;4,3", "epsilon=0.001"},
    {"1,5;5;5;5;1,5;1,5;1,5", NULL},
    {"2,1;1;1;1;2,1;2,1", NULL},
    {"33,17;17;17;17;33,17;33,17;33,17", "epsilon=0.001"},
    {"16,8;8;8;8;16,8;16,8", NULL},
    {"100,2;2;2;2;100,2;100,2;100,2", NULL},
    {"7,33;33;33;33;7,33;7,33", "epsilon=0.001"},
    {"2,3,4;3;3;3;2,3,4;2,3,4;2,3,4", NULL},
    {"3,2,1;2;2;2;3,2,1;3,2,1", NULL},
    {"2,16,9;16;16;16;2,16,9;2,16,9;2,16,9", "epsilon=0.001"},
    {"5,1,7;1;1;1;5,1,7;5,1,7", NULL},
    {"4,3,7,5;3;3;3;4,3,7,5;4,3,7,5;4,3,7,5", NULL},
    {"2,20,6,6;20;20;20;2,20,6,6;2,20,6,6", "epsilon=0.001"},
    {"3,1,5,5;1;1;1;3,1,5,5;3,1,5,5;3,1,5,5", NULL},
    {"2,16,3,3;16;16;16;2,16,3,3;2,16,3,3", NULL},
    {"1,8,4,4;8;8;8;1,8,4,4;1,8,4,4;1,8,4,4", "epsilon=0.001"},
    {"2,33,2,3;33;33;33;2,33,2,3;2,33,2,3", NULL},
    {"1,3,9,1;3;3;3;1,3,9,1;1,3,9,1;1,3,9,1", NULL},
    {"1,4,1,1;4;4;4;1,4,1,1;1,4,1,1", "epsilon=0.001"},
    {"2,3,2,3,2;3;3;3;2,3,2,3,2;2,3,2,3,2;2,3,2,3,2", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_batch_norm_add_relu_grad = {
    .op = CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD,
    .name = "batch_norm_add_relu_grad",
    .doc = "x, scale, mean, var, y, dy (, dy2) -> dx, dscale, dbias, dresidual",
    .src_min = 6,
    .src_max = 7,
    .dst_count = 4,
    .infer = batch_norm_add_relu_grad_infer,
    .reference = batch_norm_add_relu_grad_reference,
    .attrs = &attrs_def,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_POSITIVE},
    .tolerance = 2e-5,
    .cases = cases,
};
