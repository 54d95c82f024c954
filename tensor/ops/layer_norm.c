// SPDX-License-Identifier: Apache-2.0
// layer_norm, rms_norm and their gradients: rows along the last axis.
#include <math.h>

#include "tensor/ops/elements.h"

typedef struct row_norm_s {
  const char* name;
  bool centred;  // layer_norm: by mean and variance, with a bias
} row_norm_t;

#define NORM_ATTRS(name, doc)                                             \
  static const choir_field_t name##_fields[] = {                          \
      CHOIR_FIELD_FLOAT(choir_##name##_attrs_t, epsilon, 1e-5, 0, 1e9,    \
                        "added to the variance, or to the mean square")}; \
  static const choir_struct_def_t name##_attrs =                          \
      CHOIR_STRUCT_DEF(#name, choir_##name##_attrs_t, name##_fields, doc);

static int64_t columns_of(const choir_view_t* x) {
  return x->shape[x->ndim - 1];
}

// x, scale and either the bias or dy -> y; or dx, dscale, dbias.
static choir_status_t norm_infer(const row_norm_t* norm, bool is_grad,
                                 const choir_view_t* srcs, choir_view_t* dsts) {
  const choir_view_t* x = &srcs[0];
  if (x->ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: x is a scalar; needs 1 or more dimensions",
                       norm->name);
  const int64_t columns = columns_of(x);
  CHOIR_TRY(choir__need_vector(norm->name, "scale", &srcs[1], columns));
  if (is_grad) {
    CHOIR_TRY(choir__need_same_shape(norm->name, "dy", &srcs[2], "x", x));
    for (int32_t i = 1; i < (norm->centred ? 3 : 2); ++i)
      CHOIR_TRY(
          choir__infer_shape(norm->name, x->dtype, 1, &columns, &dsts[i]));
  } else if (norm->centred) {
    CHOIR_TRY(choir__need_vector(norm->name, "bias", &srcs[2], columns));
  }
  return choir__infer_like(norm->name, x, &dsts[0]);
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

static const choir_op_case_t layer_norm_cases[] = {
    {"1;1;1", NULL},
    {"7;7;7", "epsilon=0.001"},
    {"1,1;1;1", NULL},
    {"1,10;10;10", NULL},
    {"2,2;2;2", NULL},
    {"3,3;3;3", NULL},
    {"7,3;3;3", NULL},
    {"16,10;10;10", "epsilon=0.001"},
    {"33,17;17;17", NULL},
    {"5,8;8;8", NULL},
    {"5,15;15;15", NULL},
    {"5,16;16;16", NULL},
    {"4,31;31;31", NULL},
    {"4,33;33;33", NULL},
    {"5,64;64;64", NULL},
    {"5,100;100;100", NULL},
    {"130,65;65;65", NULL},
    {"3,1000;1000;1000", NULL},
    {"70,384;384;384", NULL},
    {"2,3,4;4;4", NULL},
    {"4,3,7,5;5;5", NULL},
    {"0,10;10;10", NULL},
    {NULL, NULL}};
static const choir_op_case_t rms_norm_cases[] = {
    {"1;1", NULL},       {"7;7", "epsilon=0.001"}, {"1,10;10", NULL},
    {"2,2;2", NULL},     {"3,3;3", NULL},          {"7,3;3", NULL},
    {"16,10;10", NULL},  {"33,17;17", NULL},       {"5,8;8", NULL},
    {"5,15;15", NULL},   {"5,16;16", NULL},        {"4,31;31", NULL},
    {"4,33;33", NULL},   {"5,64;64", NULL},        {"5,100;100", NULL},
    {"130,65;65", NULL}, {"3,1000;1000", NULL},    {"70,384;384", NULL},
    {"2,3,4;4", NULL},   {"4,3,7,5;5", NULL},      {"0,10;10", NULL},
    {NULL, NULL}};
// Of both: x, scale, dy.
static const choir_op_case_t grad_cases[] = {
    {"7;7;7", "epsilon=0.001"},
    {"1,10;10;1,10", NULL},
    {"2,2;2;2,2", "epsilon=0.1"},
    {"3,3;3;3,3", "epsilon=0.1"},
    {"7,3;3;7,3", "epsilon=0.1"},
    {"16,10;10;16,10", NULL},
    {"33,17;17;33,17", NULL},
    {"5,8;8;5,8", NULL},
    {"5,15;15;5,15", NULL},
    {"5,16;16;5,16", NULL},
    {"4,31;31;4,31", NULL},
    {"4,33;33;4,33", NULL},
    {"5,64;64;5,64", NULL},
    {"5,100;100;5,100", NULL},
    {"130,65;65;130,65", NULL},
    {"3,1000;1000;3,1000", NULL},
    {"70,384;384;70,384", NULL},
    {"2,3,4;4;2,3,4", "epsilon=0.1"},
    {"4,3,7,5;5;4,3,7,5", "epsilon=0.1"},
    {"0,10;10;0,10", NULL},
    {NULL, NULL}};

#define NORM_OP(NAME, op_name, text, is_centred, is_grad, sources, results,   \
                reference_name, op_cases, error)                              \
  NORM_ATTRS(op_name, text)                                                   \
  static choir_status_t op_name##_infer(const choir_view_t* srcs,             \
                                        int32_t src_count, const void* attrs, \
                                        choir_view_t* dsts) {                 \
    (void)src_count;                                                          \
    (void)attrs;                                                              \
    const row_norm_t norm = {#op_name, is_centred};                           \
    return norm_infer(&norm, is_grad, srcs, dsts);                            \
  }                                                                           \
  static choir_status_t op_name##_reference(const choir_record_t* record,     \
                                            choir_stream_t* stream) {         \
    return reference_name(record, stream, is_centred);                        \
  }                                                                           \
  const choir_op_def_t choir_op_def_##op_name = {                             \
      .op = CHOIR_OP_##NAME,                                                  \
      .name = #op_name,                                                       \
      .doc = text,                                                            \
      .src_min = sources,                                                     \
      .src_max = sources,                                                     \
      .dst_count = results,                                                   \
      .infer = op_name##_infer,                                               \
      .reference = op_name##_reference,                                       \
      .attrs = &op_name##_attrs,                                              \
      .dtypes = CHOIR_DTYPES_FLOAT,                                           \
      .tolerance = error,                                                     \
      .cases = op_cases,                                                      \
  };

NORM_OP(LAYER_NORM, layer_norm,
        "x, scale, bias -> (x - mean) / sqrt(variance + epsilon) scale + bias "
        "of each row",
        true, false, 3, 1, norm_reference, layer_norm_cases, 1e-5)
NORM_OP(RMS_NORM, rms_norm,
        "x, scale -> x / sqrt(mean of squares + epsilon) scale of each row",
        false, false, 2, 1, norm_reference, rms_norm_cases, 1e-5)
NORM_OP(LAYER_NORM_GRAD, layer_norm_grad, "x, scale, dy -> dx, dscale, dbias",
        true, true, 3, 3, norm_grad_reference, grad_cases, 2e-5)
NORM_OP(RMS_NORM_GRAD, rms_norm_grad, "x, scale, dy -> dx, dscale", false, true,
        3, 2, norm_grad_reference, grad_cases, 2e-5)

CHOIR_OP_GRADIENT(layer_norm, LAYER_NORM_GRAD, 0, 1, CHOIR_DY);
CHOIR_OP_GRADIENT(rms_norm, RMS_NORM_GRAD, 0, 1, CHOIR_DY);
