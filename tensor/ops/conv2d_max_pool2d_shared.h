// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_CONV2D_MAX_POOL2D_SHARED_H_
#define CHOIR_TENSOR_OPS_CONV2D_MAX_POOL2D_SHARED_H_

#include "tensor/ops/conv2d_shared.h"
#include "tensor/ops/pool2d_shared.h"

// What conv2d_max_pool2d and its two gradients share.

// A convolution and the pooling of its result.
typedef struct choir__conv2d_pool_s {
  choir__conv2d_t conv;
  choir__pool2d_t pool;
  choir_view_t image;   // what conv2d gives, channels-last
  choir_view_t pooled;  // what max_pool2d makes of it, channels-last
} choir__conv2d_pool_t;

// Checks x and W against each other and the attributes; `op` is for messages.
choir_status_t choir__conv2d_pool_make(
    const char* op, const choir_view_t* x, const choir_view_t* w,
    const choir_conv2d_max_pool2d_attrs_t* attrs,
    choir__conv2d_pool_t* out_pair);

// The shape rule of both gradients: sources x, argmax indices, W, y, dy.
choir_status_t choir__conv2d_pool_check_grad(
    const char* op, const choir_view_t* srcs,
    const choir_conv2d_max_pool2d_attrs_t* attrs,
    choir__conv2d_pool_t* out_pair);

// An image as the convolution gives it, row-major, zeros, in the memory of
// dense->allocator; NULL when there is none. Bytes are told for the way back.
double* choir__conv2d_pool_take_image(const choir__conv2d_pool_t* pair,
                                      const choir__dense_t* dense,
                                      size_t* out_bytes);
// A gradient's sources, spread to the image that the convolution gave.
choir_status_t choir__conv2d_pool_spread(const char* op,
                                         const choir__conv2d_pool_t* pair,
                                         const choir__dense_t* dense,
                                         double* image);

// The reference of both gradients: `add` for each product of the convolution,
// where `image` is the gradient of what it gave; then `finish` (may be NULL).
// Source `shape_only` is not read.
typedef struct choir__conv2d_pool_products_s {
  const choir__dense_t* dense;
  const double* image;
} choir__conv2d_pool_products_t;
choir_status_t choir__conv2d_pool_grad_reference(
    const char* op, const choir_record_t* record, choir_stream_t* stream,
    int32_t shape_only,
    void (*add)(void* products, int64_t x_place, int64_t w_place,
                int64_t y_place),
    void (*finish)(const choir__conv2d_pool_t* pair,
                   const choir__dense_t* dense));

// Two flops for each product of a gradient: those of the argmax indices.
void choir__conv2d_pool_grad_cost(const choir_record_t* record,
                                  choir_cost_t* out_cost);

extern const choir_field_t choir__conv2d_pool_fields[];
#define CHOIR__CONV2D_POOL_FIELD_COUNT 12
#define CHOIR__CONV2D_POOL_STRUCT_DEF(name)                                 \
  {                                                                         \
    name, "the convolution and the windows on its result",                  \
        sizeof(choir_conv2d_max_pool2d_attrs_t), choir__conv2d_pool_fields, \
        CHOIR__CONV2D_POOL_FIELD_COUNT                                      \
  }

// Shapes of x, argmax indices, W, y, dy.
extern const choir_op_case_t choir__conv2d_pool_grad_cases[];

#endif  // CHOIR_TENSOR_OPS_CONV2D_MAX_POOL2D_SHARED_H_
