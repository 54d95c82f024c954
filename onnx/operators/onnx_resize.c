// SPDX-License-Identifier: Apache-2.0
// Resizing: one axis after the other, by a product with a matrix of weights or
// by a gather of the nearest elements.
#include <math.h>
#include <string.h>

#include "onnx/operators/onnx_resize_internal.h"

// ---- Attributes ----

static const char* const coordinate_names[] = {
#define NAME(NAME, text) text,
    CHOIR__ONNX_COORDINATES(NAME) NULL};
static const char* const rounding_names[] = {CHOIR__ONNX_ROUNDINGS(NAME) NULL};
static const char* const interpolation_names[] = {
    CHOIR__ONNX_INTERPOLATIONS(NAME) NULL};
#undef NAME

static bool find(choir__onnx_call_t* c, const char* name, const char* value,
                 const char* const* names, int32_t* out) {
  const char* text = choir__onnx_string(c, name, value);
  for (*out = 0; names[*out]; ++*out)
    if (strcmp(names[*out], text) == 0) return true;
  FAIL(UNIMPLEMENTED, "attribute %s is '%.40s', which Choir has not got", name,
       text);
  return false;
}

// Before version 11 an element lies at its place divided by the scale.
static bool read_attrs(choir__onnx_call_t* c, bool is_old,
                       choir__onnx_resize_t* out) {
  *out = (choir__onnx_resize_t){
      .antialias = choir__onnx_int(c, "antialias", 0) != 0,
      .exclude_outside = choir__onnx_int(c, "exclude_outside", 0) != 0,
      .cubic = choir__onnx_float(c, "cubic_coeff_a", -0.75),
      .extrapolation = choir__onnx_float(c, "extrapolation_value", 0)};
  const char* mode = choir__onnx_string(c, "mode", "nearest");
  if (is_old && strcmp(mode, "bilinear") == 0)
    out->interpolation = CHOIR__ONNX_LINEAR;
  else if (!find(c, "mode", "nearest", interpolation_names,
                 &out->interpolation))
    return false;
  if (is_old) {
    out->coordinates = CHOIR__ONNX_ASYMMETRIC;
    out->rounding = CHOIR__ONNX_SIMPLE;
    return true;
  }
  return find(c, "coordinate_transformation_mode", "half_pixel",
              coordinate_names, &out->coordinates) &&
         find(c, "nearest_mode", "round_prefer_floor", rounding_names,
              &out->rounding);
}

// ---- Sizes ----

// The axes that sizes, scales and region are of.
static int32_t read_axes(choir__onnx_call_t* c, int32_t ndim, int64_t* axes) {
  int32_t count;
  const int64_t* ints = choir__onnx_ints(c, "axes", &count);
  if (count > ndim) {
    FAIL(INVALID_ARGUMENT, "attribute axes has %d numbers; needs at most %d",
         count, ndim);
    return -1;
  }
  for (int32_t i = 0; i < (count ? count : ndim); ++i) {
    axes[i] = count ? ints[i] : i;
    if (!choir__onnx_axis(c, &axes[i], ndim)) return -1;
  }
  return count ? count : ndim;
}

static bool set_scale(choir__onnx_call_t* c, choir__onnx_stretch_t* axis,
                      double scale) {
  const float size = (float)scale * (float)axis->in;
  if (!(scale > 0) || !(size <= (float)CHOIR__ONNX_LARGEST)) {
    FAIL(INVALID_ARGUMENT, "a scale is %g for a size of %lld", scale,
         (long long)axis->in);
    return false;
  }
  axis->scale = scale;
  axis->out = (int64_t)size;
  return true;
}

// Sizes as they are given, or such that all axes have one scale.
static bool set_sizes(choir__onnx_call_t* c, const choir__onnx_array_t* sizes,
                      const int64_t* axes, choir__onnx_stretch_t* stretches) {
  const char* policy =
      choir__onnx_string(c, "keep_aspect_ratio_policy", "stretch");
  const bool is_least = strcmp(policy, "not_larger") == 0;
  const bool is_most = strcmp(policy, "not_smaller") == 0;
  double common = 0;
  for (int64_t i = 0; i < sizes->count; ++i) {
    choir__onnx_stretch_t* axis = &stretches[axes[i]];
    axis->out = choir__onnx_int_at(sizes, i);
    if (axis->out < 1 || axis->out > CHOIR__ONNX_LARGEST || axis->in < 1) {
      FAIL(INVALID_ARGUMENT, "size %lld from %lld; needs 1 to %d",
           (long long)axis->out, (long long)axis->in, CHOIR__ONNX_LARGEST);
      return false;
    }
    axis->scale = (double)axis->out / (double)axis->in;
    if (i == 0 || (is_least ? axis->scale < common : axis->scale > common))
      common = axis->scale;
  }
  for (int64_t i = 0; (is_least || is_most) && i < sizes->count; ++i) {
    choir__onnx_stretch_t* axis = &stretches[axes[i]];
    axis->scale = common;
    axis->out = (int64_t)floor(common * (double)axis->in + 0.5);
  }
  return true;
}

static bool set_region(choir__onnx_call_t* c, int32_t input,
                       const int64_t* axes, int32_t count,
                       choir__onnx_stretch_t* stretches) {
  choir__onnx_array_t roi;
  if (!choir__onnx_read(c, input, &roi) || roi.count != 2 * (int64_t)count) {
    FAIL(INVALID_ARGUMENT, "tf_crop_and_resize needs a roi of %d numbers",
         2 * count);
    return false;
  }
  for (int32_t i = 0; i < count; ++i) {
    stretches[axes[i]].start = choir__onnx_number_at(&roi, i);
    stretches[axes[i]].end = choir__onnx_number_at(&roi, count + i);
  }
  return true;
}

// Scales of an input or of the attribute of the first version.
static bool set_scales(choir__onnx_call_t* c, int32_t input,
                       const int64_t* axes, int32_t count,
                       choir__onnx_stretch_t* stretches) {
  choir__onnx_array_t scales = {.count = 0};
  int32_t given = 0;
  const float* floats = NULL;
  if (input < 0) {
    floats = choir__onnx_floats(c, "scales", &given);
  } else {
    if (!choir__onnx_read(c, input, &scales)) return false;
    given = scales.count > CHOIR_MAX_NDIM ? -1 : (int32_t)scales.count;
  }
  if (given != count) {
    FAIL(INVALID_ARGUMENT, "scales need %d numbers, one for each axis", count);
    return false;
  }
  for (int32_t i = 0; i < count; ++i)
    if (!set_scale(
            c, &stretches[axes[i]],
            floats ? (double)floats[i] : choir__onnx_number_at(&scales, i)))
      return false;
  return true;
}

static bool has_elements(choir__onnx_call_t* c, int32_t i) {
  const choir_view_t* view = VIEW(i);
  return view && choir_view_count(view) > 0;
}

static bool read_stretches(choir__onnx_call_t* c, const choir_view_t* x,
                           bool is_old, const choir__onnx_resize_t* resize,
                           choir__onnx_stretch_t* stretches) {
  for (int32_t i = 0; i < x->ndim; ++i)
    stretches[i] = (choir__onnx_stretch_t){
        .in = x->shape[i], .out = x->shape[i], .scale = 1, .end = 1};
  int64_t axes[CHOIR_MAX_NDIM];
  const int32_t count = read_axes(c, x->ndim, axes);
  if (count < 0) return false;
  if (is_old) return set_scales(c, HAS(1) ? 1 : -1, axes, count, stretches);
  if (resize->coordinates == CHOIR__ONNX_CROP &&
      !set_region(c, 1, axes, count, stretches))
    return false;
  if (has_elements(c, 2)) return set_scales(c, 2, axes, count, stretches);
  choir__onnx_array_t sizes;
  if (!choir__onnx_read(c, 3, &sizes) || sizes.count != count) {
    FAIL(INVALID_ARGUMENT, "neither scales nor sizes are given for %d axes",
         count);
    return false;
  }
  return set_sizes(c, &sizes, axes, stretches);
}

// ---- Computing ----

static choir_var_t* take_nearest(choir__onnx_call_t* c, choir_var_t* x,
                                 const choir__onnx_resize_t* resize,
                                 const choir__onnx_stretch_t* axis,
                                 int32_t number) {
  int64_t* places = (int64_t*)choir__onnx_matrix(c, 1, axis->out);
  if (!places) return choir_scope_fail(c->scope, NULL);
  for (int64_t k = 0; k < axis->out; ++k)
    places[k] = choir__onnx_nearest(resize, axis, k);
  choir_var_t* indices =
      choir__onnx_constant(c, CHOIR_DTYPE_I64, 1, &axis->out, places);
  return DO(gather, x, indices, &(choir_gather_attrs_t){.axis = number});
}

static choir_var_t* weigh(choir__onnx_call_t* c, choir_var_t* x,
                          const choir__onnx_resize_t* resize,
                          const choir__onnx_stretch_t* axis, int32_t number) {
  double* matrix = choir__onnx_matrix(c, axis->out, axis->in);
  if (!matrix) return choir_scope_fail(c->scope, NULL);
  for (int64_t k = 0; k < axis->out; ++k)
    choir__onnx_add_weights(resize, axis, k, matrix + k * axis->in);
  return choir__onnx_along(c, x, number, axis->out, matrix);
}

// The value that stands for what lies outside of x.
static choir_var_t* extrapolate(choir__onnx_call_t* c, choir_var_t* y,
                                const choir__onnx_resize_t* resize,
                                const choir__onnx_stretch_t* axis,
                                int32_t number) {
  const choir_view_t* view = choir_var_view(y);
  double* inside = choir__onnx_matrix(c, 1, axis->out);
  if (!view || !inside) return choir_scope_fail(c->scope, NULL);
  bool is_whole = true;
  for (int64_t k = 0; k < axis->out; ++k) {
    inside[k] = choir__onnx_is_outside(resize, axis, k) ? 0 : 1;
    if (inside[k] == 0) is_whole = false;
  }
  if (is_whole) return y;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < view->ndim; ++i)
    shape[i] = i == number ? axis->out : 1;
  return DO(where,
            choir__onnx_numbers(c, CHOIR_DTYPE_BOOL, view->ndim, shape, inside),
            y, choir__onnx_scalar(c, view->dtype, resize->extrapolation));
}

static bool check_result(choir__onnx_call_t* c, const choir_view_t* x,
                         const choir__onnx_stretch_t* stretches) {
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < x->ndim; ++i) {
    shape[i] = stretches[i].out;
    if (shape[i] != x->shape[i] && x->shape[i] < 1) {
      FAIL(INVALID_ARGUMENT, "x has no elements along axis %d", i);
      return false;
    }
  }
  return choir__onnx_fits(c, x->dtype, x->ndim, shape);
}

// Whether an axis stays as it is.
static bool is_same(const choir__onnx_stretch_t* axis, bool is_crop) {
  return axis->out == axis->in && axis->scale == 1 &&
         (!is_crop || (axis->start == 0 && axis->end == 1));
}

static void resize_by(choir__onnx_call_t* c, bool is_old) {
  const choir_view_t* x = VIEW(0);
  choir__onnx_resize_t resize;
  choir__onnx_stretch_t stretches[CHOIR_MAX_NDIM] = {{0}};
  if (!x || !read_attrs(c, is_old, &resize) ||
      !read_stretches(c, x, is_old, &resize, stretches) ||
      !check_result(c, x, stretches))
    return;
  const bool is_nearest = resize.interpolation == CHOIR__ONNX_NEAREST;
  const choir_dtype_t dtype = x->dtype;
  const bool is_whole = !is_nearest && dtype != CHOIR_DTYPE_F32 &&
                        dtype != CHOIR_DTYPE_F64 && dtype != CHOIR_DTYPE_F16 &&
                        dtype != CHOIR_DTYPE_BF16;
  choir_var_t* y =
      is_whole ? choir__onnx_cast(c, IN(0), CHOIR_DTYPE_F64) : IN(0);
  const bool is_crop = resize.coordinates == CHOIR__ONNX_CROP;
  // What becomes smaller comes first.
  for (int32_t k = 0; k < 2 * x->ndim && CALL_IS_OK; ++k) {
    const int32_t i = k % x->ndim;
    const choir__onnx_stretch_t* axis = &stretches[i];
    if ((axis->out < axis->in) != (k < x->ndim) || is_same(axis, is_crop))
      continue;
    y = is_nearest ? take_nearest(c, y, &resize, axis, i)
                   : weigh(c, y, &resize, axis, i);
  }
  for (int32_t i = 0; is_crop && i < x->ndim && CALL_IS_OK; ++i)
    y = extrapolate(c, y, &resize, &stretches[i], i);
  OUT(0, is_whole ? choir__onnx_cast(c, DO(round_even, y), dtype) : y);
}

void choir__onnx_op_resize(choir__onnx_call_t* c) {
  resize_by(c, c->version < 11);
}

void choir__onnx_op_upsample(choir__onnx_call_t* c) { resize_by(c, true); }
