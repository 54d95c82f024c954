// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_DIRECT_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_DIRECT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

// Direct convolution with samples in the lanes of a vector: no channel count
// leaves lanes empty, and every multiplication is a useful one. Images are
// brought from channels-last to [row][column][channel][sample] in blocks of as
// many samples as a vector has lanes and back again; that is one transposition
// of rows.
//
// cpu_conv2d_direct.c decides, packs weights and shares blocks out;
// cpu_conv2d_direct_loops.inc computes, built for AVX2 and for AVX-512. y has
// the same bits on both; of gradients the order of sums follows the tiles.

// An image operand in memory: rows of (width * channels) elements, of 16 bits
// forward alone.
typedef struct choir__conv_image_s {
  void* data;
  choir_dtype_t dtype;
  int64_t sample_stride;
  int64_t row_stride;
  int64_t height, width, channels;
} choir__conv_image_t;

typedef struct choir__direct_s {
  choir__conv_image_t x;  // or dx
  choir__conv_image_t y;  // or dy, or the pooled image
  // Pooled: places within windows, channels side by side.
  uint8_t* argmax;
  int64_t argmax_sample_stride, argmax_row_stride;
  int64_t samples;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t taps;            // kernel[0] * kernel[1] * x.channels
  const int32_t* offsets;  // of each tap from a window's first element
  bool relu;
  bool accumulate;
  // Forward and data gradient: packed weights, see the functions below.
  const float* weights;
  const float* bias;
  // Weight gradient: where tap k of filter f is added.
  float* dw;
  int64_t dw_filter_stride;
  const int64_t* dw_offsets;
} choir__direct_t;

// Where a channel's vector of pixel p of an image lies, in floats: at first + p
// * step.
typedef struct choir__conv_place_s {
  int64_t first, step;
} choir__conv_place_t;

// Size of block `index` when `count` things are cut into blocks of at most
// `most` that are as equal as can be, and where it starts.
static inline int64_t choir__conv_blocks(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}
static inline int64_t choir__conv_block_start(int64_t count, int64_t blocks,
                                              int64_t index) {
  return count * index / blocks;
}

// Vectors that one block of an operand takes, with the padding around it.
static inline int64_t choir__conv_padded_vectors(const choir__direct_t* conv) {
  return (conv->x.height + 2 * conv->padding[0]) *
         (conv->x.width + 2 * conv->padding[1]) * conv->x.channels;
}
static inline int64_t choir__conv_result_vectors(const choir__direct_t* conv) {
  return conv->y.height * conv->y.width * conv->y.channels;
}

// The loops for one instruction set.
typedef struct choir__conv_loops_s {
  int64_t lanes;    // samples of a block
  int64_t filters;  // most of a register tile
  // Most channels of a data gradient's register tile.
  int64_t (*grad_channels)(int64_t kernel_width);

  // Samples of one block of x into padded vectors, of dy into vectors. Samples
  // that do not exist are zeros.
  void (*pack_x)(const choir__direct_t* conv, int64_t block, float* vectors);
  void (*pack_y)(const choir__direct_t* conv, int64_t block, float* vectors);

  // The same for the gradient of the weights, in an order that is known to it
  // alone. `places` holds one for each channel.
  void (*planes_x)(const choir__direct_t* conv, int64_t block,
                   choir__conv_place_t* places, float* planes);
  void (*planes_y)(const choir__direct_t* conv, int64_t block,
                   choir__conv_place_t* places, float* planes);

  // y of one block. Weights: for each block of filters, for each tap, the
  // block's filters. `row` holds a row of y as vectors.
  void (*forward)(const choir__direct_t* conv, int64_t block,
                  const float* x_vectors, float* row);

  // The same, pooled: the largest of each 2 x 2 window, and its place. `row`
  // holds a pooled row as vectors, `argmax_row` a byte for each of its floats.
  // Each element has the bits that `forward` gives it, rounded to y's dtype.
  void (*forward_pool)(const choir__direct_t* conv, int64_t block,
                       const float* x_vectors, float* row, uint8_t* argmax_row);

  // dx of one block, for stride and dilation 1 and kernels of 3 or 5 columns.
  // Weights: for each block of channels (grad_channels), for each kernel row,
  // filter and kernel column, the block's channels. `row` holds a padded row of
  // dx as vectors.
  void (*grad_data)(const choir__direct_t* conv, int64_t block,
                    const float* dy_vectors, float* row);

  // Adds one block's share of the gradient of blocks of filters begin .. end -
  // 1 to dw, and to db when it is not NULL. `sums` holds a vector for each
  // weight of `filters` filters.
  void (*grad_weight)(const choir__direct_t* conv, const float* x_planes,
                      const float* dy_planes, float* sums, float* db,
                      int64_t begin, int64_t end);
} choir__conv_loops_t;

extern const choir__conv_loops_t choir__conv_loops_avx2;
extern const choir__conv_loops_t choir__conv_loops_avx512;

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_CONV2D_DIRECT_H_
