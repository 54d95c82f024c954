// SPDX-License-Identifier: Apache-2.0
// Convolutions: images of 1 and 2 dimensions by conv2d as they are; of 3,
// conv2d of all depths at once, with the depths that a window sees as channels.
#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_conv_internal.h"
#include "onnx/operators/onnx_window_internal.h"

// Depth indices of all windows: a gather that large is no convolution.
enum { MAX_DEPTH_INDICES = 1 << 26 };

static choir_conv2d_attrs_t attrs_of(const choir__onnx_window_t* window,
                                     int32_t first, int64_t groups) {
  choir_conv2d_attrs_t attrs = {.stride = {1, 1},
                                .dilation = {1, 1},
                                .groups = groups,
                                .pad_mode = CHOIR_WINDOW_PAD_EXPLICIT};
  for (int32_t i = first, k = 2 - (window->count - first); i < window->count;
       ++i, ++k) {
    attrs.stride[k] = window->stride[i];
    attrs.dilation[k] = window->dilation[i];
    attrs.padding[k] = window->before[i];
    attrs.padding_after[k] = window->after[i];
  }
  return attrs;
}

static choir_var_t* convolve_1d(choir__onnx_call_t* c, choir_var_t* const* srcs,
                                const choir_conv2d_attrs_t* attrs) {
  choir_var_t* y = DO(conv2d, choir__onnx_with_rows(c, srcs[0]),
                      choir__onnx_with_rows(c, srcs[1]), srcs[2], attrs);
  return choir__onnx_without_rows(c, y);
}

// x (n, c, d, h, w), padded along d, as (n od, c kd, h, w).
static choir_var_t* depths_as_channels(choir__onnx_call_t* c, choir_var_t* x,
                                       const choir__onnx_window_t* window) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return choir_scope_fail(c->scope, NULL);
  const int64_t padded[] = {
      view->shape[0], view->shape[1],
      view->shape[2] + window->before[0] + window->after[0], view->shape[3],
      view->shape[4]};
  const int64_t seen[] = {view->shape[0],    window->out[0], view->shape[1],
                          window->kernel[0], view->shape[3], view->shape[4]};
  if (!choir__onnx_fits(c, view->dtype, 5, padded) ||
      !choir__onnx_fits(c, view->dtype, 6, seen))
    return choir_scope_fail(c->scope, NULL);
  if (window->before[0] > 0 || window->after[0] > 0) {
    choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT};
    pad.before[2] = window->before[0];
    pad.after[2] = window->after[0];
    x = DO(pad, x, &pad);
  }
  const int64_t sizes[2] = {window->out[0], window->kernel[0]};
  int64_t count;
  if (!choir__onnx_times(c, sizes[0], sizes[1], &count))
    return choir_scope_fail(c->scope, NULL);
  if (count > MAX_DEPTH_INDICES)
    return FAIL(UNIMPLEMENTED,
                "%lld windows of depth %lld; at most %d places are possible",
                (long long)sizes[0], (long long)sizes[1], MAX_DEPTH_INDICES);
  view = choir_var_view(x);
  int64_t* places = choir_scope_alloc(c->scope, (size_t)count * 8 + 8);
  if (!view || !places) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < count; ++i)
    places[i] =
        i / sizes[1] * window->stride[0] + i % sizes[1] * window->dilation[0];
  x = DO(gather, x, choir__onnx_constant(c, CHOIR_DTYPE_I64, 2, sizes, places),
         &(choir_gather_attrs_t){.axis = 2});
  const int64_t order[] = {0, 2, 1, 3, 4, 5};
  int64_t shape[] = {0, 0, view->shape[3], view->shape[4]};
  if (!choir__onnx_times(c, view->shape[0], sizes[0], &shape[0]) ||
      !choir__onnx_times(c, view->shape[1], sizes[1], &shape[1]))
    return choir_scope_fail(c->scope, NULL);
  return choir__onnx_reshape(c, choir__onnx_transpose(c, x, order), 4, shape);
}

static choir_var_t* convolve_3d(choir__onnx_call_t* c, choir_var_t* const* srcs,
                                const choir__onnx_window_t* window,
                                const choir_conv2d_attrs_t* attrs) {
  const choir_view_t* x = choir_var_view(srcs[0]);
  const choir_view_t* w = choir_var_view(srcs[1]);
  // (o, i, kd, kh, kw) lies as (o, i kd, kh, kw).
  int64_t channels;
  if (!choir__onnx_times(c, w->shape[1], w->shape[2], &channels))
    return choir_scope_fail(c->scope, NULL);
  const int64_t shape[] = {w->shape[0], channels, w->shape[3], w->shape[4]};
  choir_var_t* y =
      DO(conv2d, depths_as_channels(c, srcs[0], window),
         choir__onnx_reshape(c, srcs[1], 4, shape), srcs[2], attrs);
  const choir_view_t* view = choir_var_view(y);
  if (!view) return y;
  const int64_t parts[] = {x->shape[0], window->out[0], view->shape[1],
                           view->shape[2], view->shape[3]};
  const int64_t order[] = {0, 2, 1, 3, 4};
  return choir__onnx_transpose(c, choir__onnx_reshape(c, y, 5, parts), order);
}

choir_var_t* choir__onnx_convolve(choir__onnx_call_t* c, choir_var_t* x,
                                  choir_var_t* w, choir_var_t* bias_or_null) {
  const choir_view_t* view = choir_var_view(x);
  const choir_view_t* weights = choir_var_view(w);
  if (!view || !weights) return choir_scope_fail(c->scope, NULL);
  const int64_t groups = choir__onnx_int(c, "group", 1);
  if (weights->ndim != view->ndim || view->ndim < 3)
    return FAIL(INVALID_ARGUMENT,
                "x has %d dimensions and W %d; needs as many, from 3 on",
                view->ndim, weights->ndim);
  if (groups < 1 || groups > CHOIR__ONNX_LARGEST)
    return FAIL(INVALID_ARGUMENT, "group is %lld; needs 1 or more",
                (long long)groups);
  choir__onnx_window_t window;
  if (!choir__onnx_window_read(c, view, weights->shape + 2, &window) ||
      !choir__onnx_window_count(c, false, &window) ||
      !choir__onnx_window_fits(c, view, weights->shape[0], &window))
    return choir_scope_fail(c->scope, NULL);
  if (!bias_or_null) {
    double* zeros = choir__onnx_matrix(c, 1, weights->shape[0]);
    if (!zeros) return choir_scope_fail(c->scope, NULL);
    bias_or_null =
        choir__onnx_numbers(c, view->dtype, 1, weights->shape, zeros);
  }
  choir_var_t* const srcs[] = {x, w, bias_or_null};
  const choir_conv2d_attrs_t attrs =
      attrs_of(&window, window.count == 3, groups);
  if (window.count == 1) return convolve_1d(c, srcs, &attrs);
  if (window.count == 3) return convolve_3d(c, srcs, &window, &attrs);
  return DO(conv2d, x, w, bias_or_null, &attrs);
}

void choir__onnx_op_conv(choir__onnx_call_t* c) {
  if (!VIEW(0) || !VIEW(1)) return;
  OUT(0, choir__onnx_convolve(c, IN(0), IN(1), HAS(2) ? IN(2) : NULL));
}
