// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

CHOIR__AXIS_ATTRS(scatter_elements_grad, "as in scatter_elements");

static choir_status_t scatter_elements_grad_infer(const choir_view_t* srcs,
                                                  int32_t src_count,
                                                  const void* attrs,
                                                  choir_view_t* dsts) {
  (void)src_count;
  CHOIR_TRY(choir__need_element_indices(
      "scatter_elements_grad", &srcs[0], &srcs[1],
      ((const choir_scatter_elements_grad_attrs_t*)attrs)->axis));
  return choir__infer_shape("scatter_elements_grad", srcs[0].dtype,
                            srcs[1].ndim, srcs[1].shape, &dsts[0]);
}

// An update that a later one overwrote has no gradient.
static void scatter_elements_grad_map(const choir_record_t* record,
                                      int32_t part, choir__index_map_t* map) {
  (void)part;
  choir__index_map_start(map, CHOIR__INDEX_PULL_LAST,
                         choir_record_dst(record, 0),
                         choir_record_src(record, 0));
  choir__index_map_by_element(
      map, record, 1,
      ((const choir_scatter_elements_grad_attrs_t*)record->attrs)->axis);
}
CHOIR__INDEX_MAP_REFERENCE(scatter_elements_grad)

static const choir_op_case_t cases[] = {{"5;7", NULL},
                                        {"5,3;4,3", NULL},
                                        {"5,3;2,6", "axis=1"},
                                        {"2,3,4;2,2,4", "axis=1"},
                                        {"4,3,7,5;2,3,9,4", "axis=2"},
                                        {"5,3;0,3", NULL},
                                        {NULL, NULL}};

const choir_op_def_t choir_op_def_scatter_elements_grad = {
    .op = CHOIR_OP_SCATTER_ELEMENTS_GRAD,
    .name = "scatter_elements_grad",
    .doc = "dy, indices -> dupdates: dy where the update is what is seen",
    .src_min = 2,
    .src_max = 2,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = scatter_elements_grad_infer,
    .reference = scatter_elements_grad_reference,
    .index_map = scatter_elements_grad_map,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .second_dtypes = CHOIR__DTYPES_INDEX,
    .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
    .tolerance = 2e-7,
    .cases = cases,
};
