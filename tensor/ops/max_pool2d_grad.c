// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/pool2d_shared.h"

static const choir_struct_def_t attrs_def =
    CHOIR__POOL2D_STRUCT_DEF("max_pool2d_grad", "the windows");

static choir_status_t max_pool2d_grad_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  return choir__pool2d_grad_infer("max_pool2d_grad", srcs, src_count, attrs,
                                  &dsts[0]);
}

static choir_status_t max_pool2d_grad_reference(const choir_record_t* record,
                                                choir_stream_t* stream) {
  choir__pool2d_t pool =
      choir__pool2d_of(choir_record_src(record, 0), record->attrs);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream,
                               CHOIR__SOURCE(1) | CHOIR__SOURCE(2), &dense));
  return choir__dense_end(
      &dense, choir__max_pool2d_spread("max_pool2d_grad", &pool, dense.srcs[1],
                                       dense.srcs[2], dense.dsts[0]));
}

const choir_op_def_t choir_op_def_max_pool2d_grad = {
    .op = CHOIR_OP_MAX_POOL2D_GRAD,
    .name = "max_pool2d_grad",
    .doc = "x (its shape only), index, dy -> dx",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = max_pool2d_grad_infer,
    .reference = max_pool2d_grad_reference,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR_DTYPE_MASK(U8),
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_ARGMAX},
    .tolerance = 2e-6,
    .cases = choir__max_pool2d_grad_cases,
};
