// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_scatter_elements_attrs_t, axis, 0, 0,
                    CHOIR_MAX_NDIM - 1, "dimension that indices count along")};
static choir_status_t scatter_elements_infer(const choir_record_t* record,
                                             choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(choir__need_element_indices(
      &srcs[0], &srcs[1],
      ((const choir_scatter_elements_attrs_t*)record->attrs)->axis));
  CHOIR_TRY(choir__need_same_shape("updates", &srcs[2], "indices", &srcs[1]));
  return choir__infer_like(&srcs[0], &dsts[0]);
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

CHOIR_OP_DEFINE(SCATTER_ELEMENTS, scatter_elements, 3, 1,
                "x, indices, updates -> x with updates where indices point",
                CHOIR_OP_ATTRS(scatter_elements, fields, "where"),
                .mixes_samples = choir__element_indices_mix,
                .index_map = scatter_elements_map, .dtypes = CHOIR_DTYPES_ALL,
                .second_dtypes = CHOIR__DTYPES_INDEX,
                .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
                .tolerance = 2e-7, .cases = cases);

// ---- The gradient of the updates ----

static choir_status_t scatter_elements_grad_infer(const choir_record_t* record,
                                                  choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  CHOIR_TRY(choir__need_element_indices(
      &srcs[0], &srcs[1],
      ((const choir_scatter_elements_grad_attrs_t*)record->attrs)->axis));
  return choir__infer_shape(srcs[0].dtype, srcs[1].ndim, srcs[1].shape,
                            &dsts[0]);
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

static const choir_op_case_t grad_cases[] = {{"5;7", NULL},
                                             {"5,3;4,3", NULL},
                                             {"5,3;2,6", "axis=1"},
                                             {"2,3,4;2,2,4", "axis=1"},
                                             {"4,3,7,5;2,3,9,4", "axis=2"},
                                             {"5,3;0,3", NULL},
                                             {NULL, NULL}};

CHOIR_OP_DEFINE(SCATTER_ELEMENTS_GRAD, scatter_elements_grad, 2, 1,
                "dy, indices -> dupdates: dy where the update is what is seen",
                CHOIR_OP_ATTRS(scatter_elements_grad, fields,
                               "as in scatter_elements"),
                .index_map = scatter_elements_grad_map,
                .dtypes = CHOIR_DTYPES_FLOAT,
                .second_dtypes = CHOIR__DTYPES_INDEX,
                .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES},
                .tolerance = 2e-7, .cases = grad_cases);
