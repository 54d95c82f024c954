// SPDX-License-Identifier: Apache-2.0
// Convolutions of 3 x 3 at stride 1 by Winograd's algorithm F(4 x 4, 3 x 3)
// (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016):
// of 16 results and 36 elements of the image it makes 36 products for each pair
// of channels instead of 144. The points are 0, +-5/8, +-3/2 and infinity,
// whose errors are a fifth of those of 0, +-1, +-2; they are of the largest
// that a tile meets, and reach what 1e-5 allowed, hence the ops' 2e-5. NaN and
// infinities would spread over a whole tile, so an image that meets them, or
// all where filters or their gradients do, is left to another kernel.
//
// The gradient of the image is the convolution of y's by the filters turned
// round; that of the filters is the transpose: transformed tiles of the image
// times those of y's gradient, summed over the tiles, then brought back. All
// sums have one order, so bits follow neither threads nor, of images, the
// batch. Transformed filters are kept while the parameter stays the same.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/kernels/convolution.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"

enum {
  OUT = 4,                // a tile of the result
  IN = 6,                 // of the image
  POINTS = IN * IN,       // products of a pair of channels
  MOST_CHANNELS = 1024,   // of an image that is read
  ROW_TILES = 8,          // what the loops multiply at a time
  BLOCK = 8 * ROW_TILES,  // tiles: filters are read once for each block
  APART = 16,             // floats, lest all points be in one set of the cache
  PANEL_STEP = BLOCK * CHOIR__PANEL + APART,
  // Gradients of filters: sums that are made apart.
  CHUNK = 4 * BLOCK,  // tiles, at least
  MOST_CHUNKS = 8,
  CHUNKS_FLOATS = 3 << 20,
  LEAST_CHANNELS = 16,
  LEAST_PIXELS = 192,  // of the result
  LEAST_IMAGE = 16,    // of each image, for a definition that knows no batch
  // Channels, for such gradients of filters; and floats of all segments.
  LEAST_SUMMED = 32,
  MOST_SUMMED = 256,
  MOST_SUMS = 1 << 24,
};

typedef struct image_s {
  float* data;
  int64_t n, h, w;  // strides
  int64_t height, width, channels;
} image_t;

// Filters in their own strides: from a filter to the next, from a channel, a
// row, a column; from the first element that the loops read.
typedef struct filters_s {
  float* data;
  int64_t filter, channel, row, column;
} filters_t;

typedef struct winograd_s {
  image_t in, out;  // out: the result, or its gradient
  filters_t filters;
  int64_t before[2];
  float* bias;  // NULL: none
  int64_t bias_stride;
  bool relu;
  bool accumulate;
  int64_t tiles_wide, tiles_of_image, tiles;
  // For each panel of filters, for each point: rows are channels.
  float* transformed;
  // Gradients of filters: chunks of the tiles have sums of their own, added up
  // at the end, and share them out by groups of panels.
  int64_t chunks, groups;
  // Or segments of so many images have gradients of their own: of each panel,
  // for each channel, filters as `gather` puts them; then all biases.
  int64_t segment, segments;
  float* sums;
  // Something met is NaN or infinite: of all images, and of each.
  atomic_bool* is_odd;
  atomic_bool* is_image_odd;
} winograd_t;

static void note_odd(atomic_bool* at, bool is_odd) {
  if (is_odd) atomic_store_explicit(at, true, memory_order_relaxed);
}
static bool is_odd(const atomic_bool* at) {
  return atomic_load_explicit(at, memory_order_relaxed);
}

static int64_t panels_of(const winograd_t* p) {
  return choir__panel_columns(p->out.channels) / CHOIR__PANEL;
}

// Floats of all transformed filters.
static int64_t transformed_floats(const winograd_t* p) {
  return panels_of(p) * POINTS * p->in.channels * CHOIR__PANEL;
}

// Between two points of a block's image.
static int64_t image_step(const winograd_t* p) {
  return BLOCK * p->in.channels + APART;
}

static int64_t images_of(const winograd_t* p) {
  return p->tiles / p->tiles_of_image;
}

static int64_t most_panels(const winograd_t* p) {
  return (panels_of(p) + p->groups - 1) / p->groups;
}

// Of transformed tiles, and those of y's gradient.
static int64_t scratch_floats(const winograd_t* p) {
  return POINTS * (image_step(p) + most_panels(p) * PANEL_STEP);
}

// Of a segment's gradients.
static int64_t filters_floats(const winograd_t* p) {
  return panels_of(p) * p->in.channels * 9 * CHOIR__PANEL;
}
static int64_t sums_floats(const winograd_t* p) {
  return filters_floats(p) + panels_of(p) * CHOIR__PANEL;
}
static float (*segment_filters(const winograd_t* p, int64_t segment,
                               int64_t panel, int64_t channel))[CHOIR__PANEL] {
  return (float(*)[CHOIR__PANEL])(p->sums + segment * sums_floats(p)) +
         9 * (panel * p->in.channels + channel);
}
static float* segment_biases(const winograd_t* p, int64_t segment) {
  return p->sums + segment * sums_floats(p) + filters_floats(p);
}

static int64_t tiles_left(const winograd_t* p, int64_t first, int64_t end) {
  const int64_t last = end < p->tiles ? end : p->tiles;
  return last - first < BLOCK ? last - first : BLOCK;
}

// The filters of a panel at one channel; 0 beyond the last.
static void gather(const winograd_t* p, int64_t panel, int64_t channel,
                   float to[9][CHOIR__PANEL]) {
  const filters_t* w = &p->filters;
  const int64_t first = panel * CHOIR__PANEL;
  const int64_t left = p->out.channels - first;
  const int64_t count = left < CHOIR__PANEL ? left : CHOIR__PANEL;
  if (count < CHOIR__PANEL) memset(to, 0, 9 * sizeof(to[0]));
  const float* from = w->data + first * w->filter + channel * w->channel;
  for (int64_t f = 0; f < count; f++, from += w->filter)
    for (int y = 0; y < 3; y++)
      for (int x = 0; x < 3; x++)
        to[3 * y + x][f] = from[y * w->row + x * w->column];
}

// Adds the filters of a panel at one channel to what is there, or to nothing.
static void scatter(const winograd_t* p, int64_t panel, int64_t channel,
                    float from[9][CHOIR__PANEL]) {
  const filters_t* w = &p->filters;
  const int64_t first = panel * CHOIR__PANEL;
  const int64_t left = p->out.channels - first;
  const int64_t count = left < CHOIR__PANEL ? left : CHOIR__PANEL;
  float* to = w->data + first * w->filter + channel * w->channel;
  for (int64_t f = 0; f < count; f++, to += w->filter)
    for (int y = 0; y < 3; y++)
      for (int x = 0; x < 3; x++) {
        float* one = to + y * w->row + x * w->column;
        *one = (p->accumulate ? *one : 0.0f) + from[3 * y + x][f];
      }
}

// The pixels of a tile; those beyond the image are zeros.
static void place_image(const winograd_t* p, int64_t tile,
                        const float* pixels[POINTS]) {
  static const float zeros[MOST_CHANNELS];
  const image_t* in = &p->in;
  const int64_t n = tile / p->tiles_of_image, k = tile % p->tiles_of_image;
  const int64_t top = k / p->tiles_wide * OUT - p->before[0];
  const int64_t left = k % p->tiles_wide * OUT - p->before[1];
  for (int64_t y = 0; y < IN; y++)
    for (int64_t x = 0; x < IN; x++) {
      const bool is_inside = top + y >= 0 && top + y < in->height &&
                             left + x >= 0 && left + x < in->width;
      pixels[IN * y + x] =
          is_inside
              ? in->data + n * in->n + (top + y) * in->h + (left + x) * in->w
              : zeros;
    }
}

// Of the result; those beyond it are NULL.
static void place_result(const winograd_t* p, int64_t tile,
                         float* pixels[OUT * OUT]) {
  const image_t* out = &p->out;
  const int64_t n = tile / p->tiles_of_image, k = tile % p->tiles_of_image;
  const int64_t top = k / p->tiles_wide * OUT, left = k % p->tiles_wide * OUT;
  for (int64_t y = 0; y < OUT; y++)
    for (int64_t x = 0; x < OUT; x++)
      pixels[OUT * y + x] = top + y < out->height && left + x < out->width
                                ? out->data + n * out->n + (top + y) * out->h +
                                      (left + x) * out->w
                                : NULL;
}

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_conv2d_winograd_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

#define RANGE_PARAMS (void* context, int64_t begin, int64_t end)
CHOIR__ISA_SELECT(scan_image, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(transform_filters, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(scan_sums, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(put_filters, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(put_bias, RANGE_PARAMS, (context, begin, end))
#define TILES_PARAMS (void* context, void* scratch, int64_t begin, int64_t end)
CHOIR__ISA_SELECT(convolve, TILES_PARAMS, (context, scratch, begin, end))
CHOIR__ISA_SELECT(add_tiles, TILES_PARAMS, (context, scratch, begin, end))
CHOIR__ISA_SELECT(add_segments, TILES_PARAMS, (context, scratch, begin, end))

// ---- Records ----

// As oneDNN takes them, too.
static bool fits(const choir__conv_t* conv) {
  const choir_conv2d_attrs_t* attrs = conv->attrs;
  if (!choir__all_f32(conv->record) || conv->x->ndim != 4 ||
      conv->w->ndim != 4 || conv->y->ndim != 4 || attrs->groups != 1 ||
      !choir__elements_are_distinct(conv->x) ||
      !choir__elements_are_distinct(conv->w) ||
      !choir__elements_are_distinct(conv->y) ||
      (conv->b && !choir__elements_are_distinct(conv->b)))
    return false;
  for (int k = 0; k < 2; k++)
    if (conv->w->shape[2 + k] != 3 || attrs->stride[k] != 1 ||
        attrs->dilation[k] != 1 || conv->before[k] > 2)
      return false;
  // The activation comes last, of what was there before too.
  if (conv->kind == CHOIR__CONV_FORWARD && conv->record->accumulate &&
      attrs->activation != CHOIR_ACTIVATION_NONE)
    return false;
  for (int k = 0; k < 2; k++)
    if (conv->w->shape[k] < LEAST_CHANNELS ||
        conv->w->shape[k] > MOST_CHANNELS || conv->w->shape[k] % 16 != 0)
      return false;
  const choir_view_t* out =
      conv->kind == CHOIR__CONV_GRAD_DATA ? conv->x : conv->y;
  return conv->kind == CHOIR__CONV_GRAD_WEIGHT || out->strides[1] == 1;
}

static image_t image_of(const choir_view_t* view, void* data) {
  return (image_t){
      data,           view->strides[0], view->strides[2], view->strides[3],
      view->shape[2], view->shape[3],   view->shape[1]};
}

static winograd_t describe(const choir__conv_t* conv, image_t in, image_t out,
                           atomic_bool* odd) {
  // One for all images, then one for each.
  const int64_t* s = conv->w->strides;
  winograd_t p = {.in = in,
                  .out = out,
                  .filters = {choir__view_f32(conv->w), s[0], s[1], s[2], s[3]},
                  .before = {conv->before[0], conv->before[1]},
                  .accumulate = conv->record->accumulate,
                  .is_odd = odd,
                  .is_image_odd = odd + 1};
  if (conv->b) {
    p.bias = choir__view_f32(conv->b);
    p.bias_stride = conv->b->strides[0];
  }
  if (conv->kind == CHOIR__CONV_GRAD_DATA) {
    p.filters = (filters_t){p.filters.data + 2 * (s[2] + s[3]), s[1], s[0],
                            -s[2], -s[3]};
    for (int k = 0; k < 2; k++) p.before[k] = 2 - conv->before[k];
  }
  p.relu = conv->kind == CHOIR__CONV_FORWARD &&
           conv->attrs->activation == CHOIR_ACTIVATION_RELU;
  p.tiles_wide = (out.width + OUT - 1) / OUT;
  p.tiles_of_image = (out.height + OUT - 1) / OUT * p.tiles_wide;
  p.tiles = conv->y->shape[0] * p.tiles_of_image;
  return p;
}

// ---- Results, and gradients of images ----

// What is kept of a parameter: by which kernel, and of which elements.
typedef struct form_key_s {
  const void* kernel;
  int64_t offset;
  int64_t sizes[2];
  filters_t strides;
} form_key_t;

static choir_status_t take_form(const choir__conv_t* conv,
                                choir_stream_t* stream, winograd_t* p,
                                choir__form_t* form) {
  form_key_t key;
  memset(&key, 0, sizeof(key));
  key.kernel = conv->record->kernel;
  key.offset = conv->w->offset;
  key.sizes[0] = p->in.channels;
  key.sizes[1] = p->out.channels;
  key.strides = p->filters;
  key.strides.data = NULL;
  CHOIR_TRY(choir__form_take(conv->record, conv->w->buffer, &key, sizeof(key),
                             (size_t)transformed_floats(p) * sizeof(float),
                             stream, form));
  p->transformed = form->data;
  if (form->is_filled) return NULL;
  choir__cpu_parallel(choir__cpu_threads(stream), panels_of(p) * p->in.channels,
                      CHOIR__CPU_GRAIN / POINTS / CHOIR__PANEL,
                      transform_filters, p);
  if (form->packed && !is_odd(p->is_odd))
    choir__packed_keep(conv->w->buffer, form->packed);
  return NULL;
}

// What is added to cannot be made again, so its sources are looked at first;
// any other result is looked at when it is there.
static choir_status_t run_image(const choir__conv_t* conv,
                                choir_stream_t* stream, atomic_bool* odd) {
  const bool is_forward = conv->kind == CHOIR__CONV_FORWARD;
  const choir_view_t* to = is_forward ? conv->y : conv->x;
  choir__pixels_t from;
  CHOIR_TRY(choir__pixels_take(is_forward ? conv->x : conv->y, stream, &from));
  winograd_t p = describe(conv, image_of(&from.view, from.data),
                          image_of(to, choir__view_data(to)), odd);
  if (p.accumulate)
    choir__cpu_parallel(
        choir__cpu_threads(stream), from.view.shape[0] * p.in.height,
        CHOIR__CPU_GRAIN / (p.in.width * p.in.channels), scan_image, &p);
  choir__form_t form = {.packed = NULL};
  choir_status_t status = take_form(conv, stream, &p, &form);
  const size_t scratch =
      (size_t)(POINTS * (image_step(&p) + PANEL_STEP)) * sizeof(float);
  if (!status && !is_odd(odd))
    status = choir__cpu_parallel_scratch(stream,
                                         (p.tiles + ROW_TILES - 1) / ROW_TILES,
                                         1, scratch, convolve, &p);
  choir__form_give(&form, stream);
  choir__pixels_give(&from, stream);
  return status;
}

// ---- Gradients of filters ----

// How the work is cut, the sums by the problem alone.
static void cut(winograd_t* p, int32_t threads) {
  const int64_t fit = CHUNKS_FLOATS / transformed_floats(p);
  const int64_t most = fit < MOST_CHUNKS ? fit : MOST_CHUNKS;
  const int64_t chunks = p->tiles / CHUNK;
  p->chunks = chunks < most ? chunks : most;
  if (p->chunks < 1) p->chunks = 1;
  const int64_t wanted = (threads + p->chunks - 1) / p->chunks;
  p->groups = wanted < panels_of(p) ? wanted : panels_of(p);
}

static choir_status_t sum_tiles(winograd_t* p, choir_stream_t* stream) {
  const int32_t threads = choir__cpu_threads(stream);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const int64_t panels = panels_of(p);
  cut(p, threads);
  const size_t bytes =
      (size_t)(p->chunks * transformed_floats(p)) * sizeof(float);
  p->transformed = pool.alloc(pool.self, bytes, 64);
  if (!p->transformed)
    return CHOIR_ERROR(OUT_OF_MEMORY, "gradients of filters: no %zu bytes",
                       bytes);
  const size_t scratch = (size_t)scratch_floats(p) * sizeof(float);
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, p->chunks * p->groups, 1, scratch, add_tiles, p);
  const int64_t count = panels * p->in.channels;
  const int64_t grain = CHOIR__CPU_GRAIN / POINTS / CHOIR__PANEL;
  if (!status) choir__cpu_parallel(threads, count, grain, scan_sums, p);
  if (!status && !is_odd(p->is_odd)) {
    choir__cpu_parallel(threads, count, grain, put_filters, p);
    choir__cpu_parallel(threads, panels, 1, put_bias, p);
  }
  pool.free(pool.self, p->transformed, bytes, 64);
  return status;
}

static choir_status_t run_filters(const choir__conv_t* conv,
                                  choir_stream_t* stream, atomic_bool* odd,
                                  const choir_op_kernel_t* other) {
  (void)other;
  choir__pixels_t x, dy = {.copy = NULL};
  CHOIR_TRY(choir__pixels_take(conv->x, stream, &x));
  choir_status_t status = choir__pixels_take(conv->y, stream, &dy);
  if (!status) {
    winograd_t p = describe(conv, image_of(&x.view, x.data),
                            image_of(&dy.view, dy.data), odd);
    status = sum_tiles(&p, stream);
  }
  choir__pixels_give(&dy, stream);
  choir__pixels_give(&x, stream);
  return status;
}

// ---- Gradients of filters by segments ----

// A part of the record: images first .. end - 1.
static void take_images(const choir__conv_t* conv, int64_t first, int64_t end,
                        choir_view_t* operands, choir_record_t* out_some) {
  *out_some = *conv->record;
  memcpy(
      operands, conv->record->operands,
      (size_t)(out_some->src_count + out_some->dst_count) * sizeof *operands);
  for (int32_t i = 0; i <= 2; i += 2) {  // x and dy
    operands[i].offset += first * operands[i].strides[0];
    operands[i].shape[0] = end - first;
  }
  out_some->operands = operands;
  out_some->segment = 0;
}

// Segments that are odd, by way of the record's results.
static choir_status_t make_odd_segments(const winograd_t* p,
                                        const choir__conv_t* conv,
                                        choir_stream_t* stream,
                                        const choir_op_kernel_t* other) {
  const int64_t images = images_of(p);
  for (int64_t s = 0; s < p->segments; s++) {
    if (!is_odd(p->is_image_odd + s)) continue;
    choir_view_t operands[CHOIR_MAX_OPERANDS];
    choir_record_t some;
    const int64_t first = s * p->segment, end = first + p->segment;
    take_images(conv, first, end < images ? end : images, operands, &some);
    CHOIR_TRY(other->kernel.run(&some, stream));
    for (int64_t panel = 0; panel < panels_of(p); panel++)
      for (int64_t c = 0; c < p->in.channels; c++)
        gather(p, panel, c, segment_filters(p, s, panel, c));
    for (int64_t f = 0; f < p->out.channels; f++)
      segment_biases(p, s)[f] = p->bias[f * p->bias_stride];
  }
  return NULL;
}

static void put_segment(void* context, int64_t begin, int64_t end) {
  const winograd_t* p = context;
  const int64_t channels = p->in.channels;
  for (int64_t i = begin; i < end; i++)
    scatter(p, i / channels, i % channels,
            segment_filters(p, 0, i / channels, i % channels));
}

static choir_status_t sum_segments(winograd_t* p, const choir__conv_t* conv,
                                   choir_stream_t* stream,
                                   const choir_op_kernel_t* other) {
  const int32_t threads = choir__cpu_threads(stream);
  const int64_t wanted = (threads + p->segments - 1) / p->segments;
  p->groups = wanted < panels_of(p) ? wanted : panels_of(p);
  const int64_t own = most_panels(p) * POINTS * p->in.channels * CHOIR__PANEL;
  CHOIR_TRY(choir__cpu_parallel_scratch(
      stream, p->segments * p->groups, 1,
      (size_t)(scratch_floats(p) + own) * sizeof(float), add_segments, p));
  // What is added to cannot be made again: of one segment alone.
  if (p->segments == 1 && is_odd(p->is_image_odd))
    return other->kernel.run(conv->record, stream);
  CHOIR_TRY(make_odd_segments(p, conv, stream, other));
  choir__cpu_add_segments(p->sums, p->segments, sums_floats(p), threads);
  choir__cpu_parallel(threads, panels_of(p) * p->in.channels,
                      CHOIR__CPU_GRAIN / 9 / CHOIR__PANEL, put_segment, p);
  for (int64_t f = 0; f < p->out.channels; f++) {
    float* to = p->bias + f * p->bias_stride;
    *to = (p->accumulate ? *to : 0.0f) + segment_biases(p, 0)[f];
  }
  return NULL;
}

static void cut_segments(winograd_t* p, const choir__conv_t* conv) {
  const int64_t images = images_of(p), rows = conv->record->segment;
  p->segment = rows > 0 && rows < images ? rows : images;
  p->segments = (images - 1) / p->segment + 1;
}

static choir_status_t run_segments(const choir__conv_t* conv,
                                   choir_stream_t* stream, atomic_bool* odd,
                                   const choir_op_kernel_t* other) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  choir__pixels_t x, dy = {.copy = NULL};
  CHOIR_TRY(choir__pixels_take(conv->x, stream, &x));
  choir_status_t status = choir__pixels_take(conv->y, stream, &dy);
  if (!status) {
    winograd_t p = describe(conv, image_of(&x.view, x.data),
                            image_of(&dy.view, dy.data), odd);
    cut_segments(&p, conv);
    const size_t bytes = (size_t)(p.segments * sums_floats(&p)) * sizeof(float);
    p.sums = pool.alloc(pool.self, bytes, 64);
    if (p.sums)
      status = sum_segments(&p, conv, stream, other);
    else
      status = CHOIR_ERROR(OUT_OF_MEMORY, "gradients of filters: no %zu bytes",
                           bytes);
    pool.free(pool.self, p.sums, bytes, 64);
  }
  choir__pixels_give(&dy, stream);
  choir__pixels_give(&x, stream);
  return status;
}

// Images that are odd, neighbours at once.
static choir_status_t run_odd(const choir__conv_t* conv, choir_stream_t* stream,
                              const atomic_bool* odd,
                              const choir_op_kernel_t* other) {
  const bool is_forward = conv->kind == CHOIR__CONV_FORWARD;
  const int32_t image = 0, result = conv->record->src_count;
  const int32_t dy = 2;
  const int64_t images = conv->y->shape[0];
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  choir_record_t some = *conv->record;
  some.operands = operands;
  for (int64_t first = 0, end; first < images; first = end) {
    end = first + 1;
    while (end < images && is_odd(odd + end) == is_odd(odd + first)) ++end;
    if (!is_odd(odd + first)) continue;
    memcpy(operands, conv->record->operands,
           (size_t)(some.src_count + some.dst_count) * sizeof *operands);
    for (int32_t i = 0; i <= result; ++i) {
      if (i != image && i != result && (is_forward || i != dy)) continue;
      operands[i].offset += first * operands[i].strides[0];
      operands[i].shape[0] = end - first;
    }
    CHOIR_TRY(other->kernel.run(&some, stream));
  }
  return NULL;
}

static choir_status_t run_images(const choir__conv_t* conv,
                                 choir_stream_t* stream, atomic_bool* odd,
                                 const choir_op_kernel_t* other) {
  CHOIR_TRY(run_image(conv, stream, odd));
  return is_odd(odd) ? NULL : run_odd(conv, stream, odd + 1, other);
}

typedef choir_status_t (*run_t)(const choir__conv_t* conv,
                                choir_stream_t* stream, atomic_bool* odd,
                                const choir_op_kernel_t* other);

// odd: one for all images, then one for each. All by the other kernel, where
// the first is set.
static choir_status_t run(const choir_record_t* record, choir_stream_t* stream,
                          choir__conv_kind_t kind, run_t how,
                          const choir_op_kernel_t* other) {
  const choir__conv_t conv = choir__conv_of(record, kind);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)(1 + conv.y->shape[0]) * sizeof(atomic_bool);
  atomic_bool* odd = pool.alloc(pool.self, bytes, 64);
  if (!odd)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no %zu bytes", record->kernel->name,
                       bytes);
  memset(odd, 0, bytes);
  choir_status_t status = how(&conv, stream, odd, other);
  if (!status && is_odd(odd)) status = other->kernel.run(record, stream);
  pool.free(pool.self, odd, bytes, 64);
  return status;
}

// With few pixels transforming the filters costs what it saves, the more so
// where they are too many for the cache.
static bool is_quicker(const choir__conv_t* conv) {
  const choir_view_t* out =
      conv->kind == CHOIR__CONV_GRAD_DATA ? conv->x : conv->y;
  const choir_view_t* w = conv->w;
  const int64_t pixels = out->shape[0] * out->shape[2] * out->shape[3];
  return choir__isa() != CHOIR__ISA_BASE && pixels >= LEAST_PIXELS &&
         pixels >= w->shape[0] * w->shape[1] / (256 * 256) * LEAST_PIXELS;
}

// By the shapes of one image alone.
static bool has_large_images(const choir__conv_t* conv) {
  const choir_view_t* out =
      conv->kind == CHOIR__CONV_GRAD_DATA ? conv->x : conv->y;
  return out->shape[2] * out->shape[3] >= LEAST_IMAGE;
}

// Gradients of filters, likewise: those of each segment are brought back, so
// there may not be too many filters; with few of them products are as quick.
static bool has_sums(const choir__conv_t* conv) {
  for (int k = 0; k < 2; k++)
    if (conv->w->shape[k] < LEAST_SUMMED || conv->w->shape[k] > MOST_SUMMED)
      return false;
  return choir_view_count(conv->y) > 0 && has_large_images(conv);
}

bool choir__conv2d_filters_by_winograd(const choir_record_t* record) {
  const choir__conv_t conv = choir__conv_of(record, CHOIR__CONV_GRAD_WEIGHT);
  return fits(&conv) && has_sums(&conv);
}

// Where segments take too much memory, there is a call for each.
static bool has_room(const choir__conv_t* conv) {
  const int64_t images = conv->y->shape[0], rows = conv->record->segment;
  if (!has_sums(conv) || (rows > 0 && conv->record->accumulate)) return false;
  const winograd_t p = {.in = {.channels = conv->w->shape[1]},
                        .out = {.channels = conv->w->shape[0]}};
  const int64_t segments = rows > 0 ? (images - 1) / rows + 1 : 1;
  return sums_floats(&p) <= MOST_SUMS / segments;
}

#define WINOGRAD(OP, name, kind, how, is_chosen, run_fn, KERNEL, other)  \
  static bool name##_##how##_supports(const choir_record_t* record) {    \
    const choir__conv_t conv = choir__conv_of(record, kind);             \
    return fits(&conv) && is_chosen(&conv);                              \
  }                                                                      \
  static choir_status_t name##_##how##_run(const choir_record_t* record, \
                                           choir_stream_t* stream) {     \
    return run(record, stream, kind, run_fn, &choir__cpu_##name##other); \
  }                                                                      \
  const choir_op_kernel_t choir__cpu_##name##_##how =                    \
      KERNEL(CHOIR_OP_##OP, #name, #how, name##_##how##_run,             \
             name##_##how##_supports);
#define QUICK(OP, name, kind, run_fn) \
  WINOGRAD(OP, name, kind, winograd, is_quicker, run_fn, CHOIR_OP_KERNEL, )
#define DEFINED(OP, name, kind)                                            \
  WINOGRAD(OP, name, kind, winograd_defined, has_large_images, run_images, \
           CHOIR_OP_KERNEL, _product)
QUICK(CONV2D, conv2d, CHOIR__CONV_FORWARD, run_images)
QUICK(CONV2D_GRAD_DATA, conv2d_grad_data, CHOIR__CONV_GRAD_DATA, run_images)
QUICK(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, CHOIR__CONV_GRAD_WEIGHT,
      run_filters)
DEFINED(CONV2D, conv2d, CHOIR__CONV_FORWARD)
DEFINED(CONV2D_GRAD_DATA, conv2d_grad_data, CHOIR__CONV_GRAD_DATA)
WINOGRAD(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, CHOIR__CONV_GRAD_WEIGHT,
         winograd_defined, has_room, run_segments, CHOIR_OP_SEGMENTS_KERNEL,
         _product)
