// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_WINNERS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_WINNERS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Gradients of a convolution whose result goes to a max pooling: of each window
// only the winner has a gradient, so that of four multiplications three would
// be with zero. Here the winners are walked, one after the other: each adds its
// slope times a patch of x to dW, or its slope times a filter to a patch of dx.
// Slopes that are zero (a ReLU between the two) are left out as well. With NaN
// or an infinity in an image or a filter those products are not zero:
// cpu_conv2d_winners.c finds such records and computes them otherwise.
//
// A patch is what one row of the kernel (or all of it, when that is small)
// covers of the image: kernel columns times channels lie side by side. They
// fill the lanes, in groups of sixteen, so any number of samples will do. No
// sum runs across lanes: the bits are the same on each instruction set.
//
// cpu_conv2d_winners.c decides, takes memory and shares samples out;
// cpu_conv2d_winners_loops.inc computes, built for AVX2 and for AVX-512.

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CHOIR__WINNERS_GROUP = 16,   // lanes of a vector
  CHOIR__WINNERS_VECTORS = 7,  // most vectors of a register tile
  CHOIR__WINNERS_SAMPLES = 2,  // that share a pass over the weights
};

typedef struct choir__winners_image_s {
  float* data;
  int64_t sample_stride, row_stride, column_stride;
  int64_t height, width, channels;
} choir__winners_image_t;

typedef struct choir__winners_s {
  choir__winners_image_t x;  // or dx
  int64_t kernel[2], padding[2];
  int64_t out[2];  // height and width of the convolution's result
  int64_t filters;
  int64_t pooled[2];  // height and width
  int64_t window[2], window_stride[2];
  // Of the pooled image; strides of samples, rows, columns. Filters lie side by
  // side.
  const uint8_t* winners;
  const float* y;  // NULL: no activation
  const float* dy;
  int64_t winners_strides[3], y_strides[3], dy_strides[3];
  bool accumulate;
  // Patches: of `merged` kernel rows each, so that there are `groups` of them;
  // `length` floats, in `vectors` vectors.
  int64_t merged, groups, length, vectors;
  // Data gradient: for each kernel row and block of vectors, for each filter,
  // its vectors; zeros where `length` ends.
  const float* weights;
} choir__winners_t;

// Vectors of a register tile, as equal as can be.
static inline int64_t choir__winners_blocks(const choir__winners_t* t) {
  return (t->vectors + CHOIR__WINNERS_VECTORS - 1) / CHOIR__WINNERS_VECTORS;
}
static inline int64_t choir__winners_block_start(const choir__winners_t* t,
                                                 int64_t block) {
  return t->vectors * block / choir__winners_blocks(t);
}

// Sizes of the scratch, in elements. The image is padded, with one vector of
// zeros behind it.
static inline int64_t choir__winners_image(const choir__winners_t* t) {
  const int64_t floats = (t->x.height + 2 * t->padding[0]) *
                         (t->x.width + 2 * t->padding[1]) * t->x.channels;
  return (floats + 2 * CHOIR__WINNERS_GROUP - 1) / CHOIR__WINNERS_GROUP *
         CHOIR__WINNERS_GROUP;
}
// Patches are gone over filter by filter: those of a chunk of the pooled
// image's rows have to stay in the first cache.
#define CHOIR__WINNERS_PATCH_BYTES (32 * 1024)
static inline int64_t choir__winners_chunks(const choir__winners_t* t) {
  const int64_t row = t->window_stride[0] * t->out[1] * t->vectors *
                      CHOIR__WINNERS_GROUP * (int64_t)sizeof(float);
  const int64_t rows =
      row < CHOIR__WINNERS_PATCH_BYTES ? CHOIR__WINNERS_PATCH_BYTES / row : 1;
  return (t->pooled[0] + rows - 1) / rows;
}
// Rows of patches for so many rows of the pooled image.
static inline int64_t choir__winners_patch_rows(const choir__winners_t* t,
                                                int64_t rows) {
  return (rows - 1) * t->window_stride[0] + t->window[0] + t->groups - 1;
}
static inline int64_t choir__winners_chunk_rows(const choir__winners_t* t) {
  const int64_t chunks = choir__winners_chunks(t);
  return (t->pooled[0] + chunks - 1) / chunks;
}
static inline int64_t choir__winners_patches(const choir__winners_t* t) {
  return choir__winners_patch_rows(t, choir__winners_chunk_rows(t)) *
             t->out[1] * t->vectors * CHOIR__WINNERS_GROUP +
         CHOIR__WINNERS_GROUP;
}
static inline int64_t choir__winners_places(const choir__winners_t* t) {
  return t->pooled[0] * t->pooled[1];
}
static inline int64_t choir__winners_slopes(const choir__winners_t* t) {
  return choir__winners_chunk_rows(t) * t->pooled[1] * t->filters +
         CHOIR__WINNERS_GROUP;
}

// For one piece of the samples; all at addresses of 64 bytes. Image and patches
// start as zeros.
typedef struct choir__winners_scratch_s {
  float* image;
  float* patches;
  int32_t* offsets;  // (places of a chunk, filters): of the winner's patch
  float* slopes;     // likewise
  int32_t* list_offsets;
  float* list_slopes;
  int64_t* list_ends;  // (filters)
  float* sums;         // (groups, filters, vectors): dW
  float* bias;         // (filters): db
} choir__winners_scratch_t;

// Adds one sample's share to the sums.
void choir__winners_weight_avx2(const choir__winners_t* t, int64_t sample,
                                const choir__winners_scratch_t* scratch);
void choir__winners_weight_avx512(const choir__winners_t* t, int64_t sample,
                                  const choir__winners_scratch_t* scratch);

// For CHOIR__WINNERS_SAMPLES samples at a time.
typedef struct choir__winners_lists_s {
  float* images;
  float* slopes;     // of one place
  int32_t* offsets;  // of filters in `weights`, by winner
  float* list_slopes;
  int32_t* starts;  // (samples, places, places of a window), and an end
} choir__winners_lists_t;

// dx of samples begin .. end - 1, at most CHOIR__WINNERS_SAMPLES.
void choir__winners_data_avx2(const choir__winners_t* t, int64_t begin,
                              int64_t end,
                              const choir__winners_lists_t* scratch);
void choir__winners_data_avx512(const choir__winners_t* t, int64_t begin,
                                int64_t end,
                                const choir__winners_lists_t* scratch);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_WINNERS_H_
