// SPDX-License-Identifier: Apache-2.0
// The places of maxima of windows, found by the host.
#include "onnx/operators/onnx_pool_internal.h"

typedef struct maxima_s {
  choir__onnx_window_t window;
  bool by_columns;
} maxima_t;

// One image: `base` is its first element in x.
typedef struct image_s {
  const maxima_t* maxima;
  const choir__onnx_array_t* x;
  int64_t base;
} image_t;

// NaN counts as the largest.
static bool is_larger(double a, double b) {
  return a > b || (a != a && b == b);
}

// The elements of one dimension that a window sees: steps first .. last - 1.
static void steps_of(const choir__onnx_window_t* window, int32_t i, int64_t k,
                     int64_t* out_start, int64_t* out_first,
                     int64_t* out_last) {
  const int64_t dilation = window->dilation[i];
  const int64_t start = k * window->stride[i] - window->before[i];
  const int64_t room = window->size[i] - start;
  *out_start = start;
  *out_first = start < 0 ? (-start + dilation - 1) / dilation : 0;
  *out_last = room > 0 ? (room + dilation - 1) / dilation : 0;
  if (*out_last > window->kernel[i]) *out_last = window->kernel[i];
}

// The place of the maximum of the window at `at`, in its image; 0 of a window
// that sees nothing. Dimensions that there are not have size 1.
static int64_t find(const image_t* image, const int64_t* at) {
  const choir__onnx_window_t* window = &image->maxima->window;
  int64_t start[3], first[3], last[3];
  for (int32_t i = 0; i < 3; ++i)
    steps_of(window, i, at[i], &start[i], &first[i], &last[i]);
  int64_t best = -1;
  double most = 0;
  for (int64_t a = first[0]; a < last[0]; ++a) {
    const int64_t depth = start[0] + a * window->dilation[0];
    for (int64_t b = first[1]; b < last[1]; ++b) {
      const int64_t row = start[1] + b * window->dilation[1];
      for (int64_t k = first[2]; k < last[2]; ++k) {
        const int64_t place =
            (depth * window->size[1] + row) * window->size[2] + start[2] +
            k * window->dilation[2];
        const double value =
            image->x->view.dtype == CHOIR_DTYPE_F32
                ? ((const float*)image->x->data)[image->base + place]
                : choir__onnx_number_at(image->x, image->base + place);
        if (best >= 0 && !is_larger(value, most)) continue;
        best = place;
        most = value;
      }
    }
  }
  return best < 0 ? 0 : best;
}

// The same place where the first dimension varies fastest; `skipped`
// dimensions in front do not exist.
static int64_t by_columns(const choir__onnx_window_t* window, int64_t place) {
  const int64_t column = place % window->size[2];
  const int64_t row = place / window->size[2] % window->size[1];
  const int64_t depth = place / window->size[2] / window->size[1];
  return depth + window->size[0] * (row + window->size[1] * column);
}

static choir_status_t run_maxima(const choir__onnx_array_t* srcs,
                                 const choir__onnx_array_t* dsts,
                                 const void* attrs) {
  const maxima_t* maxima = attrs;
  const choir__onnx_window_t* window = &maxima->window;
  const int64_t elements = window->size[0] * window->size[1] * window->size[2];
  const int64_t places = window->out[0] * window->out[1] * window->out[2];
  if (places == 0 || elements == 0) return NULL;
  int64_t* in_image = dsts[0].data;
  int64_t* in_all = dsts[1].data;
  image_t image = {.maxima = maxima, .x = &srcs[0]};
  for (int64_t i = 0; i < dsts[0].count; ++i) {
    const int64_t k = i % places;
    image.base = i / places * elements;
    const int64_t at[] = {k / window->out[2] / window->out[1],
                          k / window->out[2] % window->out[1],
                          k % window->out[2]};
    const int64_t place = find(&image, at);
    in_image[i] = place;
    in_all[i] =
        image.base + (maxima->by_columns ? by_columns(window, place) : place);
  }
  return NULL;
}

// The window with three dimensions, those that lack in front.
static choir__onnx_window_t widen(const choir__onnx_window_t* window) {
  choir__onnx_window_t wide = {.count = 3};
  for (int32_t i = 0; i < 3; ++i) {
    const int32_t k = i - (3 - window->count);
    wide.size[i] = k < 0 ? 1 : window->size[k];
    wide.kernel[i] = k < 0 ? 1 : window->kernel[k];
    wide.stride[i] = k < 0 ? 1 : window->stride[k];
    wide.dilation[i] = k < 0 ? 1 : window->dilation[k];
    wide.before[i] = k < 0 ? 0 : window->before[k];
    wide.out[i] = k < 0 ? 1 : window->out[k];
  }
  return wide;
}

void choir__onnx_find_maxima(choir__onnx_call_t* c, choir_var_t* x,
                             const choir__onnx_window_t* window,
                             bool by_columns, choir_var_t** out) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return;
  choir_view_t places[2] = {{.dtype = CHOIR_DTYPE_I64,
                             .ndim = view->ndim,
                             .shape = {view->shape[0], view->shape[1]}}};
  for (int32_t i = 0; i < window->count; ++i) {
    if (window->size[i] < 1) {
      FAIL(INVALID_ARGUMENT, "the image has no elements");
      return;
    }
    places[0].shape[2 + i] = window->out[i];
  }
  places[1] = places[0];
  int64_t elements;
  if (!choir__onnx_product(c, window->size, 0, window->count, &elements) ||
      !choir__onnx_product(c, window->out, 0, window->count, &elements))
    return;
  const maxima_t maxima = {.window = widen(window), .by_columns = by_columns};
  choir__onnx_host(c, "places of maxima", run_maxima, &maxima, sizeof maxima,
                   &x, 1, places, 2, out);
}
