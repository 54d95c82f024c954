// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_ARGMAX_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_ARGMAX_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

// Gradients of a convolution whose result goes to a max pooling: of each window
// only the argmax index has a gradient, so that of four multiplications three
// would be with zero. Here the argmax indices are walked, one after the other:
// each adds its gradient times a patch of x to dW, or its gradient times a
// filter to a patch of dx. Slopes that are zero (a ReLU between the two) are
// left out as well. With NaN or an infinity in an image or a filter those
// products are not zero: cpu_conv2d_argmax.c finds such records and computes
// them otherwise.
//
// A patch is what one row of the kernel (or all of it, when that is small)
// covers of the image: kernel columns times channels lie side by side. They
// fill the lanes, in groups of sixteen, so any number of samples will do. No
// sum runs across lanes: the bits are the same on each instruction set.
//
// cpu_conv2d_argmax.c decides, takes memory and shares samples out;
// cpu_conv2d_argmax_loops.inc computes, built for AVX2, for AVX-512 and for any
// processor.

enum {
  CHOIR__ARGMAX_GROUP = 16,   // lanes of a vector
  CHOIR__ARGMAX_VECTORS = 7,  // most vectors of a register tile
  CHOIR__ARGMAX_SAMPLES = 2,  // that share a pass over the weights
};

// The sums are f32. Images of 16 bits are widened row by row, or rounded once
// they are made.
typedef struct choir__argmax_image_s {
  void* data;
  choir_dtype_t dtype;
  int64_t sample_stride, row_stride, column_stride;
  int64_t height, width, channels;
} choir__argmax_image_t;

typedef struct choir__argmax_s {
  choir__argmax_image_t x;  // or dx
  int64_t kernel[2], padding[2];
  int64_t out[2];  // height and width of the convolution's result
  int64_t filters;
  int64_t pooled[2];  // height and width
  int64_t window[2], window_stride[2];
  // Of the pooled image; strides of samples, rows, columns. Filters lie side by
  // side.
  const uint8_t* argmax;
  const void* y;  // NULL: no activation
  const void* dy;
  choir_dtype_t dtype;  // of both
  int64_t argmax_strides[3], y_strides[3], dy_strides[3];
  bool accumulate;
  // Patches: of `merged` kernel rows each, so that there are `groups` of them;
  // `length` floats, in `vectors` vectors.
  int64_t merged, groups, length, vectors;
  // Data gradient: for each kernel row and block of vectors, for each filter,
  // its vectors; zeros where `length` ends.
  const float* weights;
} choir__argmax_t;

// Vectors of a register tile, as equal as can be.
static inline int64_t choir__argmax_blocks(const choir__argmax_t* t) {
  return (t->vectors + CHOIR__ARGMAX_VECTORS - 1) / CHOIR__ARGMAX_VECTORS;
}
static inline int64_t choir__argmax_block_start(const choir__argmax_t* t,
                                                int64_t block) {
  return t->vectors * block / choir__argmax_blocks(t);
}

// Sizes of the scratch, in elements. The image is padded, with one vector of
// zeros behind it.
static inline int64_t choir__argmax_image(const choir__argmax_t* t) {
  const int64_t floats = (t->x.height + 2 * t->padding[0]) *
                         (t->x.width + 2 * t->padding[1]) * t->x.channels;
  return (floats + 2 * CHOIR__ARGMAX_GROUP - 1) / CHOIR__ARGMAX_GROUP *
         CHOIR__ARGMAX_GROUP;
}
// Patches are gone over filter by filter: those of a chunk of the pooled
// image's rows have to stay in the L1 cache.
#define CHOIR__ARGMAX_PATCH_BYTES (32 * 1024)
static inline int64_t choir__argmax_chunks(const choir__argmax_t* t) {
  const int64_t row = t->window_stride[0] * t->out[1] * t->vectors *
                      CHOIR__ARGMAX_GROUP * (int64_t)sizeof(float);
  const int64_t rows =
      row < CHOIR__ARGMAX_PATCH_BYTES ? CHOIR__ARGMAX_PATCH_BYTES / row : 1;
  return (t->pooled[0] + rows - 1) / rows;
}
// Rows of patches for so many rows of the pooled image.
static inline int64_t choir__argmax_patch_rows(const choir__argmax_t* t,
                                               int64_t rows) {
  return (rows - 1) * t->window_stride[0] + t->window[0] + t->groups - 1;
}
static inline int64_t choir__argmax_chunk_rows(const choir__argmax_t* t) {
  const int64_t chunks = choir__argmax_chunks(t);
  return (t->pooled[0] + chunks - 1) / chunks;
}
static inline int64_t choir__argmax_patches(const choir__argmax_t* t) {
  return choir__argmax_patch_rows(t, choir__argmax_chunk_rows(t)) * t->out[1] *
             t->vectors * CHOIR__ARGMAX_GROUP +
         CHOIR__ARGMAX_GROUP;
}
static inline int64_t choir__argmax_places(const choir__argmax_t* t) {
  return t->pooled[0] * t->pooled[1];
}
static inline int64_t choir__argmax_gradients(const choir__argmax_t* t) {
  return choir__argmax_chunk_rows(t) * t->pooled[1] * t->filters +
         CHOIR__ARGMAX_GROUP;
}

// Where rows of y and dy are widened; NULL: they are floats. A pooled image's
// row has so many.
typedef struct choir__argmax_rows_s {
  float *y, *dy;
} choir__argmax_rows_t;
static inline int64_t choir__argmax_row(const choir__argmax_t* t) {
  return t->pooled[1] * t->filters;
}

// For one piece of the samples; all at addresses of 64 bytes. Image and patches
// start as zeros.
typedef struct choir__argmax_scratch_s {
  choir__argmax_rows_t rows;
  float* image;
  float* patches;
  int32_t*
      offsets;  // (places of a chunk, filters): of the argmax index's patch
  float* gradients;  // likewise
  int32_t* list_offsets;
  float* list_gradients;
  int64_t* list_ends;  // (filters)
  float* sums;         // (groups, filters, vectors): dW
  float* bias;         // (filters): db
} choir__argmax_scratch_t;

// For CHOIR__ARGMAX_SAMPLES samples at a time.
typedef struct choir__argmax_lists_s {
  choir__argmax_rows_t rows;
  float* images;
  float* gradients;  // of one place
  int32_t* offsets;  // of filters in `weights`, by argmax index
  float* list_gradients;
  int32_t* starts;  // (samples, places, places of a window), and an end
} choir__argmax_lists_t;

typedef struct choir__argmax_loops_s {
  // Adds one sample's share to the sums.
  void (*weight)(const choir__argmax_t* t, int64_t sample,
                 const choir__argmax_scratch_t* scratch);
  // dx of samples begin .. end - 1, at most CHOIR__ARGMAX_SAMPLES.
  void (*data)(const choir__argmax_t* t, int64_t begin, int64_t end,
               const choir__argmax_lists_t* scratch);
} choir__argmax_loops_t;

extern const choir__argmax_loops_t choir__argmax_loops_base;
extern const choir__argmax_loops_t choir__argmax_loops_avx2;
extern const choir__argmax_loops_t choir__argmax_loops_avx512;

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_ARGMAX_H_
