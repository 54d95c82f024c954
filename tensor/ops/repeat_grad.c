// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/repeat_shared.h"

CHOIR__REPEAT_ATTRS(repeat_grad);

static choir_status_t repeat_grad_infer(const choir_view_t* srcs,
                                        int32_t src_count, const void* attrs,
                                        choir_view_t* dsts) {
  (void)src_count;
  choir_view_t result;
  CHOIR_TRY(choir__repeat_shape("repeat_grad", &srcs[0], attrs, &result));
  CHOIR_TRY(choir__need_same_shape("repeat_grad", "dy", &srcs[1],
                                   "repeat's result", &result));
  return choir__infer_like("repeat_grad", &srcs[0], &dsts[0]);
}

// Sums in double, in the row-major order of dy.
static void repeat_grad_map(const choir_record_t* record, int32_t part,
                            choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_SUM, choir_record_src(record, 1),
                         choir_record_dst(record, 0));
  choir__repeat_rules(record->attrs, map);
}
CHOIR__INDEX_MAP_REFERENCE(repeat_grad)

static const choir_op_case_t cases[] = {{"5;5", NULL},
                                        {"5;15", "repeats=3"},
                                        {"3,4;6,4", "repeats=2"},
                                        {"3,4;3,12", "repeats=3 axis=1"},
                                        {"2,3,4,2;2,3,8,2", "repeats=2 axis=2"},
                                        {"3,4;3,0", "repeats=0 axis=1"},
                                        {"0,2;0,4", "repeats=2 axis=1"},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_repeat_grad = {
    .op = CHOIR_OP_REPEAT_GRAD,
    .name = "repeat_grad",
    .doc = "x (its shape), dy -> dx: dy added where it came from",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = repeat_grad_infer,
    .reference = repeat_grad_reference,
    .index_map = repeat_grad_map,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-6,
    .cases = cases,
};
