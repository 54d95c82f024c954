// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_INDEX_MAP_H_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_INDEX_MAP_H_

#include "tensor/kernels/index_axes.h"

// What the host hands the kernels of cuda_index_map.cu: an index map
// (tensor/ops/index_map.h) as loops, one thread for each element of the
// destination or for each index.
typedef struct choir__cuda_index_map_s {
  void* places;
  void* elements;
  const void* others;   // NULL: other_value
  const void* indices;  // NULL: none
  uint64_t place_value;
  uint64_t other_value;
  int64_t axis_size;
  int64_t axis_stride;
  uint32_t count;  // of the destination
  uint32_t index_count;
  uint32_t head_count;
  // Indices of one lane: so many, so far apart in their row-major order.
  uint32_t lane_size;
  uint32_t lane_step;
  bool is_long;  // indices are i64
  bool is_sum;   // SUM, else PUT
  bool accumulate;
  // As in tensor/kernels/cpu/cpu_index_map.c: the first or last index of each
  // list, and the next one after each; NULL: none. -1: there is none.
  int32_t* heads;
  int32_t* next;
  choir__index_axes_t axes;        // of the destination
  choir__index_axes_t index_axes;  // of the indices
} choir__cuda_index_map_t;

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_INDEX_MAP_H_
