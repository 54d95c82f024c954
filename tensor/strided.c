// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tensor/strided_internal.h"

// The common shape of two views with size-1 dimensions dropped and neighbours
// merged where both strides allow, so that the innermost run is long.
typedef struct pair_s {
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  int64_t src_strides[CHOIR_MAX_NDIM];
  int64_t dst_strides[CHOIR_MAX_NDIM];
} pair_t;

static void pair_make(const choir_view_t* src, const choir_view_t* dst,
                      pair_t* pair) {
  pair->ndim = 0;
  for (int32_t axis = 0; axis < src->ndim; ++axis) {
    if (src->shape[axis] == 1) continue;
    int32_t last = pair->ndim - 1;
    if (last >= 0 &&
        pair->src_strides[last] == src->strides[axis] * src->shape[axis] &&
        pair->dst_strides[last] == dst->strides[axis] * src->shape[axis]) {
      pair->shape[last] *= src->shape[axis];
      pair->src_strides[last] = src->strides[axis];
      pair->dst_strides[last] = dst->strides[axis];
      continue;
    }
    pair->shape[pair->ndim] = src->shape[axis];
    pair->src_strides[pair->ndim] = src->strides[axis];
    pair->dst_strides[pair->ndim] = dst->strides[axis];
    ++pair->ndim;
  }
}

#define COPY_RUN(type)                                                  \
  for (int64_t i = 0; i < count; ++i) {                                 \
    memcpy(dst + i * dst_stride * (int64_t)sizeof(type),                \
           src + i * src_stride * (int64_t)sizeof(type), sizeof(type)); \
  }

static void copy_run(const char* src, int64_t src_stride, char* dst,
                     int64_t dst_stride, int64_t count, size_t bytes) {
  if (src_stride == 1 && dst_stride == 1) {
    memcpy(dst, src, (size_t)count * bytes);
  } else if (bytes == 4) {
    COPY_RUN(uint32_t)
  } else if (bytes == 8) {
    COPY_RUN(uint64_t)
  } else if (bytes == 2) {
    COPY_RUN(uint16_t)
  } else {
    COPY_RUN(uint8_t)
  }
}

void choir__strided_copy(const choir_view_t* src, const void* src_data,
                         const choir_view_t* dst, void* dst_data) {
  if (choir_view_count(src) == 0) return;
  size_t bytes = choir_dtype_bytes(src->dtype);
  const char* from = (const char*)src_data + src->offset * (int64_t)bytes;
  char* to = (char*)dst_data + dst->offset * (int64_t)bytes;
  pair_t pair;
  pair_make(src, dst, &pair);
  if (pair.ndim == 0) {
    memcpy(to, from, bytes);
    return;
  }
  int32_t inner = pair.ndim - 1;
  int64_t index[CHOIR_MAX_NDIM] = {0};
  for (;;) {
    copy_run(from, pair.src_strides[inner], to, pair.dst_strides[inner],
             pair.shape[inner], bytes);
    int32_t axis = inner - 1;
    for (; axis >= 0; --axis) {
      from += pair.src_strides[axis] * (int64_t)bytes;
      to += pair.dst_strides[axis] * (int64_t)bytes;
      if (++index[axis] < pair.shape[axis]) break;
      from -= pair.src_strides[axis] * pair.shape[axis] * (int64_t)bytes;
      to -= pair.dst_strides[axis] * pair.shape[axis] * (int64_t)bytes;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

bool choir__walk_start(choir__walk_t* walk, const choir_view_t* const* views,
                       int32_t view_count) {
  walk->view_count = view_count;
  for (int32_t i = 0; i < view_count; ++i) {
    walk->views[i] = views[i];
    walk->offsets[i] = views[i]->offset;
  }
  for (int32_t axis = 0; axis < CHOIR_MAX_NDIM; ++axis) walk->index[axis] = 0;
  return choir_view_count(views[0]) > 0;
}

bool choir__walk_next(choir__walk_t* walk) {
  const choir_view_t* shape = walk->views[0];
  for (int32_t axis = shape->ndim - 1; axis >= 0; --axis) {
    bool wraps = ++walk->index[axis] == shape->shape[axis];
    int64_t step = wraps ? 1 - shape->shape[axis] : 1;
    for (int32_t i = 0; i < walk->view_count; ++i)
      walk->offsets[i] += step * walk->views[i]->strides[axis];
    if (!wraps) return true;
    walk->index[axis] = 0;
  }
  return false;
}

bool choir__views_equal(const choir_view_t* a, const choir_view_t* b) {
  return a->buffer == b->buffer && choir_view_same_layout(a, b);
}

// One dimension of a layout.
typedef struct span_s {
  int64_t stride;
  int64_t size;
} span_t;

// Dimensions with more than one element, from the largest stride down.
static int32_t sorted_spans(const choir_view_t* view, span_t* spans) {
  int32_t count = 0;
  for (int32_t axis = 0; axis < view->ndim; ++axis) {
    if (view->shape[axis] <= 1) continue;
    span_t span = {view->strides[axis], view->shape[axis]};
    int32_t at = count++;
    for (; at > 0 && spans[at - 1].stride < span.stride; --at)
      spans[at] = spans[at - 1];
    spans[at] = span;
  }
  return count;
}

// The first element of each run of neighbours, as a view; returns the length of
// a run.
static int64_t runs_of(const choir_view_t* view, choir_view_t* out_firsts) {
  span_t spans[CHOIR_MAX_NDIM];
  const int32_t count = sorted_spans(view, spans);
  choir_view_t* firsts = out_firsts;
  *firsts = *view;
  firsts->ndim = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t last = firsts->ndim - 1;
    int64_t size = spans[i].size;
    // A dimension whose neighbours lie where this one ends is one with it.
    const bool goes_on =
        last >= 0 && firsts->strides[last] == spans[i].stride * size;
    if (goes_on) size *= firsts->shape[last];
    const int32_t at = goes_on ? last : firsts->ndim++;
    firsts->shape[at] = size;
    firsts->strides[at] = spans[i].stride;
  }
  const int32_t last = firsts->ndim - 1;
  if (last < 0 || firsts->strides[last] != 1) return 1;
  firsts->ndim = last;
  return firsts->shape[last];
}

choir_status_t choir__write_elements(const choir_view_t* view,
                                     choir_stream_t* stream, const void* data,
                                     size_t start) {
  if (choir_view_count(view) == 0) return NULL;
  choir_view_t firsts;
  const size_t bytes = choir_dtype_bytes(view->dtype);
  const size_t run = (size_t)runs_of(view, &firsts) * bytes;
  const choir_view_t* views[] = {&firsts};
  choir__walk_t walk;
  for (bool more = choir__walk_start(&walk, views, 1); more;
       more = choir__walk_next(&walk)) {
    const size_t at = (size_t)walk.offsets[0] * bytes;
    CHOIR_TRY(choir_buffer_write(view->buffer, stream, at,
                                 (const char*)data + (at - start), run));
  }
  return NULL;
}

// Whether each stride is at least as long as all that the smaller ones reach.
static bool spans_nest(const span_t* spans, int32_t count) {
  int64_t inside = 1;  // elements that the dimensions so far reach over
  for (int32_t i = count - 1; i >= 0; --i) {
    if (spans[i].stride < inside) return false;
    inside += spans[i].stride * (spans[i].size - 1);
  }
  return true;
}

bool choir__view_repeats(const choir_view_t* view) {
  if (choir_view_count(view) == 0) return false;
  span_t spans[CHOIR_MAX_NDIM];
  return !spans_nest(spans, sorted_spans(view, spans));
}

// Whether two views with these spans, `distance` elements apart, meet: whether
// distance = sum of k * stride with |k| < size. `spans` nest, so from the
// largest stride down only two k are near enough.
static bool spans_meet(const span_t* spans, int32_t count, int64_t distance) {
  if (count == 0) return distance == 0;
  if (distance < 0) distance = -distance;
  int64_t k = distance / spans[0].stride;
  for (int64_t extra = 0; extra < 2; ++extra) {
    if (k + extra < spans[0].size &&
        spans_meet(spans + 1, count - 1,
                   distance - (k + extra) * spans[0].stride))
      return true;
  }
  return false;
}

bool choir__views_overlap(const choir_view_t* a, const choir_view_t* b) {
  if (a->buffer != b->buffer || choir_view_count(a) == 0 ||
      choir_view_count(b) == 0)
    return false;
  int64_t a_bytes = (int64_t)choir_dtype_bytes(a->dtype);
  int64_t b_bytes = (int64_t)choir_dtype_bytes(b->dtype);
  int64_t a_start = a->offset * a_bytes;
  int64_t b_start = b->offset * b_bytes;
  if (a_start + choir_view_extent(a) * a_bytes <= b_start ||
      b_start + choir_view_extent(b) * b_bytes <= a_start)
    return false;
  if (a_bytes != b_bytes) return true;
  span_t a_spans[CHOIR_MAX_NDIM];
  span_t b_spans[CHOIR_MAX_NDIM];
  int32_t count = sorted_spans(a, a_spans);
  if (sorted_spans(b, b_spans) != count) return true;
  for (int32_t i = 0; i < count; ++i) {
    if (a_spans[i].stride != b_spans[i].stride) return true;
    if (b_spans[i].size > a_spans[i].size) a_spans[i].size = b_spans[i].size;
  }
  return !spans_nest(a_spans, count) ||
         spans_meet(a_spans, count, a->offset - b->offset);
}
