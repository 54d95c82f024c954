// SPDX-License-Identifier: Apache-2.0
// matmul and linear of bf16 by oneDNN's matmul. Those of f32 are
// cpu_product.c's, but where fmaf is no instruction.
#include <string.h>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tensor/kernels/product.h"

// Row-major c (m, n) = a (m, k) b (k, n), or c and that; a and b are perhaps
// transposed.
typedef struct matmul_s {
  int64_t m, n, k;
  choir__matrix_t a, b;
  int64_t ldc;
  bool accumulate, has_bias;
  choir_dtype_t factors, result;
} matmul_t;

// c^T = b^T a^T where c lies by columns.
static matmul_t matmul_of(const choir_record_t* record,
                          const choir__product_t* of) {
  const bool swap = of->c.transposed;
  matmul_t matmul = {.m = swap ? of->n : of->m,
                     .n = swap ? of->m : of->n,
                     .k = of->k,
                     .a = swap ? of->b : of->a,
                     .b = swap ? of->a : of->b,
                     .ldc = of->c.ld,
                     .accumulate = record->accumulate,
                     .has_bias = record->src_count > 2,
                     .factors = choir_record_src(record, 0)->dtype,
                     .result = choir_record_dst(record, 0)->dtype};
  matmul.a.transposed ^= swap;
  matmul.b.transposed ^= swap;
  return matmul;
}

static dnnl_status_t matrix_desc(dnnl_memory_desc_t* md, choir_dtype_t dtype,
                                 int64_t rows, int64_t columns,
                                 choir__matrix_t matrix) {
  const dnnl_dims_t sizes = {rows, columns};
  const dnnl_dims_t strides = {matrix.transposed ? 1 : matrix.ld,
                               matrix.transposed ? matrix.ld : 1};
  return dnnl_memory_desc_create_with_strides(
      md, 2, sizes, choir__dnnl_dtype(dtype), strides);
}

typedef struct product_descs_s {
  dnnl_memory_desc_t a, b, c, bias;
} product_descs_t;

// A plan's operands are a, b, c and the bias.
static choir_status_t add_matmul(choir__dnnl_plan_t* plan, dnnl_engine_t engine,
                                 const matmul_t* g, product_descs_t* d) {
  const choir__matrix_t c = {g->ldc, false}, bias = {g->n, false};
  CHOIR__DNNL_TRY(matrix_desc(&d->a, g->factors, g->m, g->k, g->a));
  CHOIR__DNNL_TRY(matrix_desc(&d->b, g->factors, g->k, g->n, g->b));
  CHOIR__DNNL_TRY(matrix_desc(&d->c, g->result, g->m, g->n, c));
  if (g->has_bias)
    CHOIR__DNNL_TRY(matrix_desc(&d->bias, g->factors, 1, g->n, bias));
  choir__dnnl_slot_t slots[4];
  const dnnl_memory_desc_t descs[] = {d->a, d->b, d->c, d->bias};
  for (int32_t i = 0; i < 3 + g->has_bias; ++i)
    CHOIR_TRY(choir__dnnl_operand(plan, i, descs[i], &slots[i]));
  dnnl_primitive_attr_t attr;
  CHOIR_TRY(choir__dnnl_attr(g->accumulate, &attr));
  dnnl_primitive_desc_t pd = NULL;
  const dnnl_status_t made = dnnl_matmul_primitive_desc_create(
      &pd, engine, d->a, d->b, g->has_bias ? d->bias : NULL, d->c, attr);
  dnnl_primitive_attr_destroy(attr);
  CHOIR__DNNL_TRY(made);
  const int32_t arguments[][2] = {{DNNL_ARG_SRC, slots[0]},
                                  {DNNL_ARG_WEIGHTS, slots[1]},
                                  {DNNL_ARG_DST, slots[2]},
                                  {DNNL_ARG_BIAS, g->has_bias ? slots[3] : 0}};
  return choir__dnnl_call(plan, pd, arguments, 3 + g->has_bias);
}

static choir_status_t build(choir__dnnl_plan_t* plan, dnnl_engine_t engine,
                            const void* problem) {
  product_descs_t descs = {NULL, NULL, NULL, NULL};
  choir_status_t status = add_matmul(plan, engine, problem, &descs);
  dnnl_memory_desc_destroy(descs.a);
  dnnl_memory_desc_destroy(descs.b);
  dnnl_memory_desc_destroy(descs.c);
  dnnl_memory_desc_destroy(descs.bias);
  return status;
}

static choir_status_t run(const matmul_t* g, void* const* operands,
                          choir_stream_t* stream) {
  choir__key_t key = {.count = 0};
  choir__key_add(&key, g->a.transposed);
  choir__key_add(&key, g->b.transposed);
  choir__key_add(&key, g->m);
  choir__key_add(&key, g->n);
  choir__key_add(&key, g->k);
  choir__key_add(&key, g->a.ld);
  choir__key_add(&key, g->b.ld);
  choir__key_add(&key, g->ldc);
  choir__key_add(&key, g->accumulate);
  choir__key_add(&key, g->has_bias);
  choir__key_add(&key, g->factors);
  choir__key_add(&key, g->result);
  return choir__dnnl_run(&key, build, g, stream, operands);
}

// Of a result with one column oneDNN 3 (3.7.2) takes the elements for
// neighbours, whatever their stride, and so of b's. Of bf16 and an odd number
// of terms it pairs the last with what lies behind it and multiplies that by
// zero, which is NaN if a NaN or an infinity lies there.
static bool fits(const choir_record_t* record,
                 const choir__product_t* product) {
  if (!choir__dnnl_takes_dtypes(record)) return false;
  if ((product->c.transposed ? product->m : product->n) == 1) return false;
  return choir_record_src(record, 0)->dtype == CHOIR_DTYPE_F32
             ? !choir__has_fma()
             : product->k % 2 == 0;
}

static void* matrix_at(const choir_view_t* view, const choir_view_t* dst,
                       int64_t index) {
  return (char*)choir__view_data(view) +
         choir__matrix_offset(view, dst, index) *
             (int64_t)choir_dtype_bytes(view->dtype);
}

static choir_status_t run_record(const choir_record_t* record,
                                 const choir__product_t* product,
                                 choir_stream_t* stream) {
  const matmul_t matmul = matmul_of(record, product);
  const choir_view_t* a = choir_record_src(record, 0);
  const choir_view_t* b = choir_record_src(record, 1);
  const choir_view_t* c = choir_record_dst(record, 0);
  void* bias =
      matmul.has_bias ? choir__view_data(choir_record_src(record, 2)) : NULL;
  const int64_t count = choir_view_count(c) / (product->m * product->n);
  for (int64_t i = 0; i < count; ++i) {
    void* left = matrix_at(a, c, i);
    void* right = matrix_at(b, c, i);
    const bool swap = product->c.transposed;
    void* const operands[] = {swap ? right : left, swap ? left : right,
                              matrix_at(c, c, i), bias};
    CHOIR_TRY(run(&matmul, operands, stream));
  }
  return NULL;
}

#define PRODUCT(OP, op)                                                       \
  static bool op##_supports(const choir_record_t* record) {                   \
    choir__product_t product;                                                 \
    return choir__##op##_product(record, &product) && fits(record, &product); \
  }                                                                           \
  static choir_status_t op##_run(const choir_record_t* record,                \
                                 choir_stream_t* stream) {                    \
    choir__product_t product;                                                 \
    if (!choir__##op##_product(record, &product))                             \
      return CHOIR_ERROR(INTERNAL, "%s: layout not supported",                \
                         record->kernel->name);                               \
    return run_record(record, &product, stream);                              \
  }                                                                           \
  const choir_op_kernel_t choir__cpu_##op##_dnnl =                            \
      CHOIR_OP_KERNEL(CHOIR_OP_##OP, #op, "dnnl", op##_run, op##_supports);
PRODUCT(MATMUL, matmul)
// x (..., in), W (in, out), b (out): all rows are one product.
PRODUCT(LINEAR, linear)
