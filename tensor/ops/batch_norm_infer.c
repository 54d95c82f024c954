// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/batch_norm_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__BATCH_NORM_STRUCT_DEF("batch_norm_infer");

static choir_status_t batch_norm_infer_infer(const choir_view_t* srcs,
                                             int32_t src_count,
                                             const void* attrs,
                                             choir_view_t* dsts) {
  (void)attrs;
  static const char* const names[] = {"x", "scale", "bias", "mean", "var"};
  const choir_view_t* x = &srcs[0];
  CHOIR_TRY(choir__batch_norm_check("batch_norm_infer", x, false));
  for (int32_t i = 1; i < src_count; ++i) {
    CHOIR_TRY(choir__need_vector("batch_norm_infer", names[i], &srcs[i],
                                 x->shape[1]));
  }
  return choir__infer_like("batch_norm_infer", x, &dsts[0]);
}

static choir_status_t batch_norm_infer_reference(const choir_record_t* record,
                                                 choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  choir__channels_t sizes = choir__channels_of(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t c = 0; c < sizes.channels; ++c) {
    double factor = dense.srcs[1][c] / sqrt(dense.srcs[4][c] + attrs->epsilon);
    for (int64_t n = 0; n < sizes.batch; ++n) {
      for (int64_t i = 0; i < sizes.image; ++i) {
        int64_t place = choir__channel_place(&sizes, n, c, i);
        dense.dsts[0][place] =
            (dense.srcs[0][place] - dense.srcs[3][c]) * factor +
            dense.srcs[2][c];
      }
    }
  }
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {
    {"4,3;3;3;3;3", "epsilon=0.001"},
    {"1,5;5;5;5;5", NULL},
    {"2,1;1;1;1;1", NULL},
    {"33,17;17;17;17;17", "epsilon=0.001"},
    {"16,8;8;8;8;8", NULL},
    {"100,2;2;2;2;2", NULL},
    {"7,33;33;33;33;33", "epsilon=0.001"},
    {"2,3,4;3;3;3;3", NULL},
    {"3,2,1;2;2;2;2", NULL},
    {"2,16,9;16;16;16;16", "epsilon=0.001"},
    {"5,1,7;1;1;1;1", NULL},
    {"4,3,7,5;3;3;3;3", NULL},
    {"2,20,6,6;20;20;20;20", "epsilon=0.001"},
    {"3,1,5,5;1;1;1;1", NULL},
    {"2,16,3,3;16;16;16;16", NULL},
    {"1,8,4,4;8;8;8;8", "epsilon=0.001"},
    {"2,33,2,3;33;33;33;33", NULL},
    {"1,3,9,1;3;3;3;3", NULL},
    {"1,4,1,1;4;4;4;4", "epsilon=0.001"},
    {"2,3,2,3,2;3;3;3;3", NULL},
    // A rank that has run out of samples.
    {"0,3;3;3;3;3", NULL},
    {"0,3,4,4;3;3;3;3", "epsilon=0.001"},
    {"2,3,0;3;3;3;3", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_batch_norm_infer = {
    .op = CHOIR_OP_BATCH_NORM_INFER,
    .name = "batch_norm_infer",
    .doc = "x, scale, bias, mean, var -> normalised x",
    .src_min = 5,
    .src_max = 5,
    .dst_count = 1,
    .infer = batch_norm_infer_infer,
    .reference = batch_norm_infer_reference,
    .attrs = &attrs_def,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ANY,
                CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_POSITIVE},
    .tolerance = 1e-5,
    .cases = cases,
};
