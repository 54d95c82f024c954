// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/pad_shared.h"

CHOIR__PAD_ATTRS(pad);

static choir_status_t pad_infer(const choir_view_t* srcs, int32_t src_count,
                                const void* attrs, choir_view_t* dsts) {
  (void)src_count;
  return choir__pad_shape("pad", &srcs[0], attrs, &dsts[0]);
}

static void pad_map(const choir_record_t* record, int32_t part,
                    choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL, choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__pad_rules(record->attrs, map);
  choir_element_store(&map->other_value, map->places.dtype,
                      ((const choir_pad_attrs_t*)record->attrs)->value);
}
CHOIR__INDEX_MAP_REFERENCE(pad)

static const choir_op_case_t cases[] = {
    {"5", "before=2 after=3 value=1.5"},
    {"5", "before=2 after=4 mode=reflect"},
    {"5", "before=11 after=9 mode=reflect"},
    {"5", "before=2 after=3 mode=edge"},
    {"3,4", "before=1,0,0,0,0,0,0,0 after=0,2,0,0,0,0,0,0 value=-1"},
    {"1,4", "before=1,3,0,0,0,0,0,0 after=2,2,0,0,0,0,0,0 mode=reflect"},
    {"0,2", "before=1"},
    {"2,3,4,2", "before=0,0,1,2,0,0,0,0 after=0,0,2,1,0,0,0,0 mode=edge"},
    {"2,3,4,2", "before=0,0,1,2,0,0,0,0 after=0,1,2,1,0,0,0,0 mode=reflect"},
    {"2,3", NULL},
    {"", NULL},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_pad = {
    .op = CHOIR_OP_PAD,
    .name = "pad",
    .doc = "x with more elements around it",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = pad_infer,
    .reference = pad_reference,
    .index_map = pad_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .tolerance = 2e-7,
    .cases = cases,
};
