// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_POOL2D_H_
#define CHOIR_TENSOR_OPS_POOL2D_H_

#include "tensor/ops/window.h"

// The pooling ops, for those that are made of them.

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

// Checks x against the attributes, those of an op that tells places within
// windows, and tells the shape of y, channels-last.
choir_status_t choir__max_pool2d_infer(const choir_view_t* x,
                                       const choir_pool2d_attrs_t* attrs,
                                       choir_view_t* y);
// For shapes that were checked when the record was made.
choir__pool2d_t choir__pool2d_of(const choir_view_t* x,
                                 const choir_pool2d_attrs_t* attrs);

// Whether anything lies around images of this size.
bool choir__pool2d_is_padded(const int64_t* size,
                             const choir_pool2d_attrs_t* attrs);

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

#endif  // CHOIR_TENSOR_OPS_POOL2D_H_
