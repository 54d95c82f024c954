// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_STRIDED_INTERNAL_H_
#define CHOIR_TENSOR_STRIDED_INTERNAL_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Walks over strided elements. `data` is where the view's buffer starts
// (choir_buffer_data) unless said otherwise.

// Copies every element, bits unchanged. Shapes are equal and so are the sizes
// of the elements; the two do not overlap.
void choir__strided_copy(const choir_view_t* src, const void* src_data,
                         const choir_view_t* dst, void* dst_data);

// Offsets of the views' elements, in row-major order of their common shape:
//
//   choir__walk_t walk;
//   for (bool more = choir__walk_start(&walk, views, 2); more;
//        more = choir__walk_next(&walk)) {
//     ... walk.offsets[0], walk.offsets[1] ...
//   }
#define CHOIR__WALK_VIEWS 4
typedef struct choir__walk_s {
  const choir_view_t* views[CHOIR__WALK_VIEWS];
  int64_t offsets[CHOIR__WALK_VIEWS];  // elements from the buffer's start
  int64_t index[CHOIR_MAX_NDIM];
  int32_t view_count;
} choir__walk_t;

// False when there is no element.
bool choir__walk_start(choir__walk_t* walk, const choir_view_t* const* views,
                       int32_t view_count);
// False after the last element.
bool choir__walk_next(choir__walk_t* walk);

// Writes a view's elements to its buffer and nothing between them, which may be
// written by other streams meanwhile: one transfer for each run of neighbours.
// `data` is host memory for the bytes of the buffer from `start` on. Blocks.
choir_status_t choir__write_elements(const choir_view_t* view,
                                     choir_stream_t* stream, const void* data,
                                     size_t start) CHOIR_NODISCARD;

// Whether an element of `a` and one of `b` may share memory (both on the same
// buffer). May say true for disjoint views with unlike strides.
bool choir__views_overlap(const choir_view_t* a, const choir_view_t* b);
// The same elements at the same places.
bool choir__views_equal(const choir_view_t* a, const choir_view_t* b);
// Whether two different elements of the view may share memory.
bool choir__view_repeats(const choir_view_t* view);

// The bits one of which an element has that is not 0: not the sign of a float.
static inline uint64_t choir__truth_mask(choir_dtype_t dtype) {
  const uint64_t sign = UINT64_C(1) << (8 * choir_dtype_bytes(dtype) - 1);
  return choir_dtype_is_float(dtype) ? ~sign : UINT64_MAX;
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_STRIDED_INTERNAL_H_
