// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_broadcast_to_attrs_t, ndim, 1, 0, CHOIR_MAX_NDIM,
                    "dimensions of the result"),
    CHOIR_FIELD_INTS(choir_broadcast_to_attrs_t, shape, CHOIR_MAX_NDIM, 1, 0,
                     INT64_MAX, "their sizes"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "broadcast_to", choir_broadcast_to_attrs_t, fields, "a larger shape");

static choir_status_t repeated(const choir_view_t* src,
                               const choir_broadcast_to_attrs_t* attrs,
                               choir_view_t* out_view) {
  return choir_view_broadcast(src, (int32_t)attrs->ndim, attrs->shape,
                              out_view);
}

static choir_status_t broadcast_to_infer(const choir_view_t* srcs,
                                         int32_t src_count, const void* attrs,
                                         choir_view_t* dsts) {
  (void)src_count;
  choir_view_t alias;
  CHOIR_TRY_NOTE(repeated(&srcs[0], attrs, &alias), "broadcast_to");
  return choir__infer_from_alias("broadcast_to", &alias, &dsts[0]);
}

static bool broadcast_to_alias(const choir_view_t* src, const void* attrs,
                               choir_view_t* dst) {
  choir_status_t status = repeated(src, attrs, dst);
  choir_status_free(status);
  return !status;
}

static choir_status_t broadcast_to_reference(const choir_record_t* record,
                                             choir_stream_t* stream) {
  return choir__view_reference(record, stream, broadcast_to_alias);
}

static const choir_op_case_t cases[] = {
    {"5", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"3,1", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"1,5", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"", "ndim=2 shape=3,5,1,1,1,1,1,1"},
    {"3,1,1", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"2,3,4,5", "ndim=4 shape=2,3,4,5,1,1,1,1"},
    {"1", "ndim=1 shape=0"},
    {"", "ndim=0"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_broadcast_to = {
    .op = CHOIR_OP_BROADCAST_TO,
    .name = "broadcast_to",
    .doc = "x repeated to a larger shape, as NumPy does",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = broadcast_to_infer,
    .alias = broadcast_to_alias,
    .reference = broadcast_to_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
