// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/elementwise.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(choir_fill_attrs_t, value, 0, -INFINITY, INFINITY,
                      "what every element becomes"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "fill", choir_fill_attrs_t, fields, "one value everywhere");

static choir_status_t fill_infer(const choir_view_t* srcs, int32_t src_count,
                                 const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__unary_infer("fill", srcs, dsts);
}

static choir_status_t fill_reference(const choir_record_t* record,
                                     choir_stream_t* stream) {
  (void)stream;
  const choir_fill_attrs_t* attrs = record->attrs;
  const choir_view_t* dst = choir_record_dst(record, 0);
  void* data = choir__dst_data(record, 0);
  // One element is rounded (or truncated) as choir_element_store says.
  unsigned char element[8];
  choir_element_store(element, dst->dtype, attrs->value);
  bool is_real = choir_dtype_is_float(dst->dtype);
  double real = is_real ? choir__real_load(element, dst->dtype, 0) : 0;
  int64_t integer = is_real ? 0 : choir__integer_load(element, dst->dtype, 0);
  choir__walk_t walk;
  const choir_view_t* views[] = {dst};
  for (bool more = choir__walk_start(&walk, views, 1); more;
       more = choir__walk_next(&walk)) {
    if (is_real)
      choir__real_store(data, dst->dtype, walk.offsets[0], real,
                        record->accumulate);
    else
      choir__integer_store(data, dst->dtype, walk.offsets[0], integer,
                           record->accumulate);
  }
  return NULL;
}

static const choir_op_case_t cases[] = {{"", "value=3"},
                                        {"1", "value=-0.5"},
                                        {"7", NULL},
                                        {"15", "value=1"},
                                        {"16", "value=0.1"},
                                        {"17", "value=255"},
                                        {"64", "value=3"},
                                        {"257", "value=-0.5"},
                                        {"1025", NULL},
                                        {"0", "value=1"},
                                        {"3,5", "value=0.1"},
                                        {"1,9", "value=255"},
                                        {"9,1", "value=3"},
                                        {"33,17", "value=-0.5"},
                                        {"2,0,3", NULL},
                                        {"5,1,7", "value=1"},
                                        {"4,3,7,5", "value=0.1"},
                                        {"2,16,5,5", "value=255"},
                                        {"2,20,12,12", "value=3"},
                                        {"5,4,3,2,3", "value=-0.5"},
                                        {"2,1,3,1,2,1,2,2", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_fill = {
    .op = CHOIR_OP_FILL,
    .name = "fill",
    .doc = "one value in the shape of x, whose elements are not read",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = fill_infer,
    .reference = fill_reference,
    .elementwise = true,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
