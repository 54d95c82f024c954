// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_ATTENTION_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_ATTENTION_H_

#include <stdbool.h>
#include <stdint.h>

// Rows and columns of a tile of weights, and columns of a result, of a block.
enum { CHOIR__CUDA_ATTENTION_TILE = 64 };

// An operand and its strides along sample, head, row and column.
typedef struct choir__cuda_heads_s {
  float* data;
  int64_t strides[4];
} choir__cuda_heads_t;

// What the host hands the kernels of cuda_attention.cu.
typedef struct choir__cuda_attention_s {
  choir__cuda_heads_t q, k, v, sums;
  choir__cuda_heads_t y, dy;   // gradients
  choir__cuda_heads_t result;  // y, dq, dk, dv or dmask, of one kernel each
  float* along;                // gradients: sum(dy y) of each row
  const void* mask;            // NULL: none
  int64_t mask_strides[4];
  uint32_t mask_bytes;  // of an element
  bool hides;           // where it is 0, else f32 that are added
  uint32_t heads;       // of q
  uint32_t group;       // of these that share one of k and v
  uint32_t rows, columns, depth, width;
  bool causal;
  int64_t offset;
  float scale;
  // Dropout: what is drawn, the upper 24 bits of a word that is kept, and what
  // a weight counts as then.
  bool drops;
  uint32_t key[2];
  uint32_t step;
  uint64_t first_sample;
  uint32_t threshold;
  float factor;
  // Samples, heads, tiles of rows and tiles of columns: how many there are, and
  // how many one block goes through for its tile of the result, which has
  // `chunks` of them side by side.
  uint32_t total[4], each[4];
  uint32_t chunks;
  bool accumulate;
} choir__cuda_attention_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_ATTENTION_H_
