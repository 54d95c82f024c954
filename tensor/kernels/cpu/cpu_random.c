// SPDX-License-Identifier: Apache-2.0
// Random fills and dropout; test and reference hold this file to the same bits.
#include <string.h>

#include "core/random_backend.h"
#include "tensor/kernels/cpu/cpu_draws.h"
#include "tensor/kernels/cpu/cpu_elementwise.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CHUNK 4096  // elements of one piece of work

typedef struct draw_s {
  choir__draws_t source;
  uint64_t first_sample;
  int64_t sample_size;
  int64_t chunks;  // of a sample
  float* y;        // fills: row-major
  float low, range;
  uint32_t threshold;  // dropout: upper 24 bits of a word that is kept
  float factor;
  bool accumulate;
} draw_t;

// A dropout: its loop in f32, and what it reads and writes, row-major.
typedef struct dropout_s {
  draw_t draw;
  choir_dtype_t x_dtype, y_dtype;
  const void* x;
  void* y;
} dropout_t;

// One chunk: where it starts, which words, how many.
typedef struct piece_s {
  uint64_t sample;
  int64_t first;  // element of the sample, a multiple of CHUNK
  int64_t count;
  int64_t place;  // element of the tensor
} piece_t;

static piece_t piece_of(const draw_t* draw, int64_t index) {
  piece_t piece;
  const int64_t sample = index / draw->chunks;
  piece.first = index % draw->chunks * CHUNK;
  const int64_t left = draw->sample_size - piece.first;
  piece.count = left < CHUNK ? left : CHUNK;
  piece.sample = draw->first_sample + (uint64_t)sample;
  piece.place = sample * draw->sample_size + piece.first;
  return piece;
}

// As many of a block's values as there are elements left.
static void put(const draw_t* draw, const float* values, int64_t left,
                float* y) {
  const int64_t n = left < CHOIR__DRAW_WORDS ? left : CHOIR__DRAW_WORDS;
  if (!draw->accumulate) {
    memcpy(y, values, (size_t)n * sizeof(float));
    return;
  }
  for (int64_t k = 0; k < n; k++) y[k] += values[k];
}

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_random_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"
#define RANGE_PARAMS (void* context, int64_t begin, int64_t end)
CHOIR__ISA_SELECT(uniform_range, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(normal_range, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(drop_piece,
                  (const draw_t* draw, const piece_t* piece, const float* x,
                   float* y),
                  (draw, piece, x, y))

// Shares the tensor's chunks out.
static void run_pieces(draw_t* draw, int64_t samples, int32_t threads,
                       void (*range)(void* context, int64_t begin, int64_t end),
                       void* context) {
  draw->chunks = (draw->sample_size + CHUNK - 1) / CHUNK;
  const int64_t grain =
      draw->sample_size < CHUNK ? CHUNK / draw->sample_size : 1;
  choir__cpu_parallel(threads, samples * draw->chunks, grain, range, context);
}

// ---- random_uniform and random_normal ----

static bool random_supports(const choir_record_t* record) {
  const choir_view_t* dst = choir_record_dst(record, 0);
  return dst->dtype == CHOIR_DTYPE_F32 && choir_view_count(dst) > 0 &&
         choir_view_is_contiguous(dst);
}

static choir_status_t random_run(const choir_record_t* record,
                                 choir_stream_t* stream, bool normal) {
  const choir_random_attrs_t* attrs = record->attrs;
  const choir_view_t* dst = choir_record_dst(record, 0);
  const int64_t samples =
      attrs->whole_tensor || dst->ndim == 0 ? 1 : dst->shape[0];
  draw_t draw = {
      .source = choir__draws_of(attrs->seed, attrs->stream, attrs->step),
      .first_sample = (uint64_t)attrs->first_sample,
      .sample_size = choir_view_count(dst) / samples,
      .y = choir__view_f32(dst),
      .low = (float)attrs->low,
      .range = (float)(normal ? attrs->high : attrs->high - attrs->low),
      .accumulate = record->accumulate,
  };
  run_pieces(&draw, samples, choir__cpu_threads(stream),
             normal ? normal_range : uniform_range, &draw);
  return NULL;
}
static choir_status_t random_uniform_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  return random_run(record, stream, false);
}
static choir_status_t random_normal_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  return random_run(record, stream, true);
}
CHOIR__CPU_OP_KERNEL(RANDOM_UNIFORM, random_uniform, "cpu", random_uniform_run,
                     random_supports)
CHOIR__CPU_OP_KERNEL(RANDOM_NORMAL, random_normal, "cpu", random_normal_run,
                     random_supports)

// ---- dropout ----

static bool dropout_supports(const choir_record_t* record) {
  const choir_view_t* views[] = {choir_record_dst(record, 0),
                                 choir_record_src(record, 0)};
  choir__nest_t nest;
  if (choir_view_count(views[0]) == 0) return false;
  if (choir__all_f32(record)) return choir__nest_make(views, 2, &nest);
  for (int32_t i = 0; i < 2; i++)
    if (!choir_dtype_is_float(views[i]->dtype) ||
        views[i]->dtype == CHOIR_DTYPE_F64 ||
        !choir_view_is_contiguous(views[i]))
      return false;
  return true;
}

static void* element_at(choir_dtype_t dtype, const void* data, int64_t place) {
  return (char*)data + place * (int64_t)choir_dtype_bytes(dtype);
}

// Elements of 16 bits are brought to f32 some at a time, within the L1 cache.
static void drop_widened(const dropout_t* dropout, piece_t piece) {
  enum { BLOCK = 512 };  // a multiple of CHOIR__DRAW_WORDS
  float from[BLOCK], to[BLOCK];
  const choir_dtype_t dtype = dropout->y_dtype;
  for (int64_t left = piece.count; left > 0; left -= BLOCK) {
    void* y = element_at(dtype, dropout->y, piece.place);
    piece.count = left < BLOCK ? left : BLOCK;
    choir__cpu_load_f32(dropout->x_dtype, from,
                        element_at(dropout->x_dtype, dropout->x, piece.place),
                        1, piece.count);
    if (dropout->draw.accumulate)
      choir__cpu_load_f32(dtype, to, y, 1, piece.count);
    drop_piece(&dropout->draw, &piece, from, to);
    choir__cpu_store_f32(dtype, y, to, 1, piece.count);
    piece.first += BLOCK;
    piece.place += BLOCK;
  }
}

static void dropout_range(void* context, int64_t begin, int64_t end) {
  const dropout_t* dropout = context;
  const bool is_f32 = dropout->x_dtype == CHOIR_DTYPE_F32 &&
                      dropout->y_dtype == CHOIR_DTYPE_F32;
  for (int64_t index = begin; index < end; index++) {
    const piece_t piece = piece_of(&dropout->draw, index);
    const float* x = dropout->x;
    if (is_f32)
      drop_piece(&dropout->draw, &piece, x ? x + piece.place : NULL,
                 (float*)dropout->y + piece.place);
    else
      drop_widened(dropout, piece);
  }
}

// y, x, factors
CHOIR__BODY void multiply_plane_body(const choir__plane_t* plane) {
  const bool accumulate = *(const bool*)plane->params;
  const int64_t n = plane->columns;
  const int64_t ys = plane->column_stride[0], xs = plane->column_stride[1];
  const int64_t fs = plane->column_stride[2];
  for (int64_t r = 0; r < plane->rows; r++) {
    float* y = (float*)plane->data[0] + r * plane->row_stride[0];
    const float* x = (const float*)plane->data[1] + r * plane->row_stride[1];
    const float* f = (const float*)plane->data[2] + r * plane->row_stride[2];
    CHOIR__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
      // A dropped element is 0 even where x is none.
      const float value = f[i * fs] > 0.0f ? x[i * xs] * f[i * fs] : 0.0f;
      y[i * ys] = accumulate ? y[i * ys] + value : value;
    }
  }
}
CHOIR__ISA_VARIANTS(multiply_plane, (const choir__plane_t* plane), (plane))

static choir_status_t dropout_run(const choir_record_t* record,
                                  choir_stream_t* stream) {
  const choir_dropout_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* y = choir_record_dst(record, 0);
  const int64_t samples = y->ndim == 0 ? 1 : y->shape[0];
  const int64_t count = choir_view_count(y);
  const int32_t threads = choir__cpu_threads(stream);
  dropout_t dropout = {
      .draw = {.source =
                   choir__draws_of(attrs->seed, attrs->stream, attrs->step),
               .first_sample = (uint64_t)attrs->first_sample,
               .sample_size = count / samples,
               .threshold = choir__draw_threshold(attrs->ratio),
               .factor = (float)(1 / (1 - attrs->ratio)),
               .accumulate = record->accumulate},
      .x_dtype = x->dtype,
      .y_dtype = y->dtype,
      .x = choir__view_data(x),
      .y = choir__view_data(y),
  };
  if (choir_view_is_contiguous(x) && choir_view_is_contiguous(y)) {
    run_pieces(&dropout.draw, samples, threads, dropout_range, &dropout);
    return NULL;
  }
  // The place that a number belongs to is the row-major one: the factors are
  // drawn in that order and then applied to whatever the layout is.
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = (size_t)count * sizeof(float);
  float* factors = pool.alloc(pool.self, bytes, 64);
  if (!factors)
    return CHOIR_ERROR(OUT_OF_MEMORY, "dropout/cpu: no %zu bytes", bytes);
  dropout.x = NULL;
  dropout.y = factors;
  dropout.draw.accumulate = false;
  run_pieces(&dropout.draw, samples, threads, dropout_range, &dropout);
  choir_view_t row_major = *y;
  choir_view_set_contiguous(&row_major);
  const choir_view_t* views[] = {y, x, &row_major};
  void* data[] = {choir__view_f32(y), choir__view_f32(x), factors};
  const size_t sizes[] = {sizeof(float), sizeof(float), sizeof(float)};
  choir__nest_t nest;
  if (choir__nest_make(views, 3, &nest))
    choir__nest_run(&nest, data, sizes, threads, multiply_plane,
                    &record->accumulate);
  pool.free(pool.self, factors, bytes, 64);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(DROPOUT, dropout, "cpu", dropout_run, dropout_supports)
