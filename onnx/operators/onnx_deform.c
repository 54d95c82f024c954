// SPDX-License-Identifier: Apache-2.0
// DeformConv: the host samples what each window sees, at moved places; a
// product with the weights follows, through which gradients flow to them.
#include <math.h>

#include "onnx/operators/onnx_window_internal.h"

typedef struct deform_s {
  choir__onnx_window_t window;
  int64_t channels, offset_groups;
  bool has_mask;
} deform_t;

// The value between four elements; those outside of the image are 0.
static double sample(const choir__onnx_array_t* x, int64_t base,
                     const int64_t* size, double y, double column) {
  if (!(y > -1 && y < (double)size[0] && column > -1 &&
        column < (double)size[1]))
    return 0;
  const int64_t top = (int64_t)floor(y), left = (int64_t)floor(column);
  const double dy = y - (double)top, dx = column - (double)left;
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      if (top + i < 0 || top + i >= size[0] || left + j < 0 ||
          left + j >= size[1])
        continue;
      sum += (i ? dy : 1 - dy) * (j ? dx : 1 - dx) *
             choir__onnx_number_at(x, base + (top + i) * size[1] + left + j);
    }
  return sum;
}

// dst (n, c, kh kw, oh ow); srcs: x, offset (n, groups kh kw 2, oh, ow) and
// mask (n, groups kh kw, oh, ow) or none.
static choir_status_t run_columns(const choir__onnx_array_t* srcs,
                                  const choir__onnx_array_t* dsts,
                                  const void* attrs) {
  const deform_t* deform = attrs;
  const choir__onnx_window_t* window = &deform->window;
  const int64_t places = window->out[0] * window->out[1];
  const int64_t kernel = window->kernel[0] * window->kernel[1];
  const int64_t image = window->size[0] * window->size[1];
  for (int64_t i = 0; i < dsts[0].count; ++i) {
    const int64_t place = i % places, k = i / places % kernel;
    const int64_t plane = i / places / kernel;  // sample and channel
    const int64_t group =
        plane % deform->channels / (deform->channels / deform->offset_groups);
    const int64_t seen =
        (plane / deform->channels * deform->offset_groups + group) * kernel + k;
    const int64_t moved = seen * 2 * places + place;
    const int64_t row = place / window->out[1] * window->stride[0] -
                        window->before[0] +
                        k / window->kernel[1] * window->dilation[0];
    const int64_t column = place % window->out[1] * window->stride[1] -
                           window->before[1] +
                           k % window->kernel[1] * window->dilation[1];
    const double y = (double)row + choir__onnx_number_at(&srcs[1], moved);
    const double x =
        (double)column + choir__onnx_number_at(&srcs[1], moved + places);
    double value = sample(&srcs[0], plane * image, window->size, y, x);
    if (deform->has_mask)
      value *= choir__onnx_number_at(&srcs[2], seen * places + place);
    choir__onnx_set_number(&dsts[0], i, value);
  }
  return NULL;
}

// An input (n, channels, oh, ow).
static bool check_input(choir__onnx_call_t* c, int32_t i, int64_t n,
                        int64_t channels, const int64_t* out) {
  const choir_view_t* view = VIEW(i);
  if (view && view->ndim == 4 && view->shape[0] == n &&
      view->shape[1] == channels && view->shape[2] == out[0] &&
      view->shape[3] == out[1])
    return true;
  FAIL(INVALID_ARGUMENT, "input %d needs the shape %lld, %lld, %lld, %lld", i,
       (long long)n, (long long)channels, (long long)out[0], (long long)out[1]);
  return false;
}

static bool check(choir__onnx_call_t* c, const choir_view_t* x,
                  const choir_view_t* w, int64_t groups, deform_t* deform) {
  const int64_t parts = deform->offset_groups;
  if (x->ndim != 4 || w->ndim != 4 || groups < 1 || parts < 1 ||
      choir_view_count(x) < 1 || choir_view_count(w) < 1 ||
      w->shape[0] % groups != 0 || x->shape[1] % groups != 0 ||
      x->shape[1] / groups != w->shape[1] || x->shape[1] % parts != 0) {
    FAIL(INVALID_ARGUMENT,
         "x has %d dimensions and W %d, group is %lld, offset_group %lld; "
         "needs 4, with elements, and divisors of the channels",
         x->ndim, w->ndim, (long long)groups, (long long)parts);
    return false;
  }
  if (!choir__onnx_window_read(c, x, w->shape + 2, &deform->window) ||
      !choir__onnx_window_count(c, false, &deform->window))
    return false;
  // Within what x and W have, so that no product overflows.
  const int64_t points =
      parts * deform->window.kernel[0] * deform->window.kernel[1];
  if (!check_input(c, 2, x->shape[0], 2 * points, deform->window.out))
    return false;
  return !HAS(4) || check_input(c, 4, x->shape[0], points, deform->window.out);
}

void choir__onnx_op_deform_conv(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *w = VIEW(1);
  if (!x || !w || !VIEW(2)) return;
  const int64_t groups = choir__onnx_int(c, "group", 1);
  deform_t deform = {.offset_groups = choir__onnx_int(c, "offset_group", 1),
                     .has_mask = HAS(4)};
  if (!check(c, x, w, groups, &deform)) return;
  deform.channels = x->shape[1];
  const int64_t kernel = w->shape[2] * w->shape[3], filters = w->shape[0];
  const int64_t* out = deform.window.out;
  const choir_view_t columns = {
      .dtype = x->dtype,
      .ndim = 4,
      .shape = {x->shape[0], x->shape[1], kernel, out[0] * out[1]}};
  choir_var_t* const srcs[] = {IN(0), IN(2), HAS(4) ? IN(4) : NULL};
  choir_var_t* seen;
  choir__onnx_host(c, "deform_conv", run_columns, &deform, sizeof deform, srcs,
                   HAS(4) ? 3 : 2, &columns, 1, &seen);
  const int64_t part = x->shape[1] / groups * kernel;
  const int64_t seen_shape[] = {x->shape[0], groups, part, out[0] * out[1]};
  const int64_t w_shape[] = {groups, filters / groups, part};
  const int64_t y_shape[] = {x->shape[0], filters, out[0], out[1]};
  choir_var_t* y = DO(matmul, choir__onnx_reshape(c, IN(1), 3, w_shape),
                      choir__onnx_reshape(c, seen, 4, seen_shape), NULL);
  y = choir__onnx_reshape(c, y, 4, y_shape);
  if (HAS(3)) {
    const int64_t b_shape[] = {filters, 1, 1};
    y = DO(add, y, choir__onnx_reshape(c, IN(3), 3, b_shape));
  }
  OUT(0, y);
}
