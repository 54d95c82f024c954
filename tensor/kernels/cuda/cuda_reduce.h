// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_REDUCE_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_REDUCE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tensor/kernels/cuda/cuda_dims.h"

enum { CHOIR__CUDA_F16 = 1, CHOIR__CUDA_BF16 = 2 };

// What the host hands the kernels of cuda_reduce.cu. A lane is the elements
// that make one result. It may be cut into chunks, for a block each: then the
// blocks leave their totals in `totals`, (lanes, chunks), and a second kernel
// puts these together.
typedef struct choir__cuda_reduce_s {
  const void* x;  // f32, or see `half`
  void* y;        // as x, or i64 places
  void* totals;
  choir__cuda_dims_t lanes;
  choir__cuda_dims_t lane;
  uint32_t lane_count;
  uint32_t lane_elements;
  uint32_t chunks;  // of a lane
  uint32_t chunk_elements;
  // Threads that share a chunk, a power of two; neighbouring ones take
  // neighbouring elements, or where lanes lie side by side the other threads of
  // the block do.
  uint32_t members;
  // Lanes that lie side by side, the last of the dimensions of `lanes`, and the
  // blocks that these take.
  uint32_t columns;
  uint32_t stripes;
  uint32_t half;   // CHOIR__CUDA_F16, CHOIR__CUDA_BF16; 0: f32
  bool by_groups;  // of CHOIR__CUDA_GROUP elements of f32
  bool accumulate;
  bool squares;    // a sum's
  double divisor;  // of a sum
} choir__cuda_reduce_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_REDUCE_H_
