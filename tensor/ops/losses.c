// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/elements.h"

// Losses of two tensors of one shape: one number, or of its gradient (from
// source 2, dy) the sources' gradients.

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const int64_t one = 1;
  CHOIR_TRY(choir__need_same_shape("t", &srcs[1], "source 0", &srcs[0]));
  if (record->src_count == 2)
    return choir__infer_shape(srcs[0].dtype, 1, &one, &dsts[0]);
  CHOIR_TRY(choir__need_vector("dy", &srcs[2], 1));
  CHOIR_TRY(choir__infer_like(&srcs[0], &dsts[0]));
  return choir__infer_like(&srcs[1], &dsts[1]);
}

static choir_status_t mse_loss_reference(const choir_record_t* record,
                                         choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const int64_t count = choir_view_count(choir_record_src(record, 0));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = dense.srcs[0][i] - dense.srcs[1][i];
    sum += difference * difference;
  }
  dense.dsts[0][0] = count > 0 ? sum / (double)count : 0;
  return choir__dense_end(&dense, NULL);
}

// What never happens costs nothing, however unlikely it was said to be.
static double share(double t, double p) { return t == 0 ? 0 : t * log(p); }
static double ratio(double t, double p) { return t == 0 ? 0 : t / p; }

static choir_status_t binary_cross_entropy_reference(
    const choir_record_t* record, choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const choir_view_t* src = choir_record_src(record, 0);
  const int64_t count = choir_view_count(src);
  const int64_t rows = src->ndim > 0 ? src->shape[0] : 1;
  const bool is_grad = record->src_count > 2;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double p = dense.srcs[0][i], t = dense.srcs[1][i];
    if (is_grad) {
      const double dy = dense.srcs[2][0] / (double)rows;
      dense.dsts[0][i] = dy * (ratio(1 - t, 1 - p) - ratio(t, p));
      dense.dsts[1][i] = dy * (log(1 - p) - log(p));
    } else {
      sum -= share(t, p) + share(1 - t, 1 - p);
    }
  }
  if (!is_grad) dense.dsts[0][0] = count > 0 ? sum / (double)rows : 0;
  return choir__dense_end(&dense, NULL);
}

#define WITH_DY(shape) CHOIR__TWICE(shape) ";1"
static const choir_op_case_t cases[] = {
    CHOIR__CASES(CHOIR__TWICE, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    {CHOIR__TWICE("2,0"), NULL},
    {NULL, NULL}};
static const choir_op_case_t grad_cases[] = {
    CHOIR__CASES(WITH_DY, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    {WITH_DY("2,0"), NULL},
    {NULL, NULL}};

#define DEFINE(ENUM, id, sources, results, reference, ...)                  \
  CHOIR_OP_DEFINE_BY(ENUM, id, sources, sources, results, infer, reference, \
                     __VA_ARGS__, .dtypes = CHOIR_DTYPES_FLOAT,             \
                     .tolerance = 5e-6)
#define SHARES .domains = {CHOIR_DOMAIN_SHARE, CHOIR_DOMAIN_SHARE}

DEFINE(MSE_LOSS, mse_loss, 2, 1, mse_loss_reference,
       "x, t -> mean of (x - t)^2 over all elements (0 of none)",
       .is_wide = true, .cases = cases);
DEFINE(BINARY_CROSS_ENTROPY, binary_cross_entropy, 2, 1,
       binary_cross_entropy_reference,
       "p, t -> sum of -t log p - (1 - t) log(1 - p), by sample", SHARES,
       .is_wide = true, .cases = cases);
DEFINE(BINARY_CROSS_ENTROPY_GRAD, binary_cross_entropy_grad, 3, 2,
       binary_cross_entropy_reference, "p, t, dy -> dp, dt", SHARES,
       .cases = grad_cases);
CHOIR_OP_GRADIENT(binary_cross_entropy, BINARY_CROSS_ENTROPY_GRAD, 0, 1,
                  CHOIR_DY);
