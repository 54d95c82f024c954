// SPDX-License-Identifier: Apache-2.0
// What reductions share: several axes as one, and numbers that max can compare.
#include "onnx/operators/onnx_reduce_internal.h"

bool choir__onnx_axes_set(choir__onnx_call_t* c, const int64_t* list,
                          int32_t count, int32_t ndim,
                          choir__onnx_axes_t* out_axes) {
  *out_axes = (choir__onnx_axes_t){.count = count > 0 ? count : ndim};
  for (int32_t i = 0; i < ndim; ++i) out_axes->has[i] = count <= 0;
  for (int32_t i = 0; i < count; ++i) {
    int64_t axis = list[i];
    if (!choir__onnx_axis(c, &axis, ndim)) return false;
    if (out_axes->has[axis]) {
      FAIL(INVALID_ARGUMENT, "axis %lld is named twice; needs each once",
           (long long)list[i]);
      return false;
    }
    out_axes->has[axis] = true;
  }
  return true;
}

int64_t choir__onnx_fold_size(const choir_view_t* x,
                              const choir__onnx_axes_t* axes) {
  int64_t size = 1;
  for (int32_t i = 0; i < x->ndim; ++i) {
    if (!axes->has[i]) continue;
    if (x->shape[i] == 0) return 0;
    if (__builtin_mul_overflow(size, x->shape[i], &size)) return INT64_MAX;
  }
  return size;
}

// x with the axes first .. first + count - 1 made one.
static choir_var_t* join(choir__onnx_call_t* c, choir_var_t* x, int32_t first,
                         int32_t count) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || count < 2) return x;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < first; ++i) shape[i] = view->shape[i];
  if (!choir__onnx_product(c, view->shape, first, first + count, &shape[first]))
    return choir_scope_fail(c->scope, NULL);
  for (int32_t i = first + count; i < view->ndim; ++i)
    shape[i - count + 1] = view->shape[i];
  return choir__onnx_reshape(c, x, view->ndim - count + 1, shape);
}

// Some axes of x, but not all, as one axis: *out_axis.
static choir_var_t* gather_axes(choir__onnx_call_t* c, choir_var_t* x,
                                const choir__onnx_axes_t* axes,
                                int64_t* out_axis) {
  const int32_t ndim = choir_var_view(x)->ndim;
  int64_t order[CHOIR_MAX_NDIM];
  int32_t first = 0, last = ndim - 1, kept = 0;
  while (!axes->has[first]) ++first;
  while (!axes->has[last]) --last;
  if (last - first + 1 != axes->count) {
    for (int32_t i = 0; i < ndim; ++i)
      if (!axes->has[i]) order[kept++] = i;
    first = kept;
    for (int32_t i = 0; i < ndim; ++i)
      if (axes->has[i]) order[kept++] = i;
    x = choir__onnx_transpose(c, x, order);
  }
  *out_axis = first;
  return join(c, x, first, axes->count);
}

choir_var_t* choir__onnx_fold(choir__onnx_call_t* c, choir_var_t* x,
                              const choir__onnx_axes_t* axes, bool keep_dims,
                              choir__onnx_fold_t fold) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || axes->count == 0) return x;
  int64_t shape[CHOIR_MAX_NDIM];
  int32_t ndim = 0;
  for (int32_t i = 0; i < view->ndim; ++i) {
    if (!axes->has[i]) shape[ndim++] = view->shape[i];
    if (axes->has[i] && keep_dims) shape[ndim++] = 1;
  }
  if (choir__onnx_fold_size(view, axes) == 0 &&
      !choir__onnx_has_room(c, view->dtype, ndim, shape))
    return choir_scope_fail(c->scope, NULL);
  choir_reduce_attrs_t attrs = {.axis = -1, .keep_dims = false};
  if (axes->count < view->ndim) x = gather_axes(c, x, axes, &attrs.axis);
  choir_var_t* y = fold(c->scope, x, &attrs);
  return keep_dims ? choir__onnx_reshape(c, y, ndim, shape) : y;
}

// ---- Numbers ----

choir_var_t* choir__onnx_wide(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  if (!choir_dtype_is_float(view->dtype))
    return choir__onnx_cast(c, x, CHOIR_DTYPE_F64);
  return view->dtype == CHOIR_DTYPE_F64
             ? x
             : choir__onnx_cast(c, x, CHOIR_DTYPE_F32);
}

choir_var_t* choir__onnx_root(choir__onnx_call_t* c, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || !choir_var_wants_grad(x)) return DO(sqrt, x);
  choir_var_t* zero = choir__onnx_scalar(c, view->dtype, 0);
  choir_var_t* one = choir__onnx_scalar(c, view->dtype, 1);
  choir_var_t* is_zero = DO(equal, x, zero);
  return DO(where, is_zero, zero, DO(sqrt, DO(where, is_zero, one, x)));
}

choir_var_t* choir__onnx_ranked(choir__onnx_call_t* c, choir_var_t* x,
                                int32_t type, bool is_min) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  if (choir_dtype_is_float(view->dtype)) return is_min ? DO(neg, x) : x;
  if (type != CHOIR_ONNX_UINT64 || view->dtype != CHOIR_DTYPE_I64)
    return is_min ? DO(sub,
                       choir__onnx_scalar(
                           c, view->dtype,
                           view->dtype == CHOIR_DTYPE_U8 ? 255 : -1),
                       x)
                  : x;
  const int64_t bound = is_min ? INT64_MAX : INT64_MIN;
  choir_var_t* turn = choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &bound);
  return is_min ? DO(sub, turn, x) : DO(add, turn, x);
}
