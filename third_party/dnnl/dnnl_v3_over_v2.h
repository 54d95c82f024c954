// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_THIRD_PARTY_DNNL_DNNL_V3_OVER_V2_H_
#define CHOIR_THIRD_PARTY_DNNL_DNNL_V3_OVER_V2_H_

// Functions of oneDNN 3 that this tree uses, made of those of oneDNN 2, which
// dnnl_v3.h includes this for. What version 2 cannot do returns
// dnnl_unimplemented. A call more lies between caller and library while
// primitives are made, and none when they run.
//
// Those of inner products, poolings, softmax and element-wise functions serve
// bench/peers/dnnl_loop.c alone; the library has kernels of its own.
//
// A memory descriptor of version 2 is a struct of the caller's, one of version
// 3 an object of the library's, and both are passed on by address: here it is a
// struct that _create_... makes and _destroy frees. Functions that take one are
// version 2's own.

#include <stdlib.h>

#define dnnl_memory_desc_t choir__dnnl_v2_md_t
#include "oneapi/dnnl/dnnl.h"
#undef dnnl_memory_desc_t

typedef choir__dnnl_v2_md_t* dnnl_memory_desc_t;
typedef const choir__dnnl_v2_md_t* const_dnnl_memory_desc_t;

#ifdef __cplusplus
extern "C" {
#endif

// ---- Memory descriptors ----

static inline dnnl_status_t dnnl_memory_desc_destroy(dnnl_memory_desc_t md) {
  free(md);
  return dnnl_success;
}

static inline dnnl_status_t choir__dnnl_v2_md_keep(
    dnnl_memory_desc_t* out, dnnl_status_t status,
    const choir__dnnl_v2_md_t* made) {
  if (status != dnnl_success) return status;
  *out = (dnnl_memory_desc_t)malloc(sizeof(**out));
  if (!*out) return dnnl_out_of_memory;
  **out = *made;
  return dnnl_success;
}

static inline dnnl_status_t dnnl_memory_desc_create_with_strides(
    dnnl_memory_desc_t* out, int ndims, const dnnl_dims_t dims,
    dnnl_data_type_t type, const dnnl_dims_t strides) {
  choir__dnnl_v2_md_t md;
  const dnnl_status_t status =
      dnnl_memory_desc_init_by_strides(&md, ndims, dims, type, strides);
  return choir__dnnl_v2_md_keep(out, status, &md);
}

static inline dnnl_status_t dnnl_memory_desc_create_with_tag(
    dnnl_memory_desc_t* out, int ndims, const dnnl_dims_t dims,
    dnnl_data_type_t type, dnnl_format_tag_t tag) {
  choir__dnnl_v2_md_t md;
  const dnnl_status_t status =
      dnnl_memory_desc_init_by_tag(&md, ndims, dims, type, tag);
  return choir__dnnl_v2_md_keep(out, status, &md);
}

// ---- Post-operations ----

static inline dnnl_status_t choir__dnnl_v2_append_sum(dnnl_post_ops_t ops,
                                                      float scale,
                                                      int32_t zero_point,
                                                      dnnl_data_type_t type) {
  return dnnl_post_ops_append_sum_v3(ops, scale, zero_point, type);
}
#define dnnl_post_ops_append_sum choir__dnnl_v2_append_sum

static inline dnnl_status_t choir__dnnl_v2_append_eltwise(dnnl_post_ops_t ops,
                                                          dnnl_alg_kind_t kind,
                                                          float alpha,
                                                          float beta) {
  return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, alpha, beta);
}
#define dnnl_post_ops_append_eltwise choir__dnnl_v2_append_eltwise

// ---- Primitive descriptors: an operation's, then the primitive's ----

static inline dnnl_status_t choir__dnnl_v2_pd(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_status_t status,
    const void* op, const_dnnl_primitive_desc_t hint,
    const_dnnl_primitive_attr_t attr) {
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(out, op, attr, engine, hint);
}

static inline dnnl_status_t dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_prop_kind_t prop,
    dnnl_alg_kind_t alg, const_dnnl_memory_desc_t src,
    const_dnnl_memory_desc_t weights, const_dnnl_memory_desc_t bias,
    const_dnnl_memory_desc_t dst, const dnnl_dims_t strides,
    const dnnl_dims_t dilates, const dnnl_dims_t padding_l,
    const dnnl_dims_t padding_r, const_dnnl_primitive_attr_t attr) {
  dnnl_convolution_desc_t op;
  const dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
      &op, prop, alg, src, weights, bias, dst, strides, dilates, padding_l,
      padding_r);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

static inline dnnl_status_t
dnnl_convolution_backward_data_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_alg_kind_t alg,
    const_dnnl_memory_desc_t diff_src, const_dnnl_memory_desc_t weights,
    const_dnnl_memory_desc_t diff_dst, const dnnl_dims_t strides,
    const dnnl_dims_t dilates, const dnnl_dims_t padding_l,
    const dnnl_dims_t padding_r, const_dnnl_primitive_desc_t hint,
    const_dnnl_primitive_attr_t attr) {
  dnnl_convolution_desc_t op;
  const dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(
      &op, alg, diff_src, weights, diff_dst, strides, dilates, padding_l,
      padding_r);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

static inline dnnl_status_t
dnnl_convolution_backward_weights_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_alg_kind_t alg,
    const_dnnl_memory_desc_t src, const_dnnl_memory_desc_t diff_weights,
    const_dnnl_memory_desc_t diff_bias, const_dnnl_memory_desc_t diff_dst,
    const dnnl_dims_t strides, const dnnl_dims_t dilates,
    const dnnl_dims_t padding_l, const dnnl_dims_t padding_r,
    const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr) {
  dnnl_convolution_desc_t op;
  const dnnl_status_t status =
      dnnl_dilated_convolution_backward_weights_desc_init(
          &op, alg, src, diff_weights, diff_bias, diff_dst, strides, dilates,
          padding_l, padding_r);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

static inline dnnl_status_t dnnl_matmul_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine,
    const_dnnl_memory_desc_t src, const_dnnl_memory_desc_t weights,
    const_dnnl_memory_desc_t bias, const_dnnl_memory_desc_t dst,
    const_dnnl_primitive_attr_t attr) {
  dnnl_matmul_desc_t op;
  const dnnl_status_t status =
      dnnl_matmul_desc_init(&op, src, weights, bias, dst);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

static inline dnnl_status_t dnnl_inner_product_forward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_prop_kind_t prop,
    const_dnnl_memory_desc_t src, const_dnnl_memory_desc_t weights,
    const_dnnl_memory_desc_t bias, const_dnnl_memory_desc_t dst,
    const_dnnl_primitive_attr_t attr) {
  dnnl_inner_product_desc_t op;
  const dnnl_status_t status =
      dnnl_inner_product_forward_desc_init(&op, prop, src, weights, bias, dst);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

static inline dnnl_status_t
dnnl_inner_product_backward_data_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine,
    const_dnnl_memory_desc_t diff_src, const_dnnl_memory_desc_t weights,
    const_dnnl_memory_desc_t diff_dst, const_dnnl_primitive_desc_t hint,
    const_dnnl_primitive_attr_t attr) {
  dnnl_inner_product_desc_t op;
  const dnnl_status_t status = dnnl_inner_product_backward_data_desc_init(
      &op, diff_src, weights, diff_dst);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

static inline dnnl_status_t
dnnl_inner_product_backward_weights_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine,
    const_dnnl_memory_desc_t src, const_dnnl_memory_desc_t diff_weights,
    const_dnnl_memory_desc_t diff_bias, const_dnnl_memory_desc_t diff_dst,
    const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr) {
  dnnl_inner_product_desc_t op;
  const dnnl_status_t status = dnnl_inner_product_backward_weights_desc_init(
      &op, src, diff_weights, diff_bias, diff_dst);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

static inline dnnl_status_t dnnl_pooling_forward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_prop_kind_t prop,
    dnnl_alg_kind_t alg, const_dnnl_memory_desc_t src,
    const_dnnl_memory_desc_t dst, const dnnl_dims_t strides,
    const dnnl_dims_t kernel, const dnnl_dims_t dilation,
    const dnnl_dims_t padding_l, const dnnl_dims_t padding_r,
    const_dnnl_primitive_attr_t attr) {
  dnnl_pooling_v2_desc_t op;
  const dnnl_status_t status =
      dnnl_pooling_v2_forward_desc_init(&op, prop, alg, src, dst, strides,
                                        kernel, dilation, padding_l, padding_r);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

static inline dnnl_status_t dnnl_pooling_backward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_alg_kind_t alg,
    const_dnnl_memory_desc_t diff_src, const_dnnl_memory_desc_t diff_dst,
    const dnnl_dims_t strides, const dnnl_dims_t kernel,
    const dnnl_dims_t dilation, const dnnl_dims_t padding_l,
    const dnnl_dims_t padding_r, const_dnnl_primitive_desc_t hint,
    const_dnnl_primitive_attr_t attr) {
  dnnl_pooling_v2_desc_t op;
  const dnnl_status_t status = dnnl_pooling_v2_backward_desc_init(
      &op, alg, diff_src, diff_dst, strides, kernel, dilation, padding_l,
      padding_r);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

static inline dnnl_status_t dnnl_softmax_forward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_prop_kind_t prop,
    dnnl_alg_kind_t alg, const_dnnl_memory_desc_t src,
    const_dnnl_memory_desc_t dst, int axis, const_dnnl_primitive_attr_t attr) {
  dnnl_softmax_v2_desc_t op;
  const dnnl_status_t status =
      dnnl_softmax_v2_forward_desc_init(&op, prop, alg, src, dst, axis);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

// Version 2 has one descriptor for source and destination, and one for their
// gradients.
static inline dnnl_status_t dnnl_eltwise_forward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_prop_kind_t prop,
    dnnl_alg_kind_t alg, const_dnnl_memory_desc_t src,
    const_dnnl_memory_desc_t dst, float alpha, float beta,
    const_dnnl_primitive_attr_t attr) {
  dnnl_eltwise_desc_t op;
  if (!dnnl_memory_desc_equal(src, dst)) return dnnl_unimplemented;
  const dnnl_status_t status =
      dnnl_eltwise_forward_desc_init(&op, prop, alg, src, alpha, beta);
  return choir__dnnl_v2_pd(out, engine, status, &op, NULL, attr);
}

static inline dnnl_status_t dnnl_eltwise_backward_primitive_desc_create(
    dnnl_primitive_desc_t* out, dnnl_engine_t engine, dnnl_alg_kind_t alg,
    const_dnnl_memory_desc_t diff_src, const_dnnl_memory_desc_t diff_dst,
    const_dnnl_memory_desc_t data, float alpha, float beta,
    const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr) {
  dnnl_eltwise_desc_t op;
  if (!dnnl_memory_desc_equal(diff_src, diff_dst)) return dnnl_unimplemented;
  const dnnl_status_t status =
      dnnl_eltwise_backward_desc_init(&op, alg, diff_src, data, alpha, beta);
  return choir__dnnl_v2_pd(out, engine, status, &op, hint, attr);
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_THIRD_PARTY_DNNL_DNNL_V3_OVER_V2_H_
