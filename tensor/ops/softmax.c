// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/softmax_row.h"

#include <math.h>

// softmax and log_softmax along the last axis, and their gradients: each is a
// function of a row.

double choir__softmax_row(const double* x, int64_t classes, double* p,
                          double* out_largest) {
  double largest = -INFINITY;
  for (int64_t i = 0; i < classes; ++i) {
    if (x[i] > largest || x[i] != x[i]) largest = x[i];
  }
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) sum += exp(x[i] - largest);
  for (int64_t i = 0; p && i < classes; ++i) p[i] = exp(x[i] - largest) / sum;
  if (out_largest) *out_largest = largest;
  return log(sum);
}

// A row of x (`dy` is x again), or of y and dy.
typedef void (*row_fn_t)(const double* x, const double* dy, int64_t classes,
                         double* out);

static void softmax_row(const double* x, const double* dy, int64_t classes,
                        double* y) {
  (void)dy;
  choir__softmax_row(x, classes, y, NULL);
}

static void log_softmax_row(const double* x, const double* dy, int64_t classes,
                            double* y) {
  (void)dy;
  double largest;
  const double log_sum = choir__softmax_row(x, classes, NULL, &largest);
  for (int64_t i = 0; i < classes; ++i) y[i] = (x[i] - largest) - log_sum;
}

static void softmax_grad_row(const double* y, const double* dy, int64_t classes,
                             double* dx) {
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) sum += y[i] * dy[i];
  for (int64_t i = 0; i < classes; ++i) dx[i] = y[i] * (dy[i] - sum);
}

static void log_softmax_grad_row(const double* y, const double* dy,
                                 int64_t classes, double* dx) {
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) sum += dy[i];
  for (int64_t i = 0; i < classes; ++i) dx[i] = dy[i] - exp(y[i]) * sum;
}

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  if (srcs[0].ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "source 0 is a scalar; needs 1 or more dimensions");
  if (record->src_count > 1)
    CHOIR_TRY(choir__need_same_shape("dy", &srcs[1], "y", &srcs[0]));
  return choir__infer_like(&srcs[0], &dsts[0]);
}

static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          row_fn_t row) {
  const choir_view_t* x = choir_record_src(record, 0);
  const int64_t classes = x->shape[x->ndim - 1], count = choir_view_count(x);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  for (int64_t i = 0; i < count; i += classes)
    row(dense.srcs[0] + i, dense.srcs[record->src_count - 1] + i, classes,
        dense.dsts[0] + i);
  return choir__dense_end(&dense, NULL);
}

#define CASES(S)                                                       \
  {S("1"), NULL}, {S("7"), NULL}, {S("1,1"), NULL}, {S("1,10"), NULL}, \
      {S("2,2"), NULL}, {S("3,3"), NULL}, {S("7,3"), NULL},            \
      {S("16,10"), NULL}, {S("33,17"), NULL}, {S("5,8"), NULL},        \
      {S("5,9"), NULL}, {S("5,15"), NULL}, {S("5,16"), NULL},          \
      {S("4,31"), NULL}, {S("4,33"), NULL}, {S("5,100"), NULL},        \
      {S("3,1000"), NULL}, {S("64,10"), NULL}, {S("2,3,4"), NULL},     \
      {S("4,3,7,5"), NULL}, {S("0,10"), NULL}, {                       \
    NULL, NULL                                                         \
  }

#define ONE(shape) shape
#define TWO(shape) shape ";" shape
static const choir_op_case_t cases[] = {CASES(ONE)};
static const choir_op_case_t grad_cases[] = {CASES(TWO)};

static bool mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return record->operands[0].ndim == 1;
}

#define DEFINE(ENUM, id, sources, ...)                                     \
  static choir_status_t id##_reference(const choir_record_t* record,       \
                                       choir_stream_t* stream) {           \
    return run(record, stream, id##_row);                                  \
  }                                                                        \
  CHOIR_OP_DEFINE_BY(ENUM, id, sources, sources, 1, infer, id##_reference, \
                     __VA_ARGS__, .mixes_samples = mixes,                  \
                     .dtypes = CHOIR_DTYPES_FLOAT)

DEFINE(SOFTMAX, softmax, 1, "e^x / sum of e^x along the last axis",
       .tolerance = 2e-6, .cases = cases);
DEFINE(LOG_SOFTMAX, log_softmax, 1, "log of softmax along the last axis",
       .tolerance = 2e-6, .cases = cases);
DEFINE(SOFTMAX_GRAD, softmax_grad, 2, "y, dy -> dx = y (dy - sum of y dy)",
       .domains = {CHOIR_DOMAIN_PROBABILITY}, .tolerance = 5e-6,
       .cases = grad_cases);
DEFINE(LOG_SOFTMAX_GRAD, log_softmax_grad, 2,
       "y, dy -> dx = dy - e^y sum of dy", .tolerance = 1e-5,
       .cases = grad_cases);

CHOIR_OP_GRADIENT(softmax, SOFTMAX_GRAD, ~0, CHOIR_DY);
CHOIR_OP_GRADIENT(log_softmax, LOG_SOFTMAX_GRAD, ~0, CHOIR_DY);
