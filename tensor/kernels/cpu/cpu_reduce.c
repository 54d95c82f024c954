// SPDX-License-Identifier: Apache-2.0
// Sums, means, maxima over all elements or one axis, and the place of a
// maximum. A sum is taken in f32 over short pieces, the pieces' sums in
// double; pieces do not depend on the number of threads, so neither do bits.
// Sources of 16 bits are brought to f32 piece by piece, within the L1 cache.
#include <math.h>

#include "tensor/kernels/cpu/cpu_elementwise.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

#define PIECE 4096   // elements of a row that are summed in f32
#define ROWS 128     // rows of a matrix that are summed in f32
#define WIDTH 64     // columns that are summed at a time
#define CHUNK 65536  // elements of a full reduction that one thread takes
#define CHUNKS 256   // at most; longer inputs have longer chunks

typedef enum reduce_kind_e { SUM, MEAN, MAX, SUM_SQUARE } reduce_kind_t;

// NaN counts as larger than all.
CHOIR__BODY float larger(float a, float b) { return a > b || a != a ? a : b; }

// ---- Loops ----

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_reduce_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

CHOIR__ISA_SELECT(row_sum, (const float* x, int64_t n, double* out),
                  (x, n, out))
CHOIR__ISA_SELECT(row_sum_square, (const float* x, int64_t n, double* out),
                  (x, n, out))
CHOIR__ISA_SELECT(row_max, (const float* x, int64_t n, double* out),
                  (x, n, out))
CHOIR__ISA_SELECT(columns_sum,
                  (const float* x, int64_t stride, int64_t rows, int64_t width,
                   double* out),
                  (x, stride, rows, width, out))
CHOIR__ISA_SELECT(columns_max,
                  (const float* x, int64_t stride, int64_t rows, int64_t width,
                   double* out),
                  (x, stride, rows, width, out))

// ---- The reduction as nest: operand 0 the source, operand 1 the result ----

typedef struct reduction_s {
  choir__nest_t nest;
  int32_t reduced;  // the dimension that goes; -1: all
  bool single;      // that dimension's size is 1: it is not in the nest
  reduce_kind_t kind;
  bool accumulate;
  choir_dtype_t x_dtype, y_dtype;
  const char* x;
  char* y;
  int64_t count;     // elements that make one result
  int64_t chunk;     // full reduction: elements of a chunk
  double* partials;  // full reduction: one a chunk
} reduction_t;

static bool is_computed_in_f32(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_F32 || choir__is_narrow(dtype);
}

static bool reduction_of(const choir_record_t* record, reduce_kind_t kind,
                         reduction_t* out) {
  const choir_reduce_attrs_t* attrs = record->attrs;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  out->x_dtype = src->dtype;
  out->y_dtype = dst->dtype;
  if (!is_computed_in_f32(src->dtype) || !is_computed_in_f32(dst->dtype))
    return false;
  out->kind = kind;
  out->single = false;
  out->accumulate = record->accumulate;
  const int32_t axis = (int32_t)attrs->axis;
  if (axis < 0 || src->ndim == 0) {
    if (!choir__nest_make(&src, 1, &out->nest)) return false;
    out->reduced = -1;
    out->count = out->nest.count;
    const choir__nest_t* nest = &out->nest;
    return nest->ndim == 2 && nest->shape[0] == 1 && nest->strides[0][1] == 1 &&
           out->count > 0;
  }
  // The result with its reduced dimension as one that does not move.
  choir_view_t spread = *src;
  for (int32_t k = 0, from = 0; k < src->ndim; k++) {
    if (k == axis) {
      spread.strides[k] = 0;
      if (attrs->keep_dims) from++;
      continue;
    }
    spread.strides[k] = dst->strides[from++];
  }
  const choir_view_t* views[] = {src, &spread};
  if (!choir__nest_make(views, 2, &out->nest)) return false;
  choir__nest_t* nest = &out->nest;
  out->count = src->shape[axis];
  if (nest->count == 0) return false;
  if (out->count == 1) {
    // Nothing to add up: columns of one row.
    out->reduced = nest->ndim - 1;
    out->single = true;
    return kind != SUM_SQUARE && nest->strides[0][out->reduced] == 1;
  }
  out->reduced = -1;
  for (int32_t k = 0; k < nest->ndim; k++)
    if (nest->shape[k] > 1 && nest->strides[1][k] == 0) {
      if (out->reduced >= 0) return false;
      out->reduced = k;
    }
  // Squares of columns nobody asks for.
  if (kind == SUM_SQUARE && out->reduced != nest->ndim - 1) return false;
  return out->reduced >= 0 && nest->strides[0][nest->ndim - 1] == 1;
}

// Source and result from element `at` on.
static const char* source_at(const reduction_t* task, int64_t at) {
  return task->x + at * (int64_t)choir_dtype_bytes(task->x_dtype);
}
static void* result_at(const reduction_t* task, int64_t at) {
  return task->y + at * (int64_t)choir_dtype_bytes(task->y_dtype);
}

static void store(const reduction_t* task, int64_t at, double value) {
  void* y = result_at(task, at);
  if (task->kind == MEAN) value /= (double)task->count;
  if (task->y_dtype != CHOIR_DTYPE_F32) {
    const double before =
        task->accumulate ? choir_element_load(y, task->y_dtype) : 0;
    choir_element_store(y, task->y_dtype, before + value);
    return;
  }
  float* f32 = y;
  *f32 = (float)(task->accumulate ? (double)*f32 + value : value);
}

static void reduce_floats(reduce_kind_t kind, const float* x, int64_t n,
                          double* out) {
  if (kind == MAX)
    row_max(x, n, out);
  else if (kind == SUM_SQUARE)
    row_sum_square(x, n, out);
  else
    row_sum(x, n, out);
}

// Results of pieces: those of what is all of them.
static void combine(reduce_kind_t kind, const double* piece, int64_t n,
                    double* values) {
  for (int64_t i = 0; i < n; i++) {
    const bool is_larger = piece[i] > values[i] || piece[i] != piece[i];
    if (kind != MAX)
      values[i] += piece[i];
    else if (is_larger)
      values[i] = piece[i];
  }
}

static void reduce_row(const reduction_t* task, int64_t x, int64_t n,
                       double* out) {
  if (task->x_dtype == CHOIR_DTYPE_F32) {
    reduce_floats(task->kind, (const float*)task->x + x, n, out);
    return;
  }
  float floats[PIECE];
  *out = task->kind == MAX ? -INFINITY : 0;
  for (int64_t i = 0; i < n; i += PIECE) {
    const int64_t count = n - i < PIECE ? n - i : PIECE;
    double value;
    choir__cpu_load_f32(task->x_dtype, floats, source_at(task, x + i), 1,
                        count);
    reduce_floats(task->kind, floats, count, &value);
    combine(task->kind, &value, 1, out);
  }
}

static void full_range(void* context, int64_t begin, int64_t end) {
  const reduction_t* task = context;
  for (int64_t i = begin; i < end; i++) {
    const int64_t from = i * task->chunk;
    const int64_t left = task->count - from;
    const int64_t n = left < task->chunk ? left : task->chunk;
    reduce_row(task, from, n, &task->partials[i]);
  }
}

// Offsets of place `index` among all dimensions but two.
static void locate(const choir__nest_t* nest, int32_t skip, int32_t also,
                   int64_t index, int64_t* x, int64_t* y) {
  *x = *y = 0;
  for (int32_t k = nest->ndim - 1; k >= 0; k--) {
    if (k == skip || k == also) continue;
    const int64_t at = index % nest->shape[k];
    index /= nest->shape[k];
    *x += at * nest->strides[0][k];
    *y += at * nest->strides[1][k];
  }
}

// Rows are dense: one result each.
static void rows_range(void* context, int64_t begin, int64_t end) {
  const reduction_t* task = context;
  const choir__nest_t* nest = &task->nest;
  const int32_t last = nest->ndim - 1;
  for (int64_t i = begin; i < end; i++) {
    int64_t x, y;
    double value;
    locate(nest, last, last, i, &x, &y);
    reduce_row(task, x, task->count, &value);
    store(task, y, value);
  }
}

static void reduce_float_columns(reduce_kind_t kind, const float* x,
                                 int64_t stride, int64_t rows, int64_t width,
                                 double* out) {
  if (kind == MAX)
    columns_max(x, stride, rows, width, out);
  else
    columns_sum(x, stride, rows, width, out);
}

// Up to WIDTH columns from element x on.
static void reduce_columns(const reduction_t* task, int64_t x, int64_t stride,
                           int64_t width, double* out) {
  if (task->x_dtype == CHOIR_DTYPE_F32) {
    reduce_float_columns(task->kind, (const float*)task->x + x, stride,
                         task->count, width, out);
    return;
  }
  float floats[ROWS * WIDTH];
  double piece[WIDTH];
  for (int64_t c = 0; c < width; c++)
    out[c] = task->kind == MAX ? -INFINITY : 0;
  for (int64_t r = 0; r < task->count; r += ROWS) {
    const int64_t rows = task->count - r < ROWS ? task->count - r : ROWS;
    for (int64_t k = 0; k < rows; k++)
      choir__cpu_load_f32(task->x_dtype, floats + k * WIDTH,
                          source_at(task, x + (r + k) * stride), 1, width);
    reduce_float_columns(task->kind, floats, WIDTH, rows, width, piece);
    combine(task->kind, piece, width, out);
  }
}

// Columns are dense: WIDTH results at a time.
static void columns_range(void* context, int64_t begin, int64_t end) {
  const reduction_t* task = context;
  const choir__nest_t* nest = &task->nest;
  const int32_t last = nest->ndim - 1;
  const int64_t columns = nest->shape[last];
  const int64_t blocks = (columns + WIDTH - 1) / WIDTH;
  for (int64_t i = begin; i < end; i++) {
    int64_t x, y;
    double values[WIDTH];
    locate(nest, last, task->reduced, i / blocks, &x, &y);
    const int64_t first = i % blocks * WIDTH;
    const int64_t left = columns - first;
    const int64_t width = left < WIDTH ? left : WIDTH;
    reduce_columns(task, x + first, nest->strides[0][task->reduced], width,
                   values);
    for (int64_t c = 0; c < width; c++)
      store(task, y + (first + c) * nest->strides[1][last], values[c]);
  }
}

static choir_status_t reduce_run(const choir_record_t* record,
                                 choir_stream_t* stream, reduce_kind_t kind) {
  reduction_t task;
  if (!reduction_of(record, kind, &task))
    return CHOIR_ERROR(INTERNAL, "%s: layout not supported",
                       record->kernel->name);
  task.x = choir__view_data(choir_record_src(record, 0));
  task.y = choir__view_data(choir_record_dst(record, 0));
  const int32_t threads = choir__cpu_threads(stream);
  const choir__nest_t* nest = &task.nest;
  if (task.reduced < 0) {
    double partials[CHUNKS];
    int64_t chunks = (task.count + CHUNK - 1) / CHUNK;
    if (chunks > CHUNKS) chunks = CHUNKS;
    task.chunk = (task.count + chunks - 1) / chunks;
    chunks = (task.count + task.chunk - 1) / task.chunk;
    task.partials = partials;
    choir__cpu_parallel(threads, chunks, 1, full_range, &task);
    double value = partials[0];
    for (int64_t i = 1; i < chunks; i++) combine(kind, &partials[i], 1, &value);
    store(&task, 0, value);
  } else if (task.reduced == nest->ndim - 1 && !task.single) {
    const int64_t grain = CHOIR__CPU_GRAIN / task.count;
    choir__cpu_parallel(threads, nest->count / task.count,
                        grain > 1 ? grain : 1, rows_range, &task);
  } else {
    const int64_t columns = nest->shape[nest->ndim - 1];
    const int64_t blocks = (columns + WIDTH - 1) / WIDTH;
    const int64_t grain = CHOIR__CPU_GRAIN / WIDTH / task.count;
    choir__cpu_parallel(threads, nest->count / task.count / columns * blocks,
                        grain > 1 ? grain : 1, columns_range, &task);
  }
  return NULL;
}

#define REDUCE(OP, name, kind)                                   \
  static bool name##_supports(const choir_record_t* record) {    \
    reduction_t task;                                            \
    return reduction_of(record, kind, &task);                    \
  }                                                              \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    return reduce_run(record, stream, kind);                     \
  }                                                              \
  const choir_op_kernel_t choir__cpu_##name =                    \
      CHOIR_OP_KERNEL(OP, #name, "cpu", name##_run, name##_supports);
REDUCE(CHOIR_OP_SUM, sum, SUM)
REDUCE(CHOIR_OP_MEAN, mean, MEAN)
REDUCE(CHOIR_OP_SUM_SQUARE, sum_square, SUM_SQUARE)
REDUCE(CHOIR_OP_MAX, max, MAX)

// ---- argmax along a dense last axis ----

typedef struct argmax_s {
  const float* x;
  int64_t* y;
  int64_t row_stride;
  int64_t dst_stride;
  int64_t columns;
} argmax_t;

static void argmax_range(void* context, int64_t begin, int64_t end) {
  const argmax_t* task = context;
  for (int64_t r = begin; r < end; r++) {
    const float* row = task->x + r * task->row_stride;
    double most;
    int64_t at = 0;
    row_max(row, task->columns, &most);
    if (most != most)
      while (row[at] == row[at]) at++;
    else
      while ((double)row[at] != most) at++;
    task->y[r * task->dst_stride] = at;
  }
}

static bool argmax_supports(const choir_record_t* record) {
  const choir_reduce_attrs_t* attrs = record->attrs;
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  return !record->accumulate && src->dtype == CHOIR_DTYPE_F32 &&
         dst->dtype == CHOIR_DTYPE_I64 && src->ndim == 2 && attrs->axis == 1 &&
         src->shape[0] > 0 && src->shape[1] > 0 &&
         (src->strides[1] == 1 || src->shape[1] == 1);
}

static choir_status_t argmax_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  const choir_view_t* src = choir_record_src(record, 0);
  const choir_view_t* dst = choir_record_dst(record, 0);
  argmax_t task = {choir__view_f32(src), choir__view_data(dst), src->strides[0],
                   dst->strides[0], src->shape[1]};
  const int64_t grain = CHOIR__CPU_GRAIN / task.columns;
  choir__cpu_parallel(choir__cpu_threads(stream), src->shape[0],
                      grain > 1 ? grain : 1, argmax_range, &task);
  return NULL;
}
CHOIR__CPU_OP_KERNEL(ARGMAX, argmax, "cpu", argmax_run, argmax_supports)
