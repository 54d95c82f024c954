// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elements.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_cast_attrs_t, dtype, CHOIR_DTYPE_F32, 0,
                    CHOIR_DTYPE_COUNT - 1, "a choir_dtype_t"),
};
static choir_status_t cast_infer(const choir_record_t* record,
                                 choir_view_t* dsts) {
  choir_view_t like = record->operands[0];
  like.dtype = (choir_dtype_t)((const choir_cast_attrs_t*)record->attrs)->dtype;
  return choir__infer_like(&like, &dsts[0]);
}

// Integers between integers go without a double in between, which would lose
// the lower bits of large ones; too large ones saturate as choir_element_store
// says.
static int64_t saturated(int64_t value, choir_dtype_t dtype) {
  if (dtype == CHOIR_DTYPE_I32)
    return value < INT32_MIN   ? INT32_MIN
           : value > INT32_MAX ? INT32_MAX
                               : value;
  if (dtype == CHOIR_DTYPE_U8) return value < 0 ? 0 : value > 255 ? 255 : value;
  return value;
}

static void cast_from_integer(int64_t value, void* data, choir_dtype_t dtype,
                              int64_t offset, bool accumulate) {
  if (!choir_dtype_is_float(dtype)) {
    choir__integer_store(data, dtype, offset, saturated(value, dtype),
                         accumulate);
  } else {
    // For f32 straight from the integer: by way of a double a large one would
    // be rounded twice.
    double real = dtype == CHOIR_DTYPE_F32 ? (float)value : (double)value;
    choir__real_store(data, dtype, offset, real, accumulate);
  }
}

static void cast_from_real(double value, void* data, choir_dtype_t dtype,
                           int64_t offset, bool accumulate) {
  if (choir_dtype_is_float(dtype)) {
    choir__real_store(data, dtype, offset, value, accumulate);
  } else {
    unsigned char element[8];
    choir_element_store(element, dtype, value);
    choir__integer_store(data, dtype, offset,
                         choir__integer_load(element, dtype, 0), accumulate);
  }
}

static choir_status_t cast_reference(const choir_record_t* record,
                                     choir_stream_t* stream) {
  (void)stream;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  bool is_real = choir_dtype_is_float(src->dtype);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    if (is_real)
      cast_from_real(choir__real_load(src_data, src->dtype, walk.offsets[0]),
                     dst_data, dst->dtype, walk.offsets[1], record->accumulate);
    else
      cast_from_integer(
          choir__integer_load(src_data, src->dtype, walk.offsets[0]), dst_data,
          dst->dtype, walk.offsets[1], record->accumulate);
  }
  return NULL;
}

// dtype by number: f32 f64 f16 bf16 i32 i64 u8 bool.
static const choir_op_case_t cases[] = {
    CHOIR__CASES(CHOIR__ONCE, "dtype=0", "dtype=3", "dtype=6", "dtype=1",
                 "dtype=4", "dtype=7", "dtype=2"),
    {"33,17", "dtype=0"},
    {"33,17", "dtype=1"},
    {"33,17", "dtype=2"},
    {"33,17", "dtype=3"},
    {"33,17", "dtype=4"},
    {"33,17", "dtype=5"},
    {"33,17", "dtype=6"},
    {"33,17", "dtype=7"},
    {NULL, NULL}};

CHOIR_OP_DEFINE(CAST, cast, 1, 1, "x in another dtype",
                CHOIR_OP_ATTRS(cast, fields, "the dtype of the result"),
                .elementwise = true, .dtypes = CHOIR_DTYPES_ALL,
                .tolerance = 2e-7, .cases = cases);
