// SPDX-License-Identifier: Apache-2.0
// Convolutions of any floating-point dtype over one to three axes, by conv2d.
#include "onnx/operators/onnx_integer_conv_internal.h"

#include <string.h>

enum { MOST_AXES = 3, MOST_TAPS = 1 << 16 };

// The axes depth, height and width; those that x lacks have one place.
typedef struct window_s {
  int64_t stride[MOST_AXES];
  int64_t dilation[MOST_AXES];
  int64_t before[MOST_AXES];
  int64_t after[MOST_AXES];
} window_t;

static bool in_range(choir__onnx_call_t* c, const char* name, int64_t value,
                     int64_t least) {
  if (value >= least && value <= INT32_MAX) return true;
  FAIL(INVALID_ARGUMENT, "attribute %s has %lld; needs %lld to 2147483647",
       name, (long long)value, (long long)least);
  return false;
}

// Attribute `name`, of `count` numbers, or no attribute.
static bool take_ints(choir__onnx_call_t* c, const char* name, int32_t count,
                      int64_t least, int64_t* out) {
  int32_t given;
  const int64_t* ints = choir__onnx_ints(c, name, &given);
  if (given == 0) return true;
  if (given != count) {
    FAIL(INVALID_ARGUMENT, "attribute %s has %d numbers; needs %d", name, given,
         count);
    return false;
  }
  for (int32_t i = 0; i < count; ++i) {
    if (!in_range(c, name, ints[i], least)) return false;
    out[i] = ints[i];
  }
  return true;
}

// Zeros around axis k, of `size` places, for a kernel of `taps`.
static void pad_same(window_t* w, int32_t k, int64_t size, int64_t taps,
                     bool is_upper) {
  const int64_t results = size > 0 ? (size - 1) / w->stride[k] + 1 : 0;
  const int64_t reach =
      (results - 1) * w->stride[k] + w->dilation[k] * (taps - 1) + 1;
  const int64_t zeros = results > 0 && reach > size ? reach - size : 0;
  w->before[k] = is_upper ? zeros / 2 : zeros - zeros / 2;
  w->after[k] = zeros - w->before[k];
}

static bool take_window(choir__onnx_call_t* c, const choir_view_t* x,
                        const choir_view_t* weights, window_t* out) {
  const int32_t axes = x->ndim - 2, first = MOST_AXES - axes;
  int64_t pads[2 * MOST_AXES] = {0};
  *out = (window_t){.stride = {1, 1, 1}, .dilation = {1, 1, 1}};
  if (!take_ints(c, "strides", axes, 1, out->stride + first) ||
      !take_ints(c, "dilations", axes, 1, out->dilation + first) ||
      !take_ints(c, "pads", 2 * axes, 0, pads))
    return false;
  const char* mode = choir__onnx_string(c, "auto_pad", "NOTSET");
  const bool is_upper = strcmp(mode, "SAME_UPPER") == 0;
  if (strcmp(mode, "NOTSET") == 0) {
    for (int32_t i = 0; i < axes; ++i) {
      out->before[first + i] = pads[i];
      out->after[first + i] = pads[axes + i];
    }
  } else if (is_upper || strcmp(mode, "SAME_LOWER") == 0) {
    for (int32_t i = 0; i < axes; ++i) {
      if (!in_range(c, "kernel_shape", weights->shape[2 + i], 1)) return false;
      pad_same(out, first + i, x->shape[2 + i], weights->shape[2 + i],
               is_upper);
    }
  } else if (strcmp(mode, "VALID") != 0) {
    FAIL(INVALID_ARGUMENT, "auto_pad is '%s'", mode);
    return false;
  }
  return true;
}

static choir_var_t* conv_plane(choir__onnx_call_t* c, choir_var_t* x,
                               choir_var_t* weights, choir_var_t* bias,
                               const window_t* w) {
  choir_conv2d_attrs_t attrs = {.groups = choir__onnx_int(c, "group", 1),
                                .pad_mode = CHOIR_WINDOW_PAD_EXPLICIT};
  for (int32_t k = 0; k < 2; ++k) {
    attrs.stride[k] = w->stride[k + 1];
    attrs.dilation[k] = w->dilation[k + 1];
    attrs.padding[k] = w->before[k + 1];
    attrs.padding_after[k] = w->after[k + 1];
  }
  return choir_var_conv2d(c->scope, x, weights, bias, &attrs);
}

// x (n, c, d, h, w) padded along d, every stride'th of its images from `start`
// on, `count` of them, as (n count, c, h, w).
static choir_var_t* images_at(choir__onnx_call_t* c, choir_var_t* x,
                              int64_t start, int64_t stride, int64_t count) {
  const choir_slice_attrs_t attrs = {.axis = 2,
                                     .start = start,
                                     .stop = start + (count - 1) * stride + 1,
                                     .step = stride};
  static const int64_t images_first[] = {0, 2, 1, 3, 4};
  x = choir__onnx_transpose(c, DO(slice, x, &attrs), images_first);
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  const int64_t shape[] = {view->shape[0] * view->shape[1], view->shape[2],
                           view->shape[3], view->shape[4]};
  return choir__onnx_reshape(c, x, 4, shape);
}

// Over depth too: for each tap of it a convolution of images, summed.
static choir_var_t* conv_volume(choir__onnx_call_t* c, choir_var_t* x,
                                choir_var_t* weights, choir_var_t* bias,
                                choir_var_t* zeros, const window_t* w) {
  choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT};
  pad.before[2] = w->before[0], pad.after[2] = w->after[0];
  const int64_t samples = choir_var_view(x)->shape[0];
  const int64_t taps = choir_var_view(weights)->shape[2];
  x = DO(pad, x, &pad);
  const choir_view_t* padded = choir_var_view(x);
  if (!padded) return x;
  const int64_t left = padded->shape[2] - (taps - 1) * w->dilation[0] - 1;
  if (taps < 1 || taps > MOST_TAPS || left < 0)
    return FAIL(INVALID_ARGUMENT, "a kernel of depth %lld on %lld places",
                (long long)taps, (long long)padded->shape[2]);
  const int64_t count = left / w->stride[0] + 1;
  choir_var_t* sum = NULL;
  for (int64_t k = 0; k < taps && CALL_IS_OK; ++k) {
    choir_var_t* tap = choir__onnx_slice(c, weights, 2, k, k + 1);
    const choir_view_t* view = choir_var_view(tap);
    if (!view) return tap;
    const int64_t plane[] = {view->shape[0], view->shape[1], view->shape[3],
                             view->shape[4]};
    choir_var_t* y =
        conv_plane(c, images_at(c, x, k * w->dilation[0], w->stride[0], count),
                   choir__onnx_reshape(c, tap, 4, plane), k ? zeros : bias, w);
    sum = sum ? DO(add, sum, y) : y;
  }
  const choir_view_t* view = choir_var_view(sum);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int64_t shape[] = {samples, count, view->shape[1], view->shape[2],
                           view->shape[3]};
  static const int64_t channels_first[] = {0, 2, 1, 3, 4};
  return choir__onnx_transpose(c, choir__onnx_reshape(c, sum, 5, shape),
                               channels_first);
}

static choir_var_t* zero_bias(choir__onnx_call_t* c,
                              const choir_view_t* weights) {
  const int64_t count = weights->shape[0];
  void* zeros = choir_scope_alloc(
      c->scope, (size_t)(count > 0 ? count : 1) * sizeof(double));
  if (!zeros) return choir_scope_fail(c->scope, NULL);
  return choir__onnx_constant(c, weights->dtype, 1, &count, zeros);
}

choir_var_t* choir__onnx_wide_conv(choir__onnx_call_t* c, choir_var_t* x,
                                   choir_var_t* w, choir_var_t* bias) {
  const choir_view_t *from = choir_var_view(x), *weights = choir_var_view(w);
  if (!from || !weights) return choir_scope_fail(c->scope, NULL);
  if (from->ndim < 3 || from->ndim > 2 + MOST_AXES ||
      weights->ndim != from->ndim)
    return FAIL(INVALID_ARGUMENT,
                "an input of %d dimensions and weights of %d; needs 3 to 5, as "
                "many of both",
                from->ndim, weights->ndim);
  window_t window;
  int32_t kernel_count;
  const int64_t* kernel = choir__onnx_ints(c, "kernel_shape", &kernel_count);
  bool fits = kernel_count == 0 || kernel_count == from->ndim - 2;
  for (int32_t i = 0; fits && i < kernel_count; ++i)
    fits = kernel[i] == weights->shape[2 + i];
  if (!fits)
    return FAIL(INVALID_ARGUMENT, "kernel_shape differs from the weights'");
  if (!take_window(c, from, weights, &window))
    return choir_scope_fail(c->scope, NULL);
  choir_var_t* zeros = zero_bias(c, weights);
  if (!bias) bias = zeros;
  if (from->ndim == 5) return conv_volume(c, x, w, bias, zeros, &window);
  if (from->ndim == 4) return conv_plane(c, x, w, bias, &window);
  const int64_t height = 2;
  choir_var_t* y =
      conv_plane(c, choir__onnx_unsqueeze(c, x, &height, 1),
                 choir__onnx_unsqueeze(c, w, &height, 1), bias, &window);
  const choir_view_t* view = choir_var_view(y);
  if (!view) return y;
  const int64_t shape[] = {view->shape[0], view->shape[1], view->shape[3]};
  return choir__onnx_reshape(c, y, 3, shape);
}
