// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/move.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_gather_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1,
                    "dimension that indices count along")};

// The shape of x with dimension `axis` replaced by the shape of the indices.
static choir_status_t gather_shape(const choir_view_t* srcs,
                                   const choir_gather_attrs_t* attrs,
                                   choir_view_t* dst) {
  const choir_view_t* x = &srcs[0];
  const choir_view_t* indices = &srcs[1];
  const int64_t axis = attrs->axis;
  CHOIR_TRY(choir__need_axis(x, axis));
  if (x->ndim - 1 + indices->ndim > CHOIR_MAX_NDIM) {
    char text[2][160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "source 0 is %s, indices are %s; needs at most %d "
                       "dimensions of both, less one",
                       choir_view_print(x, text[0], sizeof text[0]),
                       choir_view_print(indices, text[1], sizeof text[1]),
                       CHOIR_MAX_NDIM);
  }
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t k = 0; k < axis; ++k) shape[ndim++] = x->shape[k];
  for (int32_t k = 0; k < indices->ndim; ++k) shape[ndim++] = indices->shape[k];
  for (int32_t k = (int32_t)axis + 1; k < x->ndim; ++k)
    shape[ndim++] = x->shape[k];
  return choir__infer_shape(x->dtype, ndim, shape, dst);
}

static void gather_rules(const choir_record_t* record,
                         choir__index_map_t* map) {
  choir__index_map_by_axis(map, record, 1,
                           ((const choir_gather_attrs_t*)record->attrs)->axis);
}

#define CASES(S)                                                         \
  {S("5;3", "3"), NULL}, {S("5,3;4", "4,3"), NULL},                      \
      {S("5,3;2,2", "5,2,2"), "axis=1"},                                 \
      {S("2,3,4;3,2", "2,3,2,4"), "axis=1"},                             \
      {S("4,3,7,5;6", "4,3,6,5"), "axis=2"}, {S("5,3;", "5"), "axis=1"}, \
      {S("5,3;0", "0,3"), NULL}, {S("40,3;4", "4,3"), NULL},             \
      {S("2,40,3;4", "2,4,3"), "axis=1"}, {                              \
    S("2,1,3,2;2,1,2,1", "2,1,3,2,1,2,1"), "axis=3"                      \
  }
CHOIR_MOVE_OP(GATHER, gather, 2,
              "x, indices -> x with a dimension replaced by what indices name",
              .second_dtypes = CHOIR__DTYPES_INDEX,
              .domains = {CHOIR_DOMAIN_ANY, CHOIR_DOMAIN_INDICES});
