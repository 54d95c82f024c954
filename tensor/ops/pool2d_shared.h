// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_POOL2D_SHARED_H_
#define CHOIR_TENSOR_OPS_POOL2D_SHARED_H_

#include "tensor/ops/window.h"

// What the pooling ops and their gradients share.

// Sizes of a pooling; a channel of a sample is one image.
typedef struct choir__pool2d_s {
  int64_t images;
  int64_t size[2];  // of x: height, width
  int64_t out[2];   // of y
  int64_t kernel[2];
  int64_t stride[2];
  int64_t padding[2];  // above and left
  int64_t after[2];    // below and right
} choir__pool2d_t;

// Checks x against the attributes and tells the shape of y, channels-last.
choir_status_t choir__pool2d_infer(const char* op, const choir_view_t* x,
                                   const choir_pool2d_attrs_t* attrs,
                                   choir_view_t* y);
// The same and the limit that places within windows set on the kernel.
choir_status_t choir__max_pool2d_infer(const char* op, const choir_view_t* x,
                                       const choir_pool2d_attrs_t* attrs,
                                       choir_view_t* y);
// dx = shape of x, after the same checks and one of each other source, which
// must have the shape of y.
choir_status_t choir__pool2d_grad_infer(const char* op,
                                        const choir_view_t* srcs,
                                        int32_t src_count,
                                        const choir_pool2d_attrs_t* attrs,
                                        choir_view_t* dx);
// For shapes that were checked when the record was made.
choir__pool2d_t choir__pool2d_of(const choir_view_t* x,
                                 const choir_pool2d_attrs_t* attrs);

// Whether anything lies around images of this size.
bool choir__pool2d_is_padded(const int64_t* size,
                             const choir_pool2d_attrs_t* attrs);

// The part of one window that lies on the image.
typedef struct choir__window_s {
  int64_t top, left;           // of the window; negative in the padding
  int64_t row_begin, row_end;  // rows of the image
  int64_t column_begin, column_end;
} choir__window_t;
choir__window_t choir__pool2d_window(const choir__pool2d_t* pool,
                                     int64_t out_row, int64_t out_column);

// The largest of each window and its place within the window: x of the images,
// row-major, to y and index, likewise, which are zero at first.
void choir__max_pool2d_images(const choir__pool2d_t* pool, const double* x,
                              double* y, double* index);
// The other way: adds dy to the places of dx that index tells; fails with
// OUT_OF_RANGE at one that is not on the image.
choir_status_t choir__max_pool2d_spread(const char* op,
                                        const choir__pool2d_t* pool,
                                        const double* index, const double* dy,
                                        double* dx);

extern const choir_field_t choir__pool2d_fields[];
#define CHOIR__POOL2D_FIELD_COUNT 5
#define CHOIR__POOL2D_STRUCT_DEF(name, doc)                        \
  {                                                                \
    name, doc, sizeof(choir_pool2d_attrs_t), choir__pool2d_fields, \
        CHOIR__POOL2D_FIELD_COUNT                                  \
  }

// Shapes of x; x, index, dy; x, dy.
extern const choir_op_case_t choir__pool2d_cases[];
extern const choir_op_case_t choir__max_pool2d_grad_cases[];
extern const choir_op_case_t choir__avg_pool2d_grad_cases[];

#endif  // CHOIR_TENSOR_OPS_POOL2D_SHARED_H_
