// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_BATCH_NORM_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_BATCH_NORM_H_

#include <stdbool.h>
#include <stdint.h>

// What the host hands the kernels of cuda_batch_norm.cu. Images are seen as
// (rows, channels) without gaps, a row being a pixel or a sample; what an op
// does not have is NULL.
typedef struct choir__cuda_batch_norm_s {
  const float* x;
  const float* residual;  // or the ReLU's result, of a gradient
  const float* dy;
  const float* dy2;
  float* y;  // or dx
  float* dresidual;
  // Of each channel.
  const float* scale;
  const float* bias;
  const float* mean;
  const float* variance;
  float* first;   // results: mean, or dscale
  float* second;  // variance, or dbias
  // Between the kernels: two sums of each chunk and channel, (chunks, channels,
  // 2), and then two numbers of each channel.
  double* parts;
  float* moments;
  float epsilon;
  uint32_t rows;
  uint32_t channels;
  uint32_t chunks;
  uint32_t chunk_rows;
  uint32_t stripes;  // of channels, one for each block
  uint32_t members;  // threads of a block that go down the rows
  bool accumulate;
} choir__cuda_batch_norm_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_BATCH_NORM_H_
