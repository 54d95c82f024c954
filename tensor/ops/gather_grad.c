// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

CHOIR__AXIS_ATTRS(gather_grad, "as in gather");

static choir_status_t gather_grad_infer(const choir_view_t* srcs,
                                        int32_t src_count, const void* attrs,
                                        choir_view_t* dsts) {
  (void)src_count;
  choir_view_t result;
  CHOIR_TRY(choir__gather_shape("gather_grad", &srcs[0], &srcs[1],
                                ((const choir_gather_grad_attrs_t*)attrs)->axis,
                                &result));
  CHOIR_TRY(choir__need_same_shape("gather_grad", "dy", &srcs[2],
                                   "gather's result", &result));
  return choir__infer_like("gather_grad", &srcs[0], &dsts[0]);
}

// Elements that were taken several times get the sum, in double, in the
// row-major order of dy.
static void gather_grad_map(const choir_record_t* record, int32_t part,
                            choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_SUM, choir_record_src(record, 2),
                         choir_record_dst(record, 0));
  choir__index_map_by_axis(
      map, record, 1, ((const choir_gather_grad_attrs_t*)record->attrs)->axis);
}
CHOIR__INDEX_MAP_REFERENCE(gather_grad)

static const choir_op_case_t cases[] = {{"5;3;3", NULL},
                                        {"5,3;4;4,3", NULL},
                                        {"5,3;2,2;5,2,2", "axis=1"},
                                        {"2,3,4;3,2;2,3,2,4", "axis=1"},
                                        {"4,3,7,5;6;4,3,6,5", "axis=2"},
                                        {"5,3;;5", "axis=1"},
                                        {"5,3;0;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_gather_grad = {
    .op = CHOIR_OP_GATHER_GRAD,
    .name = "gather_grad",
    .doc = "x (its shape), indices, dy -> dx: dy added where it came from",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = gather_grad_infer,
    .reference = gather_grad_reference,
    .index_map = gather_grad_map,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-6,
    .cases = cases,
};
