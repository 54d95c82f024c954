// SPDX-License-Identifier: Apache-2.0
// Reductions: sums, means, norms, products, extremes over any axes.
#include <float.h>
#include <math.h>

#include "onnx/operators/onnx_reduce_internal.h"

typedef struct reduction_s {
  choir_var_t* x;
  choir_dtype_t dtype;  // of the input
  choir__onnx_axes_t axes;
  bool keep_dims;
  bool is_cast;  // what is reduced is of another dtype than the input
} reduction_t;

static bool begin(choir__onnx_call_t* c, reduction_t* out) {
  int64_t list[CHOIR_MAX_NDIM];
  const choir_view_t* view = VIEW(0);
  const int32_t count = choir__onnx_ints_of(c, 1, "axes", list, CHOIR_MAX_NDIM);
  if (!view || !CALL_IS_OK) return false;
  out->x = IN(0);
  out->dtype = view->dtype;
  out->is_cast = false;
  out->keep_dims = choir__onnx_int(c, "keepdims", 1) != 0;
  if (count <= 0 && choir__onnx_int(c, "noop_with_empty_axes", 0) != 0) {
    out->axes = (choir__onnx_axes_t){.count = 0};
    return true;
  }
  return choir__onnx_axes_set(c, list, count, view->ndim, &out->axes);
}

static choir_var_t* fold(choir__onnx_call_t* c, const reduction_t* r,
                         choir_var_t* x, choir__onnx_fold_t by) {
  return choir__onnx_fold(c, x, &r->axes, r->keep_dims, by);
}

static void finish(choir__onnx_call_t* c, const reduction_t* r,
                   choir_var_t* y) {
  OUT(0, r->is_cast ? choir__onnx_cast(c, y, r->dtype) : y);
}

// The input as floats of 32 bits or more.
static choir_var_t* wide(choir__onnx_call_t* c, reduction_t* r) {
  r->is_cast = true;
  return choir__onnx_wide(c, r->x);
}

// Whether results are made of no element each.
static bool is_of_nothing(const reduction_t* r) {
  return choir__onnx_fold_size(choir_var_view(r->x), &r->axes) == 0;
}

// The results when they are of no element each.
static void fill(choir__onnx_call_t* c, const reduction_t* r,
                 const void* element) {
  const choir_view_t* x = choir_var_view(r->x);
  choir_broadcast_to_attrs_t attrs = {.ndim = 0};
  for (int32_t i = 0; i < x->ndim; ++i) {
    if (r->axes.has[i] && !r->keep_dims) continue;
    attrs.shape[attrs.ndim++] = r->axes.has[i] ? 1 : x->shape[i];
  }
  if (!choir__onnx_has_room(c, r->dtype, (int32_t)attrs.ndim, attrs.shape))
    return;
  choir_var_t* one = choir__onnx_constant(c, r->dtype, 0, NULL, element);
  OUT(0, DO(copy, DO(broadcast_to, one, &attrs)));
}

// ---- Sums ----

void choir__onnx_op_reduce_sum(choir__onnx_call_t* c) {
  reduction_t r;
  if (begin(c, &r)) finish(c, &r, fold(c, &r, r.x, choir_var_sum));
}

void choir__onnx_op_reduce_mean(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  choir_var_t* x = choir_dtype_is_float(r.dtype) ? r.x : wide(c, &r);
  finish(c, &r, fold(c, &r, x, choir_var_mean));
}

void choir__onnx_op_reduce_l1(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  choir_var_t* x = TYPE(0) == CHOIR_ONNX_UINT64 ? r.x : DO(abs, r.x);
  finish(c, &r, fold(c, &r, x, choir_var_sum));
}

void choir__onnx_op_reduce_l2(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  choir_var_t* square = DO(square, wide(c, &r));
  choir_var_t* sum = fold(c, &r, square, choir_var_sum);
  finish(c, &r, choir__onnx_root(c, sum));
}

void choir__onnx_op_reduce_sum_square(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  choir_var_t* x = choir_dtype_is_float(r.dtype) ? wide(c, &r) : r.x;
  finish(c, &r, fold(c, &r, DO(square, x), choir_var_sum));
}

void choir__onnx_op_reduce_log_sum(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  choir_var_t* x = wide(c, &r);
  finish(c, &r, DO(log, fold(c, &r, x, choir_var_sum)));
}

// A finite number near the largest element, as a constant: the result does not
// depend on it.
static choir_var_t* center_of(choir__onnx_call_t* c, const reduction_t* r,
                              choir_var_t* x) {
  choir_tensor_t* tensor = choir_var_tensor(x);
  if (!tensor) return choir_scope_fail(c->scope, NULL);
  const bool is_double = choir_tensor_dtype(tensor) == CHOIR_DTYPE_F64;
  choir_var_t* largest = choir__onnx_fold(
      c, choir_scope_input(c->scope, tensor), &r->axes, true, choir_var_max);
  const choir_clip_attrs_t finite = {.low = is_double ? -DBL_MAX : -FLT_MAX,
                                     .high = is_double ? DBL_MAX : FLT_MAX};
  return DO(clip, largest, &finite);
}

// log sum e^(x - m) + m with m near the largest, so that nothing overflows.
void choir__onnx_op_reduce_log_sum_exp(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  if (is_of_nothing(&r)) {
    char lowest[8] = {0};
    choir_element_store(lowest, r.dtype, -INFINITY);
    fill(c, &r, lowest);
    return;
  }
  choir_var_t* x = wide(c, &r);
  choir_var_t* center = center_of(c, &r, x);
  choir_var_t* sum = fold(c, &r, DO(exp, DO(sub, x, center)), choir_var_sum);
  const choir_view_t* view = choir_var_view(sum);
  if (!view) return;
  center = choir__onnx_reshape(c, center, view->ndim, view->shape);
  finish(c, &r, DO(add, DO(log, sum), center));
}

// ---- Products ----

static choir_var_t* range(choir_scope_t* scope, choir_var_t* x, int64_t axis,
                          int64_t start, int64_t stop) {
  const choir_slice_attrs_t attrs = {
      .axis = axis, .start = start, .stop = stop, .step = 1};
  return choir_var_slice(scope, x, &attrs);
}

// One half times the other, again and again: few ops, and the gradients are
// right where elements are 0.
static choir_var_t* product(choir_scope_t* scope, choir_var_t* x,
                            const choir_reduce_attrs_t* attrs) {
  const choir_reshape_attrs_t flat = {.ndim = 1, .shape = {-1}};
  if (attrs->axis < 0) x = choir_var_reshape(scope, x, &flat);
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(scope, NULL);
  const int64_t axis = attrs->axis < 0 ? 0 : attrs->axis;
  choir_reshape_attrs_t shape = {.ndim = 0};
  for (int32_t i = 0; i < view->ndim; ++i)
    if (i != axis) shape.shape[shape.ndim++] = view->shape[i];
  choir_var_t* rest = NULL;
  for (int64_t n = view->shape[axis]; n > 1; n /= 2) {
    const int64_t half = n / 2;
    if (n % 2 != 0) {
      choir_var_t* odd = range(scope, x, axis, n - 1, n);
      rest = rest ? choir_var_mul(scope, rest, odd) : odd;
    }
    x = choir_var_mul(scope, range(scope, x, axis, 0, half),
                      range(scope, x, axis, half, 2 * half));
  }
  if (rest) x = choir_var_mul(scope, x, rest);
  return choir_var_reshape(scope, x, &shape);
}

void choir__onnx_op_reduce_prod(choir__onnx_call_t* c) {
  reduction_t r;
  if (!begin(c, &r)) return;
  char one[8] = {0};
  choir_element_store(one, r.dtype, 1);
  if (is_of_nothing(&r))
    fill(c, &r, one);
  else
    finish(c, &r, fold(c, &r, r.x, product));
}

// ---- Extremes ----

// What no element is larger than, or, for a minimum, smaller than.
static void bound_of(choir_dtype_t dtype, int32_t type, bool is_min,
                     void* element) {
  static const struct {
    int32_t type;
    double least, most;
  } ranges[] = {
      {CHOIR_ONNX_INT8, -128, 127},         {CHOIR_ONNX_UINT8, 0, 255},
      {CHOIR_ONNX_INT16, -32768, 32767},    {CHOIR_ONNX_UINT16, 0, 65535},
      {CHOIR_ONNX_UINT32, 0, 4294967295.0}, {CHOIR_ONNX_BOOL, 0, 1}};
  const int64_t least = type == CHOIR_ONNX_UINT64 ? 0 : INT64_MIN;
  const int64_t most = type == CHOIR_ONNX_UINT64 ? -1 : INT64_MAX;
  double number = is_min ? INFINITY : -INFINITY;
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; ++i)
    if (ranges[i].type == type)
      number = is_min ? ranges[i].most : ranges[i].least;
  if (dtype == CHOIR_DTYPE_I64 && isinf(number))
    *(int64_t*)element = is_min ? most : least;
  else
    choir_element_store(element, dtype, number);
}

static void extreme(choir__onnx_call_t* c, bool is_min) {
  reduction_t r;
  if (!begin(c, &r)) return;
  const int32_t type = TYPE(0);
  if (is_of_nothing(&r)) {
    int64_t bound = 0;
    bound_of(r.dtype, type, is_min, &bound);
    fill(c, &r, &bound);
    return;
  }
  r.is_cast = r.dtype == CHOIR_DTYPE_BOOL;
  choir_var_t* x = r.is_cast ? choir__onnx_cast(c, r.x, CHOIR_DTYPE_U8) : r.x;
  x = choir__onnx_ranked(c, x, type, is_min);
  choir_var_t* y = fold(c, &r, x, choir_var_max);
  finish(c, &r, choir__onnx_ranked(c, y, type, is_min));
}

void choir__onnx_op_reduce_max(choir__onnx_call_t* c) { extreme(c, false); }
void choir__onnx_op_reduce_min(choir__onnx_call_t* c) { extreme(c, true); }
