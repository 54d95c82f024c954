// SPDX-License-Identifier: Apache-2.0
// Matrix products by dnnl_sgemm and, where that is slower or the factors have
// 16 bits, oneDNN's matmul.
#include <stdatomic.h>
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tensor/kernels/cpu/dnnl_product.h"

// Where the matrices of a product begin.
typedef struct places_s {
  void *a, *b, *c;
} places_t;

// dnnl_sgemm's view of a product: row-major c (m, n) = a (m, k) b (k, n) + beta
// c, a and b perhaps transposed.
typedef struct sgemm_s {
  char ta, tb;
  int64_t m, n, k;
  const float *a, *b;
  float* c;
  int64_t lda, ldb, ldc;
  float beta;
} sgemm_t;

// One for oneDNN's matmul, in which g's pointers lead to elements of any dtype.
typedef struct matmul_s {
  sgemm_t g;
  choir_dtype_t factors, result;
  const void* bias;  // n factors; NULL: none
} matmul_t;

static choir_status_t run_sgemm(const sgemm_t* g, int32_t threads) {
  const int32_t before = choir__dnnl_threads_begin(threads);
  const dnnl_status_t status =
      dnnl_sgemm(g->ta, g->tb, g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b,
                 g->ldb, g->beta, g->c, g->ldc);
  choir__dnnl_threads_end(before);
  CHOIR__DNNL_TRY(status);
  return NULL;
}

// ---- Blocks of b ----
//
// With AVX2 and up to some 380 rows dnnl_sgemm walks down b as it lies. Rows
// that are a multiple of 2 KiB apart then conflict in the sets of the L1 cache,
// and the product takes twice as long: 128 by 4096 by 4096 on an AMD EPYC 104
// ms in place of 53 (500 or 800 columns: no difference). So b is copied block
// by block to rows that are not. Measured against each other for 8 to 4096
// rows, 64 to 4096 times 256 to 8192.

enum {
  BLOCK_K = 256,
  BLOCK_N = 512,
  BLOCK_LD = BLOCK_N + 16,
  FAR_ROWS = 512  // floats
};

static bool is_copied(const sgemm_t* g) {
  return choir__isa() == CHOIR__ISA_AVX2 && g->tb == 'N' &&
         g->ldb % FAR_ROWS == 0 && g->m >= 16 && g->m < 380;
}

// In `block`, on one thread.
static choir_status_t run_blocks(const sgemm_t* g, float* block) {
  for (int64_t j = 0; j < g->n; j += BLOCK_N)
    for (int64_t p = 0; p < g->k; p += BLOCK_K) {
      const int64_t n = g->n - j < BLOCK_N ? g->n - j : BLOCK_N;
      const int64_t k = g->k - p < BLOCK_K ? g->k - p : BLOCK_K;
      for (int64_t r = 0; r < k; r++)
        memcpy(block + r * BLOCK_LD, g->b + (p + r) * g->ldb + j,
               (size_t)n * sizeof(float));
      sgemm_t part = *g;
      part.n = n;
      part.k = k;
      part.a = g->a + (g->ta == 'N' ? p : p * g->lda);
      part.b = block;
      part.ldb = BLOCK_LD;
      part.c = g->c + j;
      if (p > 0) part.beta = 1.0f;
      CHOIR_TRY(run_sgemm(&part, 1));
    }
  return NULL;
}

// ---- Threads ----
//
// With AVX2, or where c is one row or column, the bits of a product of two
// threads are not those of one, as an element's terms are added up in another
// order where its thread's share ends. So products of few rows or few columns
// are shared out here, each share with one thread:
//
// - up to 256 rows, and where b is copied, by columns: oneDNN then goes down
//   all columns alike, in units of sixteen, wherever a share begins (tested
//   for 1 to 7 threads);
// - up to 256 columns by blocks of rows that are a product each.
//
// The rest oneDNN shares out, which with AVX2 has other bits for some numbers
// of threads.

enum {
  FEW = 256,
  COLUMNS_UNIT = 16,
  ROWS_UNIT = 128,
  SHARE_WORK = 1 << 18  // multiply-adds that are worth a thread of their own
};

static bool is_shared_here(const sgemm_t* g) {
  const int64_t few = choir__isa() == CHOIR__ISA_AVX512 ? 1
                      : choir__isa() == CHOIR__ISA_AVX2 ? FEW
                                                        : 0;
  return is_copied(g) || g->m <= few || g->n <= few;
}

typedef struct share_s {
  const sgemm_t* whole;
  _Atomic(choir_status_t) status;
} share_t;

// Keeps one status of those that fail.
static void share_ended(share_t* share, choir_status_t status) {
  choir_status_t none = NULL;
  if (status && !atomic_compare_exchange_strong(&share->status, &none, status))
    choir_status_free(status);
}

static void share_columns(share_t* share, const sgemm_t* whole, void* block,
                          int64_t begin, int64_t end) {
  sgemm_t part = *whole;
  const int64_t first = begin * COLUMNS_UNIT, next = end * COLUMNS_UNIT;
  // The last unit has what is left over: a kernel for single columns would
  // have other bits.
  part.n = (part.n - next < COLUMNS_UNIT ? part.n : next) - first;
  part.b += part.tb == 'N' ? first : first * part.ldb;
  part.c += first;
  share_ended(share, block ? run_blocks(&part, block) : run_sgemm(&part, 1));
}

static void columns_range(void* context, void* block, int64_t begin,
                          int64_t end) {
  share_t* share = context;
  share_columns(share, share->whole, block, begin, end);
}

static void share_rows(share_t* share, const sgemm_t* whole, int64_t begin,
                       int64_t end) {
  for (int64_t unit = begin; unit < end; unit++) {
    sgemm_t part = *whole;
    const int64_t first = unit * ROWS_UNIT, left = part.m - first;
    part.m = left < ROWS_UNIT ? left : ROWS_UNIT;
    part.a += part.ta == 'N' ? first * part.lda : first;
    part.c += first * part.ldc;
    share_ended(share, run_sgemm(&part, 1));
  }
}

static void rows_range(void* context, int64_t begin, int64_t end) {
  share_t* share = context;
  share_rows(share, share->whole, begin, end);
}

static int64_t column_units(const sgemm_t* g) {
  return g->n < COLUMNS_UNIT ? 1 : g->n / COLUMNS_UNIT;
}

static int64_t row_units(const sgemm_t* g) {
  return (g->m + ROWS_UNIT - 1) / ROWS_UNIT;
}

static choir_status_t run_shares(const sgemm_t* g, choir_stream_t* stream) {
  share_t share = {.whole = g};
  if (is_copied(g) || g->m <= FEW) {
    CHOIR_TRY(choir__cpu_parallel_scratch(
        stream, column_units(g), SHARE_WORK / (g->m * g->k * COLUMNS_UNIT),
        is_copied(g) ? BLOCK_K * BLOCK_LD * sizeof(float) : 0, columns_range,
        &share));
  } else {
    choir__cpu_parallel(choir__cpu_threads(stream), row_units(g),
                        SHARE_WORK / (g->n * g->k * ROWS_UNIT), rows_range,
                        &share);
  }
  return atomic_load(&share.status);
}

// ---- Transposed right factors ----
//
// As in gradients of x in linear layers. With AVX-512 oneDNN's matmul takes
// less time for them than dnnl_sgemm if all matrices are dense; GFLOP/s of
// sgemm, of matmul, on an AMD EPYC:
//   128 by 4096 by 4096  82 101      64 by 500 by 10    22  59
//   64 by 800 by 500     85 100      64 by 64 by 64     69  87
//   16 by 1024 by 1024   33  79      2048 cubed        109 108
// Up to four rows sgemm is the quicker one.

enum { FEWEST_ROWS = 8 };

static bool is_matmul(const sgemm_t* g) {
  return choir__isa() == CHOIR__ISA_AVX512 && g->tb == 'T' &&
         g->m >= FEWEST_ROWS && g->lda == (g->ta == 'N' ? g->k : g->m) &&
         g->ldb == g->k && g->ldc == g->n;
}

static dnnl_status_t matrix_desc(dnnl_memory_desc_t* md, choir_dtype_t dtype,
                                 int64_t rows, int64_t columns, int64_t ld,
                                 bool transposed) {
  const dnnl_dims_t sizes = {rows, columns};
  const dnnl_dims_t strides = {transposed ? 1 : ld, transposed ? ld : 1};
  return dnnl_memory_desc_create_with_strides(
      md, 2, sizes, choir__dnnl_dtype(dtype), strides);
}

typedef struct product_descs_s {
  dnnl_memory_desc_t a, b, c, bias;
} product_descs_t;

// A plan's operands are those of the product.
static choir_status_t add_matmul(choir__dnnl_plan_t* plan, dnnl_engine_t engine,
                                 const matmul_t* product, product_descs_t* d) {
  const sgemm_t* g = &product->g;
  const bool has_bias = product->bias;
  CHOIR__DNNL_TRY(
      matrix_desc(&d->a, product->factors, g->m, g->k, g->lda, g->ta == 'T'));
  CHOIR__DNNL_TRY(
      matrix_desc(&d->b, product->factors, g->k, g->n, g->ldb, g->tb == 'T'));
  CHOIR__DNNL_TRY(
      matrix_desc(&d->c, product->result, g->m, g->n, g->ldc, false));
  if (has_bias)
    CHOIR__DNNL_TRY(
        matrix_desc(&d->bias, product->factors, 1, g->n, g->n, false));
  choir__dnnl_slot_t slots[4];
  const dnnl_memory_desc_t descs[] = {d->a, d->b, d->c, d->bias};
  for (int32_t i = 0; i < 3 + has_bias; ++i)
    CHOIR_TRY(choir__dnnl_operand(plan, i, descs[i], &slots[i]));
  dnnl_primitive_attr_t attr;
  CHOIR_TRY(choir__dnnl_attr(g->beta != 0, &attr));
  dnnl_primitive_desc_t pd = NULL;
  const dnnl_status_t made = dnnl_matmul_primitive_desc_create(
      &pd, engine, d->a, d->b, has_bias ? d->bias : NULL, d->c, attr);
  dnnl_primitive_attr_destroy(attr);
  CHOIR__DNNL_TRY(made);
  const int32_t arguments[][2] = {{DNNL_ARG_SRC, slots[0]},
                                  {DNNL_ARG_WEIGHTS, slots[1]},
                                  {DNNL_ARG_DST, slots[2]},
                                  {DNNL_ARG_BIAS, has_bias ? slots[3] : 0}};
  return choir__dnnl_call(plan, pd, arguments, 3 + has_bias);
}

static choir_status_t build_matmul(choir__dnnl_plan_t* plan,
                                   dnnl_engine_t engine, const void* problem) {
  product_descs_t descs = {NULL, NULL, NULL, NULL};
  choir_status_t status = add_matmul(plan, engine, problem, &descs);
  dnnl_memory_desc_destroy(descs.a);
  dnnl_memory_desc_destroy(descs.b);
  dnnl_memory_desc_destroy(descs.c);
  dnnl_memory_desc_destroy(descs.bias);
  return status;
}

static choir_status_t run_matmul(const matmul_t* product,
                                 choir_stream_t* stream) {
  const sgemm_t* g = &product->g;
  choir__key_t key = {.count = 0};
  choir__key_add(&key, g->ta);
  choir__key_add(&key, g->tb);
  choir__key_add(&key, g->m);
  choir__key_add(&key, g->n);
  choir__key_add(&key, g->k);
  choir__key_add(&key, g->lda);
  choir__key_add(&key, g->ldb);
  choir__key_add(&key, g->ldc);
  choir__key_add(&key, g->beta != 0);
  choir__key_add(&key, product->factors);
  choir__key_add(&key, product->result);
  choir__key_add(&key, product->bias != NULL);
  void* const operands[] = {(void*)g->a, (void*)g->b, g->c,
                            (void*)product->bias};
  return choir__dnnl_run(&key, build_matmul, product, stream, operands);
}

static sgemm_t sgemm_of(const choir__product_t* product, const places_t* places,
                        float beta) {
  // c^T = b^T a^T when c lies by columns.
  const bool swap = product->c.transposed;
  const choir__matrix_t* left = swap ? &product->b : &product->a;
  const choir__matrix_t* right = swap ? &product->a : &product->b;
  return (sgemm_t){.ta = left->transposed == swap ? 'N' : 'T',
                   .tb = right->transposed == swap ? 'N' : 'T',
                   .m = swap ? product->n : product->m,
                   .n = swap ? product->m : product->n,
                   .k = product->k,
                   .a = swap ? places->b : places->a,
                   .lda = left->ld,
                   .b = swap ? places->a : places->b,
                   .ldb = right->ld,
                   .c = places->c,
                   .ldc = product->c.ld,
                   .beta = beta};
}

static choir_status_t multiply(const sgemm_t* g, choir_stream_t* stream) {
  if (is_shared_here(g)) return run_shares(g, stream);
  if (is_matmul(g)) {
    const matmul_t product = {*g, CHOIR_DTYPE_F32, CHOIR_DTYPE_F32, NULL};
    return run_matmul(&product, stream);
  }
  return run_sgemm(g, choir__cpu_threads(stream));
}

choir_status_t choir__dnnl_product(const choir__product_t* product,
                                   const float* a, const float* b, float* c,
                                   bool adds, choir_stream_t* stream) {
  const places_t places = {(void*)a, (void*)b, c};
  const sgemm_t g = sgemm_of(product, &places, adds ? 1.0f : 0.0f);
  return multiply(&g, stream);
}

// ---- matmul ----

static bool is_narrow_product(const choir_record_t* record) {
  return choir_record_src(record, 0)->dtype == CHOIR_DTYPE_BF16;
}

// Of a result with one column oneDNN 3 (3.7.2) takes the elements for
// neighbours, whatever their stride, and so of b's. Of an odd number of terms
// it pairs the last with what lies behind it and multiplies that by zero, which
// is NaN if a NaN or an infinity lies there.
static bool fits_narrow(const choir_record_t* record,
                        const choir__product_t* product) {
  return !is_narrow_product(record) ||
         ((product->c.transposed ? product->m : product->n) > 1 &&
          product->k % 2 == 0);
}

static choir_status_t run_narrow(const choir_record_t* record,
                                 const choir__product_t* product,
                                 const places_t* places, const void* bias,
                                 choir_stream_t* stream) {
  const matmul_t narrow = {
      .g = sgemm_of(product, places, record->accumulate ? 1.0f : 0.0f),
      .factors = CHOIR_DTYPE_BF16,
      .result = choir_record_dst(record, 0)->dtype,
      .bias = bias};
  return run_matmul(&narrow, stream);
}

static bool matmul_supports(const choir_record_t* record) {
  choir__product_t product;
  return choir__dnnl_takes_dtypes(record) &&
         choir__matmul_product(record, &product) &&
         fits_narrow(record, &product);
}

// Whether one thread gives the bits of several. Of those that the library
// shares out itself with AVX-512 alone.
static bool is_same_alone(const sgemm_t* g) {
  return is_shared_here(g) ||
         (choir__isa() == CHOIR__ISA_AVX512 && !is_matmul(g));
}

// All products of a batch, which lie alike.
typedef struct batch_s {
  const choir_record_t* record;
  choir__product_t product;
  int64_t count;
  share_t share;  // its status
} batch_t;

// Where matrix `index` of an operand begins.
static void* matrix_at(const choir_view_t* view, const choir_view_t* dst,
                       int64_t index) {
  return (char*)choir__view_data(view) +
         choir__matrix_offset(view, dst, index) *
             (int64_t)choir_dtype_bytes(view->dtype);
}

static places_t places_at(const choir_record_t* record, int64_t i) {
  const choir_view_t* c = choir_record_dst(record, 0);
  return (places_t){matrix_at(choir_record_src(record, 0), c, i),
                    matrix_at(choir_record_src(record, 1), c, i),
                    matrix_at(c, c, i)};
}

static sgemm_t product_at(const batch_t* batch, int64_t i) {
  const places_t places = places_at(batch->record, i);
  return sgemm_of(&batch->product, &places,
                  batch->record->accumulate ? 1.0f : 0.0f);
}

// One thread's products, with the bits that each has when threads share it.
static void batch_range(void* context, void* block, int64_t begin,
                        int64_t end) {
  batch_t* batch = context;
  for (int64_t i = begin; i < end; ++i) {
    const sgemm_t g = product_at(batch, i);
    if (!is_shared_here(&g))
      share_ended(&batch->share, run_sgemm(&g, 1));
    else if (is_copied(&g) || g.m <= FEW)
      share_columns(&batch->share, &g, block, 0, column_units(&g));
    else
      share_rows(&batch->share, &g, 0, row_units(&g));
  }
}

static choir_status_t matmul_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  batch_t batch = {.record = record};
  if (!choir__matmul_product(record, &batch.product))
    return CHOIR_ERROR(INTERNAL, "matmul/dnnl: layout not supported");
  batch.count = choir_view_count(choir_record_dst(record, 0)) /
                (batch.product.m * batch.product.n);
  if (is_narrow_product(record)) {
    for (int64_t i = 0; i < batch.count; ++i) {
      const places_t places = places_at(record, i);
      CHOIR_TRY(run_narrow(record, &batch.product, &places, NULL, stream));
    }
    return NULL;
  }
  const sgemm_t first = product_at(&batch, 0);
  if (batch.count >= choir__cpu_threads(stream) && is_same_alone(&first)) {
    CHOIR_TRY(choir__cpu_parallel_scratch(
        stream, batch.count, SHARE_WORK / (first.m * first.n * first.k),
        is_copied(&first) ? BLOCK_K * BLOCK_LD * sizeof(float) : 0, batch_range,
        &batch));
    return atomic_load(&batch.share.status);
  }
  for (int64_t i = 0; i < batch.count; i++) {
    const sgemm_t g = product_at(&batch, i);
    CHOIR_TRY(multiply(&g, stream));
  }
  return NULL;
}
const choir_op_kernel_t choir__cpu_matmul = CHOIR_OP_KERNEL(
    CHOIR_OP_MATMUL, "matmul", "dnnl", matmul_run, matmul_supports);

// ---- linear: x (..., in), W (in, out), b (out) ----

static bool linear_supports(const choir_record_t* record) {
  choir__product_t product;
  return choir__dnnl_takes_dtypes(record) &&
         choir__linear_product(record, &product) &&
         fits_narrow(record, &product);
}

CHOIR__BODY void add_bias_body(float* y, int64_t ld, const float* b,
                               int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    CHOIR__INDEPENDENT
    for (int64_t c = 0; c < columns; c++) y[r * ld + c] += b[c];
  }
}
CHOIR__ISA_VARIANTS(add_bias,
                    (float* y, int64_t ld, const float* b, int64_t rows,
                     int64_t columns),
                    (y, ld, b, rows, columns))

static choir_status_t linear_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  choir__product_t product;
  if (!choir__linear_product(record, &product))
    return CHOIR_ERROR(INTERNAL, "linear/dnnl: layout not supported");
  const places_t places = places_at(record, 0);
  void* b = choir__view_data(choir_record_src(record, 2));
  if (is_narrow_product(record))
    return run_narrow(record, &product, &places, b, stream);
  float* c = places.c;
  // The bias goes first, and the product is added to it.
  if (record->accumulate) {
    add_bias(c, product.c.ld, b, product.m, product.n);
  } else {
    for (int64_t r = 0; r < product.m; r++)
      memcpy(c + r * product.c.ld, b, (size_t)product.n * sizeof(float));
  }
  const sgemm_t g = sgemm_of(&product, &places, 1.0f);
  return multiply(&g, stream);
}
const choir_op_kernel_t choir__cpu_linear = CHOIR_OP_KERNEL(
    CHOIR_OP_LINEAR, "linear", "dnnl", linear_run, linear_supports);
