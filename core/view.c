// SPDX-License-Identifier: Apache-2.0
#include "core/view.h"

#include <stdio.h>
#include <string.h>

// Sizes come from users and files, so every product and sum is checked.
static bool multiply(int64_t a, int64_t b, int64_t* out_product) {
  return !__builtin_mul_overflow(a, b, out_product);
}

static bool add(int64_t a, int64_t b, int64_t* out_sum) {
  return !__builtin_add_overflow(a, b, out_sum);
}

static int32_t clamp_ndim(int32_t ndim) {
  if (ndim < 0) return 0;
  return ndim > CHOIR_MAX_NDIM ? CHOIR_MAX_NDIM : ndim;
}

// Copies a caller's shape into out_shape[CHOIR_MAX_NDIM], the rest 0. False,
// and nothing of it is read, when ndim is out of range.
static bool copy_shape(int32_t ndim, const int64_t* shape, int64_t* out_shape) {
  int64_t sizes[CHOIR_MAX_NDIM] = {0};
  bool fits = ndim == clamp_ndim(ndim);
  for (int32_t k = 0; fits && k < ndim; ++k) sizes[k] = shape[k];
  memcpy(out_shape, sizes, sizeof(sizes));
  return fits;
}

// "(64, 20)" for messages and choir_view_print.
static const char* print_dims(int32_t ndim, const int64_t* dims, char* text,
                              size_t text_bytes) {
  size_t used = 0;
  for (int32_t k = 0; k <= ndim && used < text_bytes; ++k) {
    int wanted = k == ndim ? snprintf(text + used, text_bytes - used, "%s)",
                                      k == 0 ? "(" : "")
                           : snprintf(text + used, text_bytes - used, "%s%lld",
                                      k == 0 ? "(" : ", ", (long long)dims[k]);
    if (wanted < 0) break;
    used += (size_t)wanted;
  }
  return text;
}

enum { DIMS_TEXT_BYTES = 192 };

// Elements of a shape; false when a size is negative or the elements do not
// fit in 63 bits. A size of 0 does not excuse the others: strides are made of
// them.
static bool count_shape(int32_t ndim, const int64_t* shape,
                        int64_t* out_count) {
  int64_t count = 1;
  bool empty = false;
  for (int32_t k = 0; k < ndim; ++k) {
    if (shape[k] < 0) return false;
    if (shape[k] == 0) {
      empty = true;
    } else if (!multiply(count, shape[k], &count)) {
      return false;
    }
  }
  *out_count = empty ? 0 : count;
  return true;
}

static choir_status_t check_ndim(const char* where, int32_t ndim) {
  if (ndim >= 0 && ndim <= CHOIR_MAX_NDIM) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %d dimensions; needs 0 to %d",
                     where, ndim, CHOIR_MAX_NDIM);
}

choir_status_t choir_view_make(choir_dtype_t dtype, int32_t ndim,
                               const int64_t* given_shape,
                               choir_view_t* out_view) {
  int64_t shape[CHOIR_MAX_NDIM] = {0};  // given_shape may lie in *out_view
  if (given_shape) copy_shape(ndim, given_shape, shape);
  memset(out_view, 0, sizeof(*out_view));
  CHOIR_TRY(check_ndim("choir_view_make", ndim));
  size_t bytes = choir_dtype_bytes(dtype);
  if (bytes == 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_view_make: %d is no dtype; needs one of "
                       "CHOIR_DTYPE_LIST",
                       (int)dtype);
  }
  if (ndim > 0 && !given_shape) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_view_make: shape is NULL; needs %d sizes", ndim);
  }
  int64_t count = 0;
  int64_t total = 0;
  if (!count_shape(ndim, shape, &count) ||
      !multiply(count, (int64_t)bytes, &total)) {
    char text[DIMS_TEXT_BYTES];
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "choir_view_make: shape %s of %s; needs sizes of at "
                       "least 0 whose bytes fit in 63 bits",
                       print_dims(ndim, shape, text, sizeof(text)),
                       choir_dtype_name(dtype));
  }
  out_view->ndim = ndim;
  out_view->dtype = dtype;
  for (int32_t k = 0; k < ndim; ++k) out_view->shape[k] = shape[k];
  choir_view_set_contiguous(out_view);
  return NULL;
}

int64_t choir_view_count(const choir_view_t* view) {
  int64_t count = 0;
  if (!count_shape(clamp_ndim(view->ndim), view->shape, &count))
    return INT64_MAX;
  return count;
}

int64_t choir_view_extent(const choir_view_t* view) {
  int64_t extent = 1;
  for (int32_t k = 0; k < clamp_ndim(view->ndim); ++k)
    if (view->shape[k] == 0) return 0;
  for (int32_t k = 0; k < clamp_ndim(view->ndim); ++k) {
    int64_t reach = 0;
    if (!multiply(view->shape[k] - 1, view->strides[k], &reach) ||
        !add(extent, reach, &extent))
      return INT64_MAX;
  }
  return extent;
}

bool choir_view_same_shape(const choir_view_t* a, const choir_view_t* b) {
  if (a->ndim != b->ndim) return false;
  for (int32_t k = 0; k < clamp_ndim(a->ndim); ++k)
    if (a->shape[k] != b->shape[k]) return false;
  return true;
}

bool choir_view_same_layout(const choir_view_t* a, const choir_view_t* b) {
  if (a->offset != b->offset || a->dtype != b->dtype ||
      !choir_view_same_shape(a, b))
    return false;
  for (int32_t axis = 0; axis < a->ndim; ++axis)
    if (a->shape[axis] > 1 && a->strides[axis] != b->strides[axis])
      return false;
  return true;
}

// Whether the dimensions, walked in `order` from the innermost, have no gaps.
static bool is_packed(const choir_view_t* view, const int32_t* order,
                      int32_t ndim) {
  int64_t expected = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    int32_t k = order[i];
    if (view->shape[k] == 0) return true;
    if (view->shape[k] != 1 && view->strides[k] != expected) {
      // An empty view is packed whatever its strides say.
      return choir_view_count(view) == 0;
    }
    if (!multiply(expected, view->shape[k], &expected)) return false;
  }
  return true;
}

// The same walk, setting the strides.
static void pack(choir_view_t* view, const int32_t* order, int32_t ndim) {
  int64_t stride = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    int32_t k = order[i];
    view->strides[k] = stride;
    // A size of 0 counts as 1, so that strides stay distinct and positive.
    int64_t size = view->shape[k] > 0 ? view->shape[k] : 1;
    if (!multiply(stride, size, &stride)) stride = INT64_MAX;
  }
}

static void row_major_order(int32_t ndim, int32_t* order) {
  for (int32_t i = 0; i < ndim; ++i) order[i] = ndim - 1 - i;
}

static const int32_t channels_last_order[4] = {1, 3, 2, 0};

bool choir_view_is_contiguous(const choir_view_t* view) {
  int32_t order[CHOIR_MAX_NDIM];
  int32_t ndim = clamp_ndim(view->ndim);
  row_major_order(ndim, order);
  return is_packed(view, order, ndim);
}

// Dimensions from the innermost to the outermost by stride. Of two with the
// same stride one has size 1 (or the view repeats elements): the larger one is
// taken as outer, and in doubt the earlier one, as in row-major order.
static void order_by_stride(const choir_view_t* view, int32_t ndim,
                            int32_t* order) {
  row_major_order(ndim, order);
  for (int32_t i = 1; i < ndim; ++i) {
    int32_t k = order[i];
    int32_t j = i;
    while (j > 0) {
      int32_t inner = order[j - 1];
      bool is_inner = view->strides[k] < view->strides[inner] ||
                      (view->strides[k] == view->strides[inner] &&
                       view->shape[k] < view->shape[inner]);
      if (!is_inner) break;
      order[j] = inner;
      --j;
    }
    order[j] = k;
  }
}

bool choir_view_is_dense(const choir_view_t* view) {
  int32_t order[CHOIR_MAX_NDIM];
  int32_t ndim = clamp_ndim(view->ndim);
  order_by_stride(view, ndim, order);
  return is_packed(view, order, ndim);
}

bool choir_view_is_channels_last(const choir_view_t* view) {
  return view->ndim == 4 && is_packed(view, channels_last_order, 4);
}

void choir_view_set_contiguous(choir_view_t* view) {
  int32_t order[CHOIR_MAX_NDIM];
  int32_t ndim = clamp_ndim(view->ndim);
  row_major_order(ndim, order);
  pack(view, order, ndim);
}

void choir_view_set_channels_last(choir_view_t* view) {
  if (view->ndim == 4) {
    pack(view, channels_last_order, 4);
  } else {
    choir_view_set_contiguous(view);
  }
}

void choir_view_set_layout_like(choir_view_t* view, const choir_view_t* like) {
  int32_t ndim = clamp_ndim(view->ndim);
  bool has_order = like->ndim == view->ndim;
  for (int32_t k = 0; has_order && k < ndim; ++k)
    if (like->strides[k] == 0 && like->shape[k] > 1) has_order = false;
  int32_t order[CHOIR_MAX_NDIM];
  if (has_order) {
    order_by_stride(like, ndim, order);
  } else {
    row_major_order(ndim, order);
  }
  pack(view, order, ndim);
}

bool choir_view_reshape(const choir_view_t* view, int32_t ndim,
                        const int64_t* shape, choir_view_t* out_view) {
  // Both view and shape may lie in *out_view, so they are copied before it is
  // cleared.
  choir_view_t source = *view;
  choir_view_t result = source;
  bool fits = copy_shape(ndim, shape, result.shape);
  result.ndim = ndim;
  memset(result.strides, 0, sizeof(result.strides));
  memset(out_view, 0, sizeof(*out_view));
  int64_t count = 0;
  if (!fits || !count_shape(ndim, result.shape, &count) ||
      count != choir_view_count(&source))
    return false;
  if (count == 0) {
    choir_view_set_contiguous(&result);
    *out_view = result;
    return true;
  }

  // Sizes of 1 do not matter in the source. Then both shapes are cut into the
  // smallest groups of neighbouring dimensions with equal products; a group of
  // the source must be one run (each stride the product of what is inside),
  // and is divided anew among the result's dimensions.
  int64_t sizes[CHOIR_MAX_NDIM] = {0};
  int64_t strides[CHOIR_MAX_NDIM] = {0};
  int32_t source_ndim = 0;
  for (int32_t k = 0; k < clamp_ndim(source.ndim); ++k) {
    if (source.shape[k] == 1) continue;
    sizes[source_ndim] = source.shape[k];
    strides[source_ndim] = source.strides[k];
    ++source_ndim;
  }
  int32_t from = 0;
  int32_t to = 0;
  while (from < source_ndim) {
    int32_t from_end = from + 1;
    int32_t to_end = to + 1;
    int64_t from_count = sizes[from];
    int64_t to_count = result.shape[to];
    while (from_count != to_count) {
      if (from_count < to_count) {
        from_count *= sizes[from_end++];
      } else {
        to_count *= result.shape[to_end++];
      }
    }
    for (int32_t k = from; k + 1 < from_end; ++k) {
      int64_t run = 0;
      if (!multiply(strides[k + 1], sizes[k + 1], &run) || strides[k] != run)
        return false;
    }
    int64_t stride = strides[from_end - 1];
    for (int32_t k = to_end - 1; k >= to; --k) {
      result.strides[k] = stride;
      // No dimension of the group lies outside its first one, so that the
      // product with the first size is not needed.
      if (k > to && !multiply(stride, result.shape[k], &stride)) return false;
    }
    from = from_end;
    to = to_end;
  }
  // What is left has size 1; any stride will do, this one keeps row-major
  // views row-major.
  for (int32_t k = ndim - 1; k >= to; --k) result.strides[k] = 1;
  *out_view = result;
  return true;
}

choir_status_t choir_view_transpose(const choir_view_t* view,
                                    const int32_t* axes,
                                    choir_view_t* out_view) {
  choir_view_t source = *view;
  choir_view_t result = source;
  memset(out_view, 0, sizeof(*out_view));
  CHOIR_TRY(check_ndim("choir_view_transpose", source.ndim));
  uint32_t seen = 0;
  for (int32_t k = 0; k < source.ndim; ++k) {
    int32_t axis = axes[k];
    if (axis < 0 || axis >= source.ndim || (seen & (1u << axis))) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "choir_view_transpose: axes[%d] is %d; needs each of "
                         "0 to %d once",
                         k, axis, source.ndim - 1);
    }
    seen |= 1u << axis;
    result.shape[k] = source.shape[axis];
    result.strides[k] = source.strides[axis];
  }
  *out_view = result;
  return NULL;
}

choir_status_t choir_view_slice(const choir_view_t* view, int32_t axis,
                                int64_t start, int64_t stop, int64_t step,
                                choir_view_t* out_view) {
  choir_view_t result = *view;
  memset(out_view, 0, sizeof(*out_view));
  CHOIR_TRY(check_ndim("choir_view_slice", result.ndim));
  if (axis < 0 || axis >= result.ndim) {
    return CHOIR_ERROR(OUT_OF_RANGE, "choir_view_slice: axis %d; needs 0 to %d",
                       axis, result.ndim - 1);
  }
  int64_t size = result.shape[axis];
  if (start < 0 || start > stop || stop > size) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "choir_view_slice: elements %lld to %lld of axis %d; "
                       "needs 0 <= start <= stop <= %lld",
                       (long long)start, (long long)stop, axis,
                       (long long)size);
  }
  if (step < 1) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "choir_view_slice: step %lld; needs at least 1",
                       (long long)step);
  }
  int64_t count = start == stop ? 0 : (stop - start - 1) / step + 1;
  // An empty slice, also of a view that was empty before, keeps its offset, so
  // that it never points past the buffer.
  if (count > 0 && choir_view_count(&result) > 0) {
    int64_t moved = 0;
    if (!multiply(start, result.strides[axis], &moved) ||
        !add(result.offset, moved, &result.offset)) {
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "choir_view_slice: start %lld with stride %lld; needs "
                         "an offset that fits in 63 bits",
                         (long long)start, (long long)result.strides[axis]);
    }
  }
  // With one element or none the stride is never used, nor is that of an empty
  // view, and the product may not even fit.
  int64_t stride = 0;
  if (count > 1 && choir_view_count(&result) > 0) {
    if (!multiply(result.strides[axis], step, &stride)) {
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "choir_view_slice: step %lld with stride %lld; needs "
                         "a stride that fits in 63 bits",
                         (long long)step, (long long)result.strides[axis]);
    }
    result.strides[axis] = stride;
  }
  result.shape[axis] = count;
  *out_view = result;
  return NULL;
}

choir_status_t choir_view_broadcast(const choir_view_t* view, int32_t ndim,
                                    const int64_t* given_shape,
                                    choir_view_t* out_view) {
  choir_view_t source = *view;
  choir_view_t result = source;
  int64_t shape[CHOIR_MAX_NDIM];  // given_shape may lie in *out_view
  copy_shape(ndim, given_shape, shape);
  memset(out_view, 0, sizeof(*out_view));
  CHOIR_TRY(check_ndim("choir_view_broadcast", ndim));
  CHOIR_TRY(check_ndim("choir_view_broadcast", source.ndim));
  char from[DIMS_TEXT_BYTES];
  char to[DIMS_TEXT_BYTES];
  int32_t missing = ndim - source.ndim;
  bool fits = missing >= 0;
  for (int32_t k = 0; fits && k < source.ndim; ++k) {
    fits = source.shape[k] == shape[k + missing] || source.shape[k] == 1;
  }
  if (!fits) {
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "choir_view_broadcast: shape %s to %s; each size must be the same or "
        "1, counted from the last",
        print_dims(source.ndim, source.shape, from, sizeof(from)),
        print_dims(ndim, shape, to, sizeof(to)));
  }
  int64_t count = 0;
  if (!count_shape(ndim, shape, &count)) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "choir_view_broadcast: to shape %s; needs sizes of at "
                       "least 0 whose product fits in 63 bits",
                       print_dims(ndim, shape, to, sizeof(to)));
  }
  result.ndim = ndim;
  for (int32_t k = 0; k < ndim; ++k) {
    result.shape[k] = shape[k];
    bool repeats =
        k < missing || (source.shape[k - missing] == 1 && shape[k] != 1);
    result.strides[k] = repeats ? 0 : source.strides[k - missing];
  }
  *out_view = result;
  return NULL;
}

choir_status_t choir_view_broadcast_shape(const choir_view_t* a,
                                          const choir_view_t* b,
                                          int32_t* out_ndim,
                                          int64_t* out_shape) {
  *out_ndim = 0;
  CHOIR_TRY(check_ndim("choir_view_broadcast_shape", a->ndim));
  CHOIR_TRY(check_ndim("choir_view_broadcast_shape", b->ndim));
  int32_t ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < ndim; ++k) {
    int32_t ka = k - (ndim - a->ndim);
    int32_t kb = k - (ndim - b->ndim);
    int64_t sa = ka < 0 ? 1 : a->shape[ka];
    int64_t sb = kb < 0 ? 1 : b->shape[kb];
    if (sa != sb && sa != 1 && sb != 1) {
      char ta[DIMS_TEXT_BYTES];
      char tb[DIMS_TEXT_BYTES];
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "choir_view_broadcast_shape: shapes %s and %s; each pair of sizes, "
          "counted from the last, must be equal or hold a 1",
          print_dims(a->ndim, a->shape, ta, sizeof(ta)),
          print_dims(b->ndim, b->shape, tb, sizeof(tb)));
    }
    shape[k] = sa == 1 ? sb : sa;
  }
  *out_ndim = ndim;
  for (int32_t k = 0; k < ndim; ++k) out_shape[k] = shape[k];
  return NULL;
}

const char* choir_view_print(const choir_view_t* view, char* text,
                             size_t text_bytes) {
  if (text_bytes == 0) return text;
  char shape[DIMS_TEXT_BYTES];
  char strides[DIMS_TEXT_BYTES];
  int32_t ndim = clamp_ndim(view->ndim);
  print_dims(ndim, view->shape, shape, sizeof(shape));
  if (choir_view_is_contiguous(view)) {
    snprintf(text, text_bytes, "%s %s", choir_dtype_name(view->dtype), shape);
  } else {
    snprintf(text, text_bytes, "%s %s strides %s",
             choir_dtype_name(view->dtype), shape,
             print_dims(ndim, view->strides, strides, sizeof(strides)));
  }
  return text;
}
