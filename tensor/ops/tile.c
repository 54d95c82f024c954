// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/repeat_shared.h"

CHOIR__TILE_ATTRS(tile);

static choir_status_t tile_infer(const choir_view_t* srcs, int32_t src_count,
                                 const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__tile_shape("tile", &srcs[0], attrs, &dsts[0]);
}

static void tile_map(const choir_record_t* record, int32_t part,
                     choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL, choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__tile_rules(record->attrs, map);
}
CHOIR__INDEX_MAP_REFERENCE(tile)

static const choir_op_case_t cases[] = {
    {"5", NULL},
    {"5", "repeats=3"},
    {"3,4", "ndim=2 repeats=2,1,1,1,1,1,1,1"},
    {"3,4", "repeats=3"},
    {"3", "ndim=3 repeats=2,2,3,1,1,1,1,1"},
    {"2,3,4,2", "ndim=3 repeats=2,1,3,1,1,1,1,1"},
    {"3,4", "ndim=2 repeats=0,1,1,1,1,1,1,1"},
    {"", "ndim=2 repeats=2,2,1,1,1,1,1,1"},
    {"2,0", "ndim=2 repeats=2,2,1,1,1,1,1,1"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_tile = {
    .op = CHOIR_OP_TILE,
    .name = "tile",
    .doc = "x several times in each dimension, as NumPy does",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = tile_infer,
    .reference = tile_reference,
    .index_map = tile_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
