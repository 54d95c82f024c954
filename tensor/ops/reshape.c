// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_reshape_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,
                    "dimensions of the result"),
    CHOIR_FIELD_INTS(choir_reshape_attrs_t, shape, CHOIR_MAX_NDIM, -1, -1,
                     INT64_MAX, "their sizes; one may be -1, what is left"),
};
static const choir_struct_def_t attrs_def =
    CHOIR_STRUCT_DEF("reshape", choir_reshape_attrs_t, fields, "a new shape");

// The shape with its -1 filled in; false when the elements do not fit.
static bool resolve(const choir_view_t* src, const choir_reshape_attrs_t* attrs,
                    int64_t* shape) {
  int32_t open = -1;
  int64_t known = 1;
  for (int32_t axis = 0; axis < attrs->ndim; ++axis) {
    shape[axis] = attrs->shape[axis];
    if (shape[axis] >= 0) {
      if (__builtin_mul_overflow(known, shape[axis], &known)) return false;
    } else if (open >= 0) {
      return false;
    } else {
      open = axis;
    }
  }
  int64_t count = choir_view_count(src);
  if (open < 0) return known == count;
  if (known == 0 || count % known != 0) return false;
  shape[open] = count / known;
  return true;
}

static choir_status_t reshape_infer(const choir_view_t* srcs, int32_t src_count,
                                    const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  const choir_reshape_attrs_t* reshape = attrs;
  int64_t shape[CHOIR_MAX_NDIM];
  if (!resolve(&srcs[0], reshape, shape)) {
    char text[160], attrs_text[160];
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "reshape: x is %s, asked for %s; needs as many elements (%lld), at "
        "most one size -1",
        choir_view_print(&srcs[0], text, sizeof text),
        choir_struct_print(&attrs_def, attrs, attrs_text, sizeof attrs_text),
        (long long)choir_view_count(&srcs[0]));
  }
  return choir__infer_shape("reshape", srcs[0].dtype, (int32_t)reshape->ndim,
                            shape, &dsts[0]);
}

static bool reshape_alias(const choir_view_t* src, const void* attrs,
                          choir_view_t* dst) {
  const choir_reshape_attrs_t* reshape = attrs;
  int64_t shape[CHOIR_MAX_NDIM];
  return resolve(src, reshape, shape) &&
         choir_view_reshape(src, (int32_t)reshape->ndim, shape, dst);
}

static choir_status_t reshape_reference(const choir_record_t* record,
                                        choir_stream_t* stream) {
  return choir__view_reference(record, stream, reshape_alias);
}

static const choir_op_case_t cases[] = {
    {"12", "ndim=2 shape=3,4,1,1,1,1,1,1"},
    {"3,4", "ndim=1 shape=-1"},
    {"", "ndim=3 shape=1"},
    {"1,1", "ndim=0 shape=-1"},
    {"2,3,4,5", "ndim=2 shape=2,-1,1,1,1,1,1,1"},
    {"2,3,4,5", "ndim=4 shape=5,4,3,2,1,1,1,1"},
    {"2,12,5", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"2,0,5", "ndim=2 shape=0,7,1,1,1,1,1,1"},
    {"3,1,7", "ndim=2 shape=7,3,1,1,1,1,1,1"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_reshape = {
    .op = CHOIR_OP_RESHAPE,
    .name = "reshape",
    .doc = "the elements of x in row-major order, in another shape",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = reshape_infer,
    .alias = reshape_alias,
    .reference = reshape_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
