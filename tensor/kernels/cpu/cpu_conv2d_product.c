// SPDX-License-Identifier: Apache-2.0
// Convolutions of any kind and both gradients as products (cpu_product.c): rows
// of the left factor are windows of an image, whose terms go over filter rows,
// filter columns and channels and are zeros beyond the image. They are copied
// block by block. An element is one chain of fmaf, so that its bits are the
// same everywhere.
#include <string.h>

#include "tensor/kernels/convolution.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"
#include "tensor/kernels/cpu/cpu_product.h"
#include "tensor/ops/conv2d.h"

// Windows over an image: of pixel (y, x), tap (i, j) sees row
// y scale + i step - before of the image, if that is there; columns likewise.
typedef struct windows_s {
  const float* data;
  int64_t n, h, w;  // strides; channels are dense
  int64_t size[2];
  int64_t channels;  // of a group
  int64_t pixels[2];
  int64_t taps[2];
  int64_t scale[2], step[2], before[2];
} windows_t;

// The place that a tap sees; -1: none.
static int64_t seen(const windows_t* s, int axis, int64_t pixel, int64_t tap) {
  const int64_t at =
      pixel * s->scale[axis] + tap * s->step[axis] - s->before[axis];
  return at >= 0 && at < s->size[axis] ? at : -1;
}

static void put(float* to, const float* from, int64_t count) {
  if (from)
    memcpy(to, from, (size_t)count * sizeof(float));
  else
    memset(to, 0, (size_t)count * sizeof(float));
}

// Terms first .. end - 1 of one filter row; row NULL: it is not seen.
static void copy_row(const windows_t* s, const float* row, int64_t x,
                     int64_t first, int64_t end, float* to) {
  const int64_t c = s->channels;
  // Taps side by side, which nothing parts, are copied as one.
  if (row && s->w == c && s->step[1] == 1) {
    const int64_t origin = (x * s->scale[1] - s->before[1]) * c;
    const int64_t begin = origin + first < 0 ? -origin : first;
    const int64_t stop =
        origin + end > s->size[1] * c ? s->size[1] * c - origin : end;
    if (begin >= stop) {
      put(to, NULL, end - first);
      return;
    }
    put(to, NULL, begin - first);
    put(to + begin - first, row + origin + begin, stop - begin);
    put(to + stop - first, NULL, end - stop);
    return;
  }
  while (first < end) {
    const int64_t tap = first / c, channel = first % c;
    const int64_t count = end - first < c - channel ? end - first : c - channel;
    const int64_t at = row ? seen(s, 1, x, tap) : -1;
    put(to, at < 0 ? NULL : row + at * s->w + channel, count);
    first += count;
    to += count;
  }
}

// Of so many pixels, terms first .. first + k - 1.
static void copy_windows(const windows_t* s, int64_t pixel, int64_t count,
                         int64_t first, int64_t k, float* to) {
  const int64_t width = s->taps[1] * s->channels;
  for (int64_t p = pixel; p < pixel + count; p++) {
    const int64_t x = p % s->pixels[1];
    const int64_t y = p / s->pixels[1] % s->pixels[0];
    const float* image = s->data + p / (s->pixels[0] * s->pixels[1]) * s->n;
    for (int64_t at = first; at < first + k;) {
      const int64_t tap = at / width, from = at % width;
      const int64_t left = first + k - at;
      const int64_t end = left < width - from ? from + left : width;
      const int64_t row = seen(s, 0, y, tap);
      copy_row(s, row < 0 ? NULL : image + row * s->h, x, from, end, to);
      to += end - from;
      at += end - from;
    }
  }
}

static void make_pixels(const void* self, int64_t row, int64_t rows,
                        int64_t first, int64_t k, float* to) {
  copy_windows(self, row, rows, first, k, to);
}
static void make_terms(const void* self, int64_t row, int64_t rows,
                       int64_t first, int64_t k, float* to) {
  copy_windows(self, first, k, row, rows, to);
}

static windows_t windows_of(const choir__conv_t* conv,
                            const choir__pixels_t* image) {
  const choir_view_t* view = &image->view;
  windows_t s = {.data = image->data,
                 .n = view->strides[0],
                 .h = view->strides[2],
                 .w = view->strides[3],
                 .channels = view->shape[1] / conv->attrs->groups};
  for (int k = 0; k < 2; k++) {
    s.size[k] = view->shape[2 + k];
    s.pixels[k] = conv->y->shape[2 + k];
    s.taps[k] = conv->w->shape[2 + k];
    s.scale[k] = conv->attrs->stride[k];
    s.step[k] = conv->attrs->dilation[k];
    s.before[k] = conv->before[k];
  }
  return s;
}

// ---- Filters ----

// Filters as the right factor of one group: term (row, column, channel).
typedef struct filters_s {
  const float* data;
  int64_t row, column, channel, result, group;  // strides
  int64_t taps[2], channels, results, groups;
  float* panels;
} filters_t;

static int64_t terms_of(const filters_t* f) {
  return f->taps[0] * f->taps[1] * f->channels;
}
static int64_t panels_of(const filters_t* f) {
  return choir__panel_columns(f->results) / CHOIR__PANEL;
}

static void pack_range(void* context, int64_t begin, int64_t end) {
  const filters_t* f = context;
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = i % panels_of(f) * CHOIR__PANEL;
    const int64_t left = f->results - first;
    const int64_t count = left < CHOIR__PANEL ? left : CHOIR__PANEL;
    const float* from =
        f->data + i / panels_of(f) * f->group + first * f->result;
    float* to = f->panels + i * terms_of(f) * CHOIR__PANEL;
    for (int64_t y = 0; y < f->taps[0]; y++)
      for (int64_t x = 0; x < f->taps[1]; x++)
        for (int64_t c = 0; c < f->channels; c++, to += CHOIR__PANEL) {
          const float* at = from + y * f->row + x * f->column + c * f->channel;
          for (int64_t r = 0; r < count; r++) to[r] = at[r * f->result];
          put(to + count, NULL, CHOIR__PANEL - count);
        }
  }
}

static filters_t filters_of(const choir__conv_t* conv, bool is_gradient) {
  const choir_view_t* w = conv->w;
  const int64_t groups = conv->attrs->groups;
  const int64_t outs = w->shape[0] / groups, ins = w->shape[1];
  return (filters_t){.data = choir__view_f32(w),
                     .row = w->strides[2],
                     .column = w->strides[3],
                     .channel = w->strides[is_gradient ? 0 : 1],
                     .result = w->strides[is_gradient ? 1 : 0],
                     .group = w->strides[0] * outs,
                     .taps = {w->shape[2], w->shape[3]},
                     .channels = is_gradient ? outs : ins,
                     .results = is_gradient ? ins : outs,
                     .groups = groups};
}

typedef struct form_key_s {
  const void* kernel;
  int64_t offset;
  filters_t filters;
} form_key_t;

static choir_status_t take_form(const choir__conv_t* conv, filters_t* f,
                                choir_stream_t* stream, choir__form_t* form) {
  const int64_t panels = f->groups * panels_of(f);
  form_key_t key;
  memset(&key, 0, sizeof(key));
  key =
      (form_key_t){conv->record->kernel,
                   conv->w->offset + (f->data - choir__view_f32(conv->w)), *f};
  key.filters.data = NULL;
  CHOIR_TRY(choir__form_take(
      conv->record, conv->w->buffer, &key, sizeof(key),
      (size_t)(panels * terms_of(f) * CHOIR__PANEL) * sizeof(float), stream,
      form));
  f->panels = form->data;
  if (form->is_filled) return NULL;
  choir__cpu_parallel(choir__cpu_threads(stream), panels,
                      CHOIR__CPU_GRAIN / CHOIR__PANEL / terms_of(f), pack_range,
                      f);
  if (form->packed) choir__packed_keep(conv->w->buffer, form->packed);
  return NULL;
}

// ---- Results, and gradients of images ----

// Whether all pixels lie equally far apart, channels side by side.
static bool is_even(const choir_view_t* view) {
  const int64_t* s = view->strides;
  const int64_t w = view->shape[3], h = view->shape[2];
  return (view->shape[1] == 1 || s[1] == 1) && (h == 1 || s[2] == w * s[3]) &&
         (view->shape[0] == 1 || s[0] == h * w * s[3]);
}

static void begin_rows(const float* bias, float* c, int64_t ldc, int64_t rows,
                       int64_t columns) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < columns; j++) c[r * ldc + j] += bias[j];
}

static choir_status_t multiply(const choir__conv_t* conv, const filters_t* f,
                               const windows_t* windows, float* c, int64_t ldc,
                               bool adds, const float* bias,
                               choir_stream_t* stream) {
  const int64_t rows =
      conv->y->shape[0] * windows->pixels[0] * windows->pixels[1];
  if (adds && bias) begin_rows(bias, c, ldc, rows, f->results * f->groups);
  for (int64_t g = 0; g < f->groups; g++) {
    windows_t own = *windows;
    own.data += g * own.channels;
    choir__made_product_t p = {
        .m = rows,
        .n = f->results,
        .k = terms_of(f),
        .a = {make_pixels, &own, false},
        .b = f->panels + g * panels_of(f) * terms_of(f) * CHOIR__PANEL,
        .is_packed = true,
        .c = c + g * f->results,
        .ldc = ldc};
    if (adds) {
      p.from = p.c;
      p.from_row = ldc;
    } else if (bias) {
      p.from = bias + g * f->results;
    }
    CHOIR_TRY(choir__cpu_made_product(&p, stream));
  }
  return NULL;
}

// A result that no product can be written to as it lies is made beside it.
typedef struct apart_s {
  const choir_view_t* view;
  float* data;  // pixels by channels
  bool adds;    // else overwrites
} apart_t;

// Image rows, of which there are shape[0] shape[2].
static float* row_at(const choir_view_t* v, int64_t row) {
  return choir__view_f32(v) + row % v->shape[2] * v->strides[2] +
         row / v->shape[2] * v->strides[0];
}
static int64_t rows_of(const choir_view_t* v) {
  return v->shape[0] * v->shape[2];
}
static int64_t row_grain(const choir_view_t* v) {
  return CHOIR__CPU_GRAIN / v->shape[1] / v->shape[3];
}

static void move_pixel(float* at, int64_t step, float* beside, int64_t channels,
                       bool is_back, bool adds) {
  if (step == 1 && !adds) {
    memcpy(is_back ? at : beside, is_back ? beside : at,
           (size_t)channels * sizeof(float));
    return;
  }
  CHOIR__INDEPENDENT
  for (int64_t c = 0; c < channels; c++) {
    float* one = at + c * step;
    if (!is_back)
      beside[c] = *one;
    else
      *one = (adds ? *one : 0.0f) + beside[c];
  }
}

static void move_rows(const apart_t* apart, int64_t begin, int64_t end,
                      bool is_back) {
  const choir_view_t* v = apart->view;
  const int64_t channels = v->shape[1];
  float* beside = apart->data + begin * v->shape[3] * channels;
  for (int64_t row = begin; row < end; row++) {
    float* at = row_at(v, row);
    for (int64_t x = 0; x < v->shape[3];
         x++, at += v->strides[3], beside += channels)
      move_pixel(at, v->strides[1], beside, channels, is_back,
                 is_back && apart->adds);
  }
}
static void fetch_range(void* context, int64_t begin, int64_t end) {
  move_rows(context, begin, end, false);
}
static void put_range(void* context, int64_t begin, int64_t end) {
  move_rows(context, begin, end, true);
}

typedef struct relu_s {
  float* c;
  int64_t ldc, columns;
} relu_t;

// NaN stays.
static void relu_range(void* context, int64_t begin, int64_t end) {
  const relu_t* relu = context;
  for (int64_t r = begin; r < end; r++)
    for (int64_t j = 0; j < relu->columns; j++) {
      float* y = &relu->c[r * relu->ldc + j];
      if (*y < 0) *y = 0;
    }
}

typedef struct image_run_s {
  const choir__conv_t* conv;
  const filters_t* filters;
  const windows_t* windows;
  float* bias;  // NULL: none
  bool relu;
} image_run_t;

static choir_status_t make_image(const image_run_t* run, const choir_view_t* to,
                                 float* c, int64_t ldc, bool adds,
                                 choir_stream_t* stream) {
  CHOIR_TRY(multiply(run->conv, run->filters, run->windows, c, ldc, adds,
                     run->bias, stream));
  if (!run->relu) return NULL;
  relu_t relu = {c, ldc, to->shape[1]};
  choir__cpu_parallel(choir__cpu_threads(stream),
                      to->shape[0] * to->shape[2] * to->shape[3],
                      CHOIR__CPU_GRAIN / relu.columns, relu_range, &relu);
  return NULL;
}

static choir_status_t make_apart(const image_run_t* run, const choir_view_t* to,
                                 choir_stream_t* stream) {
  const bool accumulate = run->conv->record->accumulate;
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const int64_t rows = rows_of(to), grain = row_grain(to);
  const int64_t channels = to->shape[1];
  const size_t bytes = (size_t)(rows * to->shape[3] * channels) * sizeof(float);
  // A ReLU is of the convolution alone.
  apart_t apart = {to, pool.alloc(pool.self, bytes, 64),
                   accumulate && run->relu};
  if (!apart.data)
    return CHOIR_ERROR(OUT_OF_MEMORY, "pixels: no %zu bytes", bytes);
  const int32_t threads = choir__cpu_threads(stream);
  const bool goes_on = accumulate && !run->relu;
  if (goes_on) choir__cpu_parallel(threads, rows, grain, fetch_range, &apart);
  choir_status_t status =
      make_image(run, to, apart.data, channels, goes_on, stream);
  if (!status) choir__cpu_parallel(threads, rows, grain, put_range, &apart);
  pool.free(pool.self, apart.data, bytes, 64);
  return status;
}

static size_t bias_bytes(const choir_view_t* b) {
  return (size_t)b->shape[0] * sizeof(float);
}

// Side by side, in the pool's memory.
static choir_status_t take_bias(const choir_view_t* b, choir_stream_t* stream,
                                float** out_bias) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  *out_bias = pool.alloc(pool.self, bias_bytes(b), 64);
  if (!*out_bias)
    return CHOIR_ERROR(OUT_OF_MEMORY, "bias: no %zu bytes", bias_bytes(b));
  for (int64_t i = 0; i < b->shape[0]; i++)
    (*out_bias)[i] = choir__view_f32(b)[i * b->strides[0]];
  return NULL;
}

static void give_bias(const choir_view_t* b, choir_stream_t* stream,
                      float* bias) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  if (bias) pool.free(pool.self, bias, bias_bytes(b), 64);
}

static choir_status_t run_one(const choir__conv_t* conv,
                              const windows_t* windows, filters_t* filters,
                              const choir_view_t* to, choir_stream_t* stream) {
  const bool is_forward = conv->kind == CHOIR__CONV_FORWARD;
  const bool accumulate = conv->record->accumulate;
  choir__form_t form = {.packed = NULL};
  image_run_t run = {
      .conv = conv,
      .filters = filters,
      .windows = windows,
      .relu = is_forward && conv->attrs->activation == CHOIR_ACTIVATION_RELU};
  choir_status_t status = take_form(conv, filters, stream, &form);
  if (!status && conv->b && is_forward)
    status = take_bias(conv->b, stream, &run.bias);
  if (!status)
    status = is_even(to) && !(accumulate && run.relu)
                 ? make_image(&run, to, choir__view_f32(to), to->strides[3],
                              accumulate, stream)
                 : make_apart(&run, to, stream);
  give_bias(conv->b, stream, run.bias);
  choir__form_give(&form, stream);
  return status;
}

static choir_status_t run_forward(const choir__conv_t* conv,
                                  choir_stream_t* stream) {
  choir__pixels_t x;
  CHOIR_TRY(choir__pixels_take(conv->x, stream, &x));
  filters_t filters = filters_of(conv, false);
  const windows_t windows = windows_of(conv, &x);
  choir_status_t status = run_one(conv, &windows, &filters, conv->y, stream);
  choir__pixels_give(&x, stream);
  return status;
}

// Of pixels first, first + stride, .. of dx along an axis: which taps see dy,
// and where. Others see what lies between its pixels.
static void take_phase(const choir__conv_t* conv, int axis, int64_t first,
                       windows_t* windows, filters_t* filters,
                       choir_view_t* to) {
  const int64_t stride = conv->attrs->stride[axis];
  const int64_t dilation = conv->attrs->dilation[axis];
  int64_t every = 1, tap = 0, at = first + conv->before[axis];
  while (every * dilation % stride != 0) every++;
  while (tap < every && at % stride != 0) {
    tap++;
    at -= dilation;
  }
  const int64_t taps = tap < every ? conv->w->shape[2 + axis] - tap : 0;
  int64_t* step = axis == 0 ? &filters->row : &filters->column;
  filters->data += taps > 0 ? tap * *step : 0;
  *step *= every;
  windows->taps[axis] = filters->taps[axis] =
      taps > 0 ? (taps + every - 1) / every : 0;
  windows->scale[axis] = 1;
  windows->step[axis] = -every * dilation / stride;
  windows->before[axis] = -(at / stride);
  to->offset += first * to->strides[2 + axis];
  to->strides[2 + axis] *= stride;
  to->shape[2 + axis] = (to->shape[2 + axis] - first + stride - 1) / stride;
  windows->pixels[axis] = to->shape[2 + axis];
}

static void clear_range(void* context, int64_t begin, int64_t end) {
  const choir_view_t* v = context;
  for (int64_t row = begin; row < end; row++) {
    float* at = row_at(v, row);
    for (int64_t x = 0; x < v->shape[3]; x++, at += v->strides[3])
      if (v->strides[1] == 1)
        put(at, NULL, v->shape[1]);
      else
        for (int64_t c = 0; c < v->shape[1]; c++) at[c * v->strides[1]] = 0;
  }
}

static choir_status_t run_phase(const choir__conv_t* conv,
                                const choir__pixels_t* dy, int64_t y, int64_t x,
                                choir_stream_t* stream) {
  windows_t windows = windows_of(conv, dy);
  filters_t filters = filters_of(conv, true);
  choir_view_t to = *conv->x;
  take_phase(conv, 0, y, &windows, &filters, &to);
  take_phase(conv, 1, x, &windows, &filters, &to);
  if (to.shape[2] < 1 || to.shape[3] < 1) return NULL;
  if (windows.taps[0] > 0 && windows.taps[1] > 0)
    return run_one(conv, &windows, &filters, &to, stream);
  if (conv->record->accumulate) return NULL;
  choir__cpu_parallel(choir__cpu_threads(stream), rows_of(&to), row_grain(&to),
                      clear_range, &to);
  return NULL;
}

static choir_status_t run_gradient(const choir__conv_t* conv,
                                   choir_stream_t* stream) {
  choir__pixels_t dy;
  CHOIR_TRY(choir__pixels_take(conv->y, stream, &dy));
  choir_status_t status = NULL;
  for (int64_t y = 0; !status && y < conv->attrs->stride[0]; y++)
    for (int64_t x = 0; !status && x < conv->attrs->stride[1]; x++)
      status = run_phase(conv, &dy, y, x, stream);
  choir__pixels_give(&dy, stream);
  return status;
}

// ---- Gradients of filters ----

// dW of a group: (terms, results).
typedef struct sums_s {
  const choir__conv_t* conv;
  const filters_t* filters;
  int64_t group;
  float* data;
} sums_t;

// Adds them to what is there, or to nothing, term by term.
static void put_terms(void* context, int64_t begin, int64_t end) {
  const sums_t* sums = context;
  const filters_t* f = sums->filters;
  const bool adds = sums->conv->record->accumulate;
  float* first = (float*)f->data + sums->group * f->group;
  for (int64_t t = begin; t < end; t++) {
    float* to = first + t % f->channels * f->channel +
                t / f->channels % f->taps[1] * f->column +
                t / f->channels / f->taps[1] * f->row;
    const float* from = sums->data + t * f->results;
    for (int64_t r = 0; r < f->results; r++)
      to[r * f->result] = (adds ? to[r * f->result] : 0.0f) + from[r];
  }
}

// Pixels that lie equally far apart, channels side by side: those of a view, or
// a copy.
typedef struct rows_s {
  float* data;
  int64_t count, ld;
  void* copy;
  size_t bytes;
} rows_t;

static choir_status_t take_even(const choir_view_t* view,
                                choir_stream_t* stream, rows_t* rows) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  *rows = (rows_t){.data = choir__view_f32(view),
                   .count = view->shape[0] * view->shape[2] * view->shape[3],
                   .ld = view->strides[3]};
  if (is_even(view)) return NULL;
  rows->ld = view->shape[1];
  rows->bytes = (size_t)(rows->count * rows->ld) * sizeof(float);
  rows->data = rows->copy = pool.alloc(pool.self, rows->bytes, 64);
  if (!rows->copy)
    return CHOIR_ERROR(OUT_OF_MEMORY, "pixels: no %zu bytes", rows->bytes);
  apart_t apart = {view, rows->data, false};
  choir__cpu_parallel(choir__cpu_threads(stream), rows_of(view),
                      row_grain(view), fetch_range, &apart);
  choir__count_reorder(rows->bytes);
  return NULL;
}

static void give_even(const rows_t* rows, choir_stream_t* stream) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  if (rows->copy) pool.free(pool.self, rows->copy, rows->bytes, 64);
}

typedef struct bias_sums_s {
  const choir__conv_t* conv;
  const rows_t* dy;
} bias_sums_t;

// Of channels begin .. end - 1, pixel by pixel.
static void sum_bias(void* context, int64_t begin, int64_t end) {
  enum { SOME = 64 };
  const bias_sums_t* of = context;
  const choir_view_t* b = of->conv->b;
  for (int64_t c = begin; c < end; c += SOME) {
    const int64_t count = end - c < SOME ? end - c : SOME;
    float sums[SOME] = {0};
    for (int64_t p = 0; p < of->dy->count; p++)
      for (int64_t i = 0; i < count; i++)
        sums[i] += of->dy->data[p * of->dy->ld + c + i];
    for (int64_t i = 0; i < count; i++) {
      float* to = choir__view_f32(b) + (c + i) * b->strides[0];
      *to = (of->conv->record->accumulate ? *to : 0.0f) + sums[i];
    }
  }
}

static choir_status_t sum_filters(const choir__conv_t* conv,
                                  const windows_t* windows, const rows_t* dy,
                                  choir_stream_t* stream) {
  const filters_t f = filters_of(conv, false);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)(terms_of(&f) * f.results) * sizeof(float);
  sums_t sums = {conv, &f, 0, pool.alloc(pool.self, bytes, 64)};
  if (!sums.data)
    return CHOIR_ERROR(OUT_OF_MEMORY, "gradients of filters: no %zu bytes",
                       bytes);
  choir_status_t status = NULL;
  for (; !status && sums.group < f.groups; sums.group++) {
    windows_t own = *windows;
    own.data += sums.group * own.channels;
    const choir__made_product_t p = {.m = terms_of(&f),
                                     .n = f.results,
                                     .k = dy->count,
                                     .a = {make_terms, &own, true},
                                     .b = dy->data + sums.group * f.results,
                                     .b_row = dy->ld,
                                     .c = sums.data,
                                     .ldc = f.results};
    status = choir__cpu_made_product(&p, stream);
    if (!status)
      choir__cpu_parallel(choir__cpu_threads(stream), p.m,
                          CHOIR__CPU_GRAIN / p.n, put_terms, &sums);
  }
  pool.free(pool.self, sums.data, bytes, 64);
  return status;
}

static choir_status_t run_filters(const choir__conv_t* conv,
                                  choir_stream_t* stream) {
  choir__pixels_t x;
  rows_t dy;
  CHOIR_TRY(choir__pixels_take(conv->x, stream, &x));
  choir_status_t status = take_even(conv->y, stream, &dy);
  if (!status) {
    const windows_t windows = windows_of(conv, &x);
    status = sum_filters(conv, &windows, &dy, stream);
  }
  if (!status && conv->b) {
    bias_sums_t sums = {conv, &dy};
    choir__cpu_parallel(choir__cpu_threads(stream), conv->b->shape[0], 16,
                        sum_bias, &sums);
  }
  give_even(&dy, stream);
  choir__pixels_give(&x, stream);
  return status;
}

// ---- Kernels ----

static bool fits(const choir__conv_t* conv) {
  return choir__all_f32(conv->record) && conv->x->ndim == 4 &&
         conv->w->ndim == 4 && conv->y->ndim == 4 &&
         choir__elements_are_distinct(conv->x) &&
         choir__elements_are_distinct(conv->w) &&
         choir__elements_are_distinct(conv->y);
}

#define PRODUCT(OP, name, kind, run)                                     \
  static bool name##_supports(const choir_record_t* record) {            \
    const choir__conv_t conv = choir__conv_of(record, kind);             \
    return fits(&conv);                                                  \
  }                                                                      \
  static choir_status_t name##_run(const choir_record_t* record,         \
                                   choir_stream_t* stream) {             \
    const choir__conv_t conv = choir__conv_of(record, kind);             \
    return run(&conv, stream);                                           \
  }                                                                      \
  const choir_op_kernel_t choir__cpu_##name##_product = CHOIR_OP_KERNEL( \
      CHOIR_OP_##OP, #name, "product", name##_run, name##_supports);
PRODUCT(CONV2D, conv2d, CHOIR__CONV_FORWARD, run_forward)
PRODUCT(CONV2D_GRAD_DATA, conv2d_grad_data, CHOIR__CONV_GRAD_DATA, run_gradient)
PRODUCT(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, CHOIR__CONV_GRAD_WEIGHT,
        run_filters)

static bool conv_transpose2d_supports(const choir_record_t* record) {
  choir__conv2d_inside_t inside;
  choir__conv_transpose2d_inside(record, &inside);
  return conv2d_grad_data_supports(&inside.record);
}
const choir_op_kernel_t choir__cpu_conv_transpose2d_product =
    CHOIR_OP_KERNEL(CHOIR_OP_CONV_TRANSPOSE2D, "conv_transpose2d", "product",
                    choir__conv_transpose2d_run, conv_transpose2d_supports);
