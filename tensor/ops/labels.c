// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/indices.h"
#include "tensor/ops/reduce.h"
#include "tensor/ops/softmax_row.h"

// Ops of scores (n, classes) and labels (n), i32 or i64.

// Fails unless they are that.
static choir_status_t need_labels(const choir_view_t* scores,
                                  const choir_view_t* labels) {
  CHOIR_TRY(choir__need_ndim("source 0", scores, 2));
  return choir__need_vector("labels", labels, scores->shape[0]);
}

#define CASES(S)                                                          \
  {S("1,1;1"), NULL}, {S("1,2;1"), NULL}, {S("1,10;1"), NULL},            \
      {S("2,2;2"), NULL}, {S("3,3;3"), NULL}, {S("4,8;4"), NULL},         \
      {S("5,9;5"), NULL}, {S("7,3;7"), NULL}, {S("6,15;6"), NULL},        \
      {S("6,16;6"), NULL}, {S("6,17;6"), NULL}, {S("16,10;16"), NULL},    \
      {S("33,17;33"), NULL}, {S("3,31;3"), NULL}, {S("3,33;3"), NULL},    \
      {S("5,100;5"), NULL}, {S("64,10;64"), NULL}, {S("3,1000;3"), NULL}, \
      {S("13,7;13"), NULL}, {S("0,10;0"), NULL}, {                        \
    NULL, NULL                                                            \
  }

#define PLAIN(shapes) shapes
#define WITH_DY(shapes) shapes ";1"
static const choir_op_case_t cases[] = {CASES(PLAIN)};
static const choir_op_case_t grad_cases[] = {CASES(WITH_DY)};

// ---- Cross entropies: the mean loss of the rows (0 of no rows), and its
// gradient from source 2, dy ----

// Returns the loss of a row of x. out: that row of p, if the op gives it, or of
// dx.
typedef double (*row_fn_t)(const double* x, int64_t classes, int64_t label,
                           double dy, double rows, double* out);

static double cross_entropy_row(const double* x, int64_t classes, int64_t label,
                                double dy, double rows, double* out) {
  (void)classes, (void)dy, (void)rows, (void)out;
  return -log(x[label]);
}

static double cross_entropy_grad_row(const double* x, int64_t classes,
                                     int64_t label, double dy, double rows,
                                     double* dx) {
  (void)classes;
  dx[label] = -dy / (rows * x[label]);
  return 0;
}

static double softmax_cross_entropy_row(const double* x, int64_t classes,
                                        int64_t label, double dy, double rows,
                                        double* p) {
  (void)dy, (void)rows;
  double largest;
  const double log_sum = choir__softmax_row(x, classes, p, &largest);
  return log_sum + (largest - x[label]);
}

static double softmax_cross_entropy_grad_row(const double* p, int64_t classes,
                                             int64_t label, double dy,
                                             double rows, double* dx) {
  for (int64_t i = 0; i < classes; ++i)
    dx[i] = dy / rows * (p[i] - (i == label ? 1 : 0));
  return 0;
}

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const int64_t one = 1;
  CHOIR_TRY(need_labels(&srcs[0], &srcs[1]));
  if (record->src_count > 2) {
    CHOIR_TRY(choir__need_vector("dy", &srcs[2], 1));
    return choir__infer_like(&srcs[0], &dsts[0]);
  }
  CHOIR_TRY(choir__infer_shape(srcs[0].dtype, 1, &one, &dsts[0]));
  return record->dst_count > 1 ? choir__infer_like(&srcs[0], &dsts[1]) : NULL;
}

static choir_status_t run_rows(const char* op, const choir_record_t* record,
                               row_fn_t row_fn, choir__dense_t* dense) {
  const choir_view_t* x = choir_record_src(record, 0);
  const bool is_grad = record->src_count > 2;
  const int64_t rows = x->shape[0], classes = x->shape[1];
  const double dy = is_grad ? dense->srcs[2][0] : 0;
  // Rows of results, if there are any: the last of them.
  double* out = dense->dsts[record->dst_count - 1];
  const int64_t out_step = is_grad || record->dst_count > 1 ? classes : 0;
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t label;
    CHOIR_TRY(choir__label_load(op, record, row, classes, &label));
    sum += row_fn(dense->srcs[0] + row * classes, classes, label, dy,
                  (double)rows, out + row * out_step);
  }
  if (!is_grad) dense->dsts[0][0] = rows > 0 ? sum / (double)rows : 0;
  return NULL;
}

static choir_status_t run(const char* op, const choir_record_t* record,
                          choir_stream_t* stream, row_fn_t row_fn) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, ~CHOIR__SOURCE(1), &dense));
  return choir__dense_end(&dense, run_rows(op, record, row_fn, &dense));
}

#define DEFINE(ENUM, id, sources, results, domain, cases_, doc_)              \
  static choir_status_t id##_reference(const choir_record_t* record,          \
                                       choir_stream_t* stream) {              \
    return run(#id, record, stream, id##_row);                                \
  }                                                                           \
  CHOIR_OP_DEFINE_BY(ENUM, id, sources, sources, results, infer,              \
                     id##_reference, doc_, .dtypes = CHOIR_DTYPES_FLOAT,      \
                     .second_dtypes = CHOIR__DTYPES_INDEX, .is_wide = true,   \
                     .domains = {CHOIR_DOMAIN_##domain, CHOIR_DOMAIN_LABELS}, \
                     .tolerance = 2e-6, .cases = cases_)

CHOIR_OP_GRADIENT(cross_entropy, CROSS_ENTROPY_GRAD, 0, 1, CHOIR_DY);
CHOIR_OP_GRADIENT(softmax_cross_entropy, SOFTMAX_CROSS_ENTROPY_GRAD, ~1, 1,
                  CHOIR_DY);
DEFINE(CROSS_ENTROPY, cross_entropy, 2, 1, PROBABILITY, cases,
       "p, labels -> mean of -log p[label] (0 of no rows)");
DEFINE(CROSS_ENTROPY_GRAD, cross_entropy_grad, 3, 1, PROBABILITY, grad_cases,
       "p, labels, dy -> dp = -dy / (rows p) at the label, else 0");
DEFINE(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy, 2, 2, ANY, cases,
       "x, labels -> mean of -log softmax(x)[label] (0 of no rows), p");
DEFINE(SOFTMAX_CROSS_ENTROPY_GRAD, softmax_cross_entropy_grad, 3, 1,
       PROBABILITY, grad_cases,
       "p, labels, dy -> dx = dy (p - one at the label) / rows");

// ---- count_correct ----

static choir_status_t count_correct_infer(const choir_record_t* record,
                                          choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(need_labels(&srcs[0], &srcs[1]));
  if (srcs[0].shape[1] == 0 && srcs[0].shape[0] > 0)
    return CHOIR_ERROR(INVALID_ARGUMENT, "x has 0 classes; needs at least 1");
  int64_t one = 1;
  return choir__infer_shape(CHOIR_DTYPE_I64, 1, &one, &dsts[0]);
}

static choir_status_t count_correct_reference(const choir_record_t* record,
                                              choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  int64_t correct = 0;
  int64_t row = 0;
  choir__lanes_t lanes;
  for (bool more = choir__lanes_start(&lanes, x, 1); more;
       more = choir__lanes_next(&lanes), ++row) {
    int64_t label, place, offset;
    CHOIR_TRY(
        choir__label_load("count_correct", record, row, x->shape[1], &label));
    choir__lane_maximum(&lanes.lane, choir__src_data(record, 0), &place,
                        &offset);
    if (place == label) ++correct;
  }
  choir__integer_store(choir__dst_data(record, 0), dst->dtype, dst->offset,
                       correct, record->accumulate);
  return NULL;
}

CHOIR_OP_DEFINE(COUNT_CORRECT, count_correct, 2, 1,
                "x, labels -> rows whose first maximum is the label, as i64",
                .dtypes = CHOIR_DTYPES_FLOAT,
                .second_dtypes = CHOIR__DTYPES_INDEX,
                .domains = {CHOIR_DOMAIN_NO_KINK, CHOIR_DOMAIN_LABELS},
                .tolerance = 0, .cases = cases);
