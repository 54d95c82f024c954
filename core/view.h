// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_VIEW_H_
#define CHOIR_CORE_VIEW_H_

#include "core/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// A strided window on a buffer: what a record's operands are. Element
// (i0, i1, ...) lies `offset + sum(ik * strides[k])` elements from the start
// of the buffer. A stride of 0 repeats an element (broadcast); strides are
// never negative. Zero dimensions is a scalar, a size of 0 an empty view.
//
// Ownership: a plain value that borrows its buffer.

typedef struct choir_buffer_s choir_buffer_t;

typedef struct choir_view_s {
  choir_buffer_t* buffer;  // borrowed; NULL for a shape without memory
  int64_t offset;          // elements
  int64_t shape[CHOIR_MAX_NDIM];
  int64_t strides[CHOIR_MAX_NDIM];  // elements
  int32_t ndim;
  choir_dtype_t dtype;
} choir_view_t;

// A dense row-major view without buffer. Fails when ndim or a size is out of
// range, or the bytes do not fit in 63 bits.
CHOIR_API choir_status_t choir_view_make(choir_dtype_t dtype, int32_t ndim,
                                         const int64_t* shape,
                                         choir_view_t* out_view)
    CHOIR_NODISCARD;

// Elements (1 for a scalar).
CHOIR_API int64_t choir_view_count(const choir_view_t* view);
// Elements from the first to one past the last that the view touches.
CHOIR_API int64_t choir_view_extent(const choir_view_t* view);
CHOIR_API bool choir_view_same_shape(const choir_view_t* a,
                                     const choir_view_t* b);
// Same dtype, offset and shape, and same strides where there are several
// elements.
CHOIR_API bool choir_view_same_layout(const choir_view_t* a,
                                      const choir_view_t* b);
// Row-major without gaps (size-1 dimensions may have any stride).
CHOIR_API bool choir_view_is_contiguous(const choir_view_t* view);
// Without gaps or repeats in some order of dimensions.
CHOIR_API bool choir_view_is_dense(const choir_view_t* view);
// 4 dimensions N, C, H, W stored as N, H, W, C without gaps.
CHOIR_API bool choir_view_is_channels_last(const choir_view_t* view);

// Sets row-major strides, or (4 dimensions) channels-last ones.
CHOIR_API void choir_view_set_contiguous(choir_view_t* view);
CHOIR_API void choir_view_set_channels_last(choir_view_t* view);
// Gives `view` dense strides in the order of dimensions that `like` has: of
// two dimensions the one with the larger stride is outer, at equal strides the
// one with the larger size, then the earlier one. Row-major when ndim differs
// or `like` repeats elements.
CHOIR_API void choir_view_set_layout_like(choir_view_t* view,
                                          const choir_view_t* like);

// The same elements with other dimensions, in row-major order; false when
// strides cannot express it (then a copy is needed).
CHOIR_API bool choir_view_reshape(const choir_view_t* view, int32_t ndim,
                                  const int64_t* shape, choir_view_t* out_view);
// Dimension k of the result is dimension axes[k] of the view.
CHOIR_API choir_status_t choir_view_transpose(const choir_view_t* view,
                                              const int32_t* axes,
                                              choir_view_t* out_view)
    CHOIR_NODISCARD;
// Elements start, start+step, ... below stop along `axis`.
CHOIR_API choir_status_t choir_view_slice(const choir_view_t* view,
                                          int32_t axis, int64_t start,
                                          int64_t stop, int64_t step,
                                          choir_view_t* out_view)
    CHOIR_NODISCARD;
// Repeats size-1 (or missing leading) dimensions by stride 0, as NumPy does.
CHOIR_API choir_status_t choir_view_broadcast(const choir_view_t* view,
                                              int32_t ndim,
                                              const int64_t* shape,
                                              choir_view_t* out_view)
    CHOIR_NODISCARD;
// NumPy's broadcast shape of two views, into out_shape[CHOIR_MAX_NDIM].
CHOIR_API choir_status_t choir_view_broadcast_shape(const choir_view_t* a,
                                                    const choir_view_t* b,
                                                    int32_t* out_ndim,
                                                    int64_t* out_shape)
    CHOIR_NODISCARD;

// "f32 (64, 20, 24, 24)" into `text`; with strides when not contiguous.
// Returns `text`.
CHOIR_API const char* choir_view_print(const choir_view_t* view, char* text,
                                       size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_VIEW_H_
