// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/gather_shared.h"

choir_status_t choir__gather_shape(const char* op, const choir_view_t* x,
                                   const choir_view_t* indices, int64_t axis,
                                   choir_view_t* out_view) {
  CHOIR_TRY(choir__need_axis(op, x, axis));
  if (x->ndim - 1 + indices->ndim > CHOIR_MAX_NDIM) {
    char text[2][160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: source 0 is %s, indices are %s; needs at most %d "
                       "dimensions of both, less one",
                       op, choir_view_print(x, text[0], sizeof text[0]),
                       choir_view_print(indices, text[1], sizeof text[1]),
                       CHOIR_MAX_NDIM);
  }
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t k = 0; k < axis; ++k) shape[ndim++] = x->shape[k];
  for (int32_t k = 0; k < indices->ndim; ++k) shape[ndim++] = indices->shape[k];
  for (int32_t k = (int32_t)axis + 1; k < x->ndim; ++k)
    shape[ndim++] = x->shape[k];
  return choir__infer_shape(op, x->dtype, ndim, shape, out_view);
}

int64_t choir__gathered_offset(const choir_record_t* record,
                               const choir_view_t* x, int64_t axis,
                               const choir__walk_t* walk) {
  const choir_view_t* indices = choir_record_src(record, 1);
  int64_t offset = x->offset;
  int64_t index_offset = indices->offset;
  int32_t k = 0;
  for (int32_t d = 0; d < axis; ++d) offset += walk->index[k++] * x->strides[d];
  for (int32_t d = 0; d < indices->ndim; ++d)
    index_offset += walk->index[k++] * indices->strides[d];
  for (int32_t d = (int32_t)axis + 1; d < x->ndim; ++d)
    offset += walk->index[k++] * x->strides[d];
  int64_t index = choir__index_at(record, 1, index_offset, x->shape[axis]);
  return offset + index * x->strides[axis];
}

choir_status_t choir__scatter_winners(const choir_record_t* record,
                                      choir_stream_t* stream,
                                      const choir_view_t* view, int64_t axis,
                                      int64_t** out_winners) {
  *out_winners = NULL;
  const choir_view_t* indices = choir_record_src(record, 1);
  const int64_t count = choir_view_count(view);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(choir_stream_device(stream)),
                           (size_t)count * sizeof(int64_t), "reference kernel",
                           &memory));
  int64_t* winners = memory;
  for (int64_t i = 0; i < count; ++i) winners[i] = -1;
  choir_view_t plain = *view;
  plain.offset = 0;
  choir_view_set_contiguous(&plain);
  int64_t place = 0;
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &indices, 1); more;
       more = choir__walk_next(&walk), ++place) {
    int64_t index =
        choir__index_at(record, 1, walk.offsets[0], view->shape[axis]);
    winners[choir__indexed_offset(&plain, &walk, axis, index)] = place;
  }
  *out_winners = winners;
  return NULL;
}
