// SPDX-License-Identifier: Apache-2.0
// Poolings: those of images by max_pool2d and avg_pool2d; what these do not
// have (dilations, depths) by a gather at places that the host finds, or by
// averages along one axis after the other. Gradients flow through all.
#include <math.h>

#include "onnx/operators/onnx_constants_internal.h"
#include "onnx/operators/onnx_pool_internal.h"

// The window of a node over x, whose result fits.
static bool read_window(choir__onnx_call_t* c, const choir_view_t* x,
                        choir__onnx_window_t* out_window) {
  const bool ceil = choir__onnx_int(c, "ceil_mode", 0) != 0;
  return choir__onnx_window_read(c, x, NULL, out_window) &&
         choir__onnx_window_count(c, ceil, out_window) &&
         choir__onnx_window_fits(c, x, x->shape[1], out_window);
}

// ---- By the ops of images ----

// What lies behind x up to the last window's end, wherever padding ends.
static int64_t behind(const choir__onnx_window_t* window, int32_t i) {
  const int64_t end = (window->out[i] - 1) * window->stride[i] +
                      window->reach[i] - window->size[i] - window->before[i];
  return end > 0 ? end : 0;
}

// Whether max_pool2d and avg_pool2d can do it.
static bool is_plain(const choir__onnx_window_t* window) {
  if (window->count > 2) return false;
  for (int32_t i = 0; i < window->count; ++i)
    if (window->dilation[i] > 1 || window->size[i] < 1 ||
        window->before[i] >= window->kernel[i] ||
        behind(window, i) >= window->kernel[i])
      return false;
  return true;
}

static choir_pool2d_attrs_t attrs_of(const choir__onnx_window_t* window) {
  choir_pool2d_attrs_t attrs = {.kernel = {1, 1},
                                .stride = {1, 1},
                                .pad_mode = CHOIR_WINDOW_PAD_EXPLICIT};
  for (int32_t i = 0; i < window->count; ++i) {
    const int32_t k = 2 - window->count + i;
    attrs.kernel[k] = window->kernel[i];
    attrs.stride[k] = window->stride[i];
    attrs.padding[k] = window->before[i];
    attrs.padding_after[k] = behind(window, i);
  }
  return attrs;
}

static choir_var_t* pool_2d(choir__onnx_call_t* c, choir_op_t op,
                            choir_var_t* x,
                            const choir__onnx_window_t* window) {
  const choir_pool2d_attrs_t attrs = attrs_of(window);
  choir_var_t* more[CHOIR_OP_MAX_RESULTS];
  if (window->count == 1) x = choir__onnx_with_rows(c, x);
  choir_var_t* y = choir_scope_op(c->scope, op, &x, 1, &attrs, more);
  return window->count == 1 ? choir__onnx_without_rows(c, y) : y;
}

// ---- Maxima ----

// The elements of x (n, c, ...) at these places of their images.
static choir_var_t* take(choir__onnx_call_t* c, choir_var_t* x,
                         choir_var_t* places,
                         const choir__onnx_window_t* window) {
  const choir_view_t* view = choir_var_view(x);
  int64_t shape[CHOIR_MAX_NDIM] = {view->shape[0], view->shape[1]};
  int64_t flat[2], out[2];
  if (!choir__onnx_times(c, shape[0], shape[1], &flat[0]) ||
      !choir__onnx_product(c, window->size, 0, window->count, &flat[1]) ||
      !choir__onnx_product(c, window->out, 0, window->count, &out[1]))
    return choir_scope_fail(c->scope, NULL);
  out[0] = flat[0];
  for (int32_t i = 0; i < window->count; ++i) shape[2 + i] = window->out[i];
  choir_var_t* y = DO(gather_elements, choir__onnx_reshape(c, x, 2, flat),
                      choir__onnx_reshape(c, places, 2, out),
                      &(choir_gather_attrs_t){.axis = 1});
  return choir__onnx_reshape(c, y, view->ndim, shape);
}

void choir__onnx_op_max_pool(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir__onnx_window_t window;
  if (!x || !read_window(c, x, &window)) return;
  int64_t elements = 1;
  for (int32_t i = 0; i < window.count && elements <= 255; ++i)
    elements *= window.kernel[i];
  const bool wants_places = choir__onnx_wants(c, 1);
  const bool is_image =
      is_plain(&window) && elements <= 255 && choir_dtype_is_float(x->dtype);
  choir_var_t* found[2] = {NULL, NULL};
  if (wants_places || !is_image) {
    choir__onnx_find_maxima(c, IN(0), &window,
                            choir__onnx_int(c, "storage_order", 0) == 1, found);
    if (!CALL_IS_OK) return;
  }
  OUT(0, is_image ? pool_2d(c, CHOIR_OP_MAX_POOL2D, IN(0), &window)
                  : take(c, IN(0), found[0], &window));
  if (wants_places) OUT_AS(1, found[1], INT64);
}

void choir__onnx_op_max_unpool(choir__onnx_call_t* c) {
  const choir_view_t *x = VIEW(0), *places = VIEW(1);
  choir__onnx_window_t window;
  if (!x || !places || !choir__onnx_window_read(c, x, NULL, &window)) return;
  int64_t shape[CHOIR_MAX_NDIM] = {x->shape[0], x->shape[1]};
  int64_t given[CHOIR_MAX_NDIM], whole, count;
  for (int32_t i = 0; i < window.count; ++i) {
    shape[2 + i] = (window.size[i] - 1) * window.stride[i] + window.kernel[i] -
                   window.before[i] - window.after[i];
    if (shape[2 + i] < 1) {
      FAIL(INVALID_ARGUMENT, "the result would have size %lld",
           (long long)shape[2 + i]);
      return;
    }
  }
  if (!choir__onnx_fits(c, x->dtype, x->ndim, shape) ||
      !choir__onnx_product(c, shape, 0, x->ndim, &whole) ||
      !choir__onnx_product(c, x->shape, 0, x->ndim, &count))
    return;
  choir_var_t* zeros = choir__onnx_filled(c, x->dtype, 1, &whole, 0);
  choir_var_t* y = choir_var_scatter_elements(
      c->scope, zeros, choir__onnx_reshape(c, IN(1), 1, &count),
      choir__onnx_reshape(c, IN(0), 1, &count),
      &(choir_gather_attrs_t){.axis = 0});
  y = choir__onnx_reshape(c, y, x->ndim, shape);
  const int32_t ndim =
      HAS(2) ? choir__onnx_read_ints(c, 2, given, CHOIR_MAX_NDIM) : -1;
  if (ndim >= 0) {
    choir_pad_attrs_t pad = {.mode = CHOIR_PAD_CONSTANT};
    for (int32_t i = 0; i < x->ndim; ++i) {
      if (ndim != x->ndim || given[i] < shape[i]) {
        FAIL(INVALID_ARGUMENT,
             "output_shape has %d sizes, one of them below %lld; needs %d",
             ndim, (long long)shape[i], x->ndim);
        return;
      }
      pad.after[i] = given[i] - shape[i];
    }
    if (!choir__onnx_fits(c, x->dtype, x->ndim, given)) return;
    y = DO(pad, y, &pad);
  }
  OUT(0, y);
}

// ---- Averages ----

// How many elements of window k of dimension i there are; those of the padding
// count where it is said, those behind it do not.
static int64_t elements_of(const choir__onnx_window_t* window, int32_t i,
                           int64_t k, bool counts_padding) {
  const int64_t low = counts_padding ? -window->before[i] : 0;
  const int64_t high =
      window->size[i] + (counts_padding ? window->after[i] : 0);
  const int64_t dilation = window->dilation[i];
  const int64_t start = k * window->stride[i] - window->before[i];
  // Steps j with low <= start + j dilation < high.
  int64_t first = start < low ? (low - start + dilation - 1) / dilation : 0;
  int64_t last = start < high ? (high - start + dilation - 1) / dilation : 0;
  if (last > window->kernel[i]) last = window->kernel[i];
  return last > first ? last - first : 0;
}

// What a mean over the whole kernel is multiplied with, for each window; NULL:
// 1 everywhere.
static choir_var_t* corrections(choir__onnx_call_t* c, choir_dtype_t dtype,
                                const choir__onnx_window_t* window,
                                bool counts_padding) {
  bool is_needed = false;
  choir_var_t* product = NULL;
  for (int32_t i = 0; i < window->count; ++i) {
    double* factors = choir__onnx_matrix(c, 1, window->out[i]);
    if (!factors) return NULL;
    bool is_one = true;
    for (int64_t k = 0; k < window->out[i]; ++k) {
      const int64_t count = elements_of(window, i, k, counts_padding);
      factors[k] = count > 0 ? (double)window->kernel[i] / (double)count : 0;
      if (count != window->kernel[i]) is_one = false;
    }
    if (is_one) continue;
    int64_t shape[CHOIR__ONNX_SPATIAL] = {1, 1, 1};
    shape[i] = window->out[i];
    choir_var_t* one =
        choir__onnx_numbers(c, dtype, window->count, shape, factors);
    product = is_needed ? DO(mul, product, one) : one;
    is_needed = true;
  }
  return product;
}

// Means over whole kernels, along one axis after the other.
static choir_var_t* average_axes(choir__onnx_call_t* c, choir_var_t* x,
                                 const choir__onnx_window_t* window) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;
  // Between the first and the last axis nothing is larger than this.
  choir__onnx_window_t most = *window;
  for (int32_t i = 0; i < window->count; ++i)
    if (most.out[i] < window->size[i]) most.out[i] = window->size[i];
  if (!choir__onnx_window_fits(c, view, view->shape[1], &most))
    return choir_scope_fail(c->scope, NULL);
  for (int32_t i = 0; i < window->count; ++i) {
    const int64_t size = window->size[i];
    double* matrix = choir__onnx_matrix(c, window->out[i], size);
    if (!matrix) return choir_scope_fail(c->scope, NULL);
    for (int64_t k = 0; k < window->out[i]; ++k)
      for (int64_t j = 0; j < window->kernel[i]; ++j) {
        const int64_t place =
            k * window->stride[i] + j * window->dilation[i] - window->before[i];
        if (place >= size) break;
        if (place >= 0)
          matrix[k * size + place] = 1.0 / (double)window->kernel[i];
      }
    x = choir__onnx_along(c, x, 2 + i, window->out[i], matrix);
  }
  return x;
}

static choir_var_t* average(choir__onnx_call_t* c, choir_var_t* x,
                            const choir__onnx_window_t* window) {
  return is_plain(window) ? pool_2d(c, CHOIR_OP_AVG_POOL2D, x, window)
                          : average_axes(c, x, window);
}

void choir__onnx_op_average_pool(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir__onnx_window_t window;
  if (!x || !read_window(c, x, &window)) return;
  const choir_dtype_t dtype = x->dtype;
  const bool counts_padding = choir__onnx_int(c, "count_include_pad", 0) != 0;
  choir_var_t* y = average(c, IN(0), &window);
  choir_var_t* factors = corrections(c, dtype, &window, counts_padding);
  OUT(0, factors ? DO(mul, y, factors) : y);
}

// ---- Norms ----

// |x|^p and, afterwards, the root of a sum.
static choir_var_t* powers(choir__onnx_call_t* c, choir_var_t* x, double p) {
  const choir_view_t* view = choir_var_view(x);
  if (!view || p == 1) return p == 1 ? DO(abs, x) : x;
  if (p == 2) return DO(square, x);
  return DO(pow, DO(abs, x), choir__onnx_scalar(c, view->dtype, p));
}

static choir_var_t* root(choir__onnx_call_t* c, choir_var_t* sum, double p) {
  const choir_view_t* view = choir_var_view(sum);
  if (!view || p == 1) return sum;
  if (p == 2) return DO(sqrt, sum);
  return DO(pow, sum, choir__onnx_scalar(c, view->dtype, 1 / p));
}

// An int, a float in the first version.
static double read_p(choir__onnx_call_t* c) {
  const double p = choir__onnx_float(c, "p", 2);
  const double power = (double)choir__onnx_int(c, "p", 0);
  return power != 0 ? power : p;
}

void choir__onnx_op_lp_pool(choir__onnx_call_t* c) {
  const choir_view_t* x = VIEW(0);
  choir__onnx_window_t window;
  if (!x || !read_window(c, x, &window)) return;
  const double p = read_p(c);
  double elements = 1;
  for (int32_t i = 0; i < window.count; ++i)
    elements *= (double)window.kernel[i];
  choir_var_t* mean = average(c, powers(c, IN(0), p), &window);
  OUT(0, root(c, choir__onnx_line(c, mean, elements, 0), p));
}

// ---- Over whole images ----

// x (n, c, ...) as (n, c, elements) with an op along the last axis.
static void pool_whole(choir__onnx_call_t* c, choir_var_t* x,
                       choir_var_t* (*pool)(choir_scope_t* scope,
                                            choir_var_t* x,
                                            const choir_reduce_attrs_t* attrs),
                       double p) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return;
  const int32_t ndim = view->ndim;
  if (ndim < 2) {
    FAIL(INVALID_ARGUMENT, "x has %d dimensions; needs 2 or more", ndim);
    return;
  }
  int64_t flat[3] = {view->shape[0], view->shape[1]};
  int64_t shape[CHOIR_MAX_NDIM] = {flat[0], flat[1]};
  if (!choir__onnx_product(c, view->shape, 2, ndim, &flat[2])) return;
  for (int32_t i = 2; i < ndim; ++i) shape[i] = 1;
  choir_var_t* y = pool(c->scope, choir__onnx_reshape(c, x, 3, flat),
                        &(choir_reduce_attrs_t){.axis = 2});
  if (p > 0) y = root(c, y, p);
  OUT(0, choir__onnx_reshape(c, y, ndim, shape));
}

void choir__onnx_op_global_average_pool(choir__onnx_call_t* c) {
  if (VIEW(0)) pool_whole(c, IN(0), choir_var_mean, 0);
}

void choir__onnx_op_global_max_pool(choir__onnx_call_t* c) {
  if (VIEW(0)) pool_whole(c, IN(0), choir_var_max, 0);
}

void choir__onnx_op_global_lp_pool(choir__onnx_call_t* c) {
  if (!VIEW(0)) return;
  const double p = read_p(c);
  pool_whole(c, powers(c, IN(0), p), choir_var_sum, p);
}
