// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/index_map.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_INT(choir_concat_attrs_t, axis, 0, 0, CHOIR_MAX_NDIM - 1,
                    "dimension along which the sources follow each other"),
};
static choir_status_t concat_infer(const choir_record_t* record,
                                   choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  int64_t axis = ((const choir_concat_attrs_t*)record->attrs)->axis;
  char text[2][160];
  if (axis >= srcs[0].ndim)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "axis is %lld, source 0 is %s; needs an axis "
                       "below its dimensions",
                       (long long)axis,
                       choir_view_print(&srcs[0], text[0], sizeof text[0]));
  choir_view_t joined = srcs[0];
  for (int32_t i = 1; i < record->src_count; ++i) {
    choir_view_t others = srcs[i];
    if (others.ndim == joined.ndim) others.shape[axis] = joined.shape[axis];
    if (!choir_view_same_shape(&others, &joined))
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "source %d is %s, source 0 is %s; needs equal "
          "sizes except along axis %lld",
          (int)i, choir_view_print(&srcs[i], text[0], sizeof text[0]),
          choir_view_print(&srcs[0], text[1], sizeof text[1]), (long long)axis);
    if (__builtin_add_overflow(joined.shape[axis], srcs[i].shape[axis],
                               &joined.shape[axis]))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "source %d is %s; needs sizes whose sum along "
                         "axis %lld fits in 63 bits",
                         (int)i,
                         choir_view_print(&srcs[i], text[0], sizeof text[0]),
                         (long long)axis);
  }
  CHOIR_TRY(
      choir__infer_shape(joined.dtype, joined.ndim, joined.shape, &dsts[0]));
  choir_view_set_layout_like(&dsts[0], &srcs[0]);
  return NULL;
}

// A part for each source: its elements in their part of the destination.
static void concat_map(const choir_record_t* record, int32_t part,
                       choir__index_map_t* map) {
  const int64_t axis = ((const choir_concat_attrs_t*)record->attrs)->axis;
  const choir_view_t* src = choir_record_src(record, part);
  choir_view_t places = *choir_record_dst(record, 0);
  for (int32_t i = 0; i < part; ++i)
    places.offset +=
        choir_record_src(record, i)->shape[axis] * places.strides[axis];
  places.shape[axis] = src->shape[axis];
  choir__index_map_start(map, CHOIR__INDEX_PULL, &places, src);
  map->parts = record->src_count;
}
CHOIR__INDEX_MAP_REFERENCE(concat)

static const choir_op_case_t cases[] = {{"3;4", NULL},
                                        {"2,3;2,3", NULL},
                                        {"2,3;2,1;2,4", "axis=1"},
                                        {"4,3,7,5;4,2,7,5", "axis=1"},
                                        {"1,3,4,4;2,3,4,4;3,3,4,4", NULL},
                                        {"5,1", "axis=1"},
                                        {"2,0;2,3", "axis=1"},
                                        {"1;1;1;1;1;1;1;1;1;1;1;1;1;1;1", NULL},
                                        {NULL, NULL}};

static bool concat_mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return ((const choir_concat_attrs_t*)record->attrs)->axis == 0;
}

CHOIR_OP_DEFINE_BY(CONCAT, concat, 1, 15, 1, concat_infer, concat_reference,
                   "the sources one after the other along an axis",
                   CHOIR_OP_ATTRS(concat, fields, "where to join"),
                   .mixes_samples = concat_mixes, .index_map = concat_map,
                   .dtypes = CHOIR_DTYPES_ALL, .tolerance = 2e-7,
                   .cases = cases);
