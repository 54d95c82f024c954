// SPDX-License-Identifier: Apache-2.0
// layer_norm, rms_norm and their gradients: rows along the last axis.
#include <math.h>

#include "tensor/ops/elements.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_layer_norm_attrs_t, epsilon, 1e-5, 0, 1e9,
                      "added to the variance, or to the mean square")};

static int64_t columns_of(const choir_view_t* x) {
  return x->shape[x->ndim - 1];
}

// x, scale and either the bias or dy -> y; or dx, dscale, dbias.
static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  const choir_view_t* x = &srcs[0];
  if (x->ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x is a scalar; needs 1 or more dimensions");
  const int64_t columns = columns_of(x);
  CHOIR_TRY(choir__need_vector("scale", &srcs[1], columns));
  if (record->dst_count > 1) {
    CHOIR_TRY(choir__need_same_shape("dy", &srcs[2], "x", x));
    for (int32_t i = 1; i < record->dst_count; ++i)
      CHOIR_TRY(choir__infer_shape(srcs[1].dtype, 1, &columns, &dsts[i]));
  } else if (record->src_count > 2) {
    CHOIR_TRY(choir__need_vector("bias", &srcs[2], columns));
  }
  return choir__infer_like(x, &dsts[0]);
}

// The mean that is taken off a row, and what it is multiplied with then.
static void row_moments(const double* x, int64_t columns, bool centred,
                        double epsilon, double* out_mean, double* out_factor) {
  double mean = 0, squares = 0;
  for (int64_t c = 0; centred && c < columns; ++c) mean += x[c];
  mean /= (double)columns;
  for (int64_t c = 0; c < columns; ++c)
    squares += (x[c] - mean) * (x[c] - mean);
  *out_mean = mean;
  *out_factor = 1 / sqrt(squares / (double)columns + epsilon);
}

static choir_status_t norm_reference(const choir_record_t* record,
                                     choir_stream_t* stream, bool centred) {
  const choir_layer_norm_attrs_t* attrs = record->attrs;
  const int64_t columns = columns_of(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const int64_t count = choir_view_count(choir_record_src(record, 0));
  for (int64_t row = 0; row < count; row += columns) {
    const double* x = dense.srcs[0] + row;
    double mean, factor;
    row_moments(x, columns, centred, attrs->epsilon, &mean, &factor);
    for (int64_t c = 0; c < columns; ++c)
      dense.dsts[0][row + c] = (x[c] - mean) * factor * dense.srcs[1][c] +
                               (centred ? dense.srcs[2][c] : 0);
  }
  return choir__dense_end(&dense, NULL);
}

// With n the normalised row and g = dy scale:
//   dx = factor (g - mean(g) - n mean(g n)), mean(g) of layer_norm only
//   dscale = sum over rows of dy n     dbias = sum over rows of dy
static choir_status_t norm_grad_reference(const choir_record_t* record,
                                          choir_stream_t* stream,
                                          bool centred) {
  const choir_layer_norm_attrs_t* attrs = record->attrs;
  const int64_t columns = columns_of(choir_record_src(record, 0));
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const int64_t count = choir_view_count(choir_record_src(record, 0));
  const double* scale = dense.srcs[1];
  for (int64_t row = 0; row < count; row += columns) {
    const double* x = dense.srcs[0] + row;
    const double* dy = dense.srcs[2] + row;
    double mean, factor, across = 0, along = 0;
    row_moments(x, columns, centred, attrs->epsilon, &mean, &factor);
    for (int64_t c = 0; c < columns; ++c) {
      if (centred) across += dy[c] * scale[c];
      along += dy[c] * scale[c] * (x[c] - mean) * factor;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const double n = (x[c] - mean) * factor;
      dense.dsts[0][row + c] =
          factor * (dy[c] * scale[c] - (across + n * along) / (double)columns);
      dense.dsts[1][c] += dy[c] * n;
      if (centred) dense.dsts[2][c] += dy[c];
    }
  }
  return choir__dense_end(&dense, NULL);
}

// S(x, c): the shapes of an op's sources; small: the attributes of short rows,
// whose gradients are steep where epsilon is small.
#define CASES(S, small)                                                        \
  {S("1", "1"), small}, {S("7", "7"), "epsilon=0.001"},                        \
      {S("1,1", "1"), small}, {S("1,10", "10"), NULL}, {S("2,2", "2"), small}, \
      {S("3,3", "3"), small}, {S("7,3", "3"), small},                          \
      {S("16,10", "10"), NULL}, {S("16,10", "10"), "epsilon=0.001"},           \
      {S("33,17", "17"), NULL}, {S("5,8", "8"), NULL},                         \
      {S("5,15", "15"), NULL}, {S("5,16", "16"), NULL},                        \
      {S("4,31", "31"), NULL}, {S("4,33", "33"), NULL},                        \
      {S("5,64", "64"), NULL}, {S("5,100", "100"), NULL},                      \
      {S("130,65", "65"), NULL}, {S("3,1000", "1000"), NULL},                  \
      {S("70,384", "384"), NULL}, {S("2,3,4", "4"), small},                    \
      {S("4,3,7,5", "5"), small}, {S("0,10", "10"), NULL}, {                   \
    NULL, NULL                                                                 \
  }
#define OF_LAYER(x, c) x ";" c ";" c
#define OF_RMS(x, c) x ";" c
#define OF_GRAD(x, c) x ";" c ";" x
static const choir_op_case_t layer_norm_cases[] = {CASES(OF_LAYER, NULL)};
static const choir_op_case_t rms_norm_cases[] = {CASES(OF_RMS, NULL)};
static const choir_op_case_t grad_cases[] = {CASES(OF_GRAD, "epsilon=0.1")};

static bool mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return record->operands[0].ndim == 1;
}

#define NORM_OP(NAME, op_name, text, is_centred, sources, results,          \
                reference_name, op_cases, error)                            \
  static choir_status_t op_name##_reference(const choir_record_t* record,   \
                                            choir_stream_t* stream) {       \
    return reference_name(record, stream, is_centred);                      \
  }                                                                         \
  CHOIR_OP_DEFINE_BY(NAME, op_name, sources, sources, results, infer,       \
                     op_name##_reference, text,                             \
                     CHOIR_OP_ATTRS(op_name, fields, text),                 \
                     .wide_sources = CHOIR__SOURCE(1) |                     \
                                     (results == 1 ? CHOIR__SOURCE(2) : 0), \
                     .mixes_samples = mixes, .dtypes = CHOIR_DTYPES_FLOAT,  \
                     .tolerance = error, .cases = op_cases);

NORM_OP(LAYER_NORM, layer_norm,
        "x, scale, bias -> (x - mean) / sqrt(variance + epsilon) scale + bias "
        "of each row",
        true, 3, 1, norm_reference, layer_norm_cases, 1e-5)
NORM_OP(RMS_NORM, rms_norm,
        "x, scale -> x / sqrt(mean of squares + epsilon) scale of each row",
        false, 2, 1, norm_reference, rms_norm_cases, 1e-5)
NORM_OP(LAYER_NORM_GRAD, layer_norm_grad, "x, scale, dy -> dx, dscale, dbias",
        true, 3, 3, norm_grad_reference, grad_cases, 2e-5)
NORM_OP(RMS_NORM_GRAD, rms_norm_grad, "x, scale, dy -> dx, dscale", false, 3, 2,
        norm_grad_reference, grad_cases, 2e-5)

CHOIR_OP_GRADIENT(layer_norm, LAYER_NORM_GRAD, 0, 1, CHOIR_DY);
CHOIR_OP_GRADIENT(rms_norm, RMS_NORM_GRAD, 0, 1, CHOIR_DY);
