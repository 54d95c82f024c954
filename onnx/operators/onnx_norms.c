// SPDX-License-Identifier: Apache-2.0
// Normalisations of rows: layers, groups, instances, root mean squares; of
// neighbouring channels; and of axes, by a norm or by the deviation.
#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_reduce_internal.h"

// ---- Rows ----

// x (rows, columns) by layer_norm; scale and bias (columns) or NULL.
static choir_var_t* normalise(choir__onnx_call_t* c, choir_var_t* x,
                              choir_var_t* scale, choir_var_t* bias) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const choir_dtype_t dtype = view->dtype;
  const int64_t columns = view->shape[1];
  const choir_layer_norm_attrs_t attrs = {
      .epsilon = choir__onnx_float(c, "epsilon", 1e-5)};
  if (!scale) scale = choir__onnx_filled(c, dtype, 1, &columns, 1);
  if (!bias) bias = choir__onnx_filled(c, dtype, 1, &columns, 0);
  return DO(layer_norm, x, scale, bias, &attrs);
}

// Rows of x: what comes from `axis` on is one.
static bool rows_of(choir__onnx_call_t* c, const choir_view_t* x, int64_t* axis,
                    int64_t* out_shape) {
  return choir__onnx_axis(c, axis, x->ndim) &&
         choir__onnx_product(c, x->shape, 0, (int32_t)*axis, &out_shape[0]) &&
         choir__onnx_product(c, x->shape, (int32_t)*axis, x->ndim,
                             &out_shape[1]);
}

// Whether `scale` has an element for each of a row of x, in order.
static bool is_of_row(const choir_view_t* scale, const choir_view_t* x,
                      int64_t axis) {
  if (!scale) return false;
  for (int32_t i = 0; i < scale->ndim || i < x->ndim - axis; ++i) {
    const int64_t size =
        i < scale->ndim ? scale->shape[scale->ndim - 1 - i] : 1;
    if (size != (i < x->ndim - axis ? x->shape[x->ndim - 1 - i] : 1))
      return false;
  }
  return true;
}

// Input i as a row beside x of this dtype.
static choir_var_t* row_of(choir__onnx_call_t* c, int32_t i, int64_t columns,
                           choir_dtype_t dtype) {
  return choir__onnx_beside(c, choir__onnx_reshape(c, IN(i), 1, &columns),
                            dtype);
}

// ---- Layers ----

// Mean and 1 / deviation of each row of x, whose shape is `shape` with 1 from
// `axis` on.
static void give_moments(choir__onnx_call_t* c, choir_var_t* x,
                         const choir_view_t* of, int64_t axis) {
  if (!choir__onnx_wants(c, 1) && !choir__onnx_wants(c, 2)) return;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0; i < of->ndim; ++i) shape[i] = i < axis ? of->shape[i] : 1;
  const choir_reduce_attrs_t rows = {.axis = 1, .keep_dims = true};
  const double epsilon = choir__onnx_float(c, "epsilon", 1e-5);
  choir_var_t* mean = DO(mean, x, &rows);
  choir_var_t* variance = DO(mean, DO(square, DO(sub, x, mean)), &rows);
  choir_var_t* inverse =
      DO(reciprocal, DO(sqrt, choir__onnx_line(c, variance, 1, epsilon)));
  const choir_dtype_t dtype =
      choir__onnx_int(c, "stash_type", CHOIR_ONNX_FLOAT) == CHOIR_ONNX_FLOAT
          ? CHOIR_DTYPE_F32
          : of->dtype;
  mean = choir__onnx_cast(c, mean, dtype);
  inverse = choir__onnx_cast(c, inverse, dtype);
  OUT(1, choir__onnx_reshape(c, mean, of->ndim, shape));
  OUT(2, choir__onnx_reshape(c, inverse, of->ndim, shape));
}

void choir__onnx_op_layer_normalization(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x || !VIEW(1)) return;
  int64_t axis = choir__onnx_int(c, "axis", -1), shape[2];
  if (!rows_of(c, x, &axis, shape)) return;
  choir_var_t* rows = choir__onnx_reshape(c, IN(0), 2, shape);
  choir_var_t* y;
  if (is_of_row(VIEW(1), x, axis) && (!HAS(2) || is_of_row(VIEW(2), x, axis))) {
    choir_var_t* bias = HAS(2) ? row_of(c, 2, shape[1], x->dtype) : NULL;
    y = normalise(c, rows, row_of(c, 1, shape[1], x->dtype), bias);
    y = choir__onnx_reshape(c, y, x->ndim, x->shape);
  } else {
    y = choir__onnx_reshape(c, normalise(c, rows, NULL, NULL), x->ndim,
                            x->shape);
    y = DO(mul, y, choir__onnx_cast(c, IN(1), x->dtype));
    if (HAS(2)) y = DO(add, y, choir__onnx_cast(c, IN(2), x->dtype));
  }
  OUT(0, y);
  const bool is_narrow =
      x->dtype == CHOIR_DTYPE_F16 || x->dtype == CHOIR_DTYPE_BF16;
  give_moments(c, is_narrow ? choir__onnx_cast(c, rows, CHOIR_DTYPE_F32) : rows,
               x, axis);
}

// x and the scale may differ in type; the result has the scale's.
void choir__onnx_op_rms_normalization(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *scale = VIEW(1);
  if (!x || !scale) return;
  int64_t axis = choir__onnx_int(c, "axis", -1), shape[2];
  if (!rows_of(c, x, &axis, shape)) return;
  const choir_rms_norm_attrs_t attrs = {
      .epsilon = choir__onnx_float(c, "epsilon", 1e-5)};
  choir_dtype_t dtype = x->dtype;
  if (dtype != scale->dtype && dtype != CHOIR_DTYPE_F64)
    dtype = CHOIR_DTYPE_F32;
  choir_var_t* rows =
      choir__onnx_cast(c, choir__onnx_reshape(c, IN(0), 2, shape), dtype);
  const bool is_row = is_of_row(scale, x, axis);
  choir_var_t* factors = is_row ? row_of(c, 1, shape[1], dtype)
                                : choir__onnx_filled(c, dtype, 1, &shape[1], 1);
  choir_var_t* y = choir__onnx_reshape(c, DO(rms_norm, rows, factors, &attrs),
                                       x->ndim, x->shape);
  if (!is_row) y = DO(mul, y, choir__onnx_cast(c, IN(1), dtype));
  choir__onnx_out_as(c, 0, choir__onnx_cast(c, y, scale->dtype), TYPE(1));
}

// ---- Groups and instances ----

// y (n, parts, elements) times scale (parts) plus bias (parts).
static choir_var_t* scale_parts(choir__onnx_call_t* c, choir_var_t* y,
                                int64_t parts, choir_dtype_t dtype) {
  const int64_t shape[] = {parts, 1};
  for (int32_t i = 1; i < 3; ++i) {
    const choir_view_t* view = VIEW(i);
    if (!view || view->ndim != 1 || view->shape[0] != parts)
      return FAIL(INVALID_ARGUMENT, "input %d needs one dimension of %lld", i,
                  (long long)parts);
    choir_var_t* part =
        choir__onnx_cast(c, choir__onnx_reshape(c, IN(i), 2, shape), dtype);
    y = i == 1 ? DO(mul, y, part) : DO(add, y, part);
  }
  return y;
}

// Normalises x (n, c, ...) in `groups` groups of channels, then scales in
// `parts` parts of them.
static void normalise_groups(choir__onnx_call_t* c, const choir_view_t* x,
                             int64_t groups, int64_t parts) {
  int64_t rows[2], image;
  if (!choir__onnx_product(c, x->shape, 2, x->ndim, &image) ||
      !choir__onnx_times(c, x->shape[0], groups, &rows[0]) ||
      !choir__onnx_times(c, x->shape[1] / groups, image, &rows[1]))
    return;
  int64_t shape[] = {x->shape[0], parts, 0};
  if (!choir__onnx_times(c, x->shape[1] / parts, image, &shape[2])) return;
  choir_var_t* y =
      normalise(c, choir__onnx_reshape(c, IN(0), 2, rows), NULL, NULL);
  y = scale_parts(c, choir__onnx_reshape(c, y, 3, shape), parts, x->dtype);
  OUT(0, choir__onnx_reshape(c, y, x->ndim, x->shape));
}

void choir__onnx_op_group_normalization(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x || !VIEW(1) || !VIEW(2)) return;
  const int64_t groups = choir__onnx_int(c, "num_groups", 0);
  if (x->ndim < 2 || groups < 1 || x->shape[1] < 1 ||
      x->shape[1] % groups != 0) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions, num_groups is %lld; needs 2 or more and a "
         "divisor of the channels",
         x->ndim, (long long)groups);
    return;
  }
  // Until version 21 there was one scale for each group.
  normalise_groups(c, x, groups, c->version < 21 ? groups : x->shape[1]);
}

void choir__onnx_op_instance_normalization(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x || !VIEW(1) || !VIEW(2)) return;
  if (x->ndim < 2 || x->shape[1] < 1) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions; needs 2 or more, and a channel", x->ndim);
    return;
  }
  normalise_groups(c, x, x->shape[1], x->shape[1]);
}

// ---- Neighbouring channels ----

// The mean square of `size` channels around each one is an average of an image
// whose rows are channels.
void choir__onnx_op_lrn(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  if (!x) return;
  const int64_t size = choir__onnx_int(c, "size", 0);
  if (x->ndim < 2 || size < 1 || size > CHOIR__ONNX_LARGEST) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions, size is %lld; needs 2 or more and a size from 1 "
         "on",
         x->ndim, (long long)size);
    return;
  }
  int64_t shape[] = {x->shape[0], 1, x->shape[1], 0};
  if (!choir__onnx_product(c, x->shape, 2, x->ndim, &shape[3])) return;
  const choir_pool2d_attrs_t attrs = {
      .kernel = {size, 1},
      .stride = {1, 1},
      .padding = {(size - 1) / 2, 0},
      .padding_after = {size - 1 - (size - 1) / 2, 0},
      .pad_mode = CHOIR_WINDOW_PAD_EXPLICIT};
  choir_var_t* image = choir__onnx_reshape(c, IN(0), 4, shape);
  choir_var_t* mean = DO(avg_pool2d, DO(square, image), &attrs);
  choir_var_t* sum =
      choir__onnx_line(c, mean, choir__onnx_float(c, "alpha", 1e-4),
                       choir__onnx_float(c, "bias", 1));
  choir_var_t* power =
      choir__onnx_scalar(c, x->dtype, -choir__onnx_float(c, "beta", 0.75));
  choir_var_t* y = DO(mul, image, DO(pow, sum, power));
  OUT(0, choir__onnx_reshape(c, y, x->ndim, x->shape));
}

// ---- Axes ----

void choir__onnx_op_lp_normalization(choir__onnx_call_t* c) {
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  int64_t axis = choir__onnx_int(c, "axis", -1);
  const int64_t power = choir__onnx_int(c, "p", 2);
  if (!choir__onnx_axis(c, &axis, view->ndim)) return;
  if (power != 1 && power != 2) {
    FAIL(INVALID_ARGUMENT, "p is %lld; needs 1 or 2", (long long)power);
    return;
  }
  if (choir_view_count(view) == 0) {
    OUT(0, IN(0));
    return;
  }
  const choir_reduce_attrs_t along = {.axis = axis, .keep_dims = true};
  choir_var_t* x = choir__onnx_wide(c, IN(0));
  choir_var_t* sum = DO(sum, power == 1 ? DO(abs, x) : DO(square, x), &along);
  choir_var_t* norm = power == 1 ? sum : choir__onnx_root(c, sum);
  const choir_view_t* norms = choir_var_view(norm);
  if (!norms) return;
  // Where all elements are 0 they stay so.
  choir_var_t* zero = choir__onnx_scalar(c, norms->dtype, 0);
  choir_var_t* one = choir__onnx_scalar(c, norms->dtype, 1);
  norm = DO(where, DO(equal, norm, zero), one, norm);
  OUT(0, choir__onnx_cast(c, DO(div, x, norm), view->dtype));
}

void choir__onnx_op_mean_variance_normalization(choir__onnx_call_t* c) {
  static const int64_t usual[] = {0, 2, 3};
  const choir_view_t* view = VIEW(0);
  if (!view) return;
  int64_t list[CHOIR_MAX_NDIM] = {0};
  int32_t count;
  const int64_t* given = choir__onnx_ints(c, "axes", &count);
  if (count > CHOIR_MAX_NDIM) {
    FAIL(INVALID_ARGUMENT, "%d axes; at most %d are possible", count,
         CHOIR_MAX_NDIM);
    return;
  }
  if (!choir__onnx_has_attr(c, "axes")) {
    given = usual;
    count = 3;
  }
  for (int32_t i = 0; i < count; ++i) list[i] = given[i];
  choir__onnx_axes_t axes;
  if (!choir__onnx_axes_set(c, list, count, view->ndim, &axes)) return;
  choir_var_t* x = choir__onnx_wide(c, IN(0));
  x = DO(sub, x, choir__onnx_fold(c, x, &axes, true, choir_var_mean));
  choir_var_t* variance =
      choir__onnx_fold(c, DO(square, x), &axes, true, choir_var_mean);
  choir_var_t* deviation =
      DO(scale, choir__onnx_root(c, variance),
         &(choir_scale_attrs_t){.factor = 1, .shift = 1e-9});
  OUT(0, choir__onnx_cast(c, DO(div, x, deviation), view->dtype));
}
