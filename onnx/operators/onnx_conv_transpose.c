// SPDX-License-Identifier: Apache-2.0
// Transposed convolutions by conv_transpose2d. What it has no attribute for is
// cut out of the whole result; of depths, those that a window writes are
// channels first, and a matrix of ones and zeros adds them up.
#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_window_internal.h"

// What is wanted of the whole result, size (in - 1) stride + reach.
typedef struct part_s {
  int64_t whole[CHOIR__ONNX_SPATIAL];
  int64_t first[CHOIR__ONNX_SPATIAL];
  int64_t size[CHOIR__ONNX_SPATIAL];
} part_t;

// output_shape, which may begin with n and c: *out_given.
static bool read_shape(choir__onnx_call_t* c, int32_t count, int64_t* out,
                       bool* out_given) {
  int64_t all[2 + CHOIR__ONNX_SPATIAL];
  int32_t given;
  (void)choir__onnx_ints(c, "output_shape", &given);
  *out_given = given > 0;
  const int32_t before = given == count + 2 ? 2 : 0;
  // n and c may be -1; sizes below 1 are found where they are used.
  if (!choir__onnx_window_ints(c, "output_shape", before + count, -1, 0, all))
    return false;
  for (int32_t i = 0; i < count; ++i) out[i] = all[before + i];
  return true;
}

static bool read_part(choir__onnx_call_t* c, const choir__onnx_window_t* window,
                      part_t* out_part) {
  int64_t shape[CHOIR__ONNX_SPATIAL], extra[CHOIR__ONNX_SPATIAL];
  bool has_shape;
  if (!read_shape(c, window->count, shape, &has_shape) ||
      !choir__onnx_window_ints(c, "output_padding", window->count, 0, 0, extra))
    return false;
  const bool is_upper = window->auto_pad == CHOIR__ONNX_PAD_SAME_UPPER;
  const bool is_same =
      is_upper || window->auto_pad == CHOIR__ONNX_PAD_SAME_LOWER;
  for (int32_t i = 0; i < window->count; ++i) {
    const int64_t stride = window->stride[i], size = window->size[i];
    if (size < 1) {
      FAIL(INVALID_ARGUMENT, "the image has size %lld; needs 1 or more",
           (long long)size);
      return false;
    }
    out_part->whole[i] = (size - 1) * stride + window->reach[i];
    const int64_t whole = out_part->whole[i] + extra[i];
    if (has_shape || is_same) {
      out_part->size[i] = has_shape ? shape[i] : size * stride;
      int64_t total = whole - out_part->size[i];
      if (total < 0) total = 0;
      out_part->first[i] = is_upper ? total / 2 : total - total / 2;
    } else {
      out_part->first[i] = window->before[i];
      out_part->size[i] = whole - window->before[i] - window->after[i];
    }
    if (out_part->size[i] < 1) {
      FAIL(INVALID_ARGUMENT, "the result would have size %lld; needs 1 or more",
           (long long)out_part->size[i]);
      return false;
    }
  }
  return true;
}

// Elements first .. first + size - 1 along an axis, zeros behind its end.
static choir_var_t* cut(choir__onnx_call_t* c, choir_var_t* x, int32_t axis,
                        int64_t whole, int64_t first, int64_t size) {
  if (first > whole) first = whole;
  const int64_t stop = first + size < whole ? first + size : whole;
  if (first > 0 || stop < whole) x = choir__onnx_slice(c, x, axis, first, stop);
  if (stop - first < size) {
    choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT};
    pad.after[axis] = size - (stop - first);
    x = DO(pad, x, &pad);
  }
  return x;
}

// The last two (or one, then x has a height of 1) spatial dimensions, from
// `first` on.
static choir_var_t* transpose_2d(choir__onnx_call_t* c, choir_var_t* x,
                                 choir_var_t* w,
                                 const choir__onnx_window_t* window,
                                 const part_t* part, int32_t first) {
  choir_conv_transpose2d_attrs_t attrs = {
      .stride = {1, 1},
      .dilation = {1, 1},
      .groups = choir__onnx_int(c, "group", 1)};
  const int32_t shift = 2 - (window->count - first);
  bool is_direct = true;
  for (int32_t i = first; i < window->count; ++i) {
    const int32_t k = i - first + shift;
    attrs.stride[k] = window->stride[i];
    attrs.dilation[k] = window->dilation[i];
    attrs.padding[k] = part->first[i];
    attrs.output_padding[k] =
        part->size[i] - (part->whole[i] - 2 * part->first[i]);
    if (attrs.output_padding[k] < 0 ||
        attrs.output_padding[k] >= attrs.stride[k])
      is_direct = false;
  }
  if (is_direct) return DO(conv_transpose2d, x, w, &attrs);
  for (int32_t k = 0; k < 2; ++k)
    attrs.padding[k] = attrs.output_padding[k] = 0;
  choir_var_t* y = DO(conv_transpose2d, x, w, &attrs);
  for (int32_t i = first; i < window->count; ++i)
    y = cut(c, y, 2 + i - first + shift, part->whole[i], part->first[i],
            part->size[i]);
  return y;
}

static choir_var_t* transpose_1d(choir__onnx_call_t* c, choir_var_t* x,
                                 choir_var_t* w,
                                 const choir__onnx_window_t* window,
                                 const part_t* part) {
  choir_var_t* y = transpose_2d(c, choir__onnx_with_rows(c, x),
                                choir__onnx_with_rows(c, w), window, part, 0);
  return choir__onnx_without_rows(c, y);
}

// Which (depth of x, depth of the kernel) goes to which depth of the result.
static double* depth_matrix(choir__onnx_call_t* c,
                            const choir__onnx_window_t* window,
                            const part_t* part) {
  const int64_t kernel = window->kernel[0];
  int64_t columns = 0;
  if (!choir__onnx_times(c, window->size[0], kernel, &columns)) return NULL;
  double* matrix = choir__onnx_matrix(c, part->size[0], columns);
  for (int64_t k = 0; matrix && k < columns; ++k) {
    const int64_t row = k / kernel * window->stride[0] +
                        k % kernel * window->dilation[0] - part->first[0];
    if (row >= 0 && row < part->size[0]) matrix[row * columns + k] = 1;
  }
  return matrix;
}

static choir_var_t* transpose_3d(choir__onnx_call_t* c, choir_var_t* x,
                                 choir_var_t* w,
                                 const choir__onnx_window_t* window,
                                 const part_t* part) {
  const choir_view_t* view = choir_var_view(x);
  const choir_view_t* weights = choir_var_view(w);
  const int64_t n = view->shape[0], depth = view->shape[2];
  const int64_t kernel = window->kernel[0];
  const double* matrix = depth_matrix(c, window, part);
  if (!matrix) return choir_scope_fail(c->scope, NULL);
  int64_t images = 0, filters = 0;
  if (!choir__onnx_times(c, n, depth, &images) ||
      !choir__onnx_times(c, weights->shape[1], kernel, &filters))
    return choir_scope_fail(c->scope, NULL);
  const int64_t to_images[] = {0, 2, 1, 3, 4};
  const int64_t shape[] = {images, view->shape[1], view->shape[3],
                           view->shape[4]};
  const int64_t w_shape[] = {weights->shape[0], filters, weights->shape[3],
                             weights->shape[4]};
  x = choir__onnx_reshape(c, choir__onnx_transpose(c, x, to_images), 4, shape);
  choir_var_t* y = transpose_2d(c, x, choir__onnx_reshape(c, w, 4, w_shape),
                                window, part, 1);
  const choir_view_t* made = choir_var_view(y);
  if (!made) return y;
  const int64_t channels = made->shape[1] / kernel;
  const int64_t parts[] = {n,      depth,          channels,
                           kernel, made->shape[2], made->shape[3]};
  const int64_t to_depths[] = {0, 2, 1, 3, 4, 5};
  const int64_t merged[] = {n, channels, depth * kernel, parts[4], parts[5]};
  y = choir__onnx_transpose(c, choir__onnx_reshape(c, y, 6, parts), to_depths);
  return choir__onnx_along(c, choir__onnx_reshape(c, y, 5, merged), 2,
                           part->size[0], matrix);
}

// y (n, o, ...) + bias (o).
static choir_var_t* add_bias(choir__onnx_call_t* c, choir_var_t* y,
                             choir_var_t* bias) {
  const choir_view_t* view = choir_var_view(y);
  const choir_view_t* given = choir_var_view(bias);
  if (!view || !given) return choir_scope_fail(c->scope, NULL);
  if (given->ndim != 1 || given->shape[0] != view->shape[1])
    return FAIL(INVALID_ARGUMENT,
                "the bias has %d dimensions; needs one of %lld", given->ndim,
                (long long)view->shape[1]);
  int64_t shape[CHOIR_MAX_NDIM] = {view->shape[1], 1, 1, 1};
  return DO(add, y, choir__onnx_reshape(c, bias, view->ndim - 1, shape));
}

// The result and what comes before it.
static bool part_fits(choir__onnx_call_t* c, const choir_view_t* x,
                      const choir_view_t* w, const choir__onnx_window_t* window,
                      const part_t* part) {
  int64_t channels, whole[2 + CHOIR__ONNX_SPATIAL] = {x->shape[0]};
  if (!choir__onnx_times(c, w->shape[1], choir__onnx_int(c, "group", 1),
                         &channels))
    return false;
  int64_t size[2 + CHOIR__ONNX_SPATIAL] = {x->shape[0], channels};
  whole[1] = channels;
  for (int32_t i = 0; i < window->count; ++i) {
    size[2 + i] = part->size[i];
    whole[2 + i] = part->whole[i];
  }
  // Of depths all that windows write lies side by side.
  if (window->count == 3 &&
      !choir__onnx_times(c, window->size[0], window->kernel[0], &whole[2]))
    return false;
  return choir__onnx_fits(c, x->dtype, 2 + window->count, size) &&
         choir__onnx_fits(c, x->dtype, 2 + window->count, whole);
}

void choir__onnx_op_conv_transpose(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *w = VIEW(1);
  if (!x || !w) return;
  const int64_t groups = choir__onnx_int(c, "group", 1);
  if (w->ndim != x->ndim || x->ndim < 3 || groups < 1 ||
      groups > CHOIR__ONNX_LARGEST) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions and W %d, group is %lld; needs as many, from 3 "
         "on, and a group from 1 on",
         x->ndim, w->ndim, (long long)groups);
    return;
  }
  choir__onnx_window_t window;
  part_t part = {.size = {0}};
  if (!choir__onnx_window_read(c, x, w->shape + 2, &window) ||
      !read_part(c, &window, &part) || !part_fits(c, x, w, &window, &part))
    return;
  choir_var_t* y =
      window.count == 1   ? transpose_1d(c, IN(0), IN(1), &window, &part)
      : window.count == 2 ? transpose_2d(c, IN(0), IN(1), &window, &part, 0)
                          : transpose_3d(c, IN(0), IN(1), &window, &part);
  OUT(0, HAS(2) ? add_bias(c, y, IN(2)) : y);
}
