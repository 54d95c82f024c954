// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy and its gradient: the reference makes each logit when it
// is needed.
#include <math.h>

#include "tensor/ops/indices.h"

static const char doc[] =
    "x, labels, W -> mean of -log softmax(x W)[label] (0 of no rows), and the "
    "logarithm of each row's sum of e^logit";
static const choir_field_t fields[] = {
    CHOIR_FIELD_BOOL(choir_linear_cross_entropy_attrs_t, transpose, false,
                     "W is (c, d), a row for each class"),
};

static bool is_transposed(const choir_record_t* record) {
  return ((const choir_linear_cross_entropy_attrs_t*)record->attrs)->transpose;
}

static choir_status_t need_sources(const choir_record_t* record) {
  const choir_view_t* x = &record->operands[0];
  const choir_view_t* w = &record->operands[2];
  if (x->ndim < 2) CHOIR_TRY(choir__need_ndim("x", x, 2));
  CHOIR_TRY(choir__need_ndim("W", w, 2));
  const int64_t size = x->shape[x->ndim - 1];
  const int64_t rows = w->shape[is_transposed(record)];
  if (size != rows)
    return CHOIR_ERROR(
        INVALID_ARGUMENT, "x has %lld features; W (%s) needs %lld",
        (long long)size,
        is_transposed(record) ? "classes, features" : "features, classes",
        (long long)rows);
  choir_view_t leading = *x;
  --leading.ndim;
  return choir__need_same_shape("labels", &record->operands[1],
                                "x without its last dimension", &leading);
}

static choir_status_t linear_cross_entropy_infer(const choir_record_t* record,
                                                 choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const int64_t one = 1;
  CHOIR_TRY(need_sources(record));
  CHOIR_TRY(choir__infer_shape(srcs[0].dtype, 1, &one, &dsts[0]));
  return choir__infer_shape(srcs[0].dtype, srcs[1].ndim, srcs[1].shape,
                            &dsts[1]);
}

static choir_status_t linear_cross_entropy_grad_infer(
    const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(need_sources(record));
  CHOIR_TRY(choir__need_same_shape("sums", &srcs[3], "labels", &srcs[1]));
  CHOIR_TRY(choir__need_vector("dy", &srcs[4], 1));
  CHOIR_TRY(choir__infer_like(&srcs[0], &dsts[0]));
  return choir__infer_like(&srcs[2], &dsts[1]);
}

// Sizes, and where element (i, j) of W (d, c) is: i * along + j * across.
typedef struct sizes_s {
  int64_t rows, features, classes;
  int64_t along, across;
} sizes_t;

static sizes_t sizes_of(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* w = choir_record_src(record, 2);
  const bool transposed = is_transposed(record);
  const int64_t features = x->shape[x->ndim - 1];
  const int64_t classes = w->shape[!transposed];
  return (sizes_t){.rows = choir_view_count(choir_record_src(record, 1)),
                   .features = features,
                   .classes = classes,
                   .along = transposed ? 1 : classes,
                   .across = transposed ? features : 1};
}

static double logit_of(const sizes_t* s, const choir__dense_t* dense,
                       int64_t row, int64_t column) {
  const double* x = dense->srcs[0] + row * s->features;
  double sum = 0;
  for (int64_t i = 0; i < s->features; ++i)
    sum += x[i] * dense->srcs[2][i * s->along + column * s->across];
  return sum;
}

static void forward_row(const sizes_t* s, const choir__dense_t* dense,
                        int64_t row, int64_t label) {
  double largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < s->classes; ++j) {
    const double logit = logit_of(s, dense, row, j);
    if (logit > largest || isnan(logit)) largest = logit;
  }
  for (int64_t j = 0; j < s->classes; ++j)
    sum += exp(logit_of(s, dense, row, j) - largest);
  const double loss = log(sum) + (largest - logit_of(s, dense, row, label));
  dense->dsts[0][0] += loss / (double)s->rows;
  dense->dsts[1][row] = largest + log(sum);
}

// dl = dy / rows (softmax - one at the label), dx = dl W^T, dW += x^T dl.
static void backward_row(const sizes_t* s, const choir__dense_t* dense,
                         int64_t row, int64_t label) {
  const double* x = dense->srcs[0] + row * s->features;
  double* dx = dense->dsts[0] + row * s->features;
  const double factor = dense->srcs[4][0] / (double)s->rows;
  for (int64_t j = 0; j < s->classes; ++j) {
    const double p = exp(logit_of(s, dense, row, j) - dense->srcs[3][row]);
    const double dl = factor * (p - (j == label ? 1 : 0));
    for (int64_t i = 0; i < s->features; ++i) {
      const int64_t at = i * s->along + j * s->across;
      dx[i] += dl * dense->srcs[2][at];
      dense->dsts[1][at] += x[i] * dl;
    }
  }
}

static choir_status_t run_rows(const char* op, const choir_record_t* record,
                               const choir__dense_t* dense) {
  const sizes_t s = sizes_of(record);
  for (int64_t row = 0; row < s.rows; ++row) {
    int64_t label;
    CHOIR_TRY(choir__label_load(op, record, row, s.classes, &label));
    (record->src_count > 3 ? backward_row : forward_row)(&s, dense, row, label);
  }
  return NULL;
}

static choir_status_t run(const char* op, const choir_record_t* record,
                          choir_stream_t* stream) {
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, ~CHOIR__SOURCE(1), &dense));
  return choir__dense_end(&dense, run_rows(op, record, &dense));
}

// A product forward, three backward.
static void cost(const choir_record_t* record, choir_cost_t* out_cost) {
  const sizes_t s = sizes_of(record);
  choir__cost_bytes(record, out_cost);
  out_cost->flops = (record->src_count > 3 ? 6.0 : 2.0) * (double)s.rows *
                    (double)s.features * (double)s.classes;
}

// S(rows, x, W), near 0: large logits are rounded before the softmax takes
// their differences. The suites' labels are below x's last size, so W has as
// many classes or more here.
#define T "transpose=1"
#define CASES(S)                                                               \
  {S("1", "1,1", "1,1"), NULL}, {S("2", "2,1", "1,2"), NULL},                  \
      {S("3", "3,2", "5,2"), T}, {S("4", "4,3", "3,3"), NULL},                 \
      {S("2,3", "2,3,4", "4,10"), NULL}, {S("3,1,2", "3,1,2,5", "9,5"), T},    \
      {S("1", "1,6", "17,6"), T}, {S("7", "7,1", "1,31"), NULL},               \
      {S("8", "8,8", "8,8"), T}, {S("5", "5,16", "16,33"), NULL},              \
      {S("13", "13,7", "65,7"), T}, {S("6", "6,4", "4,64"), NULL},             \
      {S("9", "9,2", "100,2"), T}, {S("4,5", "4,5,3", "3,27"), NULL},          \
      {S("64", "64,32", "65,32"), T}, {S("3", "3,9", "256,9"), T},             \
      {S("3", "3,8", "8,257"), NULL}, {S("2", "2,5", "1000,5"), T},            \
      {S("256", "256,3", "3,16"), NULL}, {S("257", "257,2", "30,2"), T},       \
      {S("300", "300,5", "5,300"), NULL}, {S("2,150", "2,150,4", "270,4"), T}, \
      {S("0", "0,3", "3,4"), NULL}, {                                          \
    S("0,2", "0,2,3", "4,3"), T                                                \
  }
#define OF_OP(rows, x, w) x ";" rows ";" w
#define OF_GRAD(rows, x, w) OF_OP(rows, x, w) ";" rows ";1"
static const choir_op_case_t cases[] = {CASES(OF_OP), {NULL, NULL}};
static const choir_op_case_t grad_cases[] = {CASES(OF_GRAD), {NULL, NULL}};

// The weights are not.
static bool mixes(const choir_record_t* record, const int64_t* rows) {
  (void)record;
  return rows[2] != 0;
}

#define DEFINE(ENUM, id, sources, doc_, ...)                               \
  static choir_status_t id##_reference(const choir_record_t* record,       \
                                       choir_stream_t* stream) {           \
    return run(#id, record, stream);                                       \
  }                                                                        \
  CHOIR_OP_DEFINE(ENUM, id, sources, 2, doc_,                              \
                  CHOIR_OP_ATTRS(id, fields, doc_), .cost = cost,          \
                  .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64), \
                  .second_dtypes = CHOIR__DTYPES_INDEX, .is_wide = true,   \
                  .domains = {CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_LABELS,      \
                              CHOIR_DOMAIN_UNIT, CHOIR_DOMAIN_POSITIVE},   \
                  __VA_ARGS__)
DEFINE(LINEAR_CROSS_ENTROPY, linear_cross_entropy, 3, doc,
       .mixes_samples = mixes, .tolerance = 1e-5, .cases = cases);
DEFINE(LINEAR_CROSS_ENTROPY_GRAD, linear_cross_entropy_grad, 5,
       "x, labels, W, sums, dy -> dx, dW", .tolerance = 2e-5,
       .cases = grad_cases);
