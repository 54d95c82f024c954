// SPDX-License-Identifier: Apache-2.0
// Gradients of a convolution with a max pooling behind it, by the loops of
// cpu_conv2d_argmax.h: which records they take, memory, samples for the
// threads, and what computes a record that the loops must not.
#include "tensor/kernels/cpu/cpu_conv2d_argmax.h"

#include <stdatomic.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/ops/conv2d.h"
#include "tensor/ops/pool2d.h"

#define GROUP CHOIR__ARGMAX_GROUP
// Lists and tables hold places as 32 bits.
#define MOST_ELEMENTS (1 << 28)
// The weight gradient adds up pieces of the samples apart from each other, so
// that threads can share them out and the bits are the same for any number.
#define MOST_PIECES 8
#define LEAST_SAMPLES 16  // of a piece
#define PIECES_BYTES (16 << 20)

typedef enum argmax_kind_e { DATA, WEIGHT } argmax_kind_t;

// Sources x, argmax indices, W, y, dy.
typedef struct operands_s {
  const choir_view_t *x, *argmax, *w, *y, *dy;  // x: or dx; w: or dW
} operands_t;

static operands_t operands_of(const choir_record_t* record,
                              argmax_kind_t kind) {
  return (operands_t){
      kind == DATA ? choir_record_dst(record, 0) : choir_record_src(record, 0),
      choir_record_src(record, 1),
      kind == DATA ? choir_record_src(record, 2) : choir_record_dst(record, 0),
      choir_record_src(record, 3), choir_record_src(record, 4)};
}

// ---- Which records ----

static int64_t to_lines(int64_t floats) {
  return (floats + GROUP - 1) / GROUP * GROUP;
}

// How patches are made: kernel rows one by one, or all together where they are
// so short that they would leave most lanes empty.
static void plan_patches(const operands_t* o, argmax_kind_t kind,
                         choir__argmax_t* t) {
  const int64_t rows = o->w->shape[2];
  const int64_t length = o->w->shape[3] * o->w->shape[1];
  const bool together =
      kind == WEIGHT && rows * length <= CHOIR__ARGMAX_VECTORS * GROUP;
  t->merged = together ? rows : 1;
  t->groups = rows / t->merged;
  t->length = t->merged * length;
  t->vectors = (t->length + GROUP - 1) / GROUP;
}

// Whether this way is the quicker one against relu_grad, max_pool2d_grad and
// the convolution's own gradient. It does a window's share of the work, with
// two loads for each multiplication at the most; so windows must be apart from
// each other and lanes be filled. Measured on the layers of the MNIST network
// with AVX-512; the limits for other layers are reckoned from that.
static bool is_quicker(const choir__argmax_t* t,
                       const choir_conv2d_max_pool2d_attrs_t* attrs) {
  return attrs->pool.stride[0] * attrs->pool.stride[1] >= 4 &&
         t->length * 3 >= t->vectors * GROUP * 2;
}

static bool is_image(const choir_view_t* view, choir_dtype_t dtype) {
  return view->ndim == 4 && view->dtype == dtype && choir_view_count(view) > 0;
}

// Sources of f32 or 16 bits, results of theirs or f32.
static bool dtypes_fit(const choir_record_t* record) {
  const choir_dtype_t dtype = choir_record_src(record, 4)->dtype;
  if (dtype != CHOIR_DTYPE_F32 && !choir__is_narrow(dtype)) return false;
  for (int32_t i = 0; i < 5; i++)
    if (!is_image(choir_record_src(record, i), i == 1 ? CHOIR_DTYPE_U8 : dtype))
      return false;
  for (int32_t i = 0; i < record->dst_count; i++) {
    const choir_dtype_t result = choir_record_dst(record, i)->dtype;
    if (result != dtype && result != CHOIR_DTYPE_F32) return false;
  }
  return true;
}

static bool has_pixels(const choir_view_t* view) {
  return view->strides[1] == 1 || view->shape[1] == 1;
}

static bool argmax_fit(const choir_record_t* record, argmax_kind_t kind) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const operands_t o = operands_of(record, kind);
  if (attrs->conv.groups != 1 || !dtypes_fit(record)) return false;
  const choir__conv2d_t conv = choir__conv2d_of(o.x, o.w, &attrs->conv);
  for (int k = 0; k < 2; k++)
    if (conv.stride[k] != 1 || conv.dilation[k] != 1 ||
        conv.padding[k] != conv.after[k])
      return false;
  if (choir__pool2d_is_padded(conv.out, &attrs->pool)) return false;
  if (kind == DATA && !has_pixels(o.x)) return false;
  choir__argmax_t t;
  plan_patches(&o, kind, &t);
  const int64_t padded = (conv.size[0] + 2 * conv.padding[0]) *
                         (conv.size[1] + 2 * conv.padding[1]);
  const int64_t weights = o.w->shape[0] * t.groups * t.vectors * GROUP;
  if (record->segment > 0 &&
      (record->segment > LEAST_SAMPLES || record->accumulate ||
       (o.x->shape[0] / record->segment + 1) *
               (weights + to_lines(o.w->shape[0])) >
           PIECES_BYTES / (int64_t)sizeof(float)))
    return false;
  return padded * (o.x->shape[1] + t.vectors * GROUP) < MOST_ELEMENTS &&
         choir_view_count(o.argmax) / o.argmax->shape[0] *
                 CHOIR__ARGMAX_SAMPLES <
             MOST_ELEMENTS &&
         weights * (int64_t)sizeof(float) <= PIECES_BYTES / 2 &&
         is_quicker(&t, attrs);
}

// ---- One call ----

typedef struct call_s {
  choir__argmax_t t;
  const choir__argmax_loops_t* loops;
  choir_allocator_t pool;
  int64_t samples;
  int64_t segment;  // of the record
  int64_t pieces;
  float* sums;  // (pieces, sums of a piece)
  int64_t sums_count, bias_count;
  // An image or a filter holds NaN or an infinity: see run_apart.
  atomic_bool has_nonfinite;
} call_t;

static const choir__argmax_loops_t* best_loops(void) {
#if defined(__x86_64__)
  switch (choir__isa()) {
    case CHOIR__ISA_AVX512:
      return &choir__argmax_loops_avx512;
    case CHOIR__ISA_AVX2:
      return &choir__argmax_loops_avx2;
    default:
      break;
  }
#endif
  return &choir__argmax_loops_base;
}

// Without their signs, infinities and NaN have the largest bits of all.
CHOIR__BODY void find_largest_body(const float* from, int64_t count,
                                   uint32_t* out_bits) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, from + i, sizeof bits);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  *out_bits = largest;
}
CHOIR__ISA_VARIANTS(find_largest,
                    (const float* from, int64_t count, uint32_t* out_bits),
                    (from, count, out_bits))

static void find_nonfinite(call_t* call, const float* from, int64_t count) {
  uint32_t bits;
  find_largest(from, count, &bits);
  if (bits >= 0x7f800000u)
    atomic_store_explicit(&call->has_nonfinite, true, memory_order_relaxed);
}

static bool has_nonfinite(const call_t* call) {
  return atomic_load_explicit(&call->has_nonfinite, memory_order_relaxed);
}

static void* take(const call_t* call, size_t bytes) {
  return call->pool.alloc(call->pool.self, bytes, 64);
}
static void give(const call_t* call, void* memory, size_t bytes) {
  if (memory) call->pool.free(call->pool.self, memory, bytes, 64);
}

// Cuts one block of memory into parts, each at an address of 64 bytes. The
// first round, at NULL, tells the bytes.
typedef struct cutter_s {
  char* memory;
  size_t bytes;
} cutter_t;

static void* cut(cutter_t* cutter, int64_t count, size_t element) {
  void* part = cutter->memory ? cutter->memory + cutter->bytes : NULL;
  cutter->bytes += ((size_t)count * element + 63) / 64 * 64;
  return part;
}

static void describe(const choir_record_t* record, argmax_kind_t kind,
                     const choir__pixels_t* x, const choir__pixels_t* argmax,
                     const choir__pixels_t* y, const choir__pixels_t* dy,
                     call_t* call) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const operands_t o = operands_of(record, kind);
  const choir__conv2d_t conv = choir__conv2d_of(o.x, o.w, &attrs->conv);
  choir__argmax_t* t = &call->t;
  t->x = (choir__argmax_image_t){x->data,
                                 x->view.dtype,
                                 x->view.strides[0],
                                 x->view.strides[2],
                                 x->view.strides[3],
                                 x->view.shape[2],
                                 x->view.shape[3],
                                 x->view.shape[1]};
  for (int k = 0; k < 2; k++) {
    t->kernel[k] = o.w->shape[2 + k];
    t->padding[k] = conv.padding[k];
    t->out[k] = conv.out[k];
    t->pooled[k] = o.dy->shape[2 + k];
    t->window[k] = attrs->pool.kernel[k];
    t->window_stride[k] = attrs->pool.stride[k];
  }
  static const int order[] = {0, 2, 3};
  for (int k = 0; k < 3; k++) {
    t->argmax_strides[k] = argmax->view.strides[order[k]];
    t->y_strides[k] = y->view.strides[order[k]];
    t->dy_strides[k] = dy->view.strides[order[k]];
  }
  t->filters = o.w->shape[0];
  t->argmax = argmax->data;
  t->y = attrs->conv.activation == CHOIR_ACTIVATION_RELU ? y->data : NULL;
  t->dy = dy->data;
  t->dtype = dy->view.dtype;
  t->accumulate = record->accumulate;
  plan_patches(&o, kind, t);
  call->samples = o.x->shape[0];
}

static choir__argmax_rows_t cut_rows(const choir__argmax_t* t,
                                     cutter_t* cutter) {
  if (!choir__is_narrow(t->dtype)) return (choir__argmax_rows_t){NULL, NULL};
  float* y = cut(cutter, choir__argmax_row(t), sizeof(float));
  float* dy = cut(cutter, choir__argmax_row(t), sizeof(float));
  return (choir__argmax_rows_t){y, dy};
}

// ---- Data ----

static void cut_lists(const choir__argmax_t* t, cutter_t* cutter,
                      choir__argmax_lists_t* lists) {
  const int64_t gradients =
      CHOIR__ARGMAX_SAMPLES * choir__argmax_places(t) * t->filters + GROUP;
  const int64_t starts =
      choir__argmax_places(t) * t->window[0] * t->window[1] + 1;
  lists->rows = cut_rows(t, cutter);
  lists->images = cut(cutter, CHOIR__ARGMAX_SAMPLES * choir__argmax_image(t),
                      sizeof(float));
  lists->gradients = cut(cutter, t->filters, sizeof(float));
  lists->offsets = cut(cutter, gradients, sizeof(int32_t));
  lists->list_gradients = cut(cutter, gradients, sizeof(float));
  lists->starts = cut(cutter, CHOIR__ARGMAX_SAMPLES * starts, sizeof(int32_t));
}

// Pairs of samples.
static void data_range(void* context, void* memory, int64_t begin,
                       int64_t end) {
  const call_t* call = context;
  cutter_t cutter = {memory, 0};
  choir__argmax_lists_t lists;
  cut_lists(&call->t, &cutter, &lists);
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = i * CHOIR__ARGMAX_SAMPLES;
    const int64_t left = call->samples - first;
    const int64_t last =
        first + (left < CHOIR__ARGMAX_SAMPLES ? left : CHOIR__ARGMAX_SAMPLES);
    call->loops->data(&call->t, first, last, &lists);
  }
}

static void pack_weights(const choir_view_t* w, const float* src,
                         const choir__argmax_t* t, float* to) {
  const int64_t channels = t->x.channels;
  for (int64_t ky = 0; ky < t->kernel[0]; ky++) {
    for (int64_t b = 0; b < choir__argmax_blocks(t); b++) {
      const int64_t first = choir__argmax_block_start(t, b) * GROUP;
      const int64_t end = choir__argmax_block_start(t, b + 1) * GROUP;
      for (int64_t f = 0; f < t->filters; f++) {
        const float* from = src + f * w->strides[0] + ky * w->strides[2];
        int64_t kx = first / channels, c = first % channels;
        for (int64_t i = first; i < end; i++) {
          *to++ =
              i < t->length ? from[kx * w->strides[3] + c * w->strides[1]] : 0;
          if (++c == channels) {
            c = 0;
            kx++;
          }
        }
      }
    }
  }
}

static choir_status_t run_data(call_t* call, choir_stream_t* stream,
                               const choir_view_t* w) {
  choir__argmax_t* t = &call->t;
  const size_t bytes =
      (size_t)(t->groups * t->filters * t->vectors * GROUP) * sizeof(float);
  choir__floats_t floats;
  CHOIR_TRY(choir__floats_take(w, stream, &floats));
  float* weights = take(call, bytes);
  if (weights) pack_weights(w, floats.data, t, weights);
  choir__floats_give(&floats, stream);
  if (!weights)
    return CHOIR_ERROR(OUT_OF_MEMORY, "convolution: no %zu bytes for weights",
                       bytes);
  find_nonfinite(call, weights, bytes / sizeof(float));
  t->weights = weights;
  const int64_t pairs =
      (call->samples + CHOIR__ARGMAX_SAMPLES - 1) / CHOIR__ARGMAX_SAMPLES;
  cutter_t cutter = {NULL, 0};
  cut_lists(t, &cutter, &(choir__argmax_lists_t){0});
  choir_status_t status = NULL;
  if (!has_nonfinite(call))
    status = choir__cpu_parallel_scratch(stream, pairs, 1, cutter.bytes,
                                         data_range, call);
  give(call, weights, bytes);
  return status;
}

// ---- Weights ----

static void cut_scratch(const choir__argmax_t* t, cutter_t* cutter,
                        choir__argmax_scratch_t* scratch) {
  const int64_t gradients = choir__argmax_gradients(t);
  scratch->rows = cut_rows(t, cutter);
  scratch->image = cut(cutter, choir__argmax_image(t), sizeof(float));
  scratch->patches = cut(cutter, choir__argmax_patches(t), sizeof(float));
  scratch->offsets = cut(cutter, gradients, sizeof(int32_t));
  scratch->gradients = cut(cutter, gradients, sizeof(float));
  scratch->list_offsets = cut(cutter, gradients, sizeof(int32_t));
  scratch->list_gradients = cut(cutter, gradients, sizeof(float));
  scratch->list_ends = cut(cutter, t->filters, sizeof(int64_t));
}

static int64_t piece_begin(const call_t* call, int64_t piece) {
  if (call->segment == 0) return call->samples * piece / call->pieces;
  const int64_t begin = piece * call->segment;
  return begin < call->samples ? begin : call->samples;
}

static void weight_range(void* context, void* memory, int64_t begin,
                         int64_t end) {
  call_t* call = context;
  const choir__argmax_t* t = &call->t;
  cutter_t cutter = {memory, 0};
  choir__argmax_scratch_t scratch;
  cut_scratch(t, &cutter, &scratch);
  memset(scratch.image, 0, (size_t)choir__argmax_image(t) * sizeof(float));
  // Lanes behind a patch are computed with, too: what lies there by chance may
  // be denormal numbers, which take a hundred times as long.
  memset(scratch.patches, 0, (size_t)choir__argmax_patches(t) * sizeof(float));
  for (int64_t piece = begin; piece < end; piece++) {
    scratch.sums = call->sums + piece * (call->sums_count + call->bias_count);
    scratch.bias = scratch.sums + call->sums_count;
    memset(scratch.sums, 0,
           (size_t)(call->sums_count + call->bias_count) * sizeof(float));
    const int64_t last = piece_begin(call, piece + 1);
    for (int64_t n = piece_begin(call, piece); n < last; n++) {
      if (has_nonfinite(call)) return;
      call->loops->weight(t, n, &scratch);
      find_nonfinite(call, scratch.image, choir__argmax_image(t));
    }
  }
}

// Sums of pieces become one: one after the other, or segments in a binary tree.
static void add_pieces(const call_t* call, choir_stream_t* stream) {
  const int64_t count = call->sums_count + call->bias_count;
  if (call->segment > 0) {
    choir__cpu_add_segments(call->sums, call->pieces, count,
                            choir__cpu_threads(stream));
    return;
  }
  for (int64_t piece = 1; piece < call->pieces; piece++)
    choir__cpu_sum_into(call->sums, call->sums + piece * count, count);
}

// One element of a result, which stands for `dtype` alone where it is inlined.
CHOIR__BODY void put(const choir_dtype_t dtype, void* to, int64_t i,
                     float value, bool accumulate) {
  switch (dtype) {
#define PUT(DTYPE)                                                    \
  case CHOIR_DTYPE_##DTYPE: {                                         \
    choir__##DTYPE##_t* at = (choir__##DTYPE##_t*)to + i;             \
    const float before = accumulate ? choir__##DTYPE##_load(*at) : 0; \
    *at = choir__##DTYPE##_store(before + value);                     \
    break;                                                            \
  }
    PUT(F32)
    CHOIR__NARROW_FLOATS(PUT)
#undef PUT
    default:
      break;
  }
}

CHOIR__BODY void write_filters(const call_t* call, const choir_view_t* dw,
                               const choir_dtype_t dtype) {
  const choir__argmax_t* t = &call->t;
  void* to = choir__view_data(dw);
  for (int64_t g = 0; g < t->groups; g++) {
    for (int64_t f = 0; f < t->filters; f++) {
      const float* sums =
          call->sums + (g * t->filters + f) * t->vectors * GROUP;
      for (int64_t k = 0; k < t->merged; k++) {
        int64_t at = f * dw->strides[0] + (g * t->merged + k) * dw->strides[2];
        for (int64_t x = 0; x < t->kernel[1]; x++, at += dw->strides[3])
          for (int64_t c = 0; c < t->x.channels; c++)
            put(dtype, to, at + c * dw->strides[1], *sums++, t->accumulate);
      }
    }
  }
}

static void write_weights(const call_t* call, const choir_view_t* dw,
                          const choir_view_t* db) {
  const float* bias = call->sums + call->sums_count;
  for (int64_t f = 0; f < call->t.filters; f++)
    put(db->dtype, choir__view_data(db), f * db->strides[0], bias[f],
        call->t.accumulate);
  switch (dw->dtype) {
#define WRITE(DTYPE)                              \
  case CHOIR_DTYPE_##DTYPE:                       \
    write_filters(call, dw, CHOIR_DTYPE_##DTYPE); \
    break;
    CHOIR__NARROW_FLOATS(WRITE)
#undef WRITE
    default:
      write_filters(call, dw, CHOIR_DTYPE_F32);
  }
}

static choir_status_t run_weight(call_t* call, choir_stream_t* stream,
                                 const choir_record_t* record) {
  const choir__argmax_t* t = &call->t;
  call->sums_count = t->groups * t->filters * t->vectors * GROUP;
  call->bias_count = to_lines(t->filters);
  const int64_t count = call->sums_count + call->bias_count;
  call->segment = record->segment;
  const int64_t least = call->segment > 0 ? call->segment : LEAST_SAMPLES;
  call->pieces = (call->samples + least - 1) / least;
  if (call->segment == 0 && call->pieces > MOST_PIECES)
    call->pieces = MOST_PIECES;
  const int64_t most = PIECES_BYTES / (count * (int64_t)sizeof(float));
  if (call->pieces > most) call->pieces = most > 1 ? most : 1;
  const size_t bytes = (size_t)(call->pieces * count) * sizeof(float);
  call->sums = take(call, bytes);
  if (!call->sums)
    return CHOIR_ERROR(OUT_OF_MEMORY, "convolution: no %zu bytes for sums",
                       bytes);
  cutter_t cutter = {NULL, 0};
  cut_scratch(t, &cutter, &(choir__argmax_scratch_t){0});
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, call->pieces, 1, cutter.bytes, weight_range, call);
  if (!status && !has_nonfinite(call)) {
    add_pieces(call, stream);
    write_weights(call, choir_record_dst(record, 0),
                  choir_record_dst(record, 1));
  }
  give(call, call->sums, bytes);
  return status;
}

// ---- Records that hold NaN or an infinity ----

// Times the zeros that the loops leave out these make NaN. So such a record is
// computed as the ops that it stands for, by their own kernels and in this
// order: a run that has diverged shall not become slow as well.

// Of y's height and width, or of any other.
static choir_status_t make_image(choir_stream_t* stream, const choir_view_t* y,
                                 const int64_t size[2],
                                 choir_tensor_t** out_image) {
  const int64_t shape[] = {y->shape[0], y->shape[1], size[0], size[1]};
  choir_view_t layout;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &layout));
  choir_view_set_channels_last(&layout);
  return choir_tensor_create_layout(choir_stream_device(stream), &layout,
                                    out_image);
}

static choir_status_t run_ops(const choir_record_t* record,
                              choir_stream_t* stream, argmax_kind_t kind,
                              const choir_view_t* masked,
                              const choir_view_t* image) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const choir_view_t* o =
      record->operands;  // x, argmax indices, W, y, dy; results
  const bool has_relu = attrs->conv.activation == CHOIR_ACTIVATION_RELU;
  const choir_view_t mask[] = {o[3], o[4], *masked};
  if (has_relu)
    CHOIR_TRY(choir__run_inside(
        CHOIR_OP_RELU_GRAD,
        &(choir_record_t){.operands = mask, .src_count = 2, .dst_count = 1},
        stream));
  const choir_view_t spread[] = {*image, o[1], has_relu ? *masked : o[4],
                                 *image};
  CHOIR_TRY(
      choir__run_inside(CHOIR_OP_MAX_POOL2D_GRAD,
                        &(choir_record_t){.operands = spread,
                                          .src_count = 3,
                                          .dst_count = 1,
                                          .attrs = &attrs->pool,
                                          .attrs_bytes = sizeof(attrs->pool)},
                        stream));
  const choir_view_t conv[] = {o[0], o[2], *image, o[5],
                               o[4 + record->dst_count]};
  return choir__run_inside(
      kind == DATA ? CHOIR_OP_CONV2D_GRAD_DATA : CHOIR_OP_CONV2D_GRAD_WEIGHT,
      &(choir_record_t){.operands = conv,
                        .src_count = 3,
                        .dst_count = record->dst_count,
                        .accumulate = record->accumulate,
                        .attrs = &attrs->conv,
                        .attrs_bytes = sizeof(attrs->conv)},
      stream);
}

// By kernels of f32.
static choir_status_t run_floats(const call_t* call,
                                 const choir_record_t* record,
                                 choir_stream_t* stream, argmax_kind_t kind) {
  const choir_view_t* dy = choir_record_src(record, 4);
  choir_tensor_t *masked = NULL, *image = NULL;
  choir_status_t status = make_image(stream, dy, dy->shape + 2, &masked);
  if (!status) status = make_image(stream, dy, call->t.out, &image);
  if (!status)
    status = run_ops(record, stream, kind, choir_tensor_view(masked),
                     choir_tensor_view(image));
  choir_tensor_release(masked);
  choir_tensor_release(image);
  return status;
}

static choir_status_t run_cast(choir_stream_t* stream, const choir_view_t* from,
                               const choir_view_t* to) {
  const choir_cast_attrs_t attrs = {.dtype = to->dtype};
  const choir_view_t operands[] = {*from, *to};
  return choir__run_inside(CHOIR_OP_CAST,
                           &(choir_record_t){.operands = operands,
                                             .src_count = 1,
                                             .dst_count = 1,
                                             .attrs = &attrs,
                                             .attrs_bytes = sizeof attrs},
                           stream);
}

// Operand i in f32; `reads`: with its values.
static choir_status_t widen(choir_stream_t* stream, const choir_view_t* view,
                            bool reads, choir_tensor_t** out_made) {
  choir_view_t wide = *view;
  wide.dtype = CHOIR_DTYPE_F32;
  choir_view_set_layout_like(&wide, view);
  CHOIR_TRY(
      choir_tensor_create_layout(choir_stream_device(stream), &wide, out_made));
  return reads ? run_cast(stream, view, choir_tensor_view(*out_made)) : NULL;
}

static choir_status_t run_apart(const call_t* call,
                                const choir_record_t* record,
                                choir_stream_t* stream, argmax_kind_t kind) {
  const int32_t count = record->src_count + record->dst_count;
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  choir_tensor_t* made[CHOIR_MAX_OPERANDS] = {NULL};
  choir_status_t status = NULL;
  for (int32_t i = 0; i < count && !status; i++) {
    operands[i] = record->operands[i];
    if (!choir__is_narrow(operands[i].dtype)) continue;
    const bool is_shape = i == (kind == DATA ? 0 : 2);
    status =
        widen(stream, &record->operands[i],
              i < record->src_count ? !is_shape : record->accumulate, &made[i]);
    if (!status) operands[i] = *choir_tensor_view(made[i]);
  }
  choir_record_t wide = *record;
  wide.operands = operands;
  if (!status) status = run_floats(call, &wide, stream, kind);
  for (int32_t i = record->src_count; i < count && !status; i++)
    if (made[i]) status = run_cast(stream, &operands[i], &record->operands[i]);
  for (int32_t i = 0; i < count; i++) choir_tensor_release(made[i]);
  return status;
}

static choir_status_t argmax_run(const choir_record_t* record,
                                 choir_stream_t* stream, argmax_kind_t kind);

// Segments first .. first + count - 1, each by itself: the first half and the
// rest, and then both.
static choir_status_t run_halves(const choir_record_t* record,
                                 choir_stream_t* stream, int64_t first,
                                 int64_t count) {
  choir_view_t operands[CHOIR_MAX_OPERANDS];
  choir_record_t one = *record;
  memcpy(operands, record->operands,
         (size_t)(record->src_count + record->dst_count) * sizeof *operands);
  one.operands = operands;
  if (count == 1) {
    const int64_t begin = first * record->segment;
    one.segment = 0;
    for (int32_t i = 0; i < record->src_count; i++) {
      if (i == 2) continue;  // the filters
      operands[i].offset += begin * operands[i].strides[0];
      operands[i].shape[0] -= begin;
      if (operands[i].shape[0] > record->segment)
        operands[i].shape[0] = record->segment;
    }
    return argmax_run(&one, stream, WEIGHT);
  }
  int64_t half = 1;
  while (half * 2 < count) half *= 2;
  CHOIR_TRY(run_halves(record, stream, first, half));
  choir_tensor_t* made[2] = {NULL};
  choir_status_t status = NULL;
  for (int32_t i = 0; i < 2 && !status; i++) {
    status = choir_tensor_create_layout(choir_stream_device(stream),
                                        choir_record_dst(record, i), &made[i]);
    if (!status) operands[record->src_count + i] = *choir_tensor_view(made[i]);
  }
  if (!status) status = run_halves(&one, stream, first + half, count - half);
  for (int32_t i = 0; i < 2 && !status; i++) {
    const choir_view_t both[] = {*choir_record_dst(record, i),
                                 operands[record->src_count + i],
                                 *choir_record_dst(record, i)};
    status = choir__run_inside(
        CHOIR_OP_ADD,
        &(choir_record_t){.operands = both, .src_count = 2, .dst_count = 1},
        stream);
  }
  for (int32_t i = 0; i < 2; i++) choir_tensor_release(made[i]);
  return status;
}

// ---- Records ----

static choir_status_t argmax_run(const choir_record_t* record,
                                 choir_stream_t* stream, argmax_kind_t kind) {
  const operands_t o = operands_of(record, kind);
  choir__pixels_t x = {.copy = NULL}, y = {.copy = NULL};
  choir__pixels_t argmax = {.copy = NULL}, dy = {.copy = NULL};
  call_t call;
  memset(&call, 0, sizeof(call));
  call.loops = best_loops();
  call.pool = choir_device_allocator(choir_stream_device(stream));
  choir_status_t status = NULL;
  if (kind == DATA)
    x = (choir__pixels_t){.view = *o.x, .data = choir__view_data(o.x)};
  else
    status = choir__pixels_take(o.x, stream, &x);
  if (!status) status = choir__pixels_take(o.argmax, stream, &argmax);
  if (!status) status = choir__pixels_take(o.y, stream, &y);
  if (!status) status = choir__pixels_take(o.dy, stream, &dy);
  if (!status) {
    describe(record, kind, &x, &argmax, &y, &dy, &call);
    status = kind == DATA ? run_data(&call, stream, o.w)
                          : run_weight(&call, stream, record);
  }
  choir__pixels_give(&dy, stream);
  choir__pixels_give(&y, stream);
  choir__pixels_give(&argmax, stream);
  choir__pixels_give(&x, stream);
  if (status || !has_nonfinite(&call)) return status;
  return record->segment > 0 ? run_halves(record, stream, 0, call.pieces)
                             : run_apart(&call, record, stream, kind);
}

#define ARGMAX(OP, name, kind, DEFINE)                                  \
  static bool name##_argmax_supports(const choir_record_t* record) {    \
    return argmax_fit(record, kind);                                    \
  }                                                                     \
  static choir_status_t name##_argmax_run(const choir_record_t* record, \
                                          choir_stream_t* stream) {     \
    return argmax_run(record, stream, kind);                            \
  }                                                                     \
  const choir_op_kernel_t choir__cpu_##name##_argmax =                  \
      DEFINE(OP, #name, "argmax", name##_argmax_run, name##_argmax_supports);

ARGMAX(CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA, conv2d_max_pool2d_grad_data, DATA,
       CHOIR_OP_KERNEL)
ARGMAX(CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT, conv2d_max_pool2d_grad_weight,
       WEIGHT, CHOIR_OP_SEGMENTS_KERNEL)
