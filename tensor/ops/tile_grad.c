// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/repeat_shared.h"

CHOIR__TILE_ATTRS(tile_grad);

static choir_status_t tile_grad_infer(const choir_view_t* srcs,
                                      int32_t src_count, const void* attrs,
                                      choir_view_t* dsts) {
  (void)src_count;
  choir_view_t result;
  CHOIR_TRY(choir__tile_shape("tile_grad", &srcs[0], attrs, &result));
  CHOIR_TRY(choir__need_same_shape("tile_grad", "dy", &srcs[1], "tile's result",
                                   &result));
  return choir__infer_like("tile_grad", &srcs[0], &dsts[0]);
}

// Sums in double, in the row-major order of dy.
static void tile_grad_map(const choir_record_t* record, int32_t part,
                          choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_SUM, choir_record_src(record, 1),
                         choir_record_dst(record, 0));
  choir__tile_rules(record->attrs, map);
}
CHOIR__INDEX_MAP_REFERENCE(tile_grad)

static const choir_op_case_t cases[] = {
    {"5;5", NULL},
    {"5;15", "repeats=3"},
    {"3,4;6,4", "ndim=2 repeats=2,1,1,1,1,1,1,1"},
    {"3,4;3,12", "repeats=3"},
    {"3;2,2,9", "ndim=3 repeats=2,2,3,1,1,1,1,1"},
    {"2,3,4,2;2,6,4,6", "ndim=3 repeats=2,1,3,1,1,1,1,1"},
    {"3,4;0,4", "ndim=2 repeats=0,1,1,1,1,1,1,1"},
    {";2,2", "ndim=2 repeats=2,2,1,1,1,1,1,1"},
    {"2,0;4,0", "ndim=2 repeats=2,2,1,1,1,1,1,1"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_tile_grad = {
    .op = CHOIR_OP_TILE_GRAD,
    .name = "tile_grad",
    .doc = "x (its shape), dy -> dx: dy added where it came from",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = tile_grad_infer,
    .reference = tile_grad_reference,
    .index_map = tile_grad_map,
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 2e-6,
    .cases = cases,
};
