// SPDX-License-Identifier: Apache-2.0
// matmul and linear of bf16 by AMX. One factor, and the bias, can be f32: that
// is how a graph gives parameters (tensor/fusions/casts.c).
#include "tensor/kernels/cpu/cpu_amx.h"
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"

static bool is_bf16_or_f32(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_BF16 || dtype == CHOIR_DTYPE_F32;
}

static bool takes_dtypes(const choir_record_t* record) {
  const int32_t count = record->src_count + record->dst_count;
  for (int32_t i = 0; i < count; ++i)
    if (!is_bf16_or_f32(record->operands[i].dtype)) return false;
  return choir_record_src(record, 0)->dtype == CHOIR_DTYPE_BF16 ||
         choir_record_src(record, 1)->dtype == CHOIR_DTYPE_BF16;
}

typedef struct products_s {
  const choir_record_t* record;
  choir__product_t product;
} products_t;

static choir__amx_factor_t factor_at(const products_t* products, int32_t i,
                                     const choir__matrix_t* layout,
                                     int64_t index) {
  const choir_view_t* view = choir_record_src(products->record, i);
  const choir_view_t* dst = choir_record_dst(products->record, 0);
  const int64_t offset = choir__matrix_offset(view, dst, index);
  return (choir__amx_factor_t){
      (const char*)choir__view_data(view) +
          offset * (int64_t)choir_dtype_bytes(view->dtype),
      view->dtype, *layout};
}

static choir__matrix_t flipped(choir__matrix_t matrix) {
  return (choir__matrix_t){matrix.ld, !matrix.transposed};
}

static choir__amx_product_t product_at(const void* context, int64_t index) {
  const products_t* products = context;
  const choir_record_t* record = products->record;
  const choir__product_t* of = &products->product;
  const choir_view_t* c = choir_record_dst(record, 0);
  choir__amx_product_t p = {.m = of->m,
                            .n = of->n,
                            .k = of->k,
                            .a = factor_at(products, 0, &of->a, index),
                            .b = factor_at(products, 1, &of->b, index),
                            .c = (char*)choir__view_data(c) +
                                 choir__matrix_offset(c, c, index) *
                                     (int64_t)choir_dtype_bytes(c->dtype),
                            .ldc = of->c.ld,
                            .result = c->dtype,
                            .adds = record->accumulate};
  if (of->c.transposed) {
    // c^T = b^T a^T.
    const choir__amx_factor_t a = p.a;
    p.m = of->n;
    p.n = of->m;
    p.a = p.b;
    p.b = a;
    p.a.layout = flipped(p.a.layout);
    p.b.layout = flipped(p.b.layout);
  }
  if (record->src_count > 2) {
    p.bias = choir__view_data(choir_record_src(record, 2));
    p.bias_dtype = choir_record_src(record, 2)->dtype;
  }
  return p;
}

static choir_status_t run(const products_t* products, choir_stream_t* stream) {
  const choir__product_t* p = &products->product;
  const int64_t count =
      choir_view_count(choir_record_dst(products->record, 0)) / (p->m * p->n);
  return choir__amx_run(count, product_at, products, stream);
}

static bool matmul_supports(const choir_record_t* record) {
  choir__product_t product;
  return takes_dtypes(record) && choir__has_amx() &&
         choir__matmul_product(record, &product);
}

static choir_status_t matmul_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  products_t products = {.record = record};
  if (!choir__matmul_product(record, &products.product))
    return CHOIR_ERROR(INTERNAL, "matmul/amx: layout not supported");
  return run(&products, stream);
}
const choir_op_kernel_t choir__cpu_matmul_amx = {
    .kernel = {.name = "matmul/amx", .run = matmul_run},
    .op = CHOIR_OP_MATMUL,
    .algorithm = "amx",
    .supports = matmul_supports,
    .rounds_f32 = true};

static bool linear_supports(const choir_record_t* record) {
  choir__product_t product;
  return takes_dtypes(record) && choir__has_amx() &&
         choir__linear_product(record, &product);
}

static choir_status_t linear_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  products_t products = {.record = record};
  if (!choir__linear_product(record, &products.product))
    return CHOIR_ERROR(INTERNAL, "linear/amx: layout not supported");
  return run(&products, stream);
}
const choir_op_kernel_t choir__cpu_linear_amx = {
    .kernel = {.name = "linear/amx", .run = linear_run},
    .op = CHOIR_OP_LINEAR,
    .algorithm = "amx",
    .supports = linear_supports,
    .rounds_f32 = true};
