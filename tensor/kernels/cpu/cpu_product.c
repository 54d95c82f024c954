// SPDX-License-Identifier: Apache-2.0
// matmul and linear of f32. A block of the left factor stays in the L2 cache
// while the panels (cpu_panels.h) of the right one pass it, which come from
// memory meanwhile; a parameter that stays the same keeps its panels. Few rows
// take panels where they lie. An element's sum goes on in c from block to
// block, so it is one chain of fmaf, k ascending, however the work is cut.
#include "tensor/kernels/cpu/cpu_product.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/cpu_panels.h"

enum {
  STRIP = 24,         // rows side by side: of the tiles of all instruction sets
  TILE = 8,           // rows that a thread takes, at least
  BLOCK_K = 1536,     // terms of a block,
  BLOCK_A = 1 << 17,  // elements of the left factor: half of an L2 cache,
  BLOCK_B = 1 << 20,  // and of the right one
  FEW_ROWS = 16,      // for which packing costs more than it saves
  FEW_K = 32,       // terms of a block then: as many rows are read side by side
  WORK = 1 << 17,   // multiply-adds that are worth a thread
  ON_STACK = 2048,  // floats
  MOST_KEPT = 64 << 20,  // bytes of a parameter's panels
};

// c (m, n) = from + a (m, k) b (k, n).
typedef struct product_s {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_step;  // from a row to the next, from a term
  const float* b;
  int64_t b_row, b_column;
  float* c;
  int64_t ldc;
  const float* from;  // NULL: zeros; may be c
  int64_t from_row;
  const float* kept;          // all of b in panels of k rows; NULL: none
  const choir__made_t* made;  // in the place of a; NULL: none
  // Terms of a segment: those have sums of their own, which are added up in a
  // binary tree (core/sum_tree_backend.h); 0: one chain.
  int64_t segment;
  int64_t row_parts, column_parts;
} product_t;

// Terms first .. first + k - 1 of rows row .. row + rows - 1 and of one panel's
// columns.
typedef struct piece_s {
  int64_t row, rows, first, k, column, columns;
  const float* a;
  int64_t a_row, a_step, a_strip;  // from a strip of rows to the next
  const float* panel;
  int64_t panel_step;  // from a row to the next
} piece_t;

static int64_t panel_count(const product_t* p) {
  return choir__panel_columns(p->n) / CHOIR__PANEL;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define CHOIR__ISA_FILE "tensor/kernels/cpu/cpu_product_loops.inc"
#include "tensor/kernels/cpu/cpu_each_isa.inc"

CHOIR__ISA_SELECT(multiply, (const product_t* p, const piece_t* piece),
                  (p, piece))

// ---- One part ----

static bool is_direct(const product_t* p) {
  return p->m <= FEW_ROWS && p->b_column == 1 && p->segment == 0;
}

// Terms of a block, at most.
static int64_t block_terms(const product_t* p) {
  const int64_t most = is_direct(p) && !p->kept ? FEW_K : BLOCK_K;
  return p->segment > 0 ? p->k : least(p->k, most);
}

// Rows that lie side by side, unless all of them fit into a block.
static bool packs_rows(const product_t* p) {
  return p->made ||
         (p->a_step != 1 && p->n > 8 * CHOIR__PANEL && p->m * p->k > BLOCK_A);
}

// Of a thread: a block of the right factor, and one of the left.
static int64_t right_floats(const product_t* p) {
  if (p->kept) return 0;
  if (is_direct(p)) return (int64_t)FEW_K * CHOIR__PANEL;
  return least(choir__panel_columns(p->n) * p->k, (int64_t)BLOCK_B);
}
static int64_t left_floats(const product_t* p) {
  return packs_rows(p) ? least((p->m + STRIP - 1) / STRIP * STRIP * p->k,
                               (int64_t)BLOCK_A)
                       : 0;
}
// 0: it has room on the stack.
static size_t scratch_bytes(const product_t* p) {
  const int64_t floats = right_floats(p) + left_floats(p);
  return floats > ON_STACK ? (size_t)floats * sizeof(float) : 0;
}

// Rows of strips that lie STRIP apart: (k, STRIP).
static void pack_rows(const product_t* p, piece_t* piece, float* to) {
  piece->a = to;
  for (int64_t r = 0; r < piece->rows; r += STRIP) {
    const int64_t rows = least(piece->rows - r, STRIP);
    const float* from =
        p->a + (piece->row + r) * p->a_row + piece->first * p->a_step;
    if (rows == STRIP && p->a_row == 1) {
      for (int64_t i = 0; i < piece->k; i++, to += STRIP)
        memcpy(to, from + i * p->a_step, STRIP * sizeof(float));
      continue;
    }
    for (int64_t i = 0; i < piece->k; i++, to += STRIP)
      for (int64_t j = 0; j < rows; j++)
        to[j] = from[j * p->a_row + i * p->a_step];
  }
  piece->a_row = 1;
  piece->a_step = STRIP;
  piece->a_strip = piece->k * STRIP;
}

static void take_rows(const product_t* p, piece_t* piece, float* scratch) {
  if (p->made) {
    p->made->make(p->made->self, piece->row, piece->rows, piece->first,
                  piece->k, scratch);
    piece->a = scratch;
    piece->a_row = p->made->is_turned ? 1 : piece->k;
    piece->a_step = p->made->is_turned ? piece->rows : 1;
    piece->a_strip = STRIP * piece->a_row;
    return;
  }
  if (packs_rows(p)) {
    pack_rows(p, piece, scratch);
    return;
  }
  piece->a = p->a + piece->row * p->a_row + piece->first * p->a_step;
  piece->a_row = p->a_row;
  piece->a_step = p->a_step;
  piece->a_strip = STRIP * p->a_row;
}

// The panel at `column`, whose columns end before `last`; it is in `packed` or
// is brought there, unless it is taken from where it lies.
static void take_panel(const product_t* p, int64_t column, int64_t last,
                       bool is_packed, float* packed, piece_t* piece) {
  piece->column = column;
  piece->columns = least(last - column, CHOIR__PANEL);
  piece->panel_step = CHOIR__PANEL;
  if (p->kept) {
    piece->panel = p->kept + column * p->k + piece->first * CHOIR__PANEL;
    return;
  }
  const float* b = p->b + piece->first * p->b_row + column * p->b_column;
  piece->panel = packed;
  // Of a panel that is not full nothing is read behind its columns.
  if (is_direct(p) && piece->columns == CHOIR__PANEL) {
    piece->panel = b;
    piece->panel_step = p->b_row;
  } else if (!is_packed) {
    choir__panels_pack(b, piece->k, piece->columns, p->b_row, p->b_column,
                       packed);
  }
}

// Into how many parts of at most `most`, cut at multiples of `unit`.
static int64_t part_count(int64_t size, int64_t unit, int64_t most) {
  const int64_t units = most / unit;
  return ((size + unit - 1) / unit + units - 1) / units;
}
// Where part i of so many begins.
static int64_t part_begin(int64_t size, int64_t unit, int64_t i,
                          int64_t parts) {
  return least((size + unit - 1) / unit * i / parts * unit, size);
}

// Terms first .. first + k - 1 of rows begin .. end - 1, columns column ..
// last - 1.
static void run_block(const product_t* p, int64_t begin, int64_t end,
                      int64_t first, int64_t k, int64_t column, int64_t last,
                      float* scratch) {
  const int64_t rows = end - begin;
  const int64_t most = p->segment > 0 ? p->k : least(p->k, BLOCK_K);
  const int64_t blocks = part_count(rows, STRIP, BLOCK_A / most);
  piece_t piece = {.first = first, .k = k};
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row = part_begin(rows, STRIP, i, blocks);
    piece.row = begin + row;
    piece.rows = part_begin(rows, STRIP, i + 1, blocks) - row;
    take_rows(p, &piece, scratch + right_floats(p));
    for (int64_t j = column; j < last; j += CHOIR__PANEL) {
      float* packed = blocks > 1 ? scratch + (j - column) * k : scratch;
      take_panel(p, j, last, i > 0, packed, &piece);
      multiply(p, &piece);
    }
  }
}

// Rows begin .. end - 1, columns column .. last - 1.
static void run_part(const product_t* p, int64_t begin, int64_t end,
                     int64_t column, int64_t last, float* scratch) {
  const int64_t most = block_terms(p);
  const int64_t columns = last - column;
  const int64_t sides = part_count(columns, CHOIR__PANEL, BLOCK_B / most);
  const int64_t depths = part_count(p->k, 1, most);
  for (int64_t i = 0; i < sides * depths; i++) {
    const int64_t side = i / depths, depth = i % depths;
    const int64_t first = part_begin(p->k, 1, depth, depths);
    run_block(
        p, begin, end, first, part_begin(p->k, 1, depth + 1, depths) - first,
        column + part_begin(columns, CHOIR__PANEL, side, sides),
        column + part_begin(columns, CHOIR__PANEL, side + 1, sides), scratch);
  }
}

static void part_range(void* context, void* scratch, int64_t begin,
                       int64_t end) {
  const product_t* p = context;
  float small[ON_STACK];
  for (int64_t i = begin; i < end; i++) {
    const int64_t row = i / p->column_parts, column = i % p->column_parts;
    run_part(p, part_begin(p->m, TILE, row, p->row_parts),
             part_begin(p->m, TILE, row + 1, p->row_parts),
             part_begin(p->n, CHOIR__PANEL, column, p->column_parts),
             part_begin(p->n, CHOIR__PANEL, column + 1, p->column_parts),
             scratch ? scratch : small);
  }
}

// ---- Products ----

// Into so many parts that none is much larger than another; of columns rather
// than of rows, which each read, and may pack, the whole right factor.
static void cut(product_t* p, int32_t threads) {
  const int64_t panels = panel_count(p);
  const int64_t tiles = (p->m + TILE - 1) / TILE;
  const int64_t worth = p->m * p->n * p->k / WORK;
  const int64_t parts = worth < 1 ? 1 : least(worth, threads);
  p->row_parts = p->column_parts = 1;
  const int64_t by_columns = (panels + parts - 1) / parts * tiles;
  const int64_t by_rows = (tiles + parts - 1) / parts * panels;
  if (by_columns <= by_rows + by_rows / 8)
    p->column_parts = least(parts, panels);
  else
    p->row_parts = least(parts, tiles);
}

static choir_status_t run_product(product_t* p, choir_stream_t* stream) {
  cut(p, choir__cpu_threads(stream));
  return choir__cpu_parallel_scratch(stream, p->row_parts * p->column_parts, 1,
                                     scratch_bytes(p), part_range, p);
}

// c^T = b^T a^T where c lies by columns.
static product_t product_of(const choir__product_t* of, const float* a,
                            const float* b, float* c, bool adds) {
  const bool swap = of->c.transposed;
  const choir__matrix_t* left = swap ? &of->b : &of->a;
  const choir__matrix_t* right = swap ? &of->a : &of->b;
  const bool left_turned = left->transposed != swap;
  const bool right_turned = right->transposed != swap;
  return (product_t){.m = swap ? of->n : of->m,
                     .n = swap ? of->m : of->n,
                     .k = of->k,
                     .a = swap ? b : a,
                     .a_row = left_turned ? 1 : left->ld,
                     .a_step = left_turned ? left->ld : 1,
                     .b = swap ? a : b,
                     .b_row = right_turned ? 1 : right->ld,
                     .b_column = right_turned ? right->ld : 1,
                     .c = c,
                     .ldc = of->c.ld,
                     .from = adds ? c : NULL,
                     .from_row = of->c.ld};
}

choir_status_t choir__cpu_product(const choir__product_t* product,
                                  const float* a, const float* b, float* c,
                                  bool adds, choir_stream_t* stream) {
  product_t p = product_of(product, a, b, c, adds);
  return run_product(&p, stream);
}

choir_status_t choir__cpu_made_product(const choir__made_product_t* product,
                                       choir_stream_t* stream) {
  product_t p = {.m = product->m,
                 .n = product->n,
                 .k = product->k,
                 .b = product->b,
                 .b_row = product->b_row,
                 .b_column = 1,
                 .c = product->c,
                 .ldc = product->ldc,
                 .from = product->from,
                 .from_row = product->from_row,
                 .kept = product->is_packed ? product->b : NULL,
                 .made = &product->a};
  return run_product(&p, stream);
}

// ---- Kept panels ----

typedef struct form_key_s {
  const void* kernel;
  int64_t offset, k, n, row, column;
} form_key_t;

static void pack_range(void* context, int64_t begin, int64_t end) {
  const product_t* p = context;
  const int64_t first = begin * CHOIR__PANEL;
  const int64_t last = least(end * CHOIR__PANEL, p->n);
  choir__panels_pack(p->b + first * p->b_column, p->k, last - first, p->b_row,
                     p->b_column, (float*)p->kept + first * p->k);
}

// The right factor is source `source`, all of it. *out_packed NULL: none is
// kept.
static choir_status_t keep_panels(const choir_record_t* record, int32_t source,
                                  product_t* p, choir_stream_t* stream,
                                  choir__packed_t** out_packed) {
  const choir_view_t* view = choir_record_src(record, source);
  const size_t bytes =
      (size_t)(panel_count(p) * CHOIR__PANEL * p->k) * sizeof(float);
  *out_packed = NULL;
  if (record->is_part || is_direct(p) || bytes > MOST_KEPT) return NULL;
  form_key_t key;
  memset(&key, 0, sizeof(key));
  key = (form_key_t){record->kernel, view->offset, p->k,
                     p->n,           p->b_row,     p->b_column};
  CHOIR_TRY(
      choir__packed_take(view->buffer, &key, sizeof(key), bytes, out_packed));
  if (!*out_packed) return NULL;
  p->kept = choir__packed_data(*out_packed);
  if (choir__packed_is_kept(*out_packed)) return NULL;
  choir__cpu_parallel(choir__cpu_threads(stream), panel_count(p),
                      CHOIR__CPU_GRAIN / CHOIR__PANEL / p->k, pack_range, p);
  choir__packed_keep(view->buffer, *out_packed);
  return NULL;
}

static choir_status_t run_kept(const choir_record_t* record,
                               const choir__product_t* product, product_t* p,
                               choir_stream_t* stream) {
  choir__packed_t* packed = NULL;
  choir_status_t status =
      keep_panels(record, product->c.transposed ? 0 : 1, p, stream, &packed);
  if (!status) status = run_product(p, stream);
  choir__packed_release(packed);
  return status;
}

// ---- matmul ----

static bool matmul_supports(const choir_record_t* record) {
  choir__product_t product;
  if (!choir__all_f32(record) || !choir__matmul_product(record, &product))
    return false;
  // Segments are those of one product over rows, all of which a block takes.
  const choir_matmul_attrs_t* attrs = record->attrs;
  return record->segment == 0 ||
         (attrs->transpose_a && !attrs->transpose_b && !record->accumulate &&
          choir_record_dst(record, 0)->ndim == 2 &&
          product.k <= BLOCK_A / STRIP);
}

typedef struct batch_s {
  const choir_record_t* record;
  choir__product_t product;
} batch_t;

static float* matrix_at(const choir_view_t* view, const choir_view_t* dst,
                        int64_t index) {
  return choir__view_f32(view) + choir__matrix_offset(view, dst, index);
}

static product_t product_at(const batch_t* batch, int64_t i) {
  const choir_view_t* c = choir_record_dst(batch->record, 0);
  product_t p = product_of(&batch->product,
                           matrix_at(choir_record_src(batch->record, 0), c, i),
                           matrix_at(choir_record_src(batch->record, 1), c, i),
                           matrix_at(c, c, i), batch->record->accumulate);
  p.row_parts = p.column_parts = 1;
  return p;
}

static void batch_range(void* context, void* scratch, int64_t begin,
                        int64_t end) {
  const batch_t* batch = context;
  for (int64_t i = begin; i < end; i++) {
    product_t p = product_at(batch, i);
    part_range(&p, scratch, 0, 1);
  }
}

static choir_status_t matmul_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  batch_t batch = {.record = record};
  if (!choir__matmul_product(record, &batch.product))
    return CHOIR_ERROR(INTERNAL, "%s: layout not supported",
                       record->kernel->name);
  const choir__product_t* of = &batch.product;
  const int64_t work = of->m * of->n * of->k;
  const int64_t count =
      choir_view_count(choir_record_dst(record, 0)) / (of->m * of->n);
  if (count > 1 && (count >= choir__cpu_threads(stream) || work < WORK)) {
    const product_t first = product_at(&batch, 0);
    return choir__cpu_parallel_scratch(
        stream, count, WORK / work, scratch_bytes(&first), batch_range, &batch);
  }
  for (int64_t i = 0; i < count; i++) {
    product_t p = product_at(&batch, i);
    p.segment = record->segment;
    CHOIR_TRY(count == 1 ? run_kept(record, of, &p, stream)
                         : run_product(&p, stream));
  }
  return NULL;
}
const choir_op_kernel_t choir__cpu_matmul = CHOIR_OP_SEGMENTS_KERNEL(
    CHOIR_OP_MATMUL, "matmul", "cpu", matmul_run, matmul_supports);

// ---- linear: x (..., in), W (in, out), b (out) ----

static bool linear_supports(const choir_record_t* record) {
  choir__product_t product;
  return choir__all_f32(record) && choir__linear_product(record, &product);
}

static choir_status_t linear_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  choir__product_t product;
  if (!choir__linear_product(record, &product))
    return CHOIR_ERROR(INTERNAL, "%s: layout not supported",
                       record->kernel->name);
  const float* b = choir__view_f32(choir_record_src(record, 2));
  product_t p = product_of(
      &product, choir__view_f32(choir_record_src(record, 0)),
      choir__view_f32(choir_record_src(record, 1)),
      choir__view_f32(choir_record_dst(record, 0)), record->accumulate);
  if (!record->accumulate) {
    p.from = b;
    p.from_row = 0;
  } else {
    for (int64_t r = 0; r < p.m; r++)
      for (int64_t j = 0; j < p.n; j++) p.c[r * p.ldc + j] += b[j];
  }
  return run_kept(record, &product, &p, stream);
}
CHOIR__CPU_OP_KERNEL(LINEAR, linear, "cpu", linear_run, linear_supports)
