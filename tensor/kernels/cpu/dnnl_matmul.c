// SPDX-License-Identifier: Apache-2.0
// Matrix products by dnnl_sgemm.
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tensor/kernels/product.h"

// Where the matrices of a product begin.
typedef struct places_s {
  float *a, *b, *c;
} places_t;

static choir_status_t multiply(const choir__product_t* product,
                               const places_t* places, float beta) {
  // c^T = b^T a^T when c lies by columns.
  const bool swap = product->c.transposed;
  const choir__matrix_t* left = swap ? &product->b : &product->a;
  const choir__matrix_t* right = swap ? &product->a : &product->b;
  CHOIR__DNNL_TRY(dnnl_sgemm(
      left->transposed == swap ? 'N' : 'T',
      right->transposed == swap ? 'N' : 'T', swap ? product->n : product->m,
      swap ? product->m : product->n, product->k, 1.0f,
      swap ? places->b : places->a, left->ld, swap ? places->a : places->b,
      right->ld, beta, places->c, product->c.ld));
  return NULL;
}

// ---- matmul ----

static bool matmul_supports(const choir_record_t* record) {
  choir__product_t product;
  return choir__all_f32(record) && choir__matmul_product(record, &product);
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
  choir__product_t product;
  if (!choir__matmul_product(record, &product))
    return CHOIR_ERROR(INTERNAL, "matmul/dnnl: layout not supported");
  choir__dnnl_follow_threads(stream);
  const int64_t batch = choir_view_count(c) / (product.m * product.n);
  for (int64_t i = 0; i < batch; i++) {
    const places_t places = {choir__view_f32(a) + batch_offset(a, c, i),
                             choir__view_f32(b) + batch_offset(b, c, i),
                             choir__view_f32(c) + batch_offset(c, c, i)};
    CHOIR_TRY(multiply(&product, &places, record->accumulate ? 1.0f : 0.0f));
  }
  return NULL;
}
const choir_op_kernel_t choir__cpu_matmul = {
    {"matmul/dnnl", matmul_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_MATMUL,
    matmul_supports};

// ---- linear: x (n, in), W (in, out), b (out) ----

static bool linear_supports(const choir_record_t* record) {
  choir__product_t product;
  return choir__all_f32(record) && choir__linear_product(record, &product);
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
  choir__dnnl_follow_threads(stream);
  const float* bias = choir__view_f32(choir_record_src(record, 2));
  const places_t places = {choir__view_f32(choir_record_src(record, 0)),
                           choir__view_f32(choir_record_src(record, 1)),
                           choir__view_f32(choir_record_dst(record, 0))};
  // The bias goes first, and the product is added to it.
  if (record->accumulate) {
    add_bias(places.c, product.c.ld, bias, product.m, product.n);
  } else {
    for (int64_t r = 0; r < product.m; r++)
      memcpy(places.c + r * product.c.ld, bias,
             (size_t)product.n * sizeof(float));
  }
  return multiply(&product, &places, 1.0f);
}
const choir_op_kernel_t choir__cpu_linear = {
    {"linear/dnnl", linear_run, choir__cpu_cost, NULL, NULL},
    CHOIR_OP_LINEAR,
    linear_supports};
