// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/softmax_shared.h"

static choir_status_t softmax_infer(const choir_view_t* srcs, int32_t src_count,
                                    const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__softmax_infer("softmax", &srcs[0], &dsts[0]);
}

static choir_status_t softmax_reference(const choir_record_t* record,
                                        choir_stream_t* stream) {
  int64_t rows = choir__softmax_rows(choir_record_src(record, 0));
  int64_t classes = choir__softmax_classes(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t row = 0; row < rows; ++row)
    choir__softmax_row(dense.srcs[0] + row * classes, classes,
                       dense.dsts[0] + row * classes, NULL);
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_softmax = {
    .op = CHOIR_OP_SOFTMAX,
    .name = "softmax",
    .doc = "e^x / sum of e^x along the last axis",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .infer = softmax_infer,
    .reference = softmax_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-6,
    .cases = choir__softmax_cases,
};
