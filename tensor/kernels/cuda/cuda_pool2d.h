// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_POOL2D_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_POOL2D_H_

#include <stdbool.h>
#include <stdint.h>

// Where the elements of one operand lie: steps from sample to sample, row to
// row, column to column and channel to channel.
typedef struct choir__cuda_image_s {
  int64_t sample;
  int64_t row;
  int64_t column;
  int64_t channel;
} choir__cuda_image_t;

// What the host hands the kernels of cuda_pool2d.cu. A thread makes one element
// of the result, or CHOIR__CUDA_GROUP channels of it.
typedef struct choir__cuda_pool2d_s {
  float* x;  // or dx
  float* y;  // or dy
  uint8_t* index;
  choir__cuda_image_t at_x;
  choir__cuda_image_t at_y;
  choir__cuda_image_t at_index;
  uint32_t samples;
  uint32_t channels;
  int32_t size[2];  // of x: height, width
  int32_t out[2];   // of y
  int32_t kernel[2];
  int32_t stride[2];
  int32_t padding[2];
  // Neighbouring threads take neighbouring channels, else columns.
  bool channels_last;
  bool accumulate;
} choir__cuda_pool2d_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_POOL2D_H_
