// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

CHOIR__AXIS_ATTRS(scatter_elements, "dimension that indices count along");

static choir_status_t scatter_elements_infer(const choir_view_t* srcs,
                                             int32_t src_count,
                                             const void* attrs,
                                             choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "scatter_elements", &srcs[0], &srcs[1],
      ((const choir_scatter_elements_attrs_t*)attrs)->axis));
  CHOIR_TRY(choir__need_same_shape("scatter_elements", "updates", &srcs[2],
                                   "indices", &srcs[1]));
  return choir__infer_like("scatter_elements", &srcs[0], &dsts[0]);
}

static void scatter_elements_map(const choir_record_t* record, int32_t part,
                                 choir__index_map_t* map) {
  (void)part;
  const int64_t axis =
      ((const choir_scatter_elements_attrs_t*)record->attrs)->axis;
  choir__index_map_start(map, CHOIR__INDEX_PUT, choir_record_src(record, 2),
                         choir_record_dst(record, 0));
  choir__index_map_by_element(map, record, 1, axis);
  map->others = *choir_record_src(record, 0);
  map->others_axis_stride = map->others.strides[axis];
  map->others.shape[axis] = 1;
  map->others.strides[axis] = 0;
}
CHOIR__INDEX_MAP_REFERENCE(scatter_elements)

static const choir_op_case_t cases[] = {{"5;7;7", NULL},
                                        {"5,3;4,3;4,3", NULL},
                                        {"5,3;2,6;2,6", "axis=1"},
                                        {"2,3,4;2,2,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4;2,3,9,4", "axis=2"},
                                        {"5,3;0,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_scatter_elements = {
    .op = CHOIR_OP_SCATTER_ELEMENTS,
    .name = "scatter_elements",
    .doc = "x, indices, updates -> x with updates where indices point",
    .src_min = 3,
    .src_max = 3,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = scatter_elements_infer,
    .reference = scatter_elements_reference,
    .index_map = scatter_elements_map,
    .dtypes = CHOIR_DTYPES_ALL,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
