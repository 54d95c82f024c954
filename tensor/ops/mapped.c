// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/mapped.h"

// Where the element of `src` lies that walk->index of a result with `ndim`
// dimensions comes from; false: nowhere.
static bool mapped_offset(const choir_view_t* src, const choir__walk_t* walk,
                          int32_t ndim, const void* attrs, choir__map_t map,
                          int64_t* out_offset) {
  *out_offset = src->offset;
  for (int32_t k = 0; k < src->ndim; ++k) {
    int64_t place =
        map(attrs, k, src->shape[k], walk->index[k + ndim - src->ndim]);
    if (place < 0) return false;
    *out_offset += place * src->strides[k];
  }
  return true;
}

choir_status_t choir__mapped_reference(const choir_record_t* record,
                                       choir__map_t map, double value) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  unsigned char element[8];
  choir_element_store(element, dst->dtype, value);
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &dst, 1); more;
       more = choir__walk_next(&walk)) {
    int64_t offset;
    bool is_inside =
        mapped_offset(src, &walk, dst->ndim, record->attrs, map, &offset);
    choir__element_copy(is_inside ? choir__src_data(record, 0) : element,
                        is_inside ? offset : 0, choir__dst_data(record, 0),
                        walk.offsets[0], dst->dtype, record->accumulate);
  }
  return NULL;
}

choir_status_t choir__mapped_grad_reference(const choir_record_t* record,
                                            choir_stream_t* stream,
                                            choir__map_t map) {
  choir_view_t plain = *choir_record_src(record, 0);
  const choir_view_t* dy = choir_record_src(record, 1);
  plain.offset = 0;
  choir_view_set_contiguous(&plain);
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__SOURCE(1), &dense));
  const double* next = dense.srcs[1];
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, &dy, 1); more;
       more = choir__walk_next(&walk), ++next) {
    int64_t offset;
    if (mapped_offset(&plain, &walk, dy->ndim, record->attrs, map, &offset))
      dense.dsts[0][offset] += *next;
  }
  return choir__dense_end(&dense, NULL);
}
