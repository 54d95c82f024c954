// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/indices.h"

choir_status_t choir__need_axis(const choir_view_t* view, int64_t axis) {
  if (axis < view->ndim) return NULL;
  char text[160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "axis is %lld, source 0 is %s; needs an axis below "
                     "its dimensions",
                     (long long)axis,
                     choir_view_print(view, text, sizeof text));
}

choir_status_t choir__need_element_indices(const choir_view_t* view,
                                           const choir_view_t* indices,
                                           int64_t axis) {
  CHOIR_TRY(choir__need_axis(view, axis));
  bool fits = indices->ndim == view->ndim;
  for (int32_t k = 0; fits && k < view->ndim; ++k)
    fits = k == axis || indices->shape[k] <= view->shape[k];
  if (fits) return NULL;
  char text[2][160];
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "indices are %s, source 0 is %s; needs as many "
                     "dimensions, none larger except %lld",
                     choir_view_print(indices, text[0], sizeof text[0]),
                     choir_view_print(view, text[1], sizeof text[1]),
                     (long long)axis);
}

// Of integers one behind the other, as indices mostly are; false also of
// others.
#define ARE_WITHIN(name, type)                                      \
  static bool name(const void* data, int64_t count, int64_t size) { \
    const type* indices = data;                                     \
    bool are = true;                                                \
    for (int64_t i = 0; i < count; ++i)                             \
      are = are && indices[i] >= -size && indices[i] < size;        \
    return are;                                                     \
  }
ARE_WITHIN(are_within_i32, int32_t)
ARE_WITHIN(are_within_i64, int64_t)

bool choir__element_indices_mix(const choir_record_t* record,
                                const int64_t* rows) {
  bool all_have_samples = true;
  for (int32_t i = 0; i < record->src_count; ++i)
    all_have_samples &= rows[i] != 0;
  return ((const choir_gather_elements_attrs_t*)record->attrs)->axis == 0 ||
         !all_have_samples;
}

choir_status_t choir__check_indices(const char* op,
                                    const choir_record_t* record,
                                    int32_t source, int64_t size) {
  const choir_view_t* indices = choir_record_src(record, source);
  const void* data = choir__src_data(record, source);
  const int64_t count = choir_view_count(indices);
  if (choir_view_is_contiguous(indices) &&
      (indices->dtype == CHOIR_DTYPE_I64
           ? are_within_i64((const int64_t*)data + indices->offset, count, size)
           : indices->dtype == CHOIR_DTYPE_I32 &&
                 are_within_i32((const int32_t*)data + indices->offset, count,
                                size)))
    return NULL;
  int64_t place = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &indices, 1); more;
       more = choir__walk_next(&walk), ++place) {
    int64_t index = choir__integer_load(data, indices->dtype, walk.offsets[0]);
    if (index >= -size && index < size) continue;
    return CHOIR_ERROR(
        OUT_OF_RANGE,
        "%s: index %lld at element %lld of source %d; needs %lld .. %lld", op,
        (long long)index, (long long)place, (int)source, (long long)-size,
        (long long)size - 1);
  }
  return NULL;
}

choir_status_t choir__label_load(const char* op, const choir_record_t* record,
                                 int64_t row, int64_t classes,
                                 int64_t* out_label) {
  const choir_view_t* labels = choir_record_src(record, 1);
  int64_t offset = labels->offset;
  int64_t rest = row;
  for (int32_t k = labels->ndim - 1; k >= 0; rest /= labels->shape[k--])
    offset += rest % labels->shape[k] * labels->strides[k];
  *out_label =
      choir__integer_load(choir__src_data(record, 1), labels->dtype, offset);
  if (*out_label >= 0 && *out_label < classes) return NULL;
  return CHOIR_ERROR(
      OUT_OF_RANGE, "%s: label %lld at row %lld; needs 0 .. %lld", op,
      (long long)*out_label, (long long)row, (long long)classes - 1);
}
