// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

// Exact as a double.
#define TO_THE_END (INT64_C(1) << 62)

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_slice_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1,
                    "dimension that is cut"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, start, 0, 0, TO_THE_END,
                    "first element"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, stop, TO_THE_END, 0, TO_THE_END,
                    "where to stop, this one excluded; the end if larger"),
    CHOIR_FIELD_INT(choir_slice_attrs_t, step, 1, 1, TO_THE_END,
                    "from one element to the next"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "slice", choir_slice_attrs_t, fields, "a range along one dimension");

static choir_status_t sliced(const choir_view_t* src,
                             const choir_slice_attrs_t* attrs,
                             choir_view_t* out_view) {
  int64_t stop = attrs->stop;
  if (attrs->axis < src->ndim && stop > src->shape[attrs->axis])
    stop = src->shape[attrs->axis];
  return choir_view_slice(src, (int32_t)attrs->axis, attrs->start, stop,
                          attrs->step, out_view);
}

static choir_status_t slice_infer(const choir_view_t* srcs, int32_t src_count,
                                  const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  choir_view_t alias;
  CHOIR_TRY_NOTE(sliced(&srcs[0], attrs, &alias), "slice");
  return choir__infer_from_alias("slice", &alias, &dsts[0]);
}

static bool slice_alias(const choir_view_t* src, const void* attrs,
                        choir_view_t* dst) {
  choir_status_t status = sliced(src, attrs, dst);
  choir_status_free(status);
  return !status;
}

static choir_status_t slice_reference(const choir_record_t* record,
                                      choir_stream_t* stream) {
  return choir__view_reference(record, stream, slice_alias);
}

static const choir_op_case_t cases[] = {
    {"7", "start=2 stop=5"},
    {"7", "step=3"},
    {"5,9", "axis=1 start=1 stop=8 step=2"},
    {"5,9", "start=4"},
    {"4,3,7,5", "axis=1 start=1 stop=2"},
    {"4,3,7,5", "axis=0 start=1 stop=3"},
    {"4,3,7,5", "axis=3 start=0 stop=5 step=4"},
    {"5,9", "axis=1 start=3 stop=3"},
    {"3", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_slice = {
    .op = CHOIR_OP_SLICE,
    .name = "slice",
    .doc = "elements start, start + step, ... below stop along an axis",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = slice_infer,
    .alias = slice_alias,
    .reference = slice_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
