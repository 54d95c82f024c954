// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

CHOIR__AXIS_ATTRS(gather, "dimension that indices count along");

static choir_status_t gather_infer(const choir_view_t* srcs, int32_t src_count,
                                   const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__gather_shape("gather", &srcs[0], &srcs[1],
                             ((const choir_gather_attrs_t*)attrs)->axis,
                             &dsts[0]);
}

static void gather_map(const choir_record_t* record, int32_t part,
                       choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL, choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__index_map_by_axis(map, record, 1,
                           ((const choir_gather_attrs_t*)record->attrs)->axis);
}
CHOIR__INDEX_MAP_REFERENCE(gather)

static const choir_op_case_t cases[] = {{"5;3", NULL},
                                        {"5,3;4", NULL},
                                        {"5,3;2,2", "axis=1"},
                                        {"2,3,4;3,2", "axis=1"},
                                        {"4,3,7,5;6", "axis=2"},
                                        {"5,3;", "axis=1"},
                                        {"5,3;0", NULL},
                                        {"2,1,3,2;2,1,2,1", "axis=3"},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_gather = {
    .op = CHOIR_OP_GATHER,
    .name = "gather",
    .doc = "x, indices -> x with a dimension replaced by what indices name",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = gather_infer,
    .reference = gather_reference,
    .index_map = gather_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
