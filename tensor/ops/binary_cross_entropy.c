// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/elements.h"

static choir_status_t binary_cross_entropy_infer(const choir_view_t* srcs,
                                                 int32_t src_count,
                                                 const void* attrs,
                                                 choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  CHOIR_TRY(choir__need_same_shape("binary_cross_entropy", "t", &srcs[1], "p",
                                   &srcs[0]));
  int64_t one = 1;
  return choir__infer_shape("binary_cross_entropy", srcs[0].dtype, 1, &one,
                            &dsts[0]);
}

// What never happens costs nothing, however unlikely it was said to be.
static double share(double t, double p) { return t == 0 ? 0 : t * log(p); }

static choir_status_t binary_cross_entropy_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const choir_view_t* src = choir_record_src(record, 0);
  const int64_t count = choir_view_count(src);
  const int64_t rows = src->ndim > 0 ? src->shape[0] : 1;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double p = dense.srcs[0][i], t = dense.srcs[1][i];
    sum -= share(t, p) + share(1 - t, 1 - p);
  }
  dense.dsts[0][0] = count > 0 ? sum / (double)rows : 0;
  return choir__dense_end(&dense, NULL);
}

static const choir_op_case_t cases[] = {
    {";", NULL},       {"1;1", NULL},
    {"7;7", NULL},     {"257;257", NULL},
    {"0;0", NULL},     {"3,5;3,5", NULL},
    {"2,0;2,0", NULL}, {"4,3,7,5;4,3,7,5", NULL},
    {NULL, NULL}};

CHOIR_OP_GRADIENT(binary_cross_entropy, BINARY_CROSS_ENTROPY_GRAD, 0, 1,
                  CHOIR_DY);
CHOIR_OP_DEFINE(BINARY_CROSS_ENTROPY, binary_cross_entropy, 2, 1,
                "p, t -> sum of -t log p - (1 - t) log(1 - p), by sample",
                .dtypes = CHOIR_DTYPES_FLOAT,
                .domains = {CHOIR_DOMAIN_SHARE, CHOIR_DOMAIN_SHARE},
                .tolerance = 5e-6, .cases = cases);
