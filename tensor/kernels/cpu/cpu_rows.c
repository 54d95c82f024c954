// SPDX-License-Identifier: Apache-2.0
// Softmax and norms of rows, and their gradients. Few rows are long, so the
// loops run along a row. They compute in f32: rows of 16 bits are widened some
// at a time, within the L1 cache.
#include "tensor/kernels/cpu/cpu_rows.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_elementwise.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/element_math.h"

typedef choir__rows_t rows_t;
typedef void (*rows_fn_t)(const rows_t* rows, int64_t begin, int64_t end);

// A normalised row is (x - mean) factor - offset.
typedef struct moments_s {
  float mean, factor, offset;
} moments_t;

// The means of g and of g times the normalised row, g = dy scale.
typedef struct slopes_s {
  float mean_g, mean_gn;
} slopes_t;

// Rows whose gradients are made side by side, and their most
// columns.
enum { GROUP = 4, MOST_GROUPED = 512 };

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_rows_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

#define ROWS_LOOP(name)                                                     \
  CHOIR__ISA_SELECT(name, (const rows_t* rows, int64_t begin, int64_t end), \
                    (rows, begin, end))
ROWS_LOOP(softmax_rows)
ROWS_LOOP(softmax_grad_rows)
ROWS_LOOP(norm_rows)
ROWS_LOOP(norm_grad_rows)

void choir__cpu_softmax_rows(const rows_t* rows, int64_t begin, int64_t end) {
  softmax_rows(rows, begin, end);
}

// ---- Operands ----

bool choir__rows_fit(const choir_view_t* view) {
  const int32_t last = view->ndim - 1;
  if (view->ndim < 1 || choir_view_count(view) == 0) return false;
  if (view->ndim > 2) return choir_view_is_contiguous(view);
  return view->strides[last] == 1 || view->shape[last] == 1;
}

static bool is_computed_in_f32(const choir_view_t* view) {
  return choir_dtype_is_float(view->dtype) && view->dtype != CHOIR_DTYPE_F64;
}

// ---- A call: rows of any dtype ----

// Sources x and dy (NULL: none) and the result in memory, and the loop. `rows`
// has all but these.
typedef struct call_s {
  rows_t rows;
  rows_fn_t fn;
  const choir_view_t *x, *dy, *y;
  bool accumulate;
  int64_t block;  // rows that are brought to f32 at once; 0: none is
  // Norms' gradients.
  int64_t pieces;
  float* sums;
} call_t;

static void* row_at(const choir_view_t* view, int64_t row) {
  return (char*)choir__view_data(view) +
         row * choir__row_stride(view) *
             (int64_t)choir_dtype_bytes(view->dtype);
}

// Rows one behind the other are as one.
static void join_rows(const choir_view_t* view, int64_t* count,
                      int64_t* columns) {
  if (choir__row_stride(view) != *columns) return;
  *columns *= *count;
  *count = 1;
}

static void load_rows(const choir_view_t* view, int64_t first, int64_t count,
                      int64_t columns, float* to) {
  join_rows(view, &count, &columns);
  for (int64_t r = 0; r < count; r++)
    choir__cpu_load_f32(view->dtype, to + r * columns, row_at(view, first + r),
                        1, columns);
}

static void store_rows(const choir_view_t* view, int64_t first, int64_t count,
                       int64_t columns, const float* from) {
  join_rows(view, &count, &columns);
  for (int64_t r = 0; r < count; r++)
    choir__cpu_store_f32(view->dtype, row_at(view, first + r),
                         from + r * columns, 1, columns);
}

static void run_rows(const call_t* call, rows_t rows, float* scratch,
                     int64_t begin, int64_t end) {
  if (!call->block) {
    call->fn(&rows, begin, end);
    return;
  }
  const int64_t n = rows.columns, room = call->block * n;
  rows.x = scratch;
  // A gradient may take the place of dy, element by element.
  rows.dy = rows.y = scratch + room;
  rows.x_stride = rows.dy_stride = rows.y_stride = n;
  for (int64_t r = begin; r < end; r += call->block) {
    const int64_t count = end - r < call->block ? end - r : call->block;
    load_rows(call->x, r, count, n, scratch);
    if (call->dy) load_rows(call->dy, r, count, n, scratch + room);
    call->fn(&rows, 0, count);
    if (call->accumulate) {
      load_rows(call->y, r, count, n, scratch);
      for (int64_t i = 0; i < count * n; i++) rows.y[i] += scratch[i];
    }
    store_rows(call->y, r, count, n, rows.y);
  }
}

static void rows_range(void* context, void* scratch, int64_t begin,
                       int64_t end) {
  const call_t* call = context;
  run_rows(call, call->rows, scratch, begin, end);
}

static call_t call_of(const choir_record_t* record, const choir_view_t* dy,
                      rows_fn_t fn) {
  // Two blocks of f32 and the rows of 16 bits: 21 of 32 KiB of an L1 cache.
  enum { BLOCK_ELEMENTS = 1536 };
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* y = choir_record_dst(record, 0);
  call_t call = {.fn = fn,
                 .x = x,
                 .dy = dy,
                 .y = y,
                 .accumulate = record->accumulate,
                 .rows = {.columns = x->shape[x->ndim - 1],
                          .x = choir__view_f32(x),
                          .x_stride = choir__row_stride(x),
                          .y = choir__view_f32(y),
                          .y_stride = choir__row_stride(y)}};
  if (dy) {
    call.rows.dy = choir__view_f32(dy);
    call.rows.dy_stride = choir__row_stride(dy);
  }
  if (x->dtype != CHOIR_DTYPE_F32 || record->accumulate) {
    const int64_t rows = BLOCK_ELEMENTS / call.rows.columns;
    call.block = rows > 1 ? rows : 1;
  }
  return call;
}

static size_t scratch_bytes(const call_t* call) {
  return (size_t)(2 * call->block * call->rows.columns) * sizeof(float);
}

static choir_status_t call_run(call_t* call, choir_stream_t* stream) {
  return choir__cpu_parallel_scratch(stream, choir__row_count(call->x),
                                     choir__row_grain(call->rows.columns),
                                     scratch_bytes(call), rows_range, call);
}

// ---- softmax, log_softmax and their gradients ----

static bool softmax_supports(const choir_record_t* record) {
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++)
    if (!is_computed_in_f32(&record->operands[i]) ||
        !choir__rows_fit(&record->operands[i]))
      return false;
  return true;
}

static choir_status_t softmax_any_run(const choir_record_t* record,
                                      choir_stream_t* stream, bool log) {
  const bool is_grad = record->src_count > 1;
  call_t call = call_of(record, is_grad ? choir_record_src(record, 1) : NULL,
                        is_grad ? softmax_grad_rows : softmax_rows);
  call.rows.log = log;
  return call_run(&call, stream);
}
static choir_status_t softmax_run(const choir_record_t* record,
                                  choir_stream_t* stream) {
  return softmax_any_run(record, stream, false);
}
static choir_status_t log_softmax_run(const choir_record_t* record,
                                      choir_stream_t* stream) {
  return softmax_any_run(record, stream, true);
}

// ---- layer_norm, rms_norm and their gradients ----

// The gradient adds up pieces of the rows apart from each other, so that
// threads can share them out and the bits are the same for any number.
enum { MOST_PIECES = 64, LEAST_ROWS = 64 };  // of a piece

// x, scale, and bias or dy.
static bool norm_supports(const choir_record_t* record) {
  const choir_view_t* x = choir_record_src(record, 0);
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++) {
    const choir_view_t* view = &record->operands[i];
    if (!is_computed_in_f32(view)) return false;
    const bool is_row = view->ndim == 1 && x->ndim > 1;
    if (!is_row && !choir__rows_fit(view)) return false;
  }
  return choir__rows_fit(x);
}

static void load_vector(const choir_view_t* view, float* to) {
  choir__cpu_load_f32(view->dtype, to, choir__view_data(view), view->strides[0],
                      view->shape[0]);
}

static int64_t piece_begin(const call_t* call, int64_t piece) {
  return choir__row_count(call->x) * piece / call->pieces;
}

static void pieces_range(void* context, void* scratch, int64_t begin,
                         int64_t end) {
  const call_t* call = context;
  for (int64_t piece = begin; piece < end; piece++) {
    rows_t rows = call->rows;
    rows.sums = call->sums + piece * 2 * rows.columns;
    memset(rows.sums, 0, (size_t)(2 * rows.columns) * sizeof(float));
    run_rows(call, rows, scratch, piece_begin(call, piece),
             piece_begin(call, piece + 1));
  }
}

// Sums number `which` of all pieces to destination which + 1.
static void give_sums(const choir_record_t* record, const call_t* call,
                      int32_t which) {
  const int64_t n = call->rows.columns;
  const choir_view_t* dst = choir_record_dst(record, which + 1);
  float* sums = call->sums + which * n;
  for (int64_t piece = 1; piece < call->pieces; piece++)
    for (int64_t i = 0; i < n; i++) sums[i] += sums[piece * 2 * n + i];
  if (record->accumulate) {
    float* before = call->sums + 2 * call->pieces * n;
    load_vector(dst, before);
    for (int64_t i = 0; i < n; i++) sums[i] += before[i];
  }
  choir__cpu_store_f32(dst->dtype, choir__view_data(dst), sums, dst->strides[0],
                       n);
}

static choir_status_t norm_any_run(const choir_record_t* record,
                                   choir_stream_t* stream, bool centred) {
  const choir_layer_norm_attrs_t* attrs = record->attrs;
  const bool is_grad = record->dst_count > 1;
  call_t call = call_of(record, is_grad ? choir_record_src(record, 2) : NULL,
                        is_grad ? norm_grad_rows : norm_rows);
  const int64_t n = call.rows.columns;
  const int64_t pieces = choir__row_count(call.x) / LEAST_ROWS;
  call.pieces = pieces < 1 ? 1 : (pieces < MOST_PIECES ? pieces : MOST_PIECES);
  call.rows.centred = centred;
  call.rows.epsilon = (float)attrs->epsilon;
  // Scale and bias; sums, and room for what they are added to.
  const size_t bytes =
      (size_t)(2 * n + (is_grad ? (2 * call.pieces + 1) * n : 0)) *
      sizeof(float);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(pool, bytes, record->operation->name, &memory));
  float* scale = memory;
  call.sums = scale + 2 * n;
  load_vector(choir_record_src(record, 1), scale);
  call.rows.scale = scale;
  choir_status_t status;
  if (is_grad) {
    status = choir__cpu_parallel_scratch(
        stream, call.pieces, 1, scratch_bytes(&call), pieces_range, &call);
    for (int32_t i = 0; !status && i < (centred ? 2 : 1); i++)
      give_sums(record, &call, i);
  } else {
    if (centred)
      load_vector(choir_record_src(record, 2), scale + n);
    else
      memset(scale + n, 0, (size_t)n * sizeof(float));
    call.rows.bias = scale + n;
    status = call_run(&call, stream);
  }
  choir_deallocate(pool, memory, bytes);
  return status;
}
static choir_status_t layer_norm_run(const choir_record_t* record,
                                     choir_stream_t* stream) {
  return norm_any_run(record, stream, true);
}
static choir_status_t rms_norm_run(const choir_record_t* record,
                                   choir_stream_t* stream) {
  return norm_any_run(record, stream, false);
}

#define KERNEL(OP, name, run, supports)       \
  const choir_op_kernel_t choir__cpu_##name = \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #name, "cpu", run, supports);
KERNEL(SOFTMAX, softmax, softmax_run, softmax_supports)
KERNEL(LOG_SOFTMAX, log_softmax, log_softmax_run, softmax_supports)
KERNEL(SOFTMAX_GRAD, softmax_grad, softmax_run, softmax_supports)
KERNEL(LOG_SOFTMAX_GRAD, log_softmax_grad, log_softmax_run, softmax_supports)
KERNEL(LAYER_NORM, layer_norm, layer_norm_run, norm_supports)
KERNEL(RMS_NORM, rms_norm, rms_norm_run, norm_supports)
KERNEL(LAYER_NORM_GRAD, layer_norm_grad, layer_norm_run, norm_supports)
KERNEL(RMS_NORM_GRAD, rms_norm_grad, rms_norm_run, norm_supports)
