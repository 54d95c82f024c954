// SPDX-License-Identifier: Apache-2.0
// Operators that put more around a tensor, or take what is around away.
#include <string.h>

#include "onnx/operators/onnx_shapes_internal.h"

// How many elements come before and after each dimension; less than 0: so many
// go.
typedef struct pads_s {
  int64_t before[CHOIR_MAX_NDIM], after[CHOIR_MAX_NDIM];
} pads_t;

static bool read_pads(choir__onnx_call_t* c, int32_t ndim, pads_t* pads) {
  int64_t given[2 * CHOIR_MAX_NDIM], axes[CHOIR_MAX_NDIM];
  const int32_t count =
      choir__onnx_ints_of(c, 1, "pads", given, 2 * CHOIR_MAX_NDIM);
  int32_t axis_count = choir__onnx_read_ints(c, 3, axes, CHOIR_MAX_NDIM);
  if (!CALL_IS_OK) return false;
  if (axis_count < 0)
    for (axis_count = 0; axis_count < ndim; ++axis_count)
      axes[axis_count] = axis_count;
  if (count != 2 * axis_count) {
    FAIL(INVALID_ARGUMENT, "%d pads; needs two for each of %d dimensions",
         count, axis_count);
    return false;
  }
  memset(pads, 0, sizeof *pads);
  for (int32_t k = 0; k < axis_count; ++k) {
    if (!choir__onnx_axis(c, &axes[k], ndim)) return false;
    pads->before[axes[k]] = given[k];
    pads->after[axes[k]] = given[axis_count + k];
  }
  return true;
}

// Takes what pads below 0 say away from input 0, and makes them 0.
static choir_var_t* crop(choir__onnx_call_t* c, pads_t* pads) {
  choir_var_t* x = IN(0);
  const choir_view_t* view = VIEW(0);
  for (int32_t k = 0; k < view->ndim; ++k) {
    const int64_t size = view->shape[k];
    const int64_t before = pads->before[k] < 0 ? pads->before[k] : 0;
    const int64_t after = pads->after[k] < 0 ? pads->after[k] : 0;
    if (before < -size || after < -size || before + after < -size)
      return FAIL(INVALID_ARGUMENT,
                  "dimension %d of %lld with %lld and %lld around it", k,
                  (long long)size, (long long)before, (long long)after);
    if (before < 0 || after < 0)
      x = choir__onnx_slice(c, x, k, -before, size + after);
    if (before < 0) pads->before[k] = 0;
    if (after < 0) pads->after[k] = 0;
  }
  return x;
}

static bool padded_fits(choir__onnx_call_t* c, choir_var_t* x,
                        const pads_t* pads) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return false;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t k = 0; k < view->ndim; ++k)
    if (__builtin_add_overflow(view->shape[k], pads->before[k], &shape[k]) ||
        __builtin_add_overflow(shape[k], pads->after[k], &shape[k])) {
      FAIL(INVALID_ARGUMENT,
           "dimension %d of %lld with %lld and %lld around it", k,
           (long long)view->shape[k], (long long)pads->before[k],
           (long long)pads->after[k]);
      return false;
    }
  return choir__onnx_has_room(c, view->dtype, view->ndim, shape);
}

static choir_var_t* pad(choir__onnx_call_t* c, choir_var_t* x,
                        choir_pad_mode_t mode, double value,
                        const pads_t* pads) {
  choir_pad_attrs_t attrs = {.mode = mode, .value = value};
  memcpy(attrs.before, pads->before, sizeof attrs.before);
  memcpy(attrs.after, pads->after, sizeof attrs.after);
  return DO(pad, x, &attrs);
}

// x over and over: place i is x's (i - before) modulo its size.
static choir_var_t* wrap(choir__onnx_call_t* c, choir_var_t* x,
                         const pads_t* pads) {
  const choir_view_t view = *choir_var_view(x);
  for (int32_t k = 0; k < view.ndim; ++k) {
    const int64_t size = view.shape[k];
    const int64_t count = pads->before[k] + size + pads->after[k];
    if (count == size) continue;
    if (size == 0)
      return FAIL(INVALID_ARGUMENT,
                  "dimension %d has no element; needs one to repeat", k);
    if (!choir__onnx_has_room(c, CHOIR_DTYPE_I64, 1, &count)) return x;
    int64_t* places =
        choir_scope_alloc(c->scope, sizeof(int64_t) * (size_t)count);
    if (!places) return x;
    int64_t place = (size - pads->before[k] % size) % size;
    for (int64_t i = 0; i < count; ++i) {
      places[i] = place;
      if (++place == size) place = 0;
    }
    x = choir__shapes_gather(
        c, x, choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &count, places), k);
  }
  return x;
}

// With a value that the step computes, or that no double holds.
static choir_var_t* pad_with(choir__onnx_call_t* c, choir_var_t* x,
                             choir_var_t* value, const pads_t* pads) {
  const choir_view_t* view = choir_var_view(x);
  choir_var_t* inside = choir__onnx_scalar(c, CHOIR_DTYPE_BOOL, 1);
  inside = choir__shapes_expand(c, inside, view->ndim, view->shape);
  inside = pad(c, inside, CHOIR_PAD_CONSTANT, 0, pads);
  x = pad(c, x, CHOIR_PAD_CONSTANT, 0, pads);
  return DO(where, inside, x, choir__onnx_reshape(c, value, 0, NULL));
}

static choir_var_t* pad_constant(choir__onnx_call_t* c, choir_var_t* x,
                                 const pads_t* pads) {
  if (!VIEW(2))
    return pad(c, x, CHOIR_PAD_CONSTANT, choir__onnx_float(c, "value", 0),
               pads);
  choir__onnx_array_t given;
  if (!c->inputs[2]->is_known) return pad_with(c, x, IN(2), pads);
  if (!choir__onnx_read(c, 2, &given)) return x;
  if (given.count != 1)
    return FAIL(INVALID_ARGUMENT, "%lld values around x; needs one",
                (long long)given.count);
  const double value = choir__onnx_number_at(&given, 0);
  const int64_t exact = INT64_C(1) << 53;
  if (given.view.dtype == CHOIR_DTYPE_I64 &&
      (value >= (double)exact || value <= (double)-exact))
    return pad_with(c, x, IN(2), pads);
  return pad(c, x, CHOIR_PAD_CONSTANT, value, pads);
}

void choir__onnx_op_pad(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  pads_t pads;
  if (!view || !read_pads(c, view->ndim, &pads)) return;
  choir_var_t* x = crop(c, &pads);
  if (!padded_fits(c, x, &pads)) return;
  const char* mode = choir__onnx_string(c, "mode", "constant");
  if (!strcmp(mode, "constant"))
    OUT(0, pad_constant(c, x, &pads));
  else if (!strcmp(mode, "reflect"))
    OUT(0, pad(c, x, CHOIR_PAD_REFLECT, 0, &pads));
  else if (!strcmp(mode, "edge"))
    OUT(0, pad(c, x, CHOIR_PAD_EDGE, 0, &pads));
  else if (!strcmp(mode, "wrap"))
    OUT(0, wrap(c, x, &pads));
  else
    FAIL(INVALID_ARGUMENT,
         "mode '%.32s'; there are constant, reflect, edge and wrap", mode);
}

void choir__onnx_op_center_crop_pad(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  int64_t sizes[CHOIR_MAX_NDIM];
  const int32_t count = choir__onnx_read_ints(c, 1, sizes, CHOIR_MAX_NDIM);
  if (!view || count < 0) return;
  int32_t axis_count;
  const int64_t* axes = choir__onnx_ints(c, "axes", &axis_count);
  if (count != (axes ? axis_count : view->ndim)) {
    FAIL(INVALID_ARGUMENT, "%d sizes for %d dimensions; needs as many", count,
         axes ? axis_count : view->ndim);
    return;
  }
  pads_t pads = {{0}, {0}};
  for (int32_t k = 0; k < count; ++k) {
    int64_t axis = axes ? axes[k] : k;
    if (!choir__onnx_axis(c, &axis, view->ndim)) return;
    if (sizes[k] < 0) {
      FAIL(INVALID_ARGUMENT, "a size of %lld; needs 0 or more",
           (long long)sizes[k]);
      return;
    }
    // Rounded towards 0: the odd one is behind, be it put there or taken.
    const int64_t more = sizes[k] - view->shape[axis];
    pads.before[axis] = more / 2;
    pads.after[axis] = more - more / 2;
  }
  choir_var_t* x = crop(c, &pads);
  if (padded_fits(c, x, &pads)) OUT(0, pad(c, x, CHOIR_PAD_CONSTANT, 0, &pads));
}
