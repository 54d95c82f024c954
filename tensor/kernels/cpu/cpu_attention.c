// SPDX-License-Identifier: Apache-2.0
// Attention by tiles of BLOCK_ROWS by BLOCK_COLUMNS weights, forward with a
// softmax that goes on from block to block, backward with the weights made
// again from each row's sum (Dao, 2023, arXiv:2307.08691). The heads of one k
// and v are one thread's: a gradient has one order of additions, however many
// there are. A tile of the gradient of a mask is one thread's as well, through
// all heads and samples that the mask serves.
//
// With AMX and operands of bf16 the five products of a tile are of bf16, to
// which weights and slopes are rounded, and summed in f32; all else is the
// same.
//
// A mask's tile is brought to floats. Where a row does not see a place, by a
// mask or as it comes later, the weight is 0, which is as good as leaving the
// place out of a product, unless the other factor holds an infinity or NaN.
// Blocks that do are marked beforehand; their products go by runs of places
// that are seen.
#include <math.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_amx.h"
#include "tensor/kernels/cpu/cpu_draws.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"
#include "tensor/kernels/dtype_traits.h"
#include "tensor/kernels/element_math.h"
#include "tensor/ops/attention.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
  BLOCK_ROWS = 64,
  BLOCK_COLUMNS = 128,  // whole panels
  // Rows whose tiles are made together; causal ones are cut to what the last of
  // them sees. A divisor of CHOIR__PANEL.
  GROUP_ROWS = 8,
  // Fewer heads than so many are cut into pieces of rows, forward.
  MOST_PIECES = 16,
};
_Static_assert(BLOCK_COLUMNS % CHOIR__PANEL == 0, "whole panels");
_Static_assert((int)CHOIR__AMX_PANEL == CHOIR__PANEL &&
                   (int)CHOIR__AMX_STEP == CHOIR__PANEL &&
                   BLOCK_ROWS % CHOIR__PANEL == 0,
               "sums of AMX are rows of panels");

// For draws of a row of a tile, which begin at an element of a block of four.
typedef float kept_t[BLOCK_COLUMNS + 2 * CHOIR__DRAW_WORDS];

// Rows that lie `stride` apart.
typedef struct rows_s {
  float* data;
  int64_t stride;
} rows_t;

typedef struct run_s {
  choir__attention_t a;
  const choir_view_t *q, *k, *v, *y, *sums, *dy, *dq, *dk, *dv, *dmask;
  bool accumulate;
  bool is_narrow;  // some operand has 16 bits: rows need room as floats
  bool amx;
  int64_t pieces;  // of a head's rows
  // Of dropout: what is drawn, and what a weight that is kept counts as.
  bool drops;
  choir__draws_t draws;
  uint32_t threshold;
  float factor;
} run_t;

static bool has_narrow(const choir_record_t* record) {
  for (int32_t i = 0; i < record->src_count + record->dst_count; i++)
    if (choir__is_narrow(record->operands[i].dtype)) return true;
  return false;
}

static run_t run_of(const choir_record_t* record) {
  const choir__attention_t a = choir__attention_of(record);
  const choir_attention_attrs_t* drop = a.drop;
  return (run_t){.a = a,
                 .q = choir_record_src(record, 0),
                 .k = choir_record_src(record, 1),
                 .v = choir_record_src(record, 2),
                 .accumulate = record->accumulate,
                 .is_narrow = has_narrow(record),
                 .drops = drop->dropout > 0,
                 .draws = choir__draws_of(drop->seed, drop->stream, drop->step),
                 .threshold = choir__draw_threshold(drop->dropout),
                 .factor = (float)(1 / (1 - drop->dropout))};
}

// In the scratch memory of a range.
typedef struct forward_s {
  const float *keys, *values;  // panels
  float *tile, *y, *most, *sum;
  float* mask;          // a tile
  float* odd;           // by block of values; NULL: rows see all places
  float *kv, *q, *out;  // rows as floats
  char *amx_q, *amx_keys, *amx_values, *amx_weights;
} forward_t;

typedef struct backward_s {
  float *keys, *values, *k, *q, *dy;  // panels
  float *dq, *dk, *dv;                // sums, in panels
  float *weights, *slopes, *mask;     // tiles
  float* along;                       // [rows], sum(dy y)
  float *odd_k, *odd_q, *odd_dy;      // by block; NULL: rows see all places
  float *kv_rows, *q_rows, *y_rows, *dy_rows;  // rows as floats
  rows_t q_of_head, dy_of_head;
  // Of AMX: k, q and dy as both factors, weights and slopes as left ones.
  char *amx_keys, *amx_values, *amx_k, *amx_q, *amx_dy, *amx_q_rows,
      *amx_dy_rows, *amx_tile;
} backward_t;

typedef struct mask_grad_s {
  float *keys, *values;            // panels of BLOCK_COLUMNS rows of k and v
  float *weights, *slopes, *mask;  // tiles of GROUP_ROWS rows
  double* sums;                    // a tile
} mask_grad_t;

// One tile of a mask's gradient: of a size of 1, all rows or columns.
typedef struct mask_tile_s {
  int64_t sample, head, row, column;  // where it begins
  bool is_of_all[4];
} mask_tile_t;

static int64_t place_of(const choir_view_t* view, int64_t n, int64_t head,
                        int64_t i) {
  return n * view->strides[0] + head * view->strides[1] + i * view->strides[2];
}

// Of floats.
static rows_t rows_of(const choir_view_t* view, int64_t n, int64_t head) {
  return (rows_t){choir__view_f32(view) + place_of(view, n, head, 0),
                  view->strides[2]};
}

// One more use of the scratch memory.
static float* take(float** memory, int64_t count) {
  float* taken = *memory;
  *memory += (count + 15) / 16 * 16;
  return taken;
}

// Bytes of AMX's panels of some rows, or columns, of `depth` numbers.
static int64_t amx_bytes(const run_t* run, int64_t lines, int64_t depth) {
  return run->amx ? choir__panel_columns(lines) * choir__panel_columns(depth) *
                        (int64_t)sizeof(uint16_t)
                  : 0;
}

static char* take_amx(float** memory, const run_t* run, int64_t lines,
                      int64_t depth) {
  return (char*)take(memory,
                     amx_bytes(run, lines, depth) / (int64_t)sizeof(float));
}

// Whether there may be places that a row does not see.
static bool leaves_out(const choir__attention_t* a) {
  return a->hides || a->causal;
}

// By marks, of which there may be none.
static bool is_odd(const float* marks, int64_t block) {
  return marks && marks[block] > 0;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t blocks_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// The mask's sizes along (n, h, t, s), 1 where it broadcasts.
static void mask_sizes(const choir__attention_t* a, int64_t sizes[4]) {
  for (int32_t k = 0; k < 4; k++) {
    const int32_t own = a->mask->ndim - 4 + k;
    sizes[k] = own >= 0 ? a->mask->shape[own] : 1;
  }
}

// How many tiles the gradient of the mask has along each dimension.
static void mask_tiles(const choir__attention_t* a, int64_t counts[4]) {
  mask_sizes(a, counts);
  counts[2] = blocks_of(counts[2], BLOCK_ROWS);
  counts[3] = blocks_of(counts[3], BLOCK_COLUMNS);
}

static mask_tile_t mask_tile_of(const choir__attention_t* a, int64_t at) {
  int64_t sizes[4], counts[4];
  mask_sizes(a, sizes);
  mask_tiles(a, counts);
  return (mask_tile_t){
      .column = at % counts[3] * BLOCK_COLUMNS,
      .row = at / counts[3] % counts[2] * BLOCK_ROWS,
      .head = at / counts[3] / counts[2] % counts[1],
      .sample = at / counts[3] / counts[2] / counts[1],
      .is_of_all = {sizes[0] == 1, sizes[1] == 1, sizes[2] == 1, sizes[3] == 1},
  };
}

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_attention_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"
#define RANGE_PARAMS (void* context, void* scratch, int64_t begin, int64_t end)
CHOIR__ISA_SELECT(forward_range, RANGE_PARAMS, (context, scratch, begin, end))
CHOIR__ISA_SELECT(backward_range, RANGE_PARAMS, (context, scratch, begin, end))
CHOIR__ISA_SELECT(mask_grad_range, RANGE_PARAMS, (context, scratch, begin, end))

// What `take` hands out in a range.
static size_t bytes_of(const run_t* run, bool is_grad) {
  const choir__attention_t* a = &run->a;
  const int64_t t = choir__panel_columns(a->rows);
  const int64_t s = choir__panel_columns(a->columns);
  const int64_t d = choir__panel_columns(a->depth);
  const int64_t e = choir__panel_columns(a->width);
  const int64_t tiles = 3 * BLOCK_ROWS * (BLOCK_COLUMNS + 1) + 16;
  const int64_t forward = s * (a->depth + e) + BLOCK_ROWS * (e + 2);
  const int64_t backward =
      s * (a->depth + a->width + 2 * d + e) + t * (2 * d + e + 1);
  const int64_t amx =
      amx_bytes(run, s, larger(a->depth, a->width)) * (is_grad ? 3 : 2) +
      amx_bytes(run, is_grad ? t : BLOCK_ROWS, larger(a->depth, a->width)) *
          (is_grad ? 4 : 1) +
      amx_bytes(run, BLOCK_COLUMNS, BLOCK_ROWS);
  const int64_t marks =
      blocks_of(s, BLOCK_COLUMNS) + 2 * blocks_of(t, BLOCK_ROWS);
  const int64_t rows =
      run->is_narrow
          ? a->columns * larger(a->depth, a->width) +
                (is_grad ? t : BLOCK_ROWS) * (a->depth + 2 * a->width)
          : 0;
  // Each of some twenty pieces is rounded up.
  return (size_t)(tiles + (is_grad ? backward : forward) + marks + rows + 480) *
             sizeof(float) +
         (size_t)amx;
}

// Of a gradient of a mask.
static size_t mask_grad_bytes(const choir__attention_t* a) {
  const int64_t tiles =
      (3 * GROUP_ROWS + 2 * BLOCK_ROWS) * BLOCK_COLUMNS;  // sums are doubles
  return (size_t)(BLOCK_COLUMNS * (a->depth + a->width) + tiles + 256) *
         sizeof(float);
}

// Rows that lie densely, of floats or, but for sums and what has the gradient
// of a mask, of 16 bits; masks and their gradients lie as they like.
static bool fits(const choir_record_t* record) {
  const int32_t count = record->src_count;
  const int32_t mask = count == 4 || count == 7 ? count - 1 : -1;
  for (int32_t i = 0; i < count + record->dst_count; i++) {
    const choir_view_t* view = &record->operands[i];
    if (choir_view_count(view) == 0) return false;
    const bool is_sum = i == (count > 4 ? 4 : count + 1);
    const bool is_rows = i != mask && !is_sum && record->dst_count > 1;
    if (view->dtype != CHOIR_DTYPE_F32 &&
        !(i == mask && !choir_dtype_is_float(view->dtype)) &&
        !(is_rows && choir__is_narrow(view->dtype)))
      return false;
    if (i == mask || (i >= count && record->dst_count == 1)) continue;
    if (view->ndim == 4 && view->strides[3] != 1 && view->shape[3] != 1)
      return false;
  }
  return true;
}

// ---- By AMX ----

// Whether all but sums and a mask are of bf16.
static bool fits_amx(const choir_record_t* record) {
  const int32_t count = record->src_count;
  const int32_t mask = count == 4 || count == 7 ? count - 1 : -1;
  for (int32_t i = 0; i < count + record->dst_count; i++)
    if (i != mask && i != (count > 4 ? 4 : count + 1) &&
        record->operands[i].dtype != CHOIR_DTYPE_BF16)
      return false;
  return choir__has_amx() && fits(record);
}

// Whether a row of the view has a number that is not finite.
static bool has_odd(const choir_view_t* view) {
  for (int64_t n = 0; n < view->shape[0]; n++)
    for (int64_t head = 0; head < view->shape[1]; head++)
      for (int64_t i = 0; i < view->shape[2]; i++) {
        const uint16_t* row = (const uint16_t*)choir__view_data(view) +
                              place_of(view, n, head, i);
        uint32_t found = 0;
        CHOIR__INDEPENDENT
        for (int64_t j = 0; j < view->shape[3]; j++)
          found |= (row[j] & 0x7f80) == 0x7f80;
        if (found) return true;
      }
  return false;
}

// What a row does not see counts for nothing only as a product with 0. So where
// that is not so, the product is not AMX's.
static bool sees_odd(const run_t* run, bool is_grad) {
  if (!leaves_out(&run->a)) return false;
  return is_grad ? has_odd(run->k) || has_odd(run->q) || has_odd(run->dy)
                 : has_odd(run->v);
}

// ---- Kernels ----

static choir_status_t run_forward(const choir_record_t* record, bool amx,
                                  choir_stream_t* stream) {
  run_t run = run_of(record);
  run.amx = amx && !sees_odd(&run, false);
  run.y = choir_record_dst(record, 0);
  run.sums = choir_record_dst(record, 1);
  const int64_t heads = run.a.batch * run.a.kv_heads;
  const int64_t blocks = (run.a.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  run.pieces = smaller(blocks, (MOST_PIECES + heads - 1) / heads);
  return choir__cpu_parallel_scratch(stream, heads * run.pieces, 1,
                                     bytes_of(&run, false), forward_range,
                                     &run);
}

static choir_status_t attention_run(const choir_record_t* record,
                                    choir_stream_t* stream) {
  return run_forward(record, false, stream);
}
const choir_op_kernel_t choir__cpu_attention = CHOIR_OP_KERNEL(
    CHOIR_OP_ATTENTION, "attention", "cpu", attention_run, fits);

static choir_status_t attention_amx_run(const choir_record_t* record,
                                        choir_stream_t* stream) {
  return run_forward(record, true, stream);
}
const choir_op_kernel_t choir__cpu_attention_amx = CHOIR_OP_KERNEL(
    CHOIR_OP_ATTENTION, "attention", "amx", attention_amx_run, fits_amx);

static choir_status_t run_backward(const choir_record_t* record, bool amx,
                                   choir_stream_t* stream) {
  run_t run = run_of(record);
  run.y = choir_record_src(record, 3);
  run.sums = choir_record_src(record, 4);
  run.dy = choir_record_src(record, 5);
  run.dq = choir_record_dst(record, 0);
  run.dk = choir_record_dst(record, 1);
  run.dv = choir_record_dst(record, 2);
  run.amx = amx && !sees_odd(&run, true);
  return choir__cpu_parallel_scratch(stream, run.a.batch * run.a.kv_heads, 1,
                                     bytes_of(&run, true), backward_range,
                                     &run);
}

static choir_status_t attention_grad_run(const choir_record_t* record,
                                         choir_stream_t* stream) {
  return run_backward(record, false, stream);
}
const choir_op_kernel_t choir__cpu_attention_grad = CHOIR_OP_KERNEL(
    CHOIR_OP_ATTENTION_GRAD, "attention_grad", "cpu", attention_grad_run, fits);

static choir_status_t attention_grad_amx_run(const choir_record_t* record,
                                             choir_stream_t* stream) {
  return run_backward(record, true, stream);
}
const choir_op_kernel_t choir__cpu_attention_grad_amx =
    CHOIR_OP_KERNEL(CHOIR_OP_ATTENTION_GRAD, "attention_grad", "amx",
                    attention_grad_amx_run, fits_amx);

static choir_status_t attention_mask_grad_run(const choir_record_t* record,
                                              choir_stream_t* stream) {
  run_t run = run_of(record);
  run.y = choir_record_src(record, 3);
  run.sums = choir_record_src(record, 4);
  run.dy = choir_record_src(record, 5);
  run.dmask = choir_record_dst(record, 0);
  int64_t counts[4];
  mask_tiles(&run.a, counts);
  return choir__cpu_parallel_scratch(
      stream, counts[0] * counts[1] * counts[2] * counts[3], 1,
      mask_grad_bytes(&run.a), mask_grad_range, &run);
}
const choir_op_kernel_t choir__cpu_attention_mask_grad =
    CHOIR_OP_KERNEL(CHOIR_OP_ATTENTION_MASK_GRAD, "attention_mask_grad", "cpu",
                    attention_mask_grad_run, fits);
