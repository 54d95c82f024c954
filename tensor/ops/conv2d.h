// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_CONV2D_H_
#define CHOIR_TENSOR_OPS_CONV2D_H_

#include "tensor/ops/window.h"

// The convolution ops, for those that are made of them.

// Sizes of a convolution.
typedef struct choir__conv2d_s {
  int64_t batch;     // samples
  int64_t channels;  // of x
  int64_t size[2];   // height and width of x
  int64_t filters;   // channels of y
  int64_t kernel[2];
  int64_t out[2];  // height and width of y
  int64_t groups;
  int64_t stride[2];
  int64_t padding[2];  // above and left
  int64_t after[2];    // below and right
  int64_t dilation[2];
} choir__conv2d_t;

// Checks x and W against each other and the attributes, and tells what y is,
// channels-last.
choir_status_t choir__conv2d_make(const choir_view_t* x, const choir_view_t* w,
                                  const choir_conv2d_attrs_t* attrs,
                                  choir__conv2d_t* out_conv, choir_view_t* y);
// The same for views that were checked when the record was made.
choir__conv2d_t choir__conv2d_of(const choir_view_t* x, const choir_view_t* w,
                                 const choir_conv2d_attrs_t* attrs);

// The result dx of a gradient's record, or the two dW and db.
choir_status_t choir__conv2d_infer_grad(const choir_record_t* record,
                                        const choir_view_t* x,
                                        const choir_view_t* w,
                                        choir_view_t* dsts);

// Calls `visit` with the row-major places in x, W and y of every product that
// the convolution sums up.
typedef void (*choir__conv2d_visit_t)(void* self, int64_t x_place,
                                      int64_t w_place, int64_t y_place);
void choir__conv2d_products(const choir__conv2d_t* conv,
                            choir__conv2d_visit_t visit, void* self);

// A conv_transpose2d as the conv2d_grad_data that it is.
typedef struct choir__conv2d_inside_s {
  choir_record_t record;     // of views and attributes below
  choir_view_t operands[4];  // y for its shape, W, x; y
  choir_conv2d_attrs_t attrs;
} choir__conv2d_inside_t;
void choir__conv_transpose2d_inside(const choir_record_t* record,
                                    choir__conv2d_inside_t* out_inside);
// Its kernel: whatever the stream's device has for conv2d_grad_data.
choir_status_t choir__conv_transpose2d_run(const choir_record_t* record,
                                           choir_stream_t* stream)
    CHOIR_NODISCARD;

// Two flops for each product, the bytes of the operands.
void choir__conv2d_cost(const choir__conv2d_t* conv,
                        const choir_record_t* record, choir_cost_t* out_cost);

extern const char* const choir__activation_names[];

#endif  // CHOIR_TENSOR_OPS_CONV2D_H_
