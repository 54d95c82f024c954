// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (Ioffe and Szegedy, 2015) of images and matrices whose
// channels lie side by side: a matrix of one row a pixel. Sums over rows are
// taken in f32 over short pieces and in double over the pieces, which do not
// depend on the number of threads.
#include <math.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

#define PIECE 64   // rows that are summed in f32
#define CHUNK 512  // rows of one piece of work

// Rows of a view (n, c, ...): its pixels.
typedef struct pixels_s {
  float* data;
  int64_t count;
  int64_t stride;
} pixels_t;

static bool pixels_of(const choir_view_t* view, pixels_t* out) {
  if (view->dtype != CHOIR_DTYPE_F32 || view->ndim < 2 ||
      choir_view_count(view) == 0 ||
      (view->strides[1] != 1 && view->shape[1] != 1))
    return false;
  out->data = NULL;
  out->count = 1;
  out->stride = view->shape[1];
  for (int32_t k = view->ndim - 1; k >= 0; k--) {
    if (k == 1 || view->shape[k] == 1) continue;
    if (out->count == 1)
      out->stride = view->strides[k];
    else if (view->strides[k] != out->stride * out->count)
      return false;
    out->count *= view->shape[k];
  }
  return out->stride > 0;
}

static bool dense_vector(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && view->ndim == 1 &&
         (view->strides[0] == 1 || view->shape[0] == 1);
}

typedef struct norm_s {
  pixels_t x;
  pixels_t dy;
  pixels_t y;  // or dx
  int64_t channels;
  double* partials;     // (chunks, 2, channels)
  const float* centre;  // (channels)
  const float* factor;
  const float* shift;
  const float* slope;
  bool accumulate;
} norm_t;

// ---- Sums over one chunk ----
//
// out[0][c] = sum of a, out[1][c] = sum of a b with, by kind,
//   SUMS:     a = x                  (b not used)
//   SQUARES:  a = (x - centre)^2     (b not used)
//   GRADIENT: a = dy, b = x - centre

typedef enum norm_kind_e { SUMS, SQUARES, GRADIENT } norm_kind_t;

CHOIR__BODY void sum_chunk(const norm_t* norm, int64_t begin, int64_t end,
                           double* out, norm_kind_t kind) {
  const int64_t channels = norm->channels;
  for (int64_t first = 0; first < channels; first += 64) {
    const int64_t left = channels - first;
    const int64_t width = left < 64 ? left : 64;
    const float* centre = kind == SUMS ? NULL : norm->centre + first;
    double* total = out + first;
    double* second = out + channels + first;
    for (int64_t c = 0; c < width; c++) total[c] = second[c] = 0;
    for (int64_t start = begin; start < end; start += PIECE) {
      const int64_t stop = start + PIECE < end ? start + PIECE : end;
      float a[64] = {0}, b[64] = {0};
      for (int64_t r = start; r < stop; r++) {
        const float* x = norm->x.data + r * norm->x.stride + first;
        if (kind == SUMS) {
          CHOIR__INDEPENDENT
          for (int64_t c = 0; c < width; c++) a[c] += x[c];
        } else if (kind == SQUARES) {
          CHOIR__INDEPENDENT
          for (int64_t c = 0; c < width; c++)
            a[c] += (x[c] - centre[c]) * (x[c] - centre[c]);
        } else {
          const float* dy = norm->dy.data + r * norm->dy.stride + first;
          CHOIR__INDEPENDENT
          for (int64_t c = 0; c < width; c++) {
            a[c] += dy[c];
            b[c] += dy[c] * (x[c] - centre[c]);
          }
        }
      }
      for (int64_t c = 0; c < width; c++) total[c] += (double)a[c];
      for (int64_t c = 0; c < width; c++) second[c] += (double)b[c];
    }
  }
}

#define SUM_RANGE(name, kind)                                                 \
  CHOIR__BODY void name##_body(const norm_t* norm, int64_t begin,             \
                               int64_t end) {                                 \
    for (int64_t i = begin; i < end; i++) {                                   \
      const int64_t from = i * CHUNK;                                         \
      const int64_t left = norm->x.count - from;                              \
      sum_chunk(norm, from, from + (left < CHUNK ? left : CHUNK),             \
                norm->partials + i * 2 * norm->channels, kind);               \
    }                                                                         \
  }                                                                           \
  CHOIR__ISA_VARIANTS(name, (const norm_t* norm, int64_t begin, int64_t end), \
                      (norm, begin, end))                                     \
  static void name##_range(void* context, int64_t begin, int64_t end) {       \
    name(context, begin, end);                                                \
  }
SUM_RANGE(sums, SUMS)
SUM_RANGE(squares, SQUARES)
SUM_RANGE(gradients, GRADIENT)

static int64_t chunk_count(const norm_t* norm) {
  return (norm->x.count + CHUNK - 1) / CHUNK;
}

// Fills partials and adds them up into the first chunk's.
static void sum_all(norm_t* norm, int32_t threads,
                    void (*range)(void* context, int64_t begin, int64_t end)) {
  const int64_t chunks = chunk_count(norm);
  choir__cpu_parallel(threads, chunks, 1, range, norm);
  for (int64_t i = 1; i < chunks; i++)
    for (int64_t c = 0; c < 2 * norm->channels; c++)
      norm->partials[c] += norm->partials[i * 2 * norm->channels + c];
}

// ---- Applying ----

// y = (x - centre) factor + shift
CHOIR__BODY void apply_rows_body(const norm_t* norm, int64_t begin,
                                 int64_t end) {
  const int64_t channels = norm->channels;
  const float *centre = norm->centre, *factor = norm->factor;
  const float* shift = norm->shift;
  for (int64_t r = begin; r < end; r++) {
    const float* x = norm->x.data + r * norm->x.stride;
    float* y = norm->y.data + r * norm->y.stride;
    CHOIR__INDEPENDENT
    for (int64_t c = 0; c < channels; c++)
      y[c] = (x[c] - centre[c]) * factor[c] + shift[c];
  }
}
CHOIR__ISA_VARIANTS(apply_rows,
                    (const norm_t* norm, int64_t begin, int64_t end),
                    (norm, begin, end))

// dx = factor (dy - shift - (x - centre) slope)
CHOIR__BODY void grad_rows_body(const norm_t* norm, int64_t begin,
                                int64_t end) {
  const int64_t channels = norm->channels;
  const float *centre = norm->centre, *factor = norm->factor;
  const float *shift = norm->shift, *slope = norm->slope;
  for (int64_t r = begin; r < end; r++) {
    const float* x = norm->x.data + r * norm->x.stride;
    const float* dy = norm->dy.data + r * norm->dy.stride;
    float* dx = norm->y.data + r * norm->y.stride;
    if (norm->accumulate) {
      CHOIR__INDEPENDENT
      for (int64_t c = 0; c < channels; c++)
        dx[c] += factor[c] * (dy[c] - shift[c] - (x[c] - centre[c]) * slope[c]);
    } else {
      CHOIR__INDEPENDENT
      for (int64_t c = 0; c < channels; c++)
        dx[c] = factor[c] * (dy[c] - shift[c] - (x[c] - centre[c]) * slope[c]);
    }
  }
}
CHOIR__ISA_VARIANTS(grad_rows, (const norm_t* norm, int64_t begin, int64_t end),
                    (norm, begin, end))

static void apply_range(void* context, int64_t begin, int64_t end) {
  apply_rows(context, begin, end);
}
static void grad_range(void* context, int64_t begin, int64_t end) {
  grad_rows(context, begin, end);
}

static void run_rows(norm_t* norm, int32_t threads,
                     void (*range)(void* context, int64_t begin, int64_t end)) {
  const int64_t grain = CHOIR__CPU_GRAIN / norm->channels;
  choir__cpu_parallel(threads, norm->x.count, grain > 1 ? grain : 1, range,
                      norm);
}

// Memory for partials, then `vectors` vectors of a float a channel.
static size_t scratch_bytes(const norm_t* norm, int64_t vectors) {
  return (size_t)(chunk_count(norm) * 2 * norm->channels) * sizeof(double) +
         (size_t)(vectors * norm->channels) * sizeof(float);
}

static choir_status_t take_scratch(choir_stream_t* stream, norm_t* norm,
                                   int64_t vectors, const char* kernel,
                                   float** out_vectors) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const size_t bytes = scratch_bytes(norm, vectors);
  norm->partials = pool.alloc(pool.self, bytes, 64);
  if (!norm->partials)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no %zu bytes", kernel, bytes);
  *out_vectors =
      (float*)(norm->partials + chunk_count(norm) * 2 * norm->channels);
  return NULL;
}

static void give_scratch(choir_stream_t* stream, norm_t* norm,
                         int64_t vectors) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  pool.free(pool.self, norm->partials, scratch_bytes(norm, vectors), 64);
}

static pixels_t take_pixels(const choir_view_t* view) {
  pixels_t pixels = {NULL, 0, 0};
  pixels_of(view, &pixels);
  pixels.data = choir__view_f32(view);
  return pixels;
}

// ---- batch_norm: x, scale, bias -> y, mean, var ----

static bool batch_norm_supports(const choir_record_t* record) {
  pixels_t pixels;
  if (record->accumulate || !pixels_of(choir_record_src(record, 0), &pixels) ||
      !pixels_of(choir_record_dst(record, 0), &pixels))
    return false;
  return dense_vector(choir_record_src(record, 1)) &&
         dense_vector(choir_record_src(record, 2)) &&
         dense_vector(choir_record_dst(record, 1)) &&
         dense_vector(choir_record_dst(record, 2));
}

static choir_status_t batch_norm_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  const int32_t threads = choir__cpu_threads(stream);
  const float* scale = choir__view_f32(choir_record_src(record, 1));
  float* mean = choir__view_f32(choir_record_dst(record, 1));
  float* var = choir__view_f32(choir_record_dst(record, 2));
  norm_t norm = {.x = take_pixels(choir_record_src(record, 0)),
                 .y = take_pixels(choir_record_dst(record, 0)),
                 .shift = choir__view_f32(choir_record_src(record, 2)),
                 .channels = choir_record_src(record, 0)->shape[1]};
  const double count = (double)norm.x.count;
  float* factor;
  CHOIR_TRY(take_scratch(stream, &norm, 1, record->kernel->name, &factor));
  sum_all(&norm, threads, sums_range);
  for (int64_t c = 0; c < norm.channels; c++)
    mean[c] = (float)(norm.partials[c] / count);
  norm.centre = mean;
  sum_all(&norm, threads, squares_range);
  for (int64_t c = 0; c < norm.channels; c++) {
    const double variance = norm.partials[c] / count;
    var[c] = (float)variance;
    factor[c] = (float)((double)scale[c] / sqrt(variance + attrs->epsilon));
  }
  norm.factor = factor;
  run_rows(&norm, threads, apply_range);
  give_scratch(stream, &norm, 1);
  return NULL;
}
const choir_op_kernel_t choir__cpu_batch_norm = {
    {"batch_norm/cpu", batch_norm_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_BATCH_NORM,
    batch_norm_supports};

// ---- batch_norm_infer: x, scale, bias, mean, var -> y ----

static bool batch_norm_infer_supports(const choir_record_t* record) {
  pixels_t pixels;
  if (record->accumulate || !pixels_of(choir_record_src(record, 0), &pixels) ||
      !pixels_of(choir_record_dst(record, 0), &pixels))
    return false;
  for (int32_t i = 1; i < 5; i++)
    if (!dense_vector(choir_record_src(record, i))) return false;
  return true;
}

static choir_status_t batch_norm_infer_run(const choir_record_t* record,
                                           choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  const float* scale = choir__view_f32(choir_record_src(record, 1));
  const float* var = choir__view_f32(choir_record_src(record, 4));
  norm_t norm = {.x = take_pixels(choir_record_src(record, 0)),
                 .y = take_pixels(choir_record_dst(record, 0)),
                 .shift = choir__view_f32(choir_record_src(record, 2)),
                 .centre = choir__view_f32(choir_record_src(record, 3)),
                 .channels = choir_record_src(record, 0)->shape[1]};
  float* factor;
  CHOIR_TRY(take_scratch(stream, &norm, 1, record->kernel->name, &factor));
  for (int64_t c = 0; c < norm.channels; c++)
    factor[c] =
        (float)((double)scale[c] / sqrt((double)var[c] + attrs->epsilon));
  norm.factor = factor;
  run_rows(&norm, choir__cpu_threads(stream), apply_range);
  give_scratch(stream, &norm, 1);
  return NULL;
}
const choir_op_kernel_t choir__cpu_batch_norm_infer = {
    {"batch_norm_infer/cpu", batch_norm_infer_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_BATCH_NORM_INFER,
    batch_norm_infer_supports};

// ---- batch_norm_grad: x, scale, mean, var, dy -> dx, dscale, dbias ----

static bool batch_norm_grad_supports(const choir_record_t* record) {
  pixels_t pixels;
  if (!pixels_of(choir_record_src(record, 0), &pixels) ||
      !pixels_of(choir_record_src(record, 4), &pixels) ||
      !pixels_of(choir_record_dst(record, 0), &pixels))
    return false;
  for (int32_t i = 1; i < 4; i++)
    if (!dense_vector(choir_record_src(record, i))) return false;
  return dense_vector(choir_record_dst(record, 1)) &&
         dense_vector(choir_record_dst(record, 2));
}

static choir_status_t batch_norm_grad_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  const int32_t threads = choir__cpu_threads(stream);
  const float* scale = choir__view_f32(choir_record_src(record, 1));
  const float* var = choir__view_f32(choir_record_src(record, 3));
  float* dscale = choir__view_f32(choir_record_dst(record, 1));
  float* dbias = choir__view_f32(choir_record_dst(record, 2));
  norm_t norm = {.x = take_pixels(choir_record_src(record, 0)),
                 .dy = take_pixels(choir_record_src(record, 4)),
                 .y = take_pixels(choir_record_dst(record, 0)),
                 .centre = choir__view_f32(choir_record_src(record, 2)),
                 .channels = choir_record_src(record, 0)->shape[1],
                 .accumulate = record->accumulate};
  const double count = (double)norm.x.count;
  float* vectors;
  CHOIR_TRY(take_scratch(stream, &norm, 3, record->kernel->name, &vectors));
  float* factor = vectors;
  float* shift = vectors + norm.channels;
  float* slope = vectors + 2 * norm.channels;
  sum_all(&norm, threads, gradients_range);
  for (int64_t c = 0; c < norm.channels; c++) {
    const double inverse = 1 / sqrt((double)var[c] + attrs->epsilon);
    const double along = norm.partials[norm.channels + c] * inverse;
    const double across = norm.partials[c];
    factor[c] = (float)((double)scale[c] * inverse);
    shift[c] = (float)(across / count);
    slope[c] = (float)(inverse * along / count);
    dscale[c] = (float)(record->accumulate ? (double)dscale[c] + along : along);
    dbias[c] = (float)(record->accumulate ? (double)dbias[c] + across : across);
  }
  norm.factor = factor;
  norm.shift = shift;
  norm.slope = slope;
  run_rows(&norm, threads, grad_range);
  give_scratch(stream, &norm, 3);
  return NULL;
}
const choir_op_kernel_t choir__cpu_batch_norm_grad = {
    {"batch_norm_grad/cpu", batch_norm_grad_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_BATCH_NORM_GRAD,
    batch_norm_grad_supports};
