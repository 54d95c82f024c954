// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/index_map.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_one_hot_attrs_t, depth, 1, 1, INT64_MAX,
                    "size of the new dimension"),
    CHOIR_FIELD_INT(choir_one_hot_attrs_t, axis, -1, -1, CHOIR_MAX_NDIM - 1,
                    "its place in the result, -1 for the last"),
    CHOIR_FIELD_FLOAT(choir_one_hot_attrs_t, on, 1, -INFINITY, INFINITY,
                      "value where the index points"),
    CHOIR_FIELD_FLOAT(choir_one_hot_attrs_t, off, 0, -INFINITY, INFINITY,
                      "value elsewhere"),
    CHOIR_FIELD_INT(choir_one_hot_attrs_t, dtype, CHOIR_DTYPE_F32, 0,
                    CHOIR_DTYPE_COUNT - 1, "of the result, choir_dtype_t"),
};
static int32_t axis_of(const choir_one_hot_attrs_t* attrs, int32_t ndim) {
  return attrs->axis < 0 ? ndim : (int32_t)attrs->axis;
}

static choir_status_t one_hot_infer(const choir_record_t* record,
                                    choir_view_t* dsts) {
  const choir_one_hot_attrs_t* one_hot = record->attrs;
  const choir_view_t* indices = choir_record_src(record, 0);
  const int32_t axis = axis_of(one_hot, indices->ndim);
  if (axis > indices->ndim || indices->ndim == CHOIR_MAX_NDIM) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "axis is %lld, indices are %s; needs an axis "
                       "up to their dimensions, and these below %d",
                       (long long)one_hot->axis,
                       choir_view_print(indices, text, sizeof text),
                       CHOIR_MAX_NDIM);
  }
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k <= indices->ndim; ++k)
    shape[k] = k == axis  ? one_hot->depth
               : k < axis ? indices->shape[k]
                          : indices->shape[k - 1];
  return choir__infer_shape((choir_dtype_t)one_hot->dtype, indices->ndim + 1,
                            shape, &dsts[0]);
}

static void one_hot_map(const choir_record_t* record, int32_t part,
                        choir__index_map_t* map) {
  (void)part;
  const choir_one_hot_attrs_t* attrs = record->attrs;
  const choir_view_t* indices = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  const int32_t axis = axis_of(attrs, indices->ndim);
  choir_view_t places = {.ndim = dst->ndim, .dtype = dst->dtype};
  for (int32_t k = 0; k < dst->ndim; ++k)
    places.shape[k] = k == axis ? 1 : dst->shape[k];
  choir__index_map_start(map, CHOIR__INDEX_PUT, &places, dst);
  choir__index_map_by_element(map, record, 0, axis);
  map->indices.ndim = dst->ndim;
  for (int32_t k = dst->ndim - 1; k >= axis; --k)
    map->indices.strides[k] = k == axis ? 0 : indices->strides[k - 1];
  choir_element_store(&map->place_value, dst->dtype, attrs->on);
  choir_element_store(&map->other_value, dst->dtype, attrs->off);
}
CHOIR__INDEX_MAP_REFERENCE(one_hot)

static const choir_op_case_t cases[] = {{"", "depth=3"},
                                        {"7", "depth=5"},
                                        {"7", "depth=5 axis=0 on=2 off=-1"},
                                        {"3,2", "depth=4 axis=1 dtype=1"},
                                        {"3,2", "depth=1 dtype=5 on=9"},
                                        {"2,3,2", "depth=3 axis=0 dtype=7"},
                                        {"3,0", "depth=2"},
                                        {NULL, NULL}};

CHOIR_OP_DEFINE(ONE_HOT, one_hot, 1, 1,
                "indices -> a new dimension with one value on at the index",
                CHOIR_OP_ATTRS(one_hot, fields, "what is made"),
                .index_map = one_hot_map, .dtypes = CHOIR__DTYPES_INDEX,
                .domains = {CHOIR_DOMAIN_INDICES}, .tolerance = 0,
                .cases = cases);
