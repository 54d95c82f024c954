// SPDX-License-Identifier: Apache-2.0
// How a product is cut. Factors are copied to panels: 32 rows of a, or columns
// of b, and all of a block of k, in steps of 32 elements of k, which are two
// tiles of 1 KiB. Two panels make 32 by 32 sums in four tile registers. The
// factor with fewer rows or columns is held: some of its panels stay in the L2
// cache, while the other's come by in groups, each copied once and multiplied
// with all that are held. Copying is where f32 is rounded, where matrices are
// transposed and where what is missing of a tile becomes zeros; rows of a that
// need none of it are multiplied as they lie. A block of k is as long as held
// panels and a group fit the cache. Sums of several blocks are added up in c,
// or where that has 16 bits in scratch memory.
#include "tensor/kernels/cpu/cpu_amx.h"

#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/dnnl_engine.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET_AMX                                          \
  __attribute__((                                           \
      target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq," \
             "avx512vl,avx512bf16,avx2,fma,f16c")))
#define AMX_BODY TARGET_AMX static inline __attribute__((always_inline))

enum {
  TILE = 16,          // rows of a tile, and f32 sums in one of its rows
  TILE_BYTES = 1024,  // of which k has 32 in a row of a's, 2 in b's
  PANEL = CHOIR__AMX_PANEL,
  STEP = CHOIR__AMX_STEP,
  STEP_BYTES = CHOIR__AMX_STEP_BYTES,
  // Panels that are copied side by side, of a factor whose lines lie along k,
  // and of one across k, of which longer pieces lie side by side then.
  ALONG_K = 4,
  ACROSS_K = 8,
  HELD = 12,  // panels that are held even if k is cut for them
  CACHE_BYTES = 1536 << 10,
  SUMS_BYTES = PANEL * PANEL * 4,
  // A result of so many bytes is not read again before it left the caches.
  FAR_BYTES = 8 << 20,
};

bool choir__has_amx(void) {
  return choir__isa() == CHOIR__ISA_AVX512 && choir__dnnl_has_amx();
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- Copies ----

AMX_BODY __mmask32 first_of_32(int64_t count) {
  return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1;
}

// 32 elements side by side, zeros where they are not in the mask.
AMX_BODY __m512i load_32(const char* at, __mmask32 mask, bool wide) {
  if (!wide) return _mm512_maskz_loadu_epi16(mask, at);
  const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, at);
  const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), at + 64);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Two rows to pairs of the one above the other: columns 0 to 15, 16 to 31.
AMX_BODY void pair_rows(__m512i above, __m512i below, __m512i* first,
                        __m512i* second) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11,
                                       42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  *first = _mm512_permutex2var_epi16(above, low, below);
  *second = _mm512_permutex2var_epi16(
      above, _mm512_add_epi16(low, _mm512_set1_epi16(TILE)), below);
}

// Of 16 by 16 elements of 32 bits.
AMX_BODY void transpose(__m512i* r) {
  __m512i t[TILE];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

AMX_BODY void store_tile(char* tile, const __m512i* rows) {
  for (int i = 0; i < TILE; ++i) _mm512_store_si512(tile + 64 * i, rows[i]);
}

static bool lies_along_k(const choir__amx_factor_t* factor, bool is_b) {
  return factor->layout.transposed == is_b;
}

// How a panel is copied: constants of a loop of its own each.
typedef struct copy_s {
  bool is_b;     // pairs of k side by side, column by column
  bool along_k;  // neighbours in memory are of one row of a, or column of b
  bool wide;     // f32
} copy_t;

// One step of a panel, of which there are `lines` rows of a, or columns of b,
// and `depth` elements of k; `stride` bytes lie between lines, or where they do
// not lie along k between elements of k.
AMX_BODY void copy_step(const copy_t copy, const char* at, int64_t stride,
                        int64_t lines, int64_t depth, char* out) {
  __m512i r[TILE], s[TILE];
  if (copy.along_k) {
    const __mmask32 mask = first_of_32(depth);
    for (int tile = 0; tile < PANEL / TILE; ++tile) {
      for (int i = 0; i < TILE; ++i) {
        const int line = tile * TILE + i;
        r[i] = load_32(at + line * stride, line < lines ? mask : 0, copy.wide);
      }
      if (copy.is_b) transpose(r);
      store_tile(out + tile * TILE_BYTES, r);
    }
    return;
  }
  const __mmask32 mask = first_of_32(lines);
  for (int i = 0; i < TILE; ++i) {
    const char* pair = at + 2 * i * stride;
    pair_rows(load_32(pair, 2 * i < depth ? mask : 0, copy.wide),
              load_32(pair + stride, 2 * i + 1 < depth ? mask : 0, copy.wide),
              &r[i], &s[i]);
  }
  if (!copy.is_b) {
    transpose(r);
    transpose(s);
  }
  store_tile(out, r);
  store_tile(out + TILE_BYTES, s);
}

AMX_BODY void copy_panels_body(const copy_t copy,
                               const choir__amx_factor_t* factor,
                               const choir__amx_range_t* range, char* out) {
  const int64_t bytes = copy.wide ? 4 : 2;
  const int64_t stride = factor->layout.ld * bytes;
  const int64_t line_bytes = copy.along_k ? stride : bytes;
  const int64_t k_bytes = copy.along_k ? bytes : stride;
  const char* data = factor->data;
  const int64_t panels = ceiling(range->end - range->first, PANEL);
  // In the order in which elements lie.
  for (int64_t i = 0; i < panels * range->steps; ++i) {
    const int64_t panel = copy.along_k ? i / range->steps : i % panels;
    const int64_t s = copy.along_k ? i % range->steps : i / panels;
    const int64_t line = range->first + panel * PANEL;
    const int64_t k = range->from + s * STEP;
    copy_step(copy, data + line * line_bytes + k * k_bytes, stride,
              range->end - line, range->k - k,
              out + (panel * range->steps + s) * STEP_BYTES);
  }
}

TARGET_AMX void choir__amx_copy(const choir__amx_factor_t* factor, bool is_b,
                                const choir__amx_range_t* range, char* out) {
  const bool along_k = lies_along_k(factor, is_b);
  const bool wide = factor->dtype == CHOIR_DTYPE_F32;
#define COPY(B, ALONG, WIDE)                               \
  if (is_b == (B) && along_k == (ALONG) && wide == (WIDE)) \
    copy_panels_body((copy_t){B, ALONG, WIDE}, factor, range, out);
  COPY(false, false, false)
  COPY(false, false, true)
  COPY(false, true, false)
  COPY(false, true, true)
  COPY(true, false, false)
  COPY(true, false, true)
  COPY(true, true, false)
  COPY(true, true, true)
#undef COPY
  // The tile instructions are no memory accesses to the compiler.
  __asm__ volatile("" ::: "memory");
}

// ---- Sums of two panels ----

// How a panel of a lies: copied, or rows of bf16 as they are.
typedef struct left_s {
  const char* at;
  int64_t row, tile, step;  // bytes to the next one
} left_t;

static left_t copied(const char* panel) {
  return (left_t){panel, 64, TILE_BYTES, STEP_BYTES};
}

// Where two panels' sums go; they are added to what is there, or overwrite it.
typedef struct sums_s {
  float* at;
  int64_t ld;
  bool adds;
} sums_t;

// Of two tiles of rows or columns the second may be left out.
AMX_BODY void multiply_body(left_t a, const char* b, int64_t steps,
                            const bool two_a, const bool two_b, sums_t sums) {
  const int64_t row = sums.ld * (int64_t)sizeof(float);
  float* below = sums.at + TILE * sums.ld;
  if (sums.adds) {
    _tile_loadd(0, sums.at, row);
    if (two_b) _tile_loadd(1, sums.at + TILE, row);
    if (two_a) _tile_loadd(2, below, row);
    if (two_a && two_b) _tile_loadd(3, below + TILE, row);
  } else {
    _tile_zero(0);
    if (two_b) _tile_zero(1);
    if (two_a) _tile_zero(2);
    if (two_a && two_b) _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a.at, a.row);
    _tile_loadd(6, b, 64);
    if (two_b) _tile_loadd(7, b + TILE_BYTES, 64);
    if (two_a) _tile_loadd(5, a.at + a.tile, a.row);
    _tile_dpbf16ps(0, 4, 6);
    if (two_b) _tile_dpbf16ps(1, 4, 7);
    if (two_a) _tile_dpbf16ps(2, 5, 6);
    if (two_a && two_b) _tile_dpbf16ps(3, 5, 7);
    a.at += a.step;
    b += STEP_BYTES;
  }
  _tile_stored(0, sums.at, row);
  if (two_b) _tile_stored(1, sums.at + TILE, row);
  if (two_a) _tile_stored(2, below, row);
  if (two_a && two_b) _tile_stored(3, below + TILE, row);
}

TARGET_AMX static void multiply(left_t a, const char* b, int64_t steps,
                                int64_t rows, int64_t columns, sums_t sums) {
  if (rows > TILE && columns > TILE)
    multiply_body(a, b, steps, true, true, sums);
  else if (rows > TILE)
    multiply_body(a, b, steps, true, false, sums);
  else if (columns > TILE)
    multiply_body(a, b, steps, false, true, sums);
  else
    multiply_body(a, b, steps, false, false, sums);
}

TARGET_AMX void choir__amx_multiply(const char* a, const char* b, int64_t steps,
                                    float* sums, int64_t ld, bool adds) {
  // Stores before the call are to be seen by the tiles.
  __asm__ volatile("" ::: "memory");
  multiply_body(copied(a), b, steps, true, true, (sums_t){sums, ld, adds});
}

TARGET_AMX void choir__amx_begin(void) {
  // 16 rows of 64 bytes in each of the 8 registers.
  struct {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config;
  memset(&config, 0, sizeof(config));
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = TILE;
  }
  __asm__ volatile("" ::"m"(config));
  _tile_loadconfig(&config);
}

TARGET_AMX void choir__amx_end(void) { _tile_release(); }

// ---- Results ----

// One block of k's part of a product.
typedef struct block_s {
  const choir__amx_product_t* product;
  float* partial;  // (m, n): sums of the blocks before, of a 16-bit result
  bool is_first, is_last;
  bool is_far;
} block_t;

static bool is_whole(const choir__amx_product_t* p, int64_t i, int64_t j) {
  return p->m - i >= PANEL && p->n - j >= PANEL;
}

// Where the sums of two panels from row i, column j are made: in the result
// itself or in partial sums, where they lie so; else in `own`.
static sums_t sums_of(const block_t* block, int64_t i, int64_t j, float* own) {
  const choir__amx_product_t* p = block->product;
  if (is_whole(p, i, j) && block->partial)
    return (sums_t){block->partial + i * p->n + j, p->n, !block->is_first};
  if (is_whole(p, i, j) && p->result == CHOIR_DTYPE_F32 && !p->bias &&
      !block->is_far)
    return (sums_t){(float*)p->c + i * p->ldc + j, p->ldc,
                    p->adds || !block->is_first};
  return (sums_t){own, PANEL, false};
}

AMX_BODY __m512 load_16(const void* at, __mmask16 mask, choir_dtype_t dtype) {
  if (dtype == CHOIR_DTYPE_F32) return _mm512_maskz_loadu_ps(mask, at);
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, at);
  return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}

AMX_BODY __m512 rounded(__m512 value) {
  const __m512i bits =
      _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(value));
  return (__m512)_mm512_slli_epi32(bits, 16);
}

AMX_BODY void store_16(void* at, __mmask16 mask, choir_dtype_t dtype,
                       __m512 value) {
  if (dtype == CHOIR_DTYPE_F32)
    _mm512_mask_storeu_ps(at, mask, value);
  else
    _mm256_mask_storeu_epi16(at, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

// Brings up to 16 columns of the sums from row i, column j, to where they
// belong.
AMX_BODY void finish_columns(const block_t* block, int64_t i, int64_t j,
                             int64_t rows, int64_t columns, const float* sums,
                             int64_t ld, bool adds_partial) {
  const choir__amx_product_t* p = block->product;
  const __mmask16 mask = (__mmask16)first_of_32(columns);
  const choir_dtype_t result = p->result;
  const int64_t bytes = (int64_t)choir_dtype_bytes(result);
  const bool adds_c =
      block->partial ? p->adds && block->is_last : p->adds || !block->is_first;
  __m512 bias = _mm512_setzero_ps();
  if (p->bias && block->is_last)
    bias = rounded(load_16(
        (const char*)p->bias + j * (int64_t)choir_dtype_bytes(p->bias_dtype),
        mask, p->bias_dtype));
  for (int64_t r = 0; r < rows; ++r) {
    char* c = (char*)p->c + ((i + r) * p->ldc + j) * bytes;
    float* partial =
        block->partial ? block->partial + (i + r) * p->n + j : NULL;
    __m512 sum = _mm512_maskz_loadu_ps(mask, sums + r * ld);
    if (adds_partial)
      sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, partial), sum);
    if (adds_c) sum = _mm512_add_ps(load_16(c, mask, result), sum);
    sum = _mm512_add_ps(sum, bias);
    if (partial && !block->is_last)
      _mm512_mask_storeu_ps(partial, mask, sum);
    else if (block->is_far && columns >= TILE)
      _mm512_stream_ps((float*)c, sum);
    else
      store_16(c, mask, result, sum);
  }
}

// Of whole panels and 16 bits, where nothing is added.
AMX_BODY void round_rows(const choir__amx_product_t* p, int64_t i, int64_t j,
                         const sums_t* sums) {
  for (int64_t r = 0; r < PANEL; ++r) {
    const float* from = sums->at + r * sums->ld;
    _mm512_storeu_si512(
        (uint16_t*)p->c + (i + r) * p->ldc + j,
        (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + TILE),
                                     _mm512_loadu_ps(from)));
  }
}

TARGET_AMX static void finish(const block_t* block, int64_t i, int64_t j,
                              const sums_t* sums, const float* own) {
  const choir__amx_product_t* p = block->product;
  const bool is_own = sums->at == own;
  // They are where they belong.
  if (!is_own && (!block->partial || !block->is_last)) return;
  if (is_whole(p, i, j) && p->result == CHOIR_DTYPE_BF16 && !p->adds &&
      !p->bias) {
    round_rows(p, i, j, sums);
    return;
  }
  const int64_t rows = least(p->m - i, PANEL);
  const int64_t columns = least(p->n - j, PANEL);
  const bool adds_partial = is_own && block->partial && !block->is_first;
  finish_columns(block, i, j, rows, columns, sums->at, sums->ld, adds_partial);
  if (columns > TILE)
    finish_columns(block, i, j + TILE, rows, columns - TILE, sums->at + TILE,
                   sums->ld, adds_partial);
}

// Whether whole rows of tiles lie where non-temporal stores can write them, and
// are read by nobody soon.
static bool is_far(const choir__amx_product_t* p) {
  return p->result == CHOIR_DTYPE_F32 && !p->adds && p->ldc % TILE == 0 &&
         (uintptr_t)p->c % 64 == 0 && p->m * p->n * 4 >= FAR_BYTES;
}

// ---- A product ----

// How products of these sizes are cut.
typedef struct cut_s {
  bool holds_a;
  int64_t held_lines, passing_lines;
  int64_t held;   // panels at a time
  int64_t group;  // of the passing ones
  int64_t steps;  // all of k
  int64_t block;  // steps of a block of k
} cut_t;

static cut_t cut_of(const choir__amx_product_t* p) {
  cut_t cut = {.holds_a = p->m <= p->n, .steps = ceiling(p->k, STEP)};
  cut.held_lines = cut.holds_a ? p->m : p->n;
  cut.passing_lines = cut.holds_a ? p->n : p->m;
  const choir__amx_factor_t* passing = cut.holds_a ? &p->b : &p->a;
  cut.group = lies_along_k(passing, cut.holds_a) ? ALONG_K : ACROSS_K;
  cut.group = least(cut.group, ceiling(cut.passing_lines, PANEL));
  const int64_t panels = ceiling(cut.held_lines, PANEL);
  const int64_t fit = CACHE_BYTES / (cut.steps * STEP_BYTES) - cut.group;
  cut.held = ceiling(panels, ceiling(panels, fit > HELD ? fit : HELD));
  const int64_t most = CACHE_BYTES / ((cut.held + cut.group) * STEP_BYTES);
  cut.block = ceiling(cut.steps, ceiling(cut.steps, most));
  return cut;
}

// Of one thread: panels that are held, a group of others, and sums.
static size_t scratch_bytes(const cut_t* cut) {
  return (size_t)((cut->held + cut->group) * cut->block * STEP_BYTES +
                  SUMS_BYTES);
}

// Whether rows of a are multiplied as they lie; not where those of a tile have
// one place in the L1 cache.
static bool is_direct(const choir__amx_product_t* p,
                      const choir__amx_range_t* rows) {
  return p->a.dtype == CHOIR_DTYPE_BF16 && !p->a.layout.transposed &&
         p->k % STEP == 0 && (rows->end - rows->first) % PANEL == 0 &&
         p->a.layout.ld % 1024 != 0;
}

// Multiplies held panels with a group of passing ones.
TARGET_AMX static void pass(const cut_t* cut, const block_t* block,
                            const choir__amx_range_t* held,
                            const choir__amx_range_t* passing,
                            const char* held_panels, char* group, float* own) {
  const choir__amx_product_t* p = block->product;
  const int64_t panel_bytes = held->steps * STEP_BYTES;
  const bool direct = !cut->holds_a && is_direct(p, passing);
  if (!direct)
    choir__amx_copy(cut->holds_a ? &p->b : &p->a, cut->holds_a, passing, group);
  for (int64_t y = passing->first; y < passing->end; y += PANEL)
    for (int64_t x = held->first; x < held->end; x += PANEL) {
      const char* one = held_panels + (x - held->first) / PANEL * panel_bytes;
      const char* other = group + (y - passing->first) / PANEL * panel_bytes;
      const int64_t i = cut->holds_a ? x : y, j = cut->holds_a ? y : x;
      left_t a = copied(cut->holds_a ? one : other);
      if (direct) {
        const int64_t row = p->a.layout.ld * 2;
        a = (left_t){(const char*)p->a.data + i * row + held->from * 2, row,
                     TILE * row, STEP * 2};
      }
      const sums_t sums = sums_of(block, i, j, own);
      multiply(a, cut->holds_a ? other : one, held->steps, p->m - i, p->n - j,
               sums);
      finish(block, i, j, &sums, own);
    }
}

// Passing lines `begin` to `end` of one product.
TARGET_AMX static void run_lines(const choir__amx_product_t* p,
                                 const cut_t* cut, float* partial,
                                 int64_t begin, int64_t end, char* scratch) {
  char* group = scratch + cut->held * cut->block * STEP_BYTES;
  float* sums = (float*)(group + cut->group * cut->block * STEP_BYTES);
  const int64_t held_lines = cut->held * PANEL;
  block_t block = {.product = p,
                   .partial = partial,
                   .is_far = is_far(p) && cut->block == cut->steps};
  for (int64_t step = 0; step < cut->steps; step += cut->block) {
    const int64_t steps = least(cut->block, cut->steps - step);
    block.is_first = step == 0;
    block.is_last = step + steps == cut->steps;
    for (int64_t x = 0; x < cut->held_lines; x += held_lines) {
      const choir__amx_range_t held = {
          x, least(x + held_lines, cut->held_lines), step * STEP, steps, p->k};
      choir__amx_copy(cut->holds_a ? &p->a : &p->b, !cut->holds_a, &held,
                      scratch);
      for (int64_t y = begin; y < end; y += cut->group * PANEL) {
        const choir__amx_range_t passing = {
            y, least(y + cut->group * PANEL, end), step * STEP, steps, p->k};
        pass(cut, &block, &held, &passing, scratch, group, sums);
      }
    }
  }
}

// ---- Threads ----

typedef struct job_s {
  choir__amx_product_t (*product_at)(const void*, int64_t);
  const void* context;
  cut_t cut;
  int64_t panels;  // passing ones of each product
  float* partial;  // (count, m, n)
} job_t;

// Panels `begin` to `end` of all products'.
TARGET_AMX static void run_range(void* context, void* scratch, int64_t begin,
                                 int64_t end) {
  const job_t* job = context;
  choir__amx_begin();
  while (begin < end) {
    const int64_t i = begin / job->panels, panel = begin % job->panels;
    const int64_t next = least(job->panels, panel + end - begin);
    const choir__amx_product_t p = job->product_at(job->context, i);
    run_lines(&p, &job->cut, job->partial ? job->partial + i * p.m * p.n : NULL,
              panel * PANEL, least(next * PANEL, job->cut.passing_lines),
              scratch);
    begin += next - panel;
  }
  _mm_sfence();  // non-temporal stores have no order with others until here
  choir__amx_end();
}

choir_status_t choir__amx_run(int64_t count,
                              choir__amx_product_t (*product_at)(const void*,
                                                                 int64_t),
                              const void* context, choir_stream_t* stream) {
  enum { WORK = 1 << 21 };  // multiply-adds that are worth a thread
  const choir__amx_product_t first = product_at(context, 0);
  job_t job = {.product_at = product_at,
               .context = context,
               .cut = cut_of(&first),
               .partial = NULL};
  job.panels = ceiling(job.cut.passing_lines, PANEL);
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  size_t bytes = 0;
  if (job.cut.block < job.cut.steps && first.result != CHOIR_DTYPE_F32) {
    bytes = (size_t)(count * first.m * first.n) * sizeof(float);
    job.partial = pool.alloc(pool.self, bytes, 64);
    if (!job.partial)
      return CHOIR_ERROR(OUT_OF_MEMORY, "product/amx: no %zu bytes", bytes);
  }
  choir_status_t status = choir__cpu_parallel_scratch(
      stream, count * job.panels, WORK / (job.cut.held_lines * PANEL * first.k),
      scratch_bytes(&job.cut), run_range, &job);
  if (job.partial) pool.free(pool.self, job.partial, bytes, 64);
  return status;
}

#else

// What nobody calls, as there is none.

bool choir__has_amx(void) { return false; }

void choir__amx_begin(void) {}
void choir__amx_end(void) {}

void choir__amx_copy(const choir__amx_factor_t* factor, bool is_b,
                     const choir__amx_range_t* range, char* out) {
  (void)factor, (void)is_b, (void)range, (void)out;
}

void choir__amx_multiply(const char* a, const char* b, int64_t steps,
                         float* sums, int64_t ld, bool adds) {
  (void)a, (void)b, (void)steps, (void)sums, (void)ld, (void)adds;
}

choir_status_t choir__amx_run(int64_t count,
                              choir__amx_product_t (*product_at)(const void*,
                                                                 int64_t),
                              const void* context, choir_stream_t* stream) {
  (void)count, (void)product_at, (void)context, (void)stream;
  return CHOIR_ERROR(INTERNAL, "product/amx: not on this processor");
}

#endif
