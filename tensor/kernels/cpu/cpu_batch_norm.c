// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (Ioffe and Szegedy, 2015) of images and matrices whose
// channels lie side by side: a matrix of one row a pixel. Images are larger
// than the caches, so what counts is how often they are walked over: each pass
// reads an image once, the second one backwards, where the first one ended, and
// a ReLU and a residual are part of these passes. Sums over rows are taken in
// f32 over short pieces and in double over the pieces, which do not depend on
// the number of threads. Images are f32, or bf16, which is f32 in registers and
// rounded where ops one by one would store it, so that all have the same bits.
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/half_math.h"

#define PIECE 64   // rows that are summed in f32
#define CHUNK 512  // rows of one piece of work
#define STRANDS 4  // rows summed side by side

// A pass that goes backwards takes so many bytes of each image at a time, in
// which it goes forwards: shorter ones stop the hardware prefetcher.
#define TILE_BYTES 65536
// How far ahead of what is read the next lines are fetched.
#define AHEAD_BYTES 2048
// An f32 result of so many bytes is not read again before the next ops have
// pushed it out of the nearer caches. Written past them it need not be fetched
// first. Of 16 bits, half a line to a vector, that is slower.
#define FAR_BYTES (1 << 20)

// Rows of a view (n, c, ...): its pixels.
typedef struct pixels_s {
  void* data;
  int64_t count;
  int64_t stride;
} pixels_t;

static bool pixels_of(const choir_view_t* view, pixels_t* out) {
  if (view->ndim < 2 || choir_view_count(view) == 0 ||
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

// Whether it is one of the images of a record, which are of one dtype.
static bool is_image(const choir_view_t* view, const choir_record_t* record) {
  const choir_dtype_t dtype = choir_record_src(record, 0)->dtype;
  pixels_t pixels;
  return (dtype == CHOIR_DTYPE_F32 || dtype == CHOIR_DTYPE_BF16) &&
         view->dtype == dtype && pixels_of(view, &pixels);
}

static bool dense_vector(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && view->ndim == 1 &&
         (view->strides[0] == 1 || view->shape[0] == 1);
}

// What the gradient of the result is masked by.
typedef enum mask_e {
  MASK_NONE,
  MASK_BY_INPUT,   // the normalised x, worked out again, is above 0
  MASK_BY_RESULT,  // `mask` is above 0; the masked gradient goes to `kept`
} mask_t;

typedef struct norm_s {
  pixels_t x;
  pixels_t y;         // or dx
  pixels_t residual;  // times slope, added before the ReLU; data NULL: none
  pixels_t dy;
  pixels_t dy2;  // added to dy; data NULL: none
  pixels_t mask;
  pixels_t kept;
  choir_dtype_t dtype;  // of the images
  int64_t channels;
  int64_t part;         // rows that are summed up by themselves; 0: all
  double* partials;     // (chunks, 2, channels)
  const float* centre;  // (channels)
  const float* factor;
  const float* bias;
  const float* shift;
  const float* slope;  // of a residual, NULL: 1
  mask_t masking;
  bool relu;
  bool past_caches;
  bool accumulate;
} norm_t;

// A piece of `rows` rows whose sum is `sum` and whose squares about `mean`, a
// number near its mean, are `squares`.
CHOIR__BODY void add_moments(double sum, double squares, double mean,
                             int64_t rows, double* sums,
                             double* sums_of_squares) {
  *sums += sum;
  *sums_of_squares += squares + mean * (2 * sum - (double)rows * mean);
}

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_batch_norm_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

CHOIR__ISA_SELECT(sum_moments,
                  (const norm_t* norm, int64_t begin, int64_t end, double* out),
                  (norm, begin, end, out))
CHOIR__ISA_SELECT(sum_gradients,
                  (const norm_t* norm, int64_t begin, int64_t end, double* out),
                  (norm, begin, end, out))
CHOIR__ISA_SELECT(apply_rows, (const norm_t* norm, int64_t begin, int64_t end),
                  (norm, begin, end))
CHOIR__ISA_SELECT(grad_rows, (const norm_t* norm, int64_t begin, int64_t end),
                  (norm, begin, end))

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows of a part of the samples, parts, and chunks of a part, the last of which
// may be short or empty.
static int64_t part_rows(const norm_t* norm) {
  return norm->part > 0 ? norm->part : norm->x.count;
}
static int64_t part_count(const norm_t* norm) {
  return (norm->x.count + part_rows(norm) - 1) / part_rows(norm);
}
static int64_t part_chunks(const norm_t* norm) {
  return (least(part_rows(norm), norm->x.count) + CHUNK - 1) / CHUNK;
}
static int64_t chunk_count(const norm_t* norm) {
  return norm->x.count > 0 ? part_count(norm) * part_chunks(norm) : 0;
}

// Chunks begin .. end - 1.
static void sum_chunks(const norm_t* norm, int64_t begin, int64_t end,
                       void (*sum)(const norm_t*, int64_t, int64_t, double*)) {
  const int64_t chunks = part_chunks(norm);
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = i / chunks * part_rows(norm);
    const int64_t stop = least(first + part_rows(norm), norm->x.count);
    const int64_t from = least(first + i % chunks * CHUNK, stop);
    sum(norm, from, least(from + CHUNK, stop),
        norm->partials + i * 2 * norm->channels);
  }
}
static void moments_range(void* context, int64_t begin, int64_t end) {
  sum_chunks(context, begin, end, sum_moments);
}
static void gradients_range(void* context, int64_t begin, int64_t end) {
  sum_chunks(context, begin, end, sum_gradients);
}

// Fills partials and adds them up, those of part i at 2 i channels.
static void sum_all(norm_t* norm, int32_t threads,
                    void (*range)(void* context, int64_t begin, int64_t end)) {
  const int64_t chunks = part_chunks(norm), width = 2 * norm->channels;
  choir__cpu_parallel(threads, chunk_count(norm), 1, range, norm);
  for (int64_t i = 0; i < part_count(norm); i++) {
    const double* from = norm->partials + i * chunks * width;
    double* to = norm->partials + i * width;
    for (int64_t c = 0; c < width; c++) to[c] = from[c];
    for (int64_t k = 1; k < chunks; k++)
      for (int64_t c = 0; c < width; c++) to[c] += from[k * width + c];
  }
}

static int64_t element_bytes(const norm_t* norm) {
  return (int64_t)choir_dtype_bytes(norm->dtype);
}

// From the last tile to the first.
static void walk_back(const norm_t* norm, int64_t begin, int64_t end,
                      void (*rows)(const norm_t*, int64_t, int64_t)) {
  const int64_t fitting = TILE_BYTES / (element_bytes(norm) * norm->channels);
  const int64_t tile = fitting > PIECE ? fitting : PIECE;
  while (end > begin) {
    const int64_t from = end - begin > tile ? end - tile : begin;
    rows(norm, from, end);
    end = from;
  }
}
static void apply_range(void* context, int64_t begin, int64_t end) {
  const norm_t* norm = context;
  walk_back(norm, begin, end, apply_rows);
#if defined(__x86_64__)
  // Non-temporal stores have no order with other stores until here.
  if (norm->past_caches) _mm_sfence();
#endif
}
static void grad_range(void* context, int64_t begin, int64_t end) {
  walk_back(context, begin, end, grad_rows);
}

static bool goes_past_caches(const norm_t* norm) {
  return norm->dtype == CHOIR_DTYPE_F32 && norm->channels % 16 == 0 &&
         norm->y.stride % 16 == 0 && (uintptr_t)norm->y.data % 64 == 0 &&
         norm->x.count * norm->channels * element_bytes(norm) >= FAR_BYTES;
}

static void run_rows(norm_t* norm, int32_t threads,
                     void (*range)(void* context, int64_t begin, int64_t end)) {
  const int64_t grain = CHOIR__CPU_GRAIN / norm->channels;
  choir__cpu_parallel(threads, norm->x.count, grain > 1 ? grain : 1, range,
                      norm);
}

// (scale / deviation); the gradient's kernels work out the same bits again from
// the variance as it was given out.
static float factor_of(float scale, float var, double epsilon) {
  return (float)((double)scale / sqrt((double)var + epsilon));
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
  pixels.data = choir__view_data(view);
  return pixels;
}

// ---- batch_norm, batch_norm_relu: x, scale, bias (, residual) -> y, mean, var

static bool batch_norm_supports(const choir_record_t* record) {
  if (record->accumulate || !is_image(choir_record_src(record, 0), record) ||
      !is_image(choir_record_dst(record, 0), record))
    return false;
  if (record->src_count > 3 && !is_image(choir_record_src(record, 3), record))
    return false;
  return dense_vector(choir_record_src(record, 1)) &&
         dense_vector(choir_record_src(record, 2)) &&
         dense_vector(choir_record_dst(record, 1)) &&
         dense_vector(choir_record_dst(record, 2));
}

// Of part i; partials has its sums.
static void put_moments(const norm_t* norm, int64_t i, float* mean,
                        float* var) {
  const double* sums = norm->partials + i * 2 * norm->channels;
  const double count =
      (double)least(part_rows(norm), norm->x.count - i * part_rows(norm));
  for (int64_t c = 0; c < norm->channels; c++) {
    const double average = sums[c] / count;
    const double squares = sums[norm->channels + c] - sums[c] * average;
    mean[c] = (float)average;
    // What is lost in the difference may leave a negative number. A NaN stays.
    var[c] = (float)(squares < 0 ? 0 : squares / count);
  }
}

static choir_status_t normalise(const choir_record_t* record,
                                choir_stream_t* stream, bool relu) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  const int32_t threads = choir__cpu_threads(stream);
  const float* scale = choir__view_f32(choir_record_src(record, 1));
  float* mean = choir__view_f32(choir_record_dst(record, 1));
  float* var = choir__view_f32(choir_record_dst(record, 2));
  norm_t norm = {.x = take_pixels(choir_record_src(record, 0)),
                 .y = take_pixels(choir_record_dst(record, 0)),
                 .bias = choir__view_f32(choir_record_src(record, 2)),
                 .dtype = choir_record_src(record, 0)->dtype,
                 .channels = choir_record_src(record, 0)->shape[1],
                 .relu = relu};
  if (record->src_count > 3)
    norm.residual = take_pixels(choir_record_src(record, 3));
  float* factor;
  CHOIR_TRY(take_scratch(stream, &norm, 1, record->kernel->name, &factor));
  sum_all(&norm, threads, moments_range);
  put_moments(&norm, 0, mean, var);
  for (int64_t c = 0; c < norm.channels; c++)
    factor[c] = factor_of(scale[c], var[c], attrs->epsilon);
  norm.centre = mean;
  norm.factor = factor;
  norm.past_caches = goes_past_caches(&norm);
  run_rows(&norm, threads, apply_range);
  give_scratch(stream, &norm, 1);
  return NULL;
}

static choir_status_t batch_norm_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  return normalise(record, stream, false);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM, batch_norm, "cpu", batch_norm_run,
                     batch_norm_supports)

static choir_status_t batch_norm_relu_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  return normalise(record, stream, true);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_RELU, batch_norm_relu, "cpu",
                     batch_norm_relu_run, batch_norm_supports)

// ---- batch_norm_moments: x -> mean, var of parts ----

// Rows of vectors.
static bool vector_rows(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && view->ndim == 2 &&
         (view->strides[1] == 1 || view->shape[1] == 1);
}
static float* vector_at(const choir_view_t* rows, int64_t i) {
  return choir__view_f32(rows) + i * rows->strides[0];
}

// Of an image, the rows of so many samples.
static int64_t rows_of(const choir_view_t* x, int64_t samples) {
  return choir_view_count(x) / x->shape[0] / x->shape[1] * samples;
}

static bool batch_norm_moments_supports(const choir_record_t* record) {
  return !record->accumulate && is_image(choir_record_src(record, 0), record) &&
         vector_rows(choir_record_dst(record, 0)) &&
         vector_rows(choir_record_dst(record, 1));
}

static choir_status_t batch_norm_moments_run(const choir_record_t* record,
                                             choir_stream_t* stream) {
  const choir_batch_norm_moments_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  norm_t norm = {.x = take_pixels(x),
                 .dtype = x->dtype,
                 .channels = x->shape[1],
                 .part = rows_of(x, least(attrs->part, x->shape[0]))};
  float* none;
  CHOIR_TRY(take_scratch(stream, &norm, 0, record->kernel->name, &none));
  sum_all(&norm, choir__cpu_threads(stream), moments_range);
  for (int64_t i = 0; i < part_count(&norm); i++)
    put_moments(&norm, i, vector_at(choir_record_dst(record, 0), i),
                vector_at(choir_record_dst(record, 1), i));
  give_scratch(stream, &norm, 0);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_MOMENTS, batch_norm_moments, "cpu",
                     batch_norm_moments_run, batch_norm_moments_supports)

// ---- batch_norm_infer(_add): x, scale, bias, mean, var (, residual, factor)
// -> y

static bool batch_norm_infer_supports(const choir_record_t* record) {
  if (record->accumulate || !is_image(choir_record_src(record, 0), record) ||
      !is_image(choir_record_dst(record, 0), record))
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
                 .bias = choir__view_f32(choir_record_src(record, 2)),
                 .centre = choir__view_f32(choir_record_src(record, 3)),
                 .dtype = choir_record_src(record, 0)->dtype,
                 .channels = choir_record_src(record, 0)->shape[1]};
  if (record->src_count > 5) {
    norm.residual = take_pixels(choir_record_src(record, 5));
    norm.slope = choir__view_f32(choir_record_src(record, 6));
  }
  float* factor;
  CHOIR_TRY(take_scratch(stream, &norm, 1, record->kernel->name, &factor));
  for (int64_t c = 0; c < norm.channels; c++)
    factor[c] = factor_of(scale[c], var[c], attrs->epsilon);
  norm.factor = factor;
  run_rows(&norm, choir__cpu_threads(stream), apply_range);
  give_scratch(stream, &norm, 1);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_INFER, batch_norm_infer, "cpu",
                     batch_norm_infer_run, batch_norm_infer_supports)

// One element a channel, side by side, whatever the other dimensions are.
static bool is_by_channel(const choir_view_t* view) {
  for (int32_t k = 0; k < view->ndim; k++)
    if (view->shape[k] != 1 && view->strides[k] != (k == 1 ? 1 : 0))
      return false;
  return true;
}

// Of f32 alone: the product that it stands for has no other.
static bool batch_norm_infer_add_supports(const choir_record_t* record) {
  const choir_view_t* factor = choir_record_src(record, 6);
  return batch_norm_infer_supports(record) &&
         is_image(choir_record_src(record, 5), record) &&
         choir_record_src(record, 0)->dtype == CHOIR_DTYPE_F32 &&
         factor->dtype == CHOIR_DTYPE_F32 && is_by_channel(factor);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_INFER_ADD, batch_norm_infer_add, "cpu",
                     batch_norm_infer_run, batch_norm_infer_add_supports)

// ---- Gradients -> dx, dscale, dbias (, dresidual) ----
//
// batch_norm_grad:          x, scale, mean, var, dy
// batch_norm_relu_grad:     x, scale, bias, mean, var, dy (, dy2)
// batch_norm_add_relu_grad: x, scale, mean, var, y, dy (, dy2)
//
// batch_norm_sums: x, mean, var, dy -> dscale, dbias of parts

// Source 0 and those from `first_image` on are images, the others vectors.
static bool gradient_supports(const choir_record_t* record,
                              int32_t first_image) {
  for (int32_t i = 0; i < record->src_count; i++) {
    const choir_view_t* src = choir_record_src(record, i);
    if (i == 0 || i >= first_image ? !is_image(src, record)
                                   : !dense_vector(src))
      return false;
  }
  for (int32_t i = 0; i < record->dst_count; i++) {
    const choir_view_t* dst = choir_record_dst(record, i);
    if (i == 0 || i == 3 ? !is_image(dst, record) : !dense_vector(dst))
      return false;
  }
  return true;
}

// Of part i; partials has its sums.
static void put_sums(const norm_t* norm, int64_t i, const float* var,
                     double epsilon, float* dscale, float* dbias) {
  const double* sums = norm->partials + i * 2 * norm->channels;
  for (int64_t c = 0; c < norm->channels; c++) {
    const double inverse = 1 / sqrt((double)var[c] + epsilon);
    const double along = sums[norm->channels + c] * inverse;
    const double across = sums[c];
    dscale[c] = (float)(norm->accumulate ? (double)dscale[c] + along : along);
    dbias[c] = (float)(norm->accumulate ? (double)dbias[c] + across : across);
  }
}

// `norm` has the images, the centre, for MASK_BY_INPUT the bias.
static choir_status_t differentiate(const choir_record_t* record,
                                    choir_stream_t* stream, const float* var,
                                    norm_t* norm) {
  const choir_batch_norm_attrs_t* attrs = record->attrs;
  const int32_t threads = choir__cpu_threads(stream);
  const float* scale = choir__view_f32(choir_record_src(record, 1));
  float* dscale = choir__view_f32(choir_record_dst(record, 1));
  float* dbias = choir__view_f32(choir_record_dst(record, 2));
  norm->x = take_pixels(choir_record_src(record, 0));
  norm->y = take_pixels(choir_record_dst(record, 0));
  norm->dtype = choir_record_src(record, 0)->dtype;
  norm->channels = choir_record_src(record, 0)->shape[1];
  norm->accumulate = record->accumulate;
  const double count = (double)norm->x.count;
  float* vectors;
  CHOIR_TRY(take_scratch(stream, norm, 3, record->kernel->name, &vectors));
  float* factor = vectors;
  float* shift = vectors + norm->channels;
  float* slope = vectors + 2 * norm->channels;
  for (int64_t c = 0; c < norm->channels; c++)
    factor[c] = factor_of(scale[c], var[c], attrs->epsilon);
  norm->factor = factor;
  sum_all(norm, threads, gradients_range);
  put_sums(norm, 0, var, attrs->epsilon, dscale, dbias);
  for (int64_t c = 0; c < norm->channels; c++) {
    const double inverse = 1 / sqrt((double)var[c] + attrs->epsilon);
    const double along = norm->partials[norm->channels + c] * inverse;
    shift[c] = (float)(norm->partials[c] / count);
    slope[c] = (float)(inverse * along / count);
  }
  norm->shift = shift;
  norm->slope = slope;
  if (norm->masking == MASK_BY_RESULT) {
    norm->dy = norm->kept;
    norm->dy2.data = NULL;
    norm->masking = MASK_NONE;
  }
  run_rows(norm, threads, grad_range);
  give_scratch(stream, norm, 3);
  return NULL;
}

static bool batch_norm_grad_supports(const choir_record_t* record) {
  return gradient_supports(record, 4);
}

static choir_status_t batch_norm_grad_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  norm_t norm = {.centre = choir__view_f32(choir_record_src(record, 2)),
                 .dy = take_pixels(choir_record_src(record, 4)),
                 .masking = MASK_NONE};
  return differentiate(record, stream,
                       choir__view_f32(choir_record_src(record, 3)), &norm);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_GRAD, batch_norm_grad, "cpu",
                     batch_norm_grad_run, batch_norm_grad_supports)

static bool batch_norm_sums_supports(const choir_record_t* record) {
  return !record->accumulate && is_image(choir_record_src(record, 0), record) &&
         is_image(choir_record_src(record, 3), record) &&
         dense_vector(choir_record_src(record, 1)) &&
         dense_vector(choir_record_src(record, 2)) &&
         vector_rows(choir_record_dst(record, 0)) &&
         vector_rows(choir_record_dst(record, 1));
}

static choir_status_t batch_norm_sums_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  const choir_batch_norm_sums_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  norm_t norm = {.x = take_pixels(x),
                 .centre = choir__view_f32(choir_record_src(record, 1)),
                 .dy = take_pixels(choir_record_src(record, 3)),
                 .masking = MASK_NONE,
                 .dtype = x->dtype,
                 .channels = x->shape[1],
                 .part = rows_of(x, least(attrs->part, x->shape[0]))};
  float* none;
  CHOIR_TRY(take_scratch(stream, &norm, 0, record->kernel->name, &none));
  sum_all(&norm, choir__cpu_threads(stream), gradients_range);
  for (int64_t i = 0; i < part_count(&norm); i++)
    put_sums(&norm, i, choir__view_f32(choir_record_src(record, 2)),
             attrs->epsilon, vector_at(choir_record_dst(record, 0), i),
             vector_at(choir_record_dst(record, 1), i));
  give_scratch(stream, &norm, 0);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_SUMS, batch_norm_sums, "cpu",
                     batch_norm_sums_run, batch_norm_sums_supports)

static bool batch_norm_relu_grad_supports(const choir_record_t* record) {
  return !record->accumulate && gradient_supports(record, 5);
}

static choir_status_t batch_norm_relu_grad_run(const choir_record_t* record,
                                               choir_stream_t* stream) {
  norm_t norm = {.bias = choir__view_f32(choir_record_src(record, 2)),
                 .centre = choir__view_f32(choir_record_src(record, 3)),
                 .dy = take_pixels(choir_record_src(record, 5)),
                 .masking = MASK_BY_INPUT};
  if (record->src_count > 6)
    norm.dy2 = take_pixels(choir_record_src(record, 6));
  return differentiate(record, stream,
                       choir__view_f32(choir_record_src(record, 4)), &norm);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_RELU_GRAD, batch_norm_relu_grad, "cpu",
                     batch_norm_relu_grad_run, batch_norm_relu_grad_supports)

static bool batch_norm_add_relu_grad_supports(const choir_record_t* record) {
  return !record->accumulate && gradient_supports(record, 4);
}

static choir_status_t batch_norm_add_relu_grad_run(const choir_record_t* record,
                                                   choir_stream_t* stream) {
  norm_t norm = {.centre = choir__view_f32(choir_record_src(record, 2)),
                 .mask = take_pixels(choir_record_src(record, 4)),
                 .dy = take_pixels(choir_record_src(record, 5)),
                 .kept = take_pixels(choir_record_dst(record, 3)),
                 .masking = MASK_BY_RESULT};
  if (record->src_count > 6)
    norm.dy2 = take_pixels(choir_record_src(record, 6));
  return differentiate(record, stream,
                       choir__view_f32(choir_record_src(record, 3)), &norm);
}
CHOIR__CPU_OP_KERNEL(BATCH_NORM_ADD_RELU_GRAD, batch_norm_add_relu_grad, "cpu",
                     batch_norm_add_relu_grad_run,
                     batch_norm_add_relu_grad_supports)
