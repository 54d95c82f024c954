// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/view_ops.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INTS(choir_transpose_attrs_t, axes, CHOIR_MAX_NDIM, -1, -1,
                     CHOIR_MAX_NDIM - 1,
                     "dimension k of the result is dimension axes[k] of x; "
                     "all -1: reversed"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "transpose", choir_transpose_attrs_t, fields, "an order of dimensions");

static choir_status_t transposed(const choir_view_t* src,
                                 const choir_transpose_attrs_t* attrs,
                                 choir_view_t* out_view) {
  int32_t axes[CHOIR_MAX_NDIM];
  bool reversed = true;
  for (int32_t i = 0; i < src->ndim; ++i) {
    axes[i] = (int32_t)attrs->axes[i];
    if (axes[i] != -1) reversed = false;
  }
  for (int32_t i = 0; reversed && i < src->ndim; ++i)
    axes[i] = src->ndim - 1 - i;
  return choir_view_transpose(src, axes, out_view);
}

static choir_status_t transpose_infer(const choir_view_t* srcs,
                                      int32_t src_count, const void* attrs,
                                      choir_view_t* dsts) {
  (void)src_count;
  choir_view_t alias;
  CHOIR_TRY_NOTE(transposed(&srcs[0], attrs, &alias), "transpose");
  return choir__infer_from_alias("transpose", &alias, &dsts[0]);
}

static bool transpose_alias(const choir_view_t* src, const void* attrs,
                            choir_view_t* dst) {
  choir_status_t status = transposed(src, attrs, dst);
  choir_status_free(status);
  return !status;
}

static choir_status_t transpose_reference(const choir_record_t* record,
                                          choir_stream_t* stream) {
  return choir__view_reference(record, stream, transpose_alias);
}

static const choir_op_case_t cases[] = {{"3,5", NULL},
                                        {"3,5", "axes=1,0,-1,-1,-1,-1,-1,-1"},
                                        {"3,5", "axes=0,1,-1,-1,-1,-1,-1,-1"},
                                        {"7", NULL},
                                        {"", NULL},
                                        {"2,3,4", NULL},
                                        {"2,3,4,5", "axes=0,2,3,1,-1,-1,-1,-1"},
                                        {"2,3,4,5", "axes=0,3,1,2,-1,-1,-1,-1"},
                                        {"33,17", NULL},
                                        {"3,0,2", NULL},
                                        {"2,1,3,1,2,1,2,2", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_transpose = {
    .op = CHOIR_OP_TRANSPOSE,
    .name = "transpose",
    .doc = "x with its dimensions in another order",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = transpose_infer,
    .alias = transpose_alias,
    .reference = transpose_reference,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
