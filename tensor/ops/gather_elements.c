// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/move.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_gather_elements_attrs_t, axis, 0, 0,
                    CHOIR_MAX_NDIM - 1, "dimension that indices count along")};

static choir_status_t gather_elements_shape(
    const choir_view_t* srcs, const choir_gather_elements_attrs_t* attrs,
    choir_view_t* dst) {
  CHOIR_TRY(choir__need_element_indices(&srcs[0], &srcs[1], attrs->axis));
  return choir__infer_shape(srcs[0].dtype, srcs[1].ndim, srcs[1].shape, dst);
}

static void gather_elements_rules(const choir_record_t* record,
                                  choir__index_map_t* map) {
  choir__index_map_by_element(
      map, record, 1,
      ((const choir_gather_elements_attrs_t*)record->attrs)->axis);
}

#define CASES(S)                                                              \
  {S("5;7", "7"), NULL}, {S("5,3;4,3", "4,3"), NULL},                         \
      {S("5,3;2,6", "2,6"), "axis=1"}, {S("2,3,4;2,2,4", "2,2,4"), "axis=1"}, \
      {S("4,3,7,5;2,3,9,4", "2,3,9,4"), "axis=2"}, {                          \
    S("5,3;0,3", "0,3"), NULL                                                 \
  }
CHOIR_MOVE_OP(GATHER_ELEMENTS, gather_elements, 2,
              "x, indices -> at each place x there, but for one dimension",
              .mixes_samples = choir__element_indices_mix,
              .second_dtypes = CHOIR__DTYPES_INDEX,
              .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES});
