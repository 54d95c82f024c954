// SPDX-License-Identifier: Apache-2.0
// Operators that take a part of a tensor: ranges along axes.
#include "onnx/operators/onnx_shapes_internal.h"

static int64_t within(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Backwards: no view has a negative stride, so the elements are gathered.
static choir_var_t* cut_backwards(choir__onnx_call_t* c, choir_var_t* x,
                                  int64_t axis, int64_t start, int64_t stop,
                                  int64_t step) {
  const int64_t size = choir_var_view(x)->shape[axis];
  start = within(start, 0, size - 1);
  stop = within(stop, -1, size - 1);
  if (size == 0 || start <= stop) return choir__onnx_slice(c, x, axis, 0, 0);
  step = within(step, -size, -1);
  const int64_t count = (start - stop - 1) / -step + 1;
  return choir__shapes_gather(c, x, choir__shapes_range(c, start, step, count),
                              axis);
}

choir_var_t* choir__shapes_cut(choir__onnx_call_t* c, choir_var_t* x,
                               int64_t axis, int64_t start, int64_t stop,
                               int64_t step) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int64_t size = view->shape[axis];
  if (start < 0) start += size;
  if (stop < 0) stop += size;
  if (step < 0) return cut_backwards(c, x, axis, start, stop, step);
  start = within(start, 0, size);
  stop = within(stop, start, size);
  if (start == 0 && stop == size && step == 1) return x;
  return DO(slice, x,
            &(choir_slice_attrs_t){.axis = axis,
                                   .start = start,
                                   .stop = stop,
                                   .step = within(step, 1, size + 1)});
}

// Which part along which axis, as attributes or inputs say.
typedef struct ranges_s {
  int64_t starts[CHOIR_MAX_NDIM], stops[CHOIR_MAX_NDIM], axes[CHOIR_MAX_NDIM],
      steps[CHOIR_MAX_NDIM];
  int32_t count;
} ranges_t;

static bool read_ranges(choir__onnx_call_t* c, ranges_t* r) {
  enum { MOST = CHOIR_MAX_NDIM };
  r->count = choir__onnx_ints_of(c, 1, "starts", r->starts, MOST);
  const int32_t stops = choir__onnx_ints_of(c, 2, "ends", r->stops, MOST);
  int32_t axes = choir__onnx_ints_of(c, 3, "axes", r->axes, MOST);
  int32_t steps = choir__onnx_ints_of(c, 4, "steps", r->steps, MOST);
  if (!CALL_IS_OK) return false;
  if (axes < 0)
    for (axes = 0; axes < r->count; ++axes) r->axes[axes] = axes;
  if (steps < 0)
    for (steps = 0; steps < r->count; ++steps) r->steps[steps] = 1;
  if (r->count >= 0 && stops == r->count && axes == r->count &&
      steps == r->count)
    return true;
  FAIL(INVALID_ARGUMENT,
       "%d starts, %d ends, %d axes and %d steps; needs as many of each",
       r->count, stops, axes, steps);
  return false;
}

void choir__onnx_op_slice(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  ranges_t r;
  if (!view || !read_ranges(c, &r)) return;
  choir_var_t* x = IN(0);
  for (int32_t k = 0; k < r.count; ++k) {
    if (!choir__onnx_axis(c, &r.axes[k], view->ndim)) return;
    if (r.steps[k] == 0) {
      FAIL(INVALID_ARGUMENT, "step %d is 0; needs another", k);
      return;
    }
    x = choir__shapes_cut(c, x, r.axes[k], r.starts[k], r.stops[k], r.steps[k]);
  }
  OUT(0, x);
}

// Sizes of the parts where none are given.
static bool even_sizes(choir__onnx_call_t* c, int64_t size, int64_t* sizes) {
  const int64_t count = choir__onnx_int(c, "num_outputs", c->out_count);
  if (count != c->out_count) {
    FAIL(INVALID_ARGUMENT, "num_outputs is %lld; the node has %d results",
         (long long)count, c->out_count);
    return false;
  }
  if (c->version < 18 && size % count != 0) {
    FAIL(INVALID_ARGUMENT, "dimension of %lld into %d equal parts",
         (long long)size, c->out_count);
    return false;
  }
  const int64_t most = size / count + (size % count != 0);
  for (int32_t i = 0; i < c->out_count; ++i) {
    sizes[i] = size < most ? size : most;
    size -= sizes[i];
  }
  return true;
}

static bool read_sizes(choir__onnx_call_t* c, int64_t size, int64_t* sizes) {
  const int32_t count = choir__onnx_ints_of(c, 1, "split", sizes, c->out_count);
  if (!CALL_IS_OK) return false;
  if (count < 0) return even_sizes(c, size, sizes);
  int64_t left = size;
  for (int32_t i = 0; i < count; ++i) {
    if (sizes[i] < 0 || sizes[i] > left) {
      FAIL(INVALID_ARGUMENT, "part %d of size %lld; %lld of %lld are left", i,
           (long long)sizes[i], (long long)left, (long long)size);
      return false;
    }
    left -= sizes[i];
  }
  if (count == c->out_count && left == 0) return true;
  FAIL(INVALID_ARGUMENT,
       "%d sizes for %d results, and %lld of %lld are left; needs as many, and "
       "none left",
       count, c->out_count, (long long)left, (long long)size);
  return false;
}

void choir__onnx_op_split(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x || c->out_count == 0) return;
  int64_t axis = choir__onnx_int(c, "axis", 0);
  if (!choir__onnx_axis(c, &axis, x->ndim)) return;
  int64_t* sizes =
      choir_scope_alloc(c->scope, sizeof(int64_t) * (size_t)c->out_count);
  if (!sizes || !read_sizes(c, x->shape[axis], sizes)) return;
  int64_t start = 0;
  for (int32_t i = 0; i < c->out_count; ++i) {
    if (choir__onnx_wants(c, i))
      OUT(i, choir__onnx_slice(c, IN(0), axis, start, start + sizes[i]));
    start += sizes[i];
  }
}
