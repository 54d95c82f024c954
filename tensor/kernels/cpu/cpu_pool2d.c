// SPDX-License-Identifier: Apache-2.0
// Pooling of channels-last images: the loops run along the channels of one
// pixel, and a window is walked around them. Images of 16 bits are f32 in
// registers and where they are added up.
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/ops/pool2d.h"

// An image operand whose channels lie side by side.
typedef struct image_s {
  void* data;
  int64_t n, h, w;  // strides
} image_t;

typedef struct pool_s {
  choir_dtype_t dtype;  // of both images
  image_t in;           // x or dx  (N, H, W, C)
  image_t out;          // y or dy  (N, OH, OW, C)
  image_t at;           // places within windows, u8
  int64_t height, width, channels;
  int64_t out_height, out_width;
  int64_t kernel[2], stride[2], padding[2];
  float scale;
  bool is_padded;
  bool accumulate;
} pool_t;

static bool is_image(const choir_view_t* view) {
  return view->ndim == 4 && choir_view_count(view) > 0;
}

// A destination is written where it lies, so its channels must lie side by
// side; a source may be copied.
static bool is_dense_image(const choir_view_t* view) {
  return is_image(view) && (view->strides[1] == 1 || view->shape[1] == 1);
}

// Images to and from f32, or 16 bits alone.
static bool are_images(const choir_view_t* src, const choir_view_t* dst) {
  return is_image(src) && is_dense_image(dst) && src->dtype == dst->dtype &&
         (src->dtype == CHOIR_DTYPE_F32 || choir__is_narrow(src->dtype));
}

static image_t image_of(const choir_view_t* view, void* data) {
  return (image_t){data, view->strides[0], view->strides[2], view->strides[3]};
}

static void describe(const choir_pool2d_attrs_t* attrs, const choir_view_t* in,
                     const choir_view_t* out, pool_t* pool) {
  pool->dtype = in->dtype;
  pool->height = in->shape[2];
  pool->width = in->shape[3];
  pool->channels = in->shape[1];
  pool->out_height = out->shape[2];
  pool->out_width = out->shape[3];
  const choir__pool2d_t sizes = choir__pool2d_of(in, attrs);
  for (int k = 0; k < 2; k++) {
    pool->kernel[k] = sizes.kernel[k];
    pool->stride[k] = sizes.stride[k];
    pool->padding[k] = sizes.padding[k];
  }
  pool->is_padded = choir__pool2d_is_padded(sizes.size, attrs);
  pool->scale = 1.0f / (float)(attrs->kernel[0] * attrs->kernel[1]);
}

// The part of a window that lies on the image: first and end position within
// the window.
CHOIR__BODY void clip(int64_t start, int64_t kernel, int64_t size,
                      int64_t* first, int64_t* end) {
  *first = start < 0 ? -start : 0;
  *end = start + kernel > size ? size - start : kernel;
}

// True when windows tile the image, so that each input has at most one.
static bool tiles(const pool_t* pool) {
  return pool->kernel[0] == pool->stride[0] &&
         pool->kernel[1] == pool->stride[1] && !pool->is_padded;
}

// ---- Loops ----

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_pool2d_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

#define LOOP(name)                                                            \
  CHOIR__ISA_SELECT(                                                          \
      name, (const pool_t* pool, float* scratch, int64_t begin, int64_t end), \
      (pool, scratch, begin, end))                                            \
  static void name##_range(void* context, void* scratch, int64_t begin,       \
                           int64_t end) {                                     \
    name(context, scratch, begin, end);                                       \
  }
LOOP(max_forward)
LOOP(max_tile)
LOOP(avg_tile)
LOOP(max_any)
LOOP(avg_any)
LOOP(avg_forward)

// ---- Records ----

// Rows (or images) that are worth a thread.
static int64_t grain_of(int64_t elements) {
  const int64_t grain = CHOIR__CPU_GRAIN / (elements > 0 ? elements : 1);
  return grain > 1 ? grain : 1;
}

static bool max_pool2d_supports(const choir_record_t* record) {
  const choir_view_t* at = choir_record_dst(record, 1);
  return !record->accumulate && at->dtype == CHOIR_DTYPE_U8 &&
         is_dense_image(at) &&
         are_images(choir_record_src(record, 0), choir_record_dst(record, 0));
}

static choir_status_t forward(const choir_record_t* record,
                              choir_stream_t* stream, bool maximum) {
  const choir_view_t* y = choir_record_dst(record, 0);
  choir__pixels_t x;
  CHOIR_TRY(choir__pixels_take(choir_record_src(record, 0), stream, &x));
  pool_t pool = {.in = image_of(&x.view, x.data),
                 .out = image_of(y, choir__view_data(y)),
                 .accumulate = record->accumulate};
  if (maximum) {
    const choir_view_t* at = choir_record_dst(record, 1);
    pool.at = image_of(at, choir__view_data(at));
  }
  describe(record->attrs, &x.view, y, &pool);
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, y->shape[0] * y->shape[2],
      grain_of(pool.channels * pool.width * pool.kernel[0]), 0,
      maximum ? max_forward_range : avg_forward_range, &pool);
  choir__pixels_give(&x, stream);
  return status;
}

static choir_status_t run_backward(pool_t* pool, choir_stream_t* stream,
                                   int64_t samples, bool maximum) {
  const int64_t row = pool->channels * pool->width;
  if (tiles(pool))
    return choir__cpu_parallel_scratch(
        stream, samples * pool->out_height, grain_of(row * pool->kernel[0]), 0,
        maximum ? max_tile_range : avg_tile_range, pool);
  const size_t image = (size_t)(row * pool->height) * sizeof(float);
  return choir__cpu_parallel_scratch(
      stream, samples, grain_of(row * pool->height),
      choir__is_narrow(pool->dtype) ? image : 0,
      maximum ? max_any_range : avg_any_range, pool);
}

// Sources: maximum x [shape only], places, dy; average x [shape only], dy.
static choir_status_t backward(const choir_record_t* record,
                               choir_stream_t* stream, bool maximum) {
  const choir_view_t* dx = choir_record_dst(record, 0);
  const int32_t last = record->src_count - 1;
  choir__pixels_t dy, at = {.copy = NULL};
  CHOIR_TRY(choir__pixels_take(choir_record_src(record, last), stream, &dy));
  if (maximum) {
    choir_status_t status =
        choir__pixels_take(choir_record_src(record, 1), stream, &at);
    if (status) {
      choir__pixels_give(&dy, stream);
      return status;
    }
  }
  pool_t pool = {.in = image_of(dx, choir__view_data(dx)),
                 .out = image_of(&dy.view, dy.data),
                 .at = image_of(&at.view, at.data),
                 .accumulate = record->accumulate};
  describe(record->attrs, dx, &dy.view, &pool);
  choir_status_t status = run_backward(&pool, stream, dx->shape[0], maximum);
  choir__pixels_give(&at, stream);
  choir__pixels_give(&dy, stream);
  return status;
}

static choir_status_t max_pool2d_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  return forward(record, stream, true);
}

static bool max_pool2d_grad_supports(const choir_record_t* record) {
  const choir_view_t* at = choir_record_src(record, 1);
  return at->dtype == CHOIR_DTYPE_U8 && is_image(at) &&
         are_images(choir_record_src(record, 2), choir_record_dst(record, 0));
}

static choir_status_t max_pool2d_grad_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  return backward(record, stream, true);
}

static bool avg_pool2d_supports(const choir_record_t* record) {
  return are_images(choir_record_src(record, 0), choir_record_dst(record, 0));
}

static choir_status_t avg_pool2d_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  return forward(record, stream, false);
}

static bool avg_pool2d_grad_supports(const choir_record_t* record) {
  return are_images(choir_record_src(record, 1), choir_record_dst(record, 0));
}

static choir_status_t avg_pool2d_grad_run(const choir_record_t* record,
                                          choir_stream_t* stream) {
  return backward(record, stream, false);
}

CHOIR__CPU_OP_KERNEL(MAX_POOL2D, max_pool2d, "cpu", max_pool2d_run,
                     max_pool2d_supports)
CHOIR__CPU_OP_KERNEL(MAX_POOL2D_GRAD, max_pool2d_grad, "cpu",
                     max_pool2d_grad_run, max_pool2d_grad_supports)
CHOIR__CPU_OP_KERNEL(AVG_POOL2D, avg_pool2d, "cpu", avg_pool2d_run,
                     avg_pool2d_supports)
CHOIR__CPU_OP_KERNEL(AVG_POOL2D_GRAD, avg_pool2d_grad, "cpu",
                     avg_pool2d_grad_run, avg_pool2d_grad_supports)
