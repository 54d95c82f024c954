// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/repeat_shared.h"

CHOIR__REPEAT_ATTRS(repeat);

static choir_status_t repeat_infer(const choir_view_t* srcs, int32_t src_count,
                                   const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__repeat_shape("repeat", &srcs[0], attrs, &dsts[0]);
}

static void repeat_map(const choir_record_t* record, int32_t part,
                       choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL, choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__repeat_rules(record->attrs, map);
}
CHOIR__INDEX_MAP_REFERENCE(repeat)

static const choir_op_case_t cases[] = {{"5", NULL},
                                        {"5", "repeats=3"},
                                        {"3,4", "repeats=2"},
                                        {"3,4", "repeats=3 axis=1"},
                                        {"2,3,4,2", "repeats=2 axis=2"},
                                        {"3,4", "repeats=0 axis=1"},
                                        {"0,2", "repeats=2 axis=1"},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_repeat = {
    .op = CHOIR_OP_REPEAT,
    .name = "repeat",
    .doc = "every element several times along an axis, as NumPy does",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = repeat_infer,
    .reference = repeat_reference,
    .index_map = repeat_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
