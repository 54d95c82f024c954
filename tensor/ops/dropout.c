// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/random_shared.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_dropout_attrs_t, ratio, 0.5, 0, 1,
                      "share of elements that become 0; below 1"),
    CHOIR__RANDOM_KEY_FIELDS(choir_dropout_attrs_t),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "dropout", choir_dropout_attrs_t, fields, "which elements become 0");

static choir_status_t dropout_infer(const choir_view_t* srcs, int32_t src_count,
                                    const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  double ratio = ((const choir_dropout_attrs_t*)attrs)->ratio;
  if (!(ratio < 1))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "dropout: ratio is %g; needs to be below 1", ratio);
  return choir__infer_like("dropout", &srcs[0], &dsts[0]);
}

// An element is kept when its uniform number is at least the ratio. The factor
// is rounded to f32 first (f64: not), so that kept elements are one
// multiplication in the tensor's type.
static choir_status_t dropout_reference(const choir_record_t* record,
                                        choir_stream_t* stream) {
  (void)stream;
  const choir_dropout_attrs_t* attrs = record->attrs;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  choir__draws_t draws = choir__draws_make(
      attrs->seed, attrs->stream, attrs->step, attrs->first_sample, false, dst);
  double factor = 1 / (1 - attrs->ratio);
  if (src->dtype != CHOIR_DTYPE_F64) factor = (float)factor;
  int64_t place = 0;
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk), ++place) {
    bool is_kept =
        choir_random_to_uniform(choir__draw(&draws, place)) >= attrs->ratio;
    double x = choir__real_load(src_data, src->dtype, walk.offsets[0]);
    choir__real_store(dst_data, dst->dtype, walk.offsets[1],
                      is_kept ? x * factor : 0, record->accumulate);
  }
  return NULL;
}

static void dropout_at_step(void* attrs, const choir_step_values_t* values) {
  choir_dropout_attrs_t* dropout = attrs;
  dropout->step = values->step;
  dropout->first_sample = values->first_sample;
}

static const choir_op_case_t cases[] = {
    {"", NULL},
    {"1", "ratio=0"},
    {"7", "ratio=0.3 seed=2 stream=3 step=4"},
    {"15", "ratio=0.3 seed=2 stream=3 step=4 first_sample=5"},
    {"16", "seed=-9"},
    {"17", "ratio=0.9 seed=12345 step=9 first_sample=1000000"},
    {"64", "ratio=0.25"},
    {"257", NULL},
    {"1025", "ratio=0"},
    {"0", "ratio=0.3 seed=2 stream=3 step=4"},
    {"3,5", "ratio=0.3 seed=2 stream=3 step=4 first_sample=5"},
    {"1,9", "seed=-9"},
    {"9,1", "ratio=0.9 seed=12345 step=9 first_sample=1000000"},
    {"33,17", "ratio=0.25"},
    {"2,0,3", NULL},
    {"5,1,7", "ratio=0"},
    {"4,3,7,5", "ratio=0.3 seed=2 stream=3 step=4"},
    {"2,16,5,5", "ratio=0.3 seed=2 stream=3 step=4 first_sample=5"},
    {"2,20,12,12", "seed=-9"},
    {"5,4,3,2,3", "ratio=0.9 seed=12345 step=9 first_sample=1000000"},
    {"2,1,3,1,2,1,2,2", "ratio=0.25"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_dropout = {
    .op = CHOIR_OP_DROPOUT,
    .name = "dropout",
    .doc = "x / (1 - ratio), or 0 for a random share of elements",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = dropout_infer,
    .reference = dropout_reference,
    .at_step = dropout_at_step,
    .elementwise = true,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 0,
    .cases = cases,
};
