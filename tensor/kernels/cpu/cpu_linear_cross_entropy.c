// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of the softmax of a product, by tiles of TILE_ROWS by
// TILE_COLUMNS logits. Forward, a row's largest logit and its sum go on from
// tile to tile. Backward makes each tile again, turns it to slopes by the row's
// sum, and adds what they give to dx and dW: of a tile of columns, all rows one
// after the other, so that its part of W and dW stays in the cache.
//
// Threads share the products and the rows of a tile.
#include <math.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_product.h"
#include "tensor/kernels/cpu/cpu_rows.h"
#include "tensor/kernels/element_math.h"
#include "tensor/ops/indices.h"

enum { TILE_ROWS = 256, TILE_COLUMNS = 256 };

// What is known of a row.
typedef struct row_s {
  double sum;          // of e^(logit - most)
  float most, chosen;  // the largest logit, and the label's
  int64_t label;
} row_t;

typedef struct tile_s {
  float* logits;  // (count, columns)
  row_t* rows;
  const float* sums;  // of the rows
  float factor;       // dy / n
  int64_t first;      // column of W
  int64_t count, columns;
} tile_t;

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_linear_cross_entropy_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"
#define RANGE_PARAMS (void* context, int64_t begin, int64_t end)
CHOIR__ISA_SELECT(sums_range, RANGE_PARAMS, (context, begin, end))
CHOIR__ISA_SELECT(slopes_range, RANGE_PARAMS, (context, begin, end))

// A matrix of dense rows.
typedef struct rows_s {
  float* data;
  int64_t ld;
} rows_t;

typedef struct run_s {
  rows_t x, w, dx, dw;  // the last two of gradients
  float* sums;
  int64_t n, d, c;
  bool transposed;  // w (c, d)
  bool accumulate;
  float factor;
  row_t* rows;    // n
  float* logits;  // a tile
  choir_stream_t* stream;
} run_t;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static rows_t rows_of(const choir_view_t* view) {
  const int64_t columns = view->shape[view->ndim - 1];
  const int64_t stride = choir__row_stride(view);
  return (rows_t){choir__view_f32(view), stride < columns ? columns : stride};
}

static run_t run_of(const choir_record_t* record, choir_stream_t* stream) {
  const choir_linear_cross_entropy_attrs_t* attrs = record->attrs;
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* w = choir_record_src(record, 2);
  const bool is_grad = record->src_count > 3;
  run_t run = {.x = rows_of(x),
               .w = rows_of(w),
               .sums = choir__view_f32(is_grad ? choir_record_src(record, 3)
                                               : choir_record_dst(record, 1)),
               .n = choir__row_count(x),
               .d = x->shape[x->ndim - 1],
               .c = w->shape[!attrs->transpose],
               .transposed = attrs->transpose,
               .accumulate = record->accumulate,
               .stream = stream};
  if (!is_grad) return run;
  run.dx = rows_of(choir_record_dst(record, 0));
  run.dw = rows_of(choir_record_dst(record, 1));
  run.factor = *choir__view_f32(choir_record_src(record, 4)) / (float)run.n;
  return run;
}

// Where column `first` of W (d, c) begins in w or dw.
static float* columns_at(const run_t* run, const rows_t* w, int64_t first) {
  return w->data + (run->transposed ? first * w->ld : first);
}

static tile_t tile_at(const run_t* run, int64_t row, int64_t column) {
  return (tile_t){.logits = run->logits,
                  .rows = run->rows + row,
                  .sums = run->sums + row,
                  .factor = run->factor,
                  .first = column,
                  .count = smaller(run->n - row, TILE_ROWS),
                  .columns = smaller(run->c - column, TILE_COLUMNS)};
}

// x W of the tile, then `range` of its rows.
static choir_status_t make_tile(const run_t* run, const tile_t* tile,
                                int64_t row,
                                void (*range)(void*, int64_t, int64_t)) {
  const choir__product_t product = {.a = {.ld = run->x.ld},
                                    .b = {run->w.ld, run->transposed},
                                    .c = {.ld = tile->columns},
                                    .m = tile->count,
                                    .n = tile->columns,
                                    .k = run->d};
  CHOIR_TRY(choir__cpu_product(&product, run->x.data + row * run->x.ld,
                               columns_at(run, &run->w, tile->first),
                               tile->logits, false, run->stream));
  choir__cpu_parallel(choir__cpu_threads(run->stream), tile->count,
                      choir__row_grain(tile->columns), range, (void*)tile);
  return NULL;
}

// dx += slopes W^T, dW += x^T slopes.
static choir_status_t add_gradients(const run_t* run, const tile_t* tile,
                                    int64_t row) {
  const float* x = run->x.data + row * run->x.ld;
  const bool is_first_column = tile->first == 0, is_first_row = row == 0;
  const choir__product_t to_x = {.a = {.ld = tile->columns},
                                 .b = {run->w.ld, !run->transposed},
                                 .c = {.ld = run->dx.ld},
                                 .m = tile->count,
                                 .n = run->d,
                                 .k = tile->columns};
  CHOIR_TRY(choir__cpu_product(
      &to_x, tile->logits, columns_at(run, &run->w, tile->first),
      run->dx.data + row * run->dx.ld, run->accumulate || !is_first_column,
      run->stream));
  // Of W (c, d) the transpose.
  const choir__matrix_t slopes = {tile->columns, run->transposed};
  const choir__matrix_t rows = {run->x.ld, !run->transposed};
  const choir__product_t to_w = {.a = run->transposed ? slopes : rows,
                                 .b = run->transposed ? rows : slopes,
                                 .c = {.ld = run->dw.ld},
                                 .m = run->transposed ? tile->columns : run->d,
                                 .n = run->transposed ? run->d : tile->columns,
                                 .k = tile->count};
  return choir__cpu_product(&to_w, run->transposed ? tile->logits : x,
                            run->transposed ? x : tile->logits,
                            columns_at(run, &run->dw, tile->first),
                            run->accumulate || !is_first_row, run->stream);
}

static choir_status_t run_tiles(const run_t* run, bool is_grad) {
  for (int64_t column = 0; column < run->c; column += TILE_COLUMNS) {
    for (int64_t row = 0; row < run->n; row += TILE_ROWS) {
      const tile_t tile = tile_at(run, row, column);
      CHOIR_TRY(
          make_tile(run, &tile, row, is_grad ? slopes_range : sums_range));
      if (is_grad) CHOIR_TRY(add_gradients(run, &tile, row));
    }
  }
  return NULL;
}

// In double: the mean is one number a batch and decides what a user sees.
static void finish(const run_t* run, float* loss) {
  double total = 0;
  for (int64_t r = 0; r < run->n; r++) {
    const row_t* row = &run->rows[r];
    // Of nothing but -inf there is no softmax.
    const double log_sum = row->most == -INFINITY ? NAN : log(row->sum);
    total += log_sum + ((double)row->most - (double)row->chosen);
    run->sums[r] = (float)((double)row->most + log_sum);
  }
  *loss = (float)(total / (double)run->n);
}

static choir_status_t run_all(const choir_record_t* record, run_t* run) {
  const bool is_grad = record->src_count > 3;
  for (int64_t r = 0; r < run->n; r++) {
    run->rows[r] = (row_t){.most = -INFINITY};
    CHOIR_TRY(choir__label_load(record->operation->name, record, r, run->c,
                                &run->rows[r].label));
  }
  CHOIR_TRY(run_tiles(run, is_grad));
  if (!is_grad) finish(run, choir__view_f32(choir_record_dst(record, 0)));
  return NULL;
}

static choir_status_t run_record(const choir_record_t* record,
                                 choir_stream_t* stream) {
  run_t run = run_of(record, stream);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  const int64_t tile = smaller(run.n, TILE_ROWS) * smaller(run.c, TILE_COLUMNS);
  const size_t logits = ((size_t)tile * sizeof(float) + 63) / 64 * 64;
  const size_t bytes = logits + (size_t)run.n * sizeof(row_t);
  void* memory = pool.alloc(pool.self, bytes, 64);
  if (!memory)
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "a tile of logits and %lld rows: no %zu bytes",
                       (long long)run.n, bytes);
  run.logits = memory;
  run.rows = (row_t*)((char*)memory + logits);
  choir_status_t status = run_all(record, &run);
  pool.free(pool.self, memory, bytes, 64);
  return status;
}

static bool is_matrix(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && choir__rows_fit(view) &&
         (choir__row_stride(view) >= view->shape[view->ndim - 1] ||
          choir__row_count(view) == 1);
}

static bool is_dense(const choir_view_t* view) {
  return view->dtype == CHOIR_DTYPE_F32 && choir_view_is_contiguous(view);
}

static bool supports(const choir_record_t* record) {
  return !record->accumulate && is_matrix(choir_record_src(record, 0)) &&
         is_matrix(choir_record_src(record, 2)) &&
         is_dense(choir_record_dst(record, 0)) &&
         is_dense(choir_record_dst(record, 1));
}
const choir_op_kernel_t choir__cpu_linear_cross_entropy =
    CHOIR_OP_KERNEL(CHOIR_OP_LINEAR_CROSS_ENTROPY, "linear_cross_entropy",
                    "cpu", run_record, supports);

static bool grad_supports(const choir_record_t* record) {
  return is_matrix(choir_record_src(record, 0)) &&
         is_matrix(choir_record_src(record, 2)) &&
         is_dense(choir_record_src(record, 3)) &&
         is_dense(choir_record_src(record, 4)) &&
         is_matrix(choir_record_dst(record, 0)) &&
         is_matrix(choir_record_dst(record, 1));
}
const choir_op_kernel_t choir__cpu_linear_cross_entropy_grad = CHOIR_OP_KERNEL(
    CHOIR_OP_LINEAR_CROSS_ENTROPY_GRAD, "linear_cross_entropy_grad", "cpu",
    run_record, grad_supports);
