// SPDX-License-Identifier: Apache-2.0
// Matrix products by dnnl_sgemm, which takes any leading dimension: operands
// that are transposed by strides or flags cost nothing.
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_engine.h"

// A matrix as sgemm takes it: rows of `ld` elements, or its transpose.
typedef struct matrix_s {
  float* data;
  int64_t ld;
  bool transposed;
} matrix_t;

// Strides of a matrix to a leading dimension; false when neither its rows nor
// its columns are dense.
static bool describe(int64_t rows, int64_t columns, int64_t row_stride,
                     int64_t column_stride, matrix_t* out) {
  // A size of 1 leaves its stride without meaning.
  if (columns == 1 || column_stride == 1) {
    out->transposed = false;
    out->ld = rows == 1 ? columns : row_stride;
    if (out->ld >= columns && (columns > 1 || rows == 1 || row_stride > 0))
      return true;
  }
  if (rows == 1 || row_stride == 1) {
    out->transposed = true;
    out->ld = columns == 1 ? rows : column_stride;
    return out->ld >= rows;
  }
  return false;
}

static choir_status_t multiply(const matrix_t* a, const matrix_t* b,
                               const matrix_t* c, int64_t m, int64_t n,
                               int64_t k, float beta) {
  // c^T = b^T a^T when c lies by columns.
  const matrix_t* left = c->transposed ? b : a;
  const matrix_t* right = c->transposed ? a : b;
  CHOIR__DNNL_TRY(dnnl_sgemm(left->transposed == c->transposed ? 'N' : 'T',
                             right->transposed == c->transposed ? 'N' : 'T',
                             c->transposed ? n : m, c->transposed ? m : n, k,
                             1.0f, left->data, left->ld, right->data, right->ld,
                             beta, c->data, c->ld));
  return NULL;
}

// ---- matmul ----

typedef struct product_s {
  matrix_t a, b, c;
  int64_t m, n, k;
} product_t;

static bool product_of(const choir_record_t* record, product_t* out) {
  const choir_matmul_attrs_t* attrs = record->attrs;
  const choir_view_t* a = choir_record_src(record, 0);
  const choir_view_t* b = choir_record_src(record, 1);
  const choir_view_t* c = choir_record_dst(record, 0);
  if (!choir__all_f32(record) || a->ndim < 2 || b->ndim < 2 || c->ndim < 2)
    return false;
  const int32_t ar = a->ndim - 2 + attrs->transpose_a;
  const int32_t ac = a->ndim - 1 - attrs->transpose_a;
  const int32_t br = b->ndim - 2 + attrs->transpose_b;
  const int32_t bc = b->ndim - 1 - attrs->transpose_b;
  const int32_t cr = c->ndim - 2, cc = c->ndim - 1;
  out->m = a->shape[ar];
  out->k = a->shape[ac];
  out->n = b->shape[bc];
  if (choir_view_count(c) == 0 || out->k == 0) return false;
  return describe(out->m, out->k, a->strides[ar], a->strides[ac], &out->a) &&
         describe(out->k, out->n, b->strides[br], b->strides[bc], &out->b) &&
         describe(out->m, out->n, c->strides[cr], c->strides[cc], &out->c);
}

static bool matmul_supports(const choir_record_t* record) {
  product_t product;
  return product_of(record, &product);
}

// How far the matrix at `index` (row-major over the result's leading sizes)
// lies from the first one; missing and single sizes repeat.
static int64_t batch_offset(const choir_view_t* view, const choir_view_t* dst,
                            int64_t index) {
  int64_t offset = 0;
  for (int32_t k = dst->ndim - 3; k >= 0; k--) {
    const int64_t at = index % dst->shape[k];
    index /= dst->shape[k];
    const int32_t own = view->ndim - dst->ndim + k;
    if (own >= 0 && view->shape[own] > 1) offset += at * view->strides[own];
  }
  return offset;
}

static choir_status_t matmul_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  const choir_view_t* a = choir_record_src(record, 0);
  const choir_view_t* b = choir_record_src(record, 1);
  const choir_view_t* c = choir_record_dst(record, 0);
  product_t product;
  if (!product_of(record, &product))
    return CHOIR_ERROR(INTERNAL, "matmul/dnnl: layout not supported");
  choir__dnnl_follow_threads(stream);
  const int64_t batch = choir_view_count(c) / (product.m * product.n);
  for (int64_t i = 0; i < batch; i++) {
    product.a.data = choir__view_f32(a) + batch_offset(a, c, i);
    product.b.data = choir__view_f32(b) + batch_offset(b, c, i);
    product.c.data = choir__view_f32(c) + batch_offset(c, c, i);
    CHOIR_TRY(multiply(&product.a, &product.b, &product.c, product.m, product.n,
                       product.k, record->accumulate ? 1.0f : 0.0f));
  }
  return NULL;
}
const choir_op_kernel_t choir__cpu_matmul = {
    {"matmul/dnnl", matmul_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_MATMUL,
    matmul_supports};

// ---- linear: x (n, in), W (in, out), b (out) ----

static bool linear_of(const choir_record_t* record, product_t* out) {
  const choir_view_t* x = choir_record_src(record, 0);
  const choir_view_t* w = choir_record_src(record, 1);
  const choir_view_t* b = choir_record_src(record, 2);
  const choir_view_t* y = choir_record_dst(record, 0);
  if (!choir__all_f32(record) || x->ndim != 2 || w->ndim != 2 || y->ndim != 2)
    return false;
  out->m = x->shape[0];
  out->k = x->shape[1];
  out->n = w->shape[1];
  if (choir_view_count(y) == 0 || out->k == 0) return false;
  return describe(out->m, out->k, x->strides[0], x->strides[1], &out->a) &&
         describe(out->k, out->n, w->strides[0], w->strides[1], &out->b) &&
         describe(out->m, out->n, y->strides[0], y->strides[1], &out->c) &&
         !out->c.transposed && (b->strides[0] == 1 || b->shape[0] == 1);
}

static bool linear_supports(const choir_record_t* record) {
  product_t product;
  return linear_of(record, &product);
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
  product_t product;
  if (!linear_of(record, &product))
    return CHOIR_ERROR(INTERNAL, "linear/dnnl: layout not supported");
  choir__dnnl_follow_threads(stream);
  const float* bias = choir__view_f32(choir_record_src(record, 2));
  product.a.data = choir__view_f32(choir_record_src(record, 0));
  product.b.data = choir__view_f32(choir_record_src(record, 1));
  product.c.data = choir__view_f32(choir_record_dst(record, 0));
  // The bias goes first, and the product is added to it.
  if (record->accumulate) {
    add_bias(product.c.data, product.c.ld, bias, product.m, product.n);
  } else {
    for (int64_t r = 0; r < product.m; r++)
      memcpy(product.c.data + r * product.c.ld, bias,
             (size_t)product.n * sizeof(float));
  }
  return multiply(&product.a, &product.b, &product.c, product.m, product.n,
                  product.k, 1.0f);
}
const choir_op_kernel_t choir__cpu_linear = {
    {"linear/dnnl", linear_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_LINEAR,
    linear_supports};
