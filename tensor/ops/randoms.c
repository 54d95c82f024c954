// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "core/random.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/randoms.h"

// Random fills, and dropout.

// Which word of the generator belongs to which element: that of its sample
// (dimension 0, counted from first_sample) and its row-major place within the
// sample, whatever the layout and however samples are split into batches.
typedef struct draws_s {
  choir_random_key_t key;
  int64_t first_sample;
  int64_t sample_size;  // elements of one sample
} draws_t;

// Scalars, and everything with whole_tensor, are one sample.
static draws_t draws_make(int64_t seed, int64_t stream, int64_t step,
                          int64_t first_sample, bool whole_tensor,
                          const choir_view_t* view) {
  draws_t draws = {
      .key = {(uint64_t)seed, (uint32_t)stream, (uint32_t)step},
      .first_sample = first_sample,
      .sample_size = choir_view_count(view),
  };
  if (!whole_tensor && view->ndim > 0 && view->shape[0] > 0)
    draws.sample_size /= view->shape[0];
  return draws;
}

// The word of row-major element `place` of the tensor.
static uint32_t draw(const draws_t* draws, int64_t place) {
  return choir_random_word(
      draws->key,
      (uint64_t)draws->first_sample + (uint64_t)(place / draws->sample_size),
      (uint64_t)(place % draws->sample_size));
}

// ---- random_uniform, random_normal ----

// low + range * variate(word), in f32 with one fma (f64: in double), where
// variate gives a standard variable.
static choir_status_t random_reference(const choir_record_t* record,
                                       double range,
                                       float (*variate)(uint32_t word)) {
  const choir_random_attrs_t* attrs = record->attrs;
  const choir_view_t* dst = choir_record_dst(record, 0);
  void* data = choir__dst_data(record, 0);
  draws_t draws = draws_make(attrs->seed, attrs->stream, attrs->step,
                             attrs->first_sample, attrs->whole_tensor, dst);
  int64_t place = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &dst, 1); more;
       more = choir__walk_next(&walk), ++place) {
    float standard = variate(draw(&draws, place));
    double value = dst->dtype == CHOIR_DTYPE_F64
                       ? fma(range, standard, attrs->low)
                       : fmaf((float)range, standard, (float)attrs->low);
    choir__real_store(data, dst->dtype, walk.offsets[0], value,
                      record->accumulate);
  }
  return NULL;
}

// Step and first sample follow the step.
static void random_at_step(void* attrs, const choir_step_values_t* values) {
  choir_random_attrs_t* random = attrs;
  random->step = values->step;
  random->first_sample = values->first_sample;
}

// Numbers are drawn for a row of the first dimension.
static bool random_mixes(const choir_record_t* record, const int64_t* rows) {
  return rows[0] != 1 ||
         ((const choir_random_attrs_t*)record->attrs)->whole_tensor;
}

#define DEFINE(ENUM, id, range, variate, low_doc, high_doc, low_high, ...)    \
  static const choir_field_t id##_fields[] = {                                \
      CHOIR__KEY_FIELDS(choir_random_attrs_t),                                \
      CHOIR_FIELD_FLOAT(choir_random_attrs_t, low, 0, -INFINITY, INFINITY,    \
                        low_doc),                                             \
      CHOIR_FIELD_FLOAT(choir_random_attrs_t, high, 1, -INFINITY, INFINITY,   \
                        high_doc),                                            \
      CHOIR_FIELD_BOOL(choir_random_attrs_t, whole_tensor, false,             \
                       "all elements are of one sample, first_sample"),       \
  };                                                                          \
  static choir_status_t id##_reference(const choir_record_t* record,          \
                                       choir_stream_t* stream) {              \
    (void)stream;                                                             \
    const choir_random_attrs_t* attrs = record->attrs;                        \
    return random_reference(record, range, variate);                          \
  }                                                                           \
  static const choir_op_case_t id##_cases[] = {                               \
      CHOIR__CASES(                                                           \
          CHOIR__ONCE, NULL, "seed=1", "seed=2 stream=3 step=4 " low_high,    \
          "seed=2 stream=3 step=4 first_sample=5", "seed=-9 whole_tensor=1",  \
          "seed=12345 step=9 first_sample=1000000",                           \
          "whole_tensor=1 " low_high),                                        \
      {NULL, NULL}};                                                          \
  /* Of the source only the shape counts. */                                  \
  CHOIR_OP_DEFINE_BY(                                                         \
      ENUM, id, 1, 1, 1, choir__infer_as_source, id##_reference, __VA_ARGS__, \
      CHOIR_OP_ATTRS(id, id##_fields, "which numbers"),                       \
      .at_step = random_at_step, .mixes_samples = random_mixes,               \
      .elementwise = true, .shapes_only = 1u << 0,                            \
      .dtypes = CHOIR_DTYPES_FLOAT, .tolerance = 0, .cases = id##_cases)

DEFINE(RANDOM_UNIFORM, random_uniform, attrs->high - attrs->low,
       choir_random_to_uniform, "lower end", "upper end", "low=-0.5 high=0.5",
       "evenly spread numbers from low to high, in the shape of x");
DEFINE(RANDOM_NORMAL, random_normal, attrs->high, choir_random_to_normal,
       "mean", "deviation", "low=1 high=0.02",
       "normal numbers of mean low and deviation high, in the shape of x");

// ---- dropout ----

static const choir_field_t dropout_fields[] = {
    CHOIR_FIELD_FLOAT(choir_dropout_attrs_t, ratio, 0.5, 0, 1,
                      "share of elements that become 0; below 1"),
    CHOIR__KEY_FIELDS(choir_dropout_attrs_t),
};
static choir_status_t dropout_infer(const choir_record_t* record,
                                    choir_view_t* dsts) {
  double ratio = ((const choir_dropout_attrs_t*)record->attrs)->ratio;
  if (!(ratio < 1))
    return CHOIR_ERROR(INVALID_ARGUMENT, "ratio is %g; needs to be below 1",
                       ratio);
  return choir__infer_like(choir_record_src(record, 0), &dsts[0]);
}

// An element is kept when its uniform number is at least the ratio. The factor
// is rounded to f32 first (f64: not), so that kept elements are one
// multiplication in the tensor's type; 16 bits are rounded from that of f32.
static choir_status_t dropout_reference(const choir_record_t* record,
                                        choir_stream_t* stream) {
  (void)stream;
  const choir_dropout_attrs_t* attrs = record->attrs;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  draws_t draws = draws_make(attrs->seed, attrs->stream, attrs->step,
                             attrs->first_sample, false, dst);
  double factor = 1 / (1 - attrs->ratio);
  if (src->dtype != CHOIR_DTYPE_F64) factor = (float)factor;
  int64_t place = 0;
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk), ++place) {
    bool is_kept = choir_random_to_uniform(draw(&draws, place)) >= attrs->ratio;
    double y = choir__real_load(src_data, src->dtype, walk.offsets[0]) * factor;
    if (choir__is_narrow(src->dtype)) y = (float)y;
    choir__real_store(dst_data, dst->dtype, walk.offsets[1], is_kept ? y : 0,
                      record->accumulate);
  }
  return NULL;
}

static void dropout_at_step(void* attrs, const choir_step_values_t* values) {
  choir_dropout_attrs_t* dropout = attrs;
  dropout->step = values->step;
  dropout->first_sample = values->first_sample;
}

static const choir_op_case_t dropout_cases[] = {
    CHOIR__CASES(
        CHOIR__ONCE, NULL, "ratio=0", "ratio=0.3 seed=2 stream=3 step=4",
        "ratio=0.3 seed=2 stream=3 step=4 first_sample=5", "seed=-9",
        "ratio=0.9 seed=12345 step=9 first_sample=1000000", "ratio=0.25"),
    {NULL, NULL}};

// The mask depends on place only: dropping dy draws the same one.
CHOIR_OP_GRADIENT(dropout, DROPOUT, CHOIR_DY);
static bool dropout_mixes(const choir_record_t* record, const int64_t* rows) {
  (void)record;
  return rows[0] != 1;
}

CHOIR_OP_DEFINE(DROPOUT, dropout, 1, 1,
                "x / (1 - ratio), or 0 for a random share of elements",
                CHOIR_OP_ATTRS(dropout, dropout_fields,
                               "which elements become 0"),
                .at_step = dropout_at_step, .mixes_samples = dropout_mixes,
                .elementwise = true, .dtypes = CHOIR_DTYPES_FLOAT,
                .tolerance = 0, .cases = dropout_cases);
