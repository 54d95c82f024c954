// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/elements.h"

static choir_status_t binary_cross_entropy_grad_infer(const choir_view_t* srcs,
                                                      int32_t src_count,
                                                      const void* attrs,
                                                      choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  const char* op = "binary_cross_entropy_grad";
  CHOIR_TRY(choir__need_same_shape(op, "t", &srcs[1], "p", &srcs[0]));
  CHOIR_TRY(choir__need_vector(op, "dy", &srcs[2], 1));
  CHOIR_TRY(choir__infer_like(op, &srcs[0], &dsts[0]));
  return choir__infer_like(op, &srcs[1], &dsts[1]);
}

static double ratio(double t, double p) { return t == 0 ? 0 : t / p; }

static choir_status_t binary_cross_entropy_grad_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const choir_view_t* src = choir_record_src(record, 0);
  const int64_t count = choir_view_count(src);
  const int64_t rows = src->ndim > 0 ? src->shape[0] : 1;
  const double dy = dense.srcs[2][0];
  for (int64_t i = 0; i < count; ++i) {
    const double p = dense.srcs[0][i], t = dense.srcs[1][i];
    dense.dsts[0][i] = dy / (double)rows * (ratio(1 - t, 1 - p) - ratio(t, p));
    dense.dsts[1][i] = dy / (double)rows * (log(1 - p) - log(p));
  }
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {{";;1", NULL},
                                        {"1;1;1", NULL},
                                        {"7;7;1", NULL},
                                        {"257;257;1", NULL},
                                        {"3,5;3,5;1", NULL},
                                        {"2,0;2,0;1", NULL},
                                        {"4,3,7,5;4,3,7,5;1", NULL},
                                        {NULL, NULL}};

CHOIR_OP_DEFINE(BINARY_CROSS_ENTROPY_GRAD, binary_cross_entropy_grad, 3, 2,
                "p, t, dy -> dp, dt", .dtypes = CHOIR_DTYPES_FLOAT,
                .domains = {CHOIR_DOMAIN_SHARE, CHOIR_DOMAIN_SHARE},
                .tolerance = 5e-6, .cases = cases);
