// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

CHOIR__AXIS_ATTRS(gather_elements, "dimension that indices count along");

static choir_status_t gather_elements_infer(const choir_view_t* srcs,
                                            int32_t src_count,
                                            const void* attrs,
                                            choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "gather_elements", &srcs[0], &srcs[1],
      ((const choir_gather_elements_attrs_t*)attrs)->axis));
  return choir__infer_shape("gather_elements", srcs[0].dtype, srcs[1].ndim,
                            srcs[1].shape, &dsts[0]);
}

static void gather_elements_map(const choir_record_t* record, int32_t part,
                                choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL, choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__index_map_by_element(
      map, record, 1,
      ((const choir_gather_elements_attrs_t*)record->attrs)->axis);
}
CHOIR__INDEX_MAP_REFERENCE(gather_elements)

static const choir_op_case_t cases[] = {{"5;7", NULL},
                                        {"5,3;4,3", NULL},
                                        {"5,3;2,6", "axis=1"},
                                        {"2,3,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4", "axis=2"},
                                        {"5,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_gather_elements = {
    .op = CHOIR_OP_GATHER_ELEMENTS,
    .name = "gather_elements",
    .doc = "x, indices -> at each place x there, but for one dimension",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = gather_elements_infer,
    .reference = gather_elements_reference,
    .index_map = gather_elements_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
