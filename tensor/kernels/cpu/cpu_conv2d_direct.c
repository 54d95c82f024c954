// SPDX-License-Identifier: Apache-2.0
// Convolutions by the loops of cpu_conv2d_direct.h: which records they take,
// packed weights, and blocks of samples for the threads.
#include "tensor/kernels/cpu/cpu_conv2d_direct.h"

#include <stddef.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/ops/conv2d.h"
#include "tensor/ops/pool2d.h"

#if defined(__x86_64__)

// One block of an operand has to stay in the L2 cache.
#define MAX_BLOCK_BYTES (1 << 20)

typedef enum conv_kind_e {
  FORWARD,
  POOLED,  // forward and max_pool2d of 2 x 2
  GRAD_DATA,
  GRAD_WEIGHT
} conv_kind_t;

static bool is_forward(conv_kind_t kind) {
  return kind == FORWARD || kind == POOLED;
}

typedef struct operands_s {
  const choir_view_t *x, *w, *b, *y;  // or their gradients; b may be NULL
} operands_t;

static operands_t operands_of(const choir_record_t* record, conv_kind_t kind) {
  operands_t o = {NULL, NULL, NULL, NULL};
  o.x = kind == GRAD_DATA ? choir_record_dst(record, 0)
                          : choir_record_src(record, 0);
  o.w = kind == GRAD_WEIGHT ? choir_record_dst(record, 0)
                            : choir_record_src(record, 1);
  o.y = is_forward(kind) ? choir_record_dst(record, 0)
                         : choir_record_src(record, 2);
  if (is_forward(kind)) o.b = choir_record_src(record, 2);
  if (kind == GRAD_WEIGHT) o.b = choir_record_dst(record, 1);
  return o;
}

// Those of this processor, or NULL.
static const choir__conv_loops_t* best_loops(void) {
  switch (choir__isa()) {
    case CHOIR__ISA_AVX512:
      return &choir__conv_loops_avx512;
    case CHOIR__ISA_AVX2:
      return &choir__conv_loops_avx2;
    default:
      return NULL;
  }
}

// ---- Which records ----

// Rows of an image without gaps.
static bool has_dense_rows(const choir_view_t* view) {
  return (view->strides[1] == 1 || view->shape[1] == 1) &&
         (view->strides[3] == view->shape[1] || view->shape[3] == 1) &&
         view->strides[2] >= 0 && view->strides[0] >= 0;
}

// A source that is not channels-last is copied.
static bool is_source(const choir_view_t* view) {
  return has_dense_rows(view) || (view->strides[1] != 1 && view->shape[1] != 1);
}

static int64_t block_bytes(const choir_view_t* view, const int64_t* padding,
                           int64_t lanes) {
  return (view->shape[2] + 2 * padding[0]) * (view->shape[3] + 2 * padding[1]) *
         view->shape[1] * lanes * (int64_t)sizeof(float);
}

// Channels to the lanes of a vector, as oneDNN has them: how many times more
// lanes than channels.
static double padding_of(int64_t channels, int64_t lanes) {
  return (double)(choir__conv_blocks(channels, lanes) * lanes) /
         (double)channels;
}

// Whether this way is the quicker one. With AVX-512 oneDNN keeps up where
// channels fill its vectors, and is ahead where in addition a pixel's vectors
// conflict in the sets of the L1 cache; with AVX2 it falls behind sooner, and
// in y and the gradient of the weights also with many taps. Measured against it
// pass by pass on the layers of the MNIST network, LeNet-5 and CIFAR networks
// of 8 to 128 channels, with AVX2 those of ResNet-20 also on an AMD EPYC (batch
// 128, 16 channels at 32 x 32: y 7.6 ms to 8.2, the weights' 8.3 to 9.2; 64 at
// 8 x 8: 6.5 to 7.3 and 7.3 to 8.6). Where oneDNN multiplies bf16, y is its
// but for a single channel (batch 64 with AMX, 28 x 28 to 20 filters of 5 x 5:
// 0.39 ms both, with a max pooling 0.37 to 0.60; 3 channels, 32 x 32 to 16
// filters of 3 x 3: 0.66 to 0.33).
static bool is_quicker(const operands_t* o, conv_kind_t kind, int64_t lanes) {
  const int64_t channels = o->w->shape[1], filters = o->w->shape[0];
  const int64_t taps = channels * o->w->shape[2] * o->w->shape[3];
  const double of_channels = padding_of(channels, lanes);
  const double of_filters = padding_of(filters, lanes);
  const bool is_avx2 = lanes == 8;
  // Of a processor that multiplies it.
  const bool is_bf16 =
      o->w->dtype == CHOIR_DTYPE_BF16 && !is_avx2 && choir__dnnl_has_bf16();
  const bool many_taps = is_avx2 && taps >= 144 && filters >= 16;
  switch (kind) {
    case FORWARD:
    case POOLED:
      if (is_bf16 && channels > 1) return false;
      // The way to vectors and back must be worth it.
      return taps >= 25 && (of_filters > 1.1 ||
                            (channels <= 8 && filters <= lanes) || many_taps);
    case GRAD_DATA:
      return of_channels > 1.1;
    case GRAD_WEIGHT:
      if (many_taps || (is_avx2 && taps >= 288)) return true;
      if (of_filters * of_channels > 1.7)
        return of_filters > 1.1 || channels < 8;
      return is_avx2 && of_filters * of_channels > 1.2 && of_filters > 1.1;
  }
  return false;
}

// Of attributes with a pooling the convolution's come first.
_Static_assert(offsetof(choir_conv2d_max_pool2d_attrs_t, conv) == 0, "first");

// All f32 or, forward, sources of 16 bits; results are of theirs or f32, and
// argmax indices are bytes.
static bool dtypes_fit(const choir_record_t* record, conv_kind_t kind) {
  const choir_dtype_t dtype = choir_record_src(record, 0)->dtype;
  if (!is_forward(kind)) return choir__all_f32(record);
  if (dtype != CHOIR_DTYPE_F32 && !choir__is_narrow(dtype)) return false;
  for (int32_t i = 1; i < record->src_count; i++)
    if (choir_record_src(record, i)->dtype != dtype) return false;
  const choir_dtype_t y = choir_record_dst(record, 0)->dtype;
  return y == dtype || y == CHOIR_DTYPE_F32;
}

static bool pool_fits(const choir_record_t* record, const int64_t* image) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const choir_pool2d_attrs_t* pool = &attrs->pool;
  const choir_view_t* argmax = choir_record_dst(record, 1);
  for (int k = 0; k < 2; k++)
    if (pool->kernel[k] != 2 || pool->stride[k] != 2) return false;
  return !choir__pool2d_is_padded(image, pool) && !record->accumulate &&
         has_dense_rows(argmax);
}

static bool direct_fits(const choir_record_t* record, conv_kind_t kind) {
  const choir_conv2d_attrs_t* attrs = record->attrs;
  const operands_t o = operands_of(record, kind);
  static const int64_t no_padding[] = {0, 0};
  const choir__conv_loops_t* loops = best_loops();
  if (!loops || !dtypes_fit(record, kind) || attrs->groups != 1 ||
      o.x->ndim != 4 || o.y->ndim != 4 || choir_view_count(o.x) == 0 ||
      choir_view_count(o.y) == 0)
    return false;
  const choir__conv2d_t conv = choir__conv2d_of(o.x, o.w, attrs);
  if (conv.padding[0] != conv.after[0] || conv.padding[1] != conv.after[1] ||
      (kind == POOLED && !pool_fits(record, conv.out)))
    return false;
  if (o.b && o.b->strides[0] != 1 && o.b->shape[0] != 1) return false;
  // Lanes without a sample are wasted: four in five must have one.
  const int64_t samples = o.x->shape[0], lanes = loops->lanes;
  if (samples * 5 < choir__conv_blocks(samples, lanes) * lanes * 4)
    return false;
  if (kind != GRAD_DATA &&
      block_bytes(o.x, conv.padding, lanes) > MAX_BLOCK_BYTES)
    return false;
  if (!is_forward(kind) &&
      block_bytes(o.y, no_padding, lanes) > MAX_BLOCK_BYTES)
    return false;
  if (!is_quicker(&o, kind, lanes)) return false;
  if (kind == GRAD_DATA) {
    const int64_t width = o.w->shape[3];
    if (attrs->stride[0] != 1 || attrs->stride[1] != 1 ||
        attrs->dilation[0] != 1 || attrs->dilation[1] != 1 ||
        (width != 3 && width != 5))
      return false;
    return has_dense_rows(o.x) && is_source(o.y);
  }
  return is_source(o.x) &&
         (is_forward(kind) ? has_dense_rows(o.y) : is_source(o.y));
}

// ---- One call ----

typedef struct call_s {
  conv_kind_t kind;
  choir__direct_t conv;
  const choir__conv_loops_t* loops;
  choir_allocator_t pool;
  int64_t blocks;  // of samples
  size_t x_bytes, y_bytes, row_bytes;
  // Weight gradient: vectors of the current block, and their places.
  float *x_vectors, *y_vectors;
  choir__conv_place_t *x_places, *y_places;
  float* db;
  int64_t block;
} call_t;

static choir__conv_image_t image_of(const choir_view_t* view, void* data) {
  return (choir__conv_image_t){.data = data,
                               .dtype = view->dtype,
                               .sample_stride = view->strides[0],
                               .row_stride = view->strides[2],
                               .height = view->shape[2],
                               .width = view->shape[3],
                               .channels = view->shape[1]};
}

static void describe(const choir_record_t* record, const operands_t* o,
                     choir__direct_t* conv) {
  const choir_conv2d_attrs_t* attrs = record->attrs;
  const choir__conv2d_t sizes = choir__conv2d_of(o->x, o->w, attrs);
  conv->samples = o->x->shape[0];
  for (int k = 0; k < 2; k++) {
    conv->kernel[k] = o->w->shape[2 + k];
    conv->stride[k] = attrs->stride[k];
    conv->padding[k] = sizes.padding[k];
    conv->dilation[k] = attrs->dilation[k];
  }
  conv->taps = conv->kernel[0] * conv->kernel[1] * o->x->shape[1];
  conv->relu = attrs->activation == CHOIR_ACTIVATION_RELU;
  conv->accumulate = record->accumulate;
}

static void* take(const call_t* call, size_t bytes) {
  return call->pool.alloc(call->pool.self, bytes, 64);
}
static void give(const call_t* call, void* memory, size_t bytes) {
  if (memory) call->pool.free(call->pool.self, memory, bytes, 64);
}

// Weights, then the places of taps in the image and in dW.
typedef struct tables_s {
  float* weights;
  int32_t* offsets;
  int64_t* dw_offsets;
  size_t bytes;
} tables_t;

static choir_status_t take_tables(const call_t* call, int64_t weights,
                                  tables_t* out) {
  const size_t taps = (size_t)call->conv.taps;
  out->bytes = taps * sizeof(int64_t) + taps * sizeof(int32_t) +
               (size_t)weights * sizeof(float);
  void* memory = take(call, out->bytes);
  if (!memory)
    return CHOIR_ERROR(OUT_OF_MEMORY, "convolution tables: no %zu bytes",
                       out->bytes);
  out->dw_offsets = memory;
  out->offsets = (int32_t*)(out->dw_offsets + taps);
  out->weights = (float*)(out->offsets + taps);
  return NULL;
}

static void fill_offsets(const call_t* call, const choir_view_t* w,
                         tables_t* tables) {
  const choir__direct_t* conv = &call->conv;
  const int64_t channels = conv->x.channels;
  const int64_t row = (conv->x.width + 2 * conv->padding[1]) * channels;
  int64_t tap = 0;
  for (int64_t ky = 0; ky < conv->kernel[0]; ky++)
    for (int64_t kx = 0; kx < conv->kernel[1]; kx++)
      for (int64_t c = 0; c < channels; c++, tap++) {
        tables->offsets[tap] =
            (int32_t)((ky * conv->dilation[0] * row +
                       kx * conv->dilation[1] * channels + c) *
                      call->loops->lanes);
        tables->dw_offsets[tap] =
            ky * w->strides[2] + kx * w->strides[3] + c * w->strides[1];
      }
}

static void pack_forward(const call_t* call, const choir_view_t* w,
                         const float* src, const tables_t* tables) {
  const int64_t filters = call->conv.y.channels, taps = call->conv.taps;
  const int64_t blocks = choir__conv_blocks(filters, call->loops->filters);
  float* to = tables->weights;
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t first = choir__conv_block_start(filters, blocks, b);
    const int64_t n = choir__conv_block_start(filters, blocks, b + 1) - first;
    for (int64_t k = 0; k < taps; k++)
      for (int64_t f = 0; f < n; f++)
        *to++ = src[(first + f) * w->strides[0] + tables->dw_offsets[k]];
  }
}

static void pack_grad(const call_t* call, const choir_view_t* w,
                      const float* src, const tables_t* tables) {
  const choir__direct_t* conv = &call->conv;
  const int64_t channels = conv->x.channels;
  const int64_t blocks =
      choir__conv_blocks(channels, call->loops->grad_channels(conv->kernel[1]));
  float* to = tables->weights;
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t first = choir__conv_block_start(channels, blocks, b);
    const int64_t end = choir__conv_block_start(channels, blocks, b + 1);
    for (int64_t ky = 0; ky < conv->kernel[0]; ky++)
      for (int64_t f = 0; f < conv->y.channels; f++)
        for (int64_t kx = 0; kx < conv->kernel[1]; kx++) {
          const float* from =
              src + f * w->strides[0] + ky * w->strides[2] + kx * w->strides[3];
          for (int64_t c = first; c < end; c++) *to++ = from[c * w->strides[1]];
        }
  }
}

// ---- Forward and data gradient: blocks of samples ----

// `vectors` holds a block of the source, `row` a row of the result.
static void run_block(const call_t* call, int64_t block, float* vectors,
                      float* row) {
  const choir__direct_t* conv = &call->conv;
  const choir__conv_loops_t* loops = call->loops;
  switch (call->kind) {
    case FORWARD:
      loops->pack_x(conv, block, vectors);
      loops->forward(conv, block, vectors, row);
      return;
    case POOLED:
      loops->pack_x(conv, block, vectors);
      loops->forward_pool(
          conv, block, vectors, row,
          (uint8_t*)(row + conv->y.width * conv->y.channels * loops->lanes));
      return;
    default:
      loops->pack_y(conv, block, vectors);
      loops->grad_data(conv, block, vectors, row);
  }
}

// Of what the blocks are made from.
static size_t source_bytes(const call_t* call) {
  return call->kind == GRAD_DATA ? call->y_bytes : call->x_bytes;
}

static void blocks_range(void* context, void* scratch, int64_t begin,
                         int64_t end) {
  const call_t* call = context;
  float* row = (float*)((char*)scratch + source_bytes(call));
  for (int64_t block = begin; block < end; block++)
    run_block(call, block, scratch, row);
}

static choir_status_t run_blocks(call_t* call, choir_stream_t* stream,
                                 const operands_t* o, const float* w) {
  tables_t tables = {.bytes = 0};
  CHOIR_TRY(
      take_tables(call, call->conv.taps * call->conv.y.channels, &tables));
  fill_offsets(call, o->w, &tables);
  if (is_forward(call->kind))
    pack_forward(call, o->w, w, &tables);
  else
    pack_grad(call, o->w, w, &tables);
  call->conv.offsets = tables.offsets;
  call->conv.weights = tables.weights;
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, call->blocks, 1, source_bytes(call) + call->row_bytes,
      blocks_range, call);
  give(call, tables.dw_offsets, tables.bytes);
  return status;
}

// Weights and biases of 16 bits are widened as a whole.
static choir_status_t run_blocks_of(call_t* call, choir_stream_t* stream,
                                    const operands_t* o) {
  choir__floats_t w = {.copy = NULL}, b = {.copy = NULL};
  choir_status_t status = choir__floats_take(o->w, stream, &w);
  if (!status && o->b) status = choir__floats_take(o->b, stream, &b);
  call->conv.bias = b.data;
  if (!status) status = run_blocks(call, stream, o, w.data);
  choir__floats_give(&b, stream);
  choir__floats_give(&w, stream);
  return status;
}

// ---- Weight gradient: blocks of filters ----

static void pack_range(void* context, int64_t begin, int64_t end) {
  call_t* call = context;
  if (begin == 0)
    call->loops->planes_x(&call->conv, call->block, call->x_places,
                          call->x_vectors);
  if (end == 2)
    call->loops->planes_y(&call->conv, call->block, call->y_places,
                          call->y_vectors);
}

static void grad_weight_range(void* context, void* sums, int64_t begin,
                              int64_t end) {
  const call_t* call = context;
  call->loops->grad_weight(&call->conv, call->x_vectors, call->y_vectors, sums,
                           call->db, begin, end);
}

static choir_status_t run_grad_weight(call_t* call, choir_stream_t* stream,
                                      const operands_t* o) {
  const int32_t threads = choir__cpu_threads(stream);
  choir__direct_t* conv = &call->conv;
  tables_t tables = {.bytes = 0};
  CHOIR_TRY(take_tables(call, 0, &tables));
  const size_t places = (size_t)(conv->x.channels + conv->y.channels) *
                        sizeof(choir__conv_place_t);
  const size_t bytes = call->x_bytes + call->y_bytes + places;
  char* scratch = take(call, bytes);
  if (!scratch) {
    give(call, tables.dw_offsets, tables.bytes);
    return CHOIR_ERROR(OUT_OF_MEMORY, "convolution: no %zu bytes for a block",
                       bytes);
  }
  fill_offsets(call, o->w, &tables);
  conv->offsets = tables.offsets;
  conv->dw_offsets = tables.dw_offsets;
  conv->dw = choir__view_f32(o->w);
  conv->dw_filter_stride = o->w->strides[0];
  call->x_vectors = (float*)scratch;
  call->y_vectors = (float*)(scratch + call->x_bytes);
  call->x_places =
      (choir__conv_place_t*)(scratch + call->x_bytes + call->y_bytes);
  call->y_places = call->x_places + conv->x.channels;
  call->db = choir__view_f32(o->b);
  for (int64_t f = 0; f < conv->y.channels && !conv->accumulate; f++) {
    call->db[f] = 0;
    for (int64_t k = 0; k < conv->taps; k++)
      conv->dw[f * conv->dw_filter_stride + conv->dw_offsets[k]] = 0;
  }
  const int64_t filter_blocks =
      choir__conv_blocks(conv->y.channels, call->loops->filters);
  const size_t sums_bytes =
      (size_t)(call->loops->filters * conv->taps * call->loops->lanes) *
      sizeof(float);
  choir_status_t status = NULL;
  for (call->block = 0; call->block < call->blocks && !status; call->block++) {
    choir__cpu_parallel(threads, 2, 1, pack_range, call);
    status = choir__cpu_parallel_scratch(stream, filter_blocks, 1, sums_bytes,
                                         grad_weight_range, call);
  }
  give(call, scratch, bytes);
  give(call, tables.dw_offsets, tables.bytes);
  return status;
}

// ---- Records ----

static choir_status_t direct_run(const choir_record_t* record,
                                 choir_stream_t* stream, conv_kind_t kind) {
  const operands_t o = operands_of(record, kind);
  choir__pixels_t x = {.copy = NULL}, y = {.copy = NULL};
  call_t call;
  memset(&call, 0, sizeof(call));
  call.kind = kind;
  call.loops = best_loops();
  call.pool = choir_device_allocator(choir_stream_device(stream));
  choir_status_t status = NULL;
  if (kind == GRAD_DATA)
    x = (choir__pixels_t){.view = *o.x, .data = choir__view_data(o.x)};
  else
    status = choir__pixels_take(o.x, stream, &x);
  if (!status && is_forward(kind))
    y = (choir__pixels_t){.view = *o.y, .data = choir__view_data(o.y)};
  else if (!status)
    status = choir__pixels_take(o.y, stream, &y);
  if (!status) {
    call.conv.x = image_of(&x.view, x.data);
    call.conv.y = image_of(&y.view, y.data);
    describe(record, &o, &call.conv);
    if (kind == POOLED) {
      const choir_view_t* argmax = choir_record_dst(record, 1);
      call.conv.argmax = choir__view_data(argmax);
      call.conv.argmax_sample_stride = argmax->strides[0];
      call.conv.argmax_row_stride = argmax->strides[2];
    }
    const int64_t lanes = call.loops->lanes;
    call.blocks = choir__conv_blocks(call.conv.samples, lanes);
    const size_t vector = (size_t)lanes * sizeof(float);
    // A row of dx reaches as far as its gradients do.
    const int64_t row_columns =
        kind == GRAD_DATA ? (call.conv.y.width + call.conv.kernel[1] - 1) *
                                call.conv.x.channels
                          : call.conv.y.width * call.conv.y.channels;
    call.x_bytes = (size_t)choir__conv_padded_vectors(&call.conv) * vector;
    call.y_bytes = (size_t)choir__conv_result_vectors(&call.conv) * vector;
    call.row_bytes = (size_t)row_columns * vector;
    // A byte for each argmax index behind them.
    if (kind == POOLED) call.row_bytes += (size_t)(row_columns * lanes);
    status = kind == GRAD_WEIGHT ? run_grad_weight(&call, stream, &o)
                                 : run_blocks_of(&call, stream, &o);
  }
  choir__pixels_give(&y, stream);
  choir__pixels_give(&x, stream);
  return status;
}

#define DIRECT(OP, name, kind)                                          \
  static bool name##_direct_supports(const choir_record_t* record) {    \
    return direct_fits(record, kind);                                   \
  }                                                                     \
  static choir_status_t name##_direct_run(const choir_record_t* record, \
                                          choir_stream_t* stream) {     \
    return direct_run(record, stream, kind);                            \
  }                                                                     \
  const choir_op_kernel_t choir__cpu_##name##_direct = CHOIR_OP_KERNEL( \
      OP, #name, "direct", name##_direct_run, name##_direct_supports);

#else

// Elsewhere there is no such kernel.
static bool no_direct(const choir_record_t* record) {
  (void)record;
  return false;
}
static choir_status_t no_direct_run(const choir_record_t* record,
                                    choir_stream_t* stream) {
  (void)stream;
  return CHOIR_ERROR(UNIMPLEMENTED, "%s: needs AVX2", record->kernel->name);
}
#define DIRECT(OP, name, kind)                         \
  const choir_op_kernel_t choir__cpu_##name##_direct = \
      CHOIR_OP_KERNEL(OP, #name, "direct", no_direct_run, no_direct);

#endif

DIRECT(CHOIR_OP_CONV2D, conv2d, FORWARD)
DIRECT(CHOIR_OP_CONV2D_MAX_POOL2D, conv2d_max_pool2d, POOLED)
DIRECT(CHOIR_OP_CONV2D_GRAD_DATA, conv2d_grad_data, GRAD_DATA)
DIRECT(CHOIR_OP_CONV2D_GRAD_WEIGHT, conv2d_grad_weight, GRAD_WEIGHT)
