// SPDX-License-Identifier: Apache-2.0
// Gradients of filters of a reproducible CPU, the products of
// cpu_conv2d_product.c bit for bit: rows of a padded image lie side by side as
// filters see them, filter columns and channels in one, so nothing is copied
// but the image. A register tile of some filters by some of those stays while
// an image passes. Sums of segments are made apart, by any thread, and then
// added up.
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/kernels/convolution.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"

enum {
  COLUMNS = 16,          // sums of a filter row are a multiple of these
  LEAST_COLUMNS = 8,     // of them; and
  LEAST_FILTERS = 8,     // of a tile: with fewer a product is quicker
  MOST_IMAGE = 1 << 18,  // floats of a padded image
  MOST_SUMS = 1 << 24,   // floats of all segments
};

typedef struct grad_rows_s {
  const float* x;
  int64_t x_n, x_h, x_w;
  const float* dy;
  int64_t dy_n, dy_h, dy_w;
  int64_t size[2], channels;  // of x
  int64_t out[2], filters;
  int64_t kernel[2], stride[2], before[2];
  int64_t padded[2];  // height and width
  int64_t line;       // floats of a padded row
  int64_t columns;    // sums of a filter row, with what fills them up
  int64_t samples, segment, segments;
  int64_t shares;  // of the filters, for threads
  // For each segment, for each kernel row, for each filter: its columns. And
  // behind those the filters' biases.
  float* sums;
  int64_t sums_floats;
} grad_rows_t;

// A few filters by a few columns.
typedef struct tile_s {
  const float* x;
  int64_t x_line, x_pixel;
  const float* dy;
  int64_t dy_line, dy_pixel;
  int64_t height, width;  // of the result
  float* sums;
  int64_t sums_filter;
} tile_t;

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_conv2d_grad_rows_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

CHOIR__ISA_SELECT(add_image,
                  (const grad_rows_t* p, const float* padded, const float* dy,
                   int64_t begin, int64_t end, float* sums),
                  (p, padded, dy, begin, end, sums))
CHOIR__ISA_SELECT(add_bias,
                  (const grad_rows_t* p, const float* dy, int64_t begin,
                   int64_t end, float* bias),
                  (p, dy, begin, end, bias))

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Of the padded image, and what the last window reads behind it.
static int64_t padded_floats(const grad_rows_t* p) {
  return p->padded[0] * p->line + p->columns;
}
static int64_t weight_sums(const grad_rows_t* p) {
  return p->kernel[0] * p->filters * p->columns;
}

// What lies around the image stays zero.
static void fill_image(const grad_rows_t* p, int64_t n, float* padded) {
  const int64_t rows = least(p->size[0], p->padded[0] - p->before[0]);
  const int64_t width = least(p->size[1], p->padded[1] - p->before[1]);
  for (int64_t y = 0; y < rows; y++) {
    const float* from = p->x + n * p->x_n + y * p->x_h;
    float* to =
        padded + (y + p->before[0]) * p->line + p->before[1] * p->channels;
    const bool is_dense = p->x_w == p->channels;
    const int64_t runs = is_dense ? 1 : width;
    const int64_t length = (is_dense ? width : 1) * p->channels;
    for (int64_t x = 0; x < runs; x++, from += p->x_w, to += length)
      memcpy(to, from, (size_t)length * sizeof(float));
  }
}

// Shares of segments.
static void sum_range(void* context, void* scratch, int64_t begin,
                      int64_t end) {
  const grad_rows_t* p = context;
  float* padded = scratch;
  memset(padded, 0, (size_t)padded_floats(p) * sizeof(float));
  for (int64_t i = begin; i < end; i++) {
    const int64_t segment = i / p->shares, share = i % p->shares;
    const int64_t units = (p->filters + LEAST_FILTERS - 1) / LEAST_FILTERS;
    const int64_t first = units * share / p->shares * LEAST_FILTERS;
    const int64_t last =
        least(units * (share + 1) / p->shares * LEAST_FILTERS, p->filters);
    float* sums = p->sums + segment * p->sums_floats;
    for (int64_t k = 0; k < p->kernel[0]; k++)
      memset(sums + (k * p->filters + first) * p->columns, 0,
             (size_t)((last - first) * p->columns) * sizeof(float));
    float* bias = sums + weight_sums(p);
    memset(bias + first, 0, (size_t)(last - first) * sizeof(float));
    const int64_t end_sample = least((segment + 1) * p->segment, p->samples);
    for (int64_t n = segment * p->segment; n < end_sample; n++) {
      const float* dy = p->dy + n * p->dy_n;
      fill_image(p, n, padded);
      add_image(p, padded, dy, first, last, sums);
      add_bias(p, dy, first, last, bias);
    }
  }
}

static void put(const grad_rows_t* p, const choir_view_t* dw,
                const choir_view_t* db, bool adds) {
  const int64_t* s = dw->strides;
  for (int64_t f = 0; f < p->filters; f++) {
    float* b = choir__view_f32(db) + f * db->strides[0];
    *b = (adds ? *b : 0.0f) + p->sums[weight_sums(p) + f];
    for (int64_t y = 0; y < p->kernel[0]; y++) {
      const float* from = p->sums + (y * p->filters + f) * p->columns;
      float* row = choir__view_f32(dw) + f * s[0] + y * s[2];
      for (int64_t x = 0; x < p->kernel[1]; x++)
        for (int64_t c = 0; c < p->channels; c++) {
          float* to = row + x * s[3] + c * s[1];
          *to = (adds ? *to : 0.0f) + *from++;
        }
    }
  }
}

static grad_rows_t describe(const choir__conv_t* conv) {
  const choir_conv2d_attrs_t* attrs = conv->attrs;
  grad_rows_t p = {.channels = conv->x->shape[1],
                   .filters = conv->w->shape[0],
                   .samples = conv->x->shape[0],
                   .segment = conv->record->segment};
  for (int k = 0; k < 2; k++) {
    p.size[k] = conv->x->shape[2 + k];
    p.out[k] = conv->y->shape[2 + k];
    p.kernel[k] = conv->w->shape[2 + k];
    p.stride[k] = attrs->stride[k];
    p.before[k] = conv->before[k];
    p.padded[k] = (p.out[k] - 1) * p.stride[k] + p.kernel[k];
  }
  p.line = p.padded[1] * p.channels;
  p.columns = (p.kernel[1] * p.channels + COLUMNS - 1) / COLUMNS * COLUMNS;
  if (p.segment == 0) p.segment = p.samples;
  p.segments = p.samples > 0 ? (p.samples - 1) / p.segment + 1 : 1;
  p.sums_floats =
      (weight_sums(&p) + p.filters + COLUMNS - 1) / COLUMNS * COLUMNS;
  return p;
}

static bool grad_rows_supports(const choir_record_t* record) {
  const choir__conv_t conv = choir__conv_of(record, CHOIR__CONV_GRAD_WEIGHT);
  if (!choir__all_f32(record) || conv.x->ndim != 4 || conv.y->ndim != 4 ||
      conv.attrs->groups != 1 || (record->segment > 0 && record->accumulate) ||
      choir__conv2d_filters_by_winograd(record) ||
      choir_view_count(conv.y) == 0 || choir_view_count(conv.x) == 0)
    return false;
  for (int k = 0; k < 2; k++)
    if (conv.attrs->dilation[k] != 1 && conv.w->shape[2 + k] != 1) return false;
  if (!choir__elements_are_distinct(conv.x) ||
      !choir__elements_are_distinct(conv.w) ||
      !choir__elements_are_distinct(conv.y))
    return false;
  const grad_rows_t p = describe(&conv);
  return p.filters >= LEAST_FILTERS &&
         p.kernel[1] * p.channels >= LEAST_COLUMNS &&
         p.before[0] <= p.padded[0] && p.before[1] <= p.padded[1] &&
         padded_floats(&p) <= MOST_IMAGE &&
         p.sums_floats <= MOST_SUMS / p.segments;
}

static choir_status_t sum_all(grad_rows_t* p, const choir_record_t* record,
                              choir_stream_t* stream) {
  const int32_t threads = choir__cpu_threads(stream);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)(p->segments * p->sums_floats) * sizeof(float);
  p->sums = pool.alloc(pool.self, bytes, 64);
  if (!p->sums)
    return CHOIR_ERROR(OUT_OF_MEMORY, "gradients of filters: no %zu bytes",
                       bytes);
  p->shares = least((threads + p->segments - 1) / p->segments,
                    (p->filters + LEAST_FILTERS - 1) / LEAST_FILTERS);
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, p->segments * p->shares, 1,
      (size_t)padded_floats(p) * sizeof(float), sum_range, p);
  if (!status) {
    choir__cpu_add_segments(p->sums, p->segments, p->sums_floats, threads);
    put(p, choir_record_dst(record, 0), choir_record_dst(record, 1),
        record->accumulate);
  }
  pool.free(pool.self, p->sums, bytes, 64);
  return status;
}

static choir_status_t grad_rows_run(const choir_record_t* record,
                                    choir_stream_t* stream) {
  const choir__conv_t conv = choir__conv_of(record, CHOIR__CONV_GRAD_WEIGHT);
  choir__pixels_t x, dy = {.copy = NULL};
  CHOIR_TRY(choir__pixels_take(conv.x, stream, &x));
  choir_status_t status = choir__pixels_take(conv.y, stream, &dy);
  if (!status) {
    grad_rows_t p = describe(&conv);
    const int64_t *xs = x.view.strides, *ys = dy.view.strides;
    p.x = x.data;
    p.x_n = xs[0];
    p.x_h = xs[2];
    p.x_w = xs[3];
    p.dy = dy.data;
    p.dy_n = ys[0];
    p.dy_h = ys[2];
    p.dy_w = ys[3];
    status = sum_all(&p, record, stream);
  }
  choir__pixels_give(&dy, stream);
  choir__pixels_give(&x, stream);
  return status;
}

const choir_op_kernel_t choir__cpu_conv2d_grad_weight_rows =
    CHOIR_OP_SEGMENTS_KERNEL(CHOIR_OP_CONV2D_GRAD_WEIGHT, "conv2d_grad_weight",
                             "rows", grad_rows_run, grad_rows_supports);
