// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_flatten_attrs_t, axis, 1, 0, CHOIR_MAX_NDIM,
                    "first dimension of those that become one"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "flatten", choir_flatten_attrs_t, fields, "which dimensions become one");

// Sizes before `axis`, then the product of the others (1 when there is none).
static int32_t flat_shape(const choir_view_t* src, int32_t axis,
                          int64_t* shape) {
  for (int32_t i = 0; i < axis; ++i) shape[i] = src->shape[i];
  shape[axis] = 1;
  for (int32_t i = axis; i < src->ndim; ++i) shape[axis] *= src->shape[i];
  return axis + 1;
}

static choir_status_t flatten_infer(const choir_view_t* srcs, int32_t src_count,
                                    const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  int64_t axis = ((const choir_flatten_attrs_t*)attrs)->axis;
  if (axis > srcs[0].ndim || axis >= CHOIR_MAX_NDIM) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "flatten: axis is %lld, x is %s; needs an axis up to "
                       "its dimensions",
                       (long long)axis,
                       choir_view_print(&srcs[0], text, sizeof text));
  }
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = flat_shape(&srcs[0], (int32_t)axis, shape);
  return choir__infer_shape("flatten", srcs[0].dtype, ndim, shape, &dsts[0]);
}

static bool flatten_alias(const choir_view_t* src, const void* attrs,
                          choir_view_t* dst) {
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t axis = (int32_t)((const choir_flatten_attrs_t*)attrs)->axis;
  int32_t ndim = flat_shape(src, axis, shape);
  return choir_view_reshape(src, ndim, shape, dst);
}

static choir_status_t flatten_reference(const choir_record_t* record,
                                        choir_stream_t* stream) {
  return choir__view_reference(record, stream, flatten_alias);
}

static const choir_op_case_t cases[] = {
    {"4,3,7,5", NULL}, {"4,3,7,5", "axis=0"}, {"4,3,7,5", "axis=2"},
    {"4,3", "axis=2"}, {"5", NULL},           {"", "axis=0"},
    {"3,0,2", NULL},   {"2,1,1,6", NULL},     {NULL, NULL}};

const choir_op_def_t choir_op_def_flatten = {
    .op = CHOIR_OP_FLATTEN,
    .name = "flatten",
    .doc = "x with the dimensions from axis on made one",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = flatten_infer,
    .alias = flatten_alias,
    .reference = flatten_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
