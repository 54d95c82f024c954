// SPDX-License-Identifier: Apache-2.0
// What a batch norm over all ranks, or over micro-shards, gets from samples:
// moments and their gradients' sums, of every few samples by themselves.
#include <math.h>

#include "tensor/ops/elements.h"

// x (n, c, ...), its samples in parts.
typedef struct parts_s {
  int64_t samples, part, count;
  int64_t channels, image;
} parts_t;

static parts_t parts_of(const choir_view_t* x, int64_t part) {
  const int64_t samples = x->shape[0];
  parts_t parts = {.samples = samples,
                   .part = part > 0 && part < samples ? part : samples,
                   .channels = x->shape[1],
                   .image = 1};
  parts.count = (parts.samples + parts.part - 1) / parts.part;
  for (int32_t k = 2; k < x->ndim; ++k) parts.image *= x->shape[k];
  return parts;
}

static choir_status_t infer(const choir_record_t* record, int64_t part,
                            choir_dtype_t dtype, choir_view_t* dsts) {
  const choir_view_t* x = choir_record_src(record, 0);
  if (x->ndim < 2 || choir_view_count(x) == 0) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x is %s; needs 2 or more dimensions and an element",
                       choir_view_print(x, text, sizeof text));
  }
  const parts_t parts = parts_of(x, part);
  const int64_t shape[] = {parts.count, parts.channels};
  for (int32_t i = 0; i < 2; ++i)
    CHOIR_TRY(choir__infer_shape(dtype, 2, shape, &dsts[i]));
  return NULL;
}

// Elements of a channel in a part of the samples, and the place of each.
static int64_t count_of(const parts_t* parts, int64_t index) {
  const int64_t left = parts->samples - index * parts->part;
  return (left < parts->part ? left : parts->part) * parts->image;
}
static int64_t place_of(const parts_t* parts, int64_t index, int64_t channel,
                        int64_t i) {
  const int64_t sample = index * parts->part + i / parts->image;
  return (sample * parts->channels + channel) * parts->image + i % parts->image;
}

// ---- Moments ----

static const choir_field_t moments_fields[] = {
    CHOIR_FIELD_INT(choir_batch_norm_moments_attrs_t, part, 0, 0, INT64_MAX,
                    "samples of a row of the results; 0: all")};

static choir_status_t batch_norm_moments_infer(const choir_record_t* record,
                                               choir_view_t* dsts) {
  const choir_batch_norm_moments_attrs_t* attrs = record->attrs;
  const bool is_f64 = choir_record_src(record, 0)->dtype == CHOIR_DTYPE_F64;
  return infer(record, attrs->part, is_f64 ? CHOIR_DTYPE_F64 : CHOIR_DTYPE_F32,
               dsts);
}

static choir_status_t batch_norm_moments_reference(const choir_record_t* record,
                                                   choir_stream_t* stream) {
  const choir_batch_norm_moments_attrs_t* attrs = record->attrs;
  const parts_t parts = parts_of(choir_record_src(record, 0), attrs->part);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const double* x = dense.srcs[0];
  for (int64_t row = 0; row < parts.count; ++row)
    for (int64_t c = 0; c < parts.channels; ++c) {
      const int64_t count = count_of(&parts, row);
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < count; ++i) sum += x[place_of(&parts, row, c, i)];
      const double mean = sum / (double)count;
      for (int64_t i = 0; i < count; ++i) {
        const double difference = x[place_of(&parts, row, c, i)] - mean;
        squares += difference * difference;
      }
      dense.dsts[0][row * parts.channels + c] = mean;
      dense.dsts[1][row * parts.channels + c] = squares / (double)count;
    }
  return choir__dense_end(&dense, NULL);
}

// S(x, c): the shapes of an op's sources.
#define CASES(S)                                                             \
  {S("4,3", "3"), NULL}, {S("1,5", "5"), NULL}, {S("7,33", "33"), "part=3"}, \
      {S("33,17", "17"), "part=4"}, {S("100,2", "2"), "part=7"},             \
      {S("2,3,4", "3"), "part=1"}, {S("3,2,3", "2"), "part=2"},              \
      {S("5,1,7", "1"), "part=2"}, {S("4,3,7,5", "3"), "part=2"},            \
      {S("6,20,6,6", "20"), "part=4"}, {S("3,16,3,3", "16"), "part=10"},     \
      {S("2,33,2,3", "33"), NULL}, {S("9,8,4,4", "8"), "part=1"},            \
      {S("5,4,2,2", "4"), "part=2"}, {S("2,3,2,3,2", "3"), "part=1"},        \
      {S("64,16", "16"), "part=8"}, {S("8,100,3,3", "100"), "part=3"},       \
      {S("3,64,5,5", "64"), NULL}, {S("12,31,2,2", "31"), "part=5"},         \
      {S("7,12,9,1", "12"), "part=6"}, {                                     \
    NULL, NULL                                                               \
  }
#define OF_MOMENTS(x, c) x
#define OF_SUMS(x, c) x ";" c ";" c ";" x
static const choir_op_case_t moments_cases[] = {CASES(OF_MOMENTS)};
static const choir_op_case_t sums_cases[] = {CASES(OF_SUMS)};

CHOIR_OP_DEFINE(BATCH_NORM_MOMENTS, batch_norm_moments, 1, 2,
                "x -> mean and biased variance of every `part` samples, (rows, "
                "c)",
                CHOIR_OP_ATTRS(batch_norm_moments, moments_fields,
                               "parts of samples"),
                .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 1e-5,
                .cases = moments_cases);

// ---- Sums ----

static const choir_field_t sums_fields[] = {
    CHOIR_FIELD_FLOAT(choir_batch_norm_sums_attrs_t, epsilon, 1e-5, 0, 1e9,
                      "added to the variance"),
    CHOIR_FIELD_INT(choir_batch_norm_sums_attrs_t, part, 0, 0, INT64_MAX,
                    "samples of a row of the results; 0: all")};

static choir_status_t batch_norm_sums_infer(const choir_record_t* record,
                                            choir_view_t* dsts) {
  const choir_batch_norm_sums_attrs_t* attrs = record->attrs;
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(infer(record, attrs->part, srcs[1].dtype, dsts));
  CHOIR_TRY(choir__need_vector("mean", &srcs[1], srcs[0].shape[1]));
  CHOIR_TRY(choir__need_vector("var", &srcs[2], srcs[0].shape[1]));
  return choir__need_same_shape("dy", &srcs[3], "x", &srcs[0]);
}

static choir_status_t batch_norm_sums_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  const choir_batch_norm_sums_attrs_t* attrs = record->attrs;
  const parts_t parts = parts_of(choir_record_src(record, 0), attrs->part);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const double *x = dense.srcs[0], *dy = dense.srcs[3];
  for (int64_t row = 0; row < parts.count; ++row)
    for (int64_t c = 0; c < parts.channels; ++c) {
      const double mean = dense.srcs[1][c];
      const double inverse = 1 / sqrt(dense.srcs[2][c] + attrs->epsilon);
      double along = 0, across = 0;
      for (int64_t i = 0; i < count_of(&parts, row); ++i) {
        const int64_t at = place_of(&parts, row, c, i);
        across += dy[at];
        along += dy[at] * (x[at] - mean) * inverse;
      }
      dense.dsts[0][row * parts.channels + c] = along;
      dense.dsts[1][row * parts.channels + c] = across;
    }
  return choir__dense_end(&dense, NULL);
}

CHOIR_OP_DEFINE(
    BATCH_NORM_SUMS, batch_norm_sums, 4, 2,
    "x, mean, var, dy -> dscale and dbias of every `part` samples, (rows, c)",
    CHOIR_OP_ATTRS(batch_norm_sums, sums_fields, "parts of samples"),
    .wide_sources = CHOIR__SOURCE(1) | CHOIR__SOURCE(2),
    .domains[2] = CHOIR_DOMAIN_POSITIVE, .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-5, .cases = sums_cases);
