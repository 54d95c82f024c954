// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_scale_attrs_t, factor, 1, -INFINITY, INFINITY,
                      "multiplies x"),
    CHOIR_FIELD_FLOAT(choir_scale_attrs_t, shift, 0, -INFINITY, INFINITY,
                      "added after"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "scale", choir_scale_attrs_t, fields, "a linear function of x");

static choir_status_t scale_infer(const choir_view_t* srcs, int32_t src_count,
                                  const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__unary_infer("scale", srcs, dsts);
}

static double rounded(double value, choir_dtype_t dtype) {
  unsigned char element[8];
  choir_element_store(element, dtype, value);
  return choir_element_load(element, dtype);
}

static choir_status_t scale_reference(const choir_record_t* record,
                                      choir_stream_t* stream) {
  (void)stream;
  const choir_scale_attrs_t* attrs = record->attrs;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const void* src_data = choir__src_data(record, 0);
  void* dst_data = choir__dst_data(record, 0);
  double factor = rounded(attrs->factor, src->dtype);
  double shift = rounded(attrs->shift, src->dtype);
  choir__walk_t walk;
  const choir_view_t* views[] = {src, dst};
  for (bool more = choir__walk_start(&walk, views, 2); more;
       more = choir__walk_next(&walk)) {
    double x = choir__real_load(src_data, src->dtype, walk.offsets[0]);
    choir__real_store(dst_data, dst->dtype, walk.offsets[1], factor * x + shift,
                      record->accumulate);
  }
  return NULL;
}

static const choir_op_case_t cases[] = {
    {"", NULL},
    {"1", "factor=2"},
    {"7", "factor=-0.3 shift=0.7"},
    {"15", "factor=0.1"},
    {"16", "factor=0 shift=1"},
    {"17", "factor=3 shift=-1"},
    {"64", NULL},
    {"257", "factor=2"},
    {"1025", "factor=-0.3 shift=0.7"},
    {"0", "factor=0.1"},
    {"3,5", "factor=0 shift=1"},
    {"1,9", "factor=3 shift=-1"},
    {"9,1", NULL},
    {"33,17", "factor=2"},
    {"2,0,3", "factor=-0.3 shift=0.7"},
    {"5,1,7", "factor=0.1"},
    {"4,3,7,5", "factor=0 shift=1"},
    {"2,16,5,5", "factor=3 shift=-1"},
    {"2,20,12,12", NULL},
    {"5,4,3,2,3", "factor=2"},
    {"2,1,3,1,2,1,2,2", "factor=-0.3 shift=0.7"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_scale = {
    .op = CHOIR_OP_SCALE,
    .name = "scale",
    .doc = "factor * x + shift",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = scale_infer,
    .reference = scale_reference,
    .elementwise = true,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 1e-6,
    .cases = cases,
};
