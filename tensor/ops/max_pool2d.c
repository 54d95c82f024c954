// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__POOL2D_STRUCT_DEF("max_pool2d", "windows of images");

static choir_status_t max_pool2d_infer(const choir_view_t* srcs,
                                       int32_t src_count, const void* attrs,
                                       choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__max_pool2d_infer("max_pool2d", &srcs[0], attrs, &dsts[0]));
  dsts[1] = dsts[0];
  dsts[1].dtype = CHOIR_DTYPE_U8;
  return NULL;
}

static choir_status_t max_pool2d_reference(const choir_record_t* record,
                                           choir_stream_t* stream) {
  choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  choir__max_pool2d_images(&pool, dense.srcs[0], dense.dsts[0], dense.dsts[1]);
  return choir__dense_end(&dense, NULL);
}

const choir_op_def_t choir_op_def_max_pool2d = {
    .op = CHOIR_OP_MAX_POOL2D,
    .name = "max_pool2d",
    .doc = "largest of each window, and its place within the window",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 2,
    .attrs = &attrs_def,
    .infer = max_pool2d_infer,
    .reference = max_pool2d_reference,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .no_accumulate = true,
    .domains = {CHOIR_DOMAIN_NO_KINK},
    .tolerance = 0,
    .cases = choir__pool2d_cases,
};
