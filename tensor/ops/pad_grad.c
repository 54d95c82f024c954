// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/pad_shared.h"

CHOIR__PAD_ATTRS(pad_grad);

static choir_status_t pad_grad_infer(const choir_view_t* srcs,
                                     int32_t src_count, const void* attrs,
                                     choir_view_t* dsts) {
  (void)src_count;
  choir_view_t padded;
  CHOIR_TRY(choir__pad_shape("pad_grad", &srcs[0], attrs, &padded));
  CHOIR_TRY(choir__need_same_shape("pad_grad", "dy", &srcs[1], "pad's result",
                                   &padded));
  return choir__infer_like("pad_grad", &srcs[0], &dsts[0]);
}

// Sums in double, in the row-major order of dy.
static void pad_grad_map(const choir_record_t* record, int32_t part,
                         choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_SUM, choir_record_src(record, 1),
                         choir_record_dst(record, 0));
  choir__pad_rules(record->attrs, map);
}
CHOIR__INDEX_MAP_REFERENCE(pad_grad)

static const choir_op_case_t cases[] = {
    {"5;10", "before=2 after=3"},
    {"5;11", "before=2 after=4 mode=reflect"},
    {"5;25", "before=11 after=9 mode=reflect"},
    {"5;10", "before=2 after=3 mode=edge"},
    {"1,4;4,9", "before=1,3,0,0,0,0,0,0 after=2,2,0,0,0,0,0,0 mode=reflect"},
    {"2,3,4,2;2,3,7,5",
     "before=0,0,1,2,0,0,0,0 after=0,0,2,1,0,0,0,0 mode=edge"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_pad_grad = {
    .op = CHOIR_OP_PAD_GRAD,
    .name = "pad_grad",
    .doc = "x (its shape), dy -> dx: dy added where it came from",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = pad_grad_infer,
    .reference = pad_grad_reference,
    .index_map = pad_grad_map,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-6,
    .cases = cases,
};
