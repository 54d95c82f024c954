// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "dist/compress_cuda_modules_internal.h"
#include "dist/compress_gpu_internal.h"
#include "dist/compress_internal.h"
#include "dist/top_k_cuda_kernels_internal.h"
#include "tensor/kernels/cuda/cuda_threads.h"

enum {
  THREADS = CHOIR__CUDA_THREADS,
  // Each goes through some groups before it adds up what it counted.
  ELEMENTS_OF_BLOCK = THREADS * CHOIR__CUDA_GROUP * 8,
  MOST_BLOCKS = 1024,
};

#define KERNEL(name) \
  { &choir__top_k_cuda_module, "choir_top_k_" #name }
static const choir_cuda_kernel_t count_high = KERNEL(high);
static const choir_cuda_kernel_t find_least = KERNEL(least);
static const choir_cuda_kernel_t set_threshold = KERNEL(threshold);
static const choir_cuda_kernel_t list = KERNEL(list);
static const choir_cuda_kernel_t find_limit = KERNEL(limit);
static const choir_cuda_kernel_t count_chosen = KERNEL(count);
static const choir_cuda_kernel_t place = KERNEL(place);
static const choir_cuda_kernel_t pick = KERNEL(pick);

typedef choir__cuda_top_k_t params_t;

static choir_status_t launch(choir_stream_t* stream,
                             const choir_cuda_kernel_t* kernel, uint32_t blocks,
                             const params_t* params) {
  return choir__cuda_launch(stream, kernel, blocks, THREADS, params);
}

static choir_status_t check_count(int64_t count, int64_t k) {
  if (k >= 0 && k <= count && count <= INT32_MAX) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "top_k on a GPU: k is %lld of %lld elements; 0 .. count "
                     "are allowed, of 2^31 - 1 at most",
                     (long long)k, (long long)count);
}

// Memory for what kernels tell each other; k is 0 for a threshold.
static choir_status_t prepare(choir_stream_t* stream, const float* src,
                              int64_t count, int64_t k, params_t* out_params) {
  const size_t chunks =
      ((size_t)count + CHOIR__TOP_K_CHUNK - 1) / CHOIR__TOP_K_CHUNK;
  const size_t bins = (size_t)CHOIR__TOP_K_BINS;
  const size_t digits = k > 0 ? CHOIR__TOP_K_HIGH_BINS + bins + bins * bins : 0;
  const size_t head = 16;  // words
  _Static_assert(sizeof(choir__cuda_limit_t) <= 16 * sizeof(uint32_t),
                 "the limit has room");
  const size_t words = head + digits + 4 * chunks;
  void* memory;
  CHOIR_TRY(choir__cuda_scratch(
      stream,
      words * sizeof(uint32_t) + chunks * CHOIR__TOP_K_CHUNK * sizeof(uint16_t),
      &memory));
  CHOIR_TRY(choir__cuda_use(stream, src));
  uint32_t* word = memory;
  const int64_t blocks = (count + ELEMENTS_OF_BLOCK - 1) / ELEMENTS_OF_BLOCK;
  uint32_t* of_chunks = word + head + digits;
  *out_params = (params_t){
      .src = src,
      .count = (uint32_t)count,
      .k = (uint32_t)k,
      .chunks = (uint32_t)chunks,
      .blocks = (uint32_t)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
      .limit = memory,
      .listed_count = of_chunks,
      .counts = of_chunks + chunks,
      .larger_before = of_chunks + 2 * chunks,
      .ties_before = of_chunks + 3 * chunks,
      .listed = (uint16_t*)(void*)(of_chunks + 4 * chunks)};
  if (k == 0) return NULL;
  out_params->high = word + head;
  out_params->middle = out_params->high + CHOIR__TOP_K_HIGH_BINS;
  out_params->lower = out_params->middle + bins;
  return choir__gpu_clear(stream, (int64_t)digits,
                          (float*)(void*)out_params->high);
}

static choir_status_t give(choir_stream_t* stream, int64_t k, params_t* params,
                           choir__gpu_chosen_t* out_chosen) {
  CHOIR_TRY(choir__gpu_chosen_create(stream, k, out_chosen));
  if (k == 0) return NULL;
  params->indices = out_chosen->indices;
  params->values = out_chosen->values;
  return launch(stream, &pick, params->chunks, params);
}

choir_status_t choir__gpu_top_k(choir_stream_t* stream, const float* src,
                                int64_t count, int64_t k,
                                choir__gpu_chosen_t* out_chosen) {
  *out_chosen = (choir__gpu_chosen_t){.k = 0};
  CHOIR_TRY(check_count(count, k));
  if (k == 0) return NULL;
  params_t params;
  CHOIR_TRY(prepare(stream, src, count, k, &params));
  CHOIR_TRY(launch(stream, &count_high, params.blocks, &params));
  CHOIR_TRY(launch(stream, &find_least, 1, &params));
  CHOIR_TRY(launch(stream, &list, params.chunks, &params));
  CHOIR_TRY(launch(stream, &find_limit, 1, &params));
  CHOIR_TRY(launch(stream, &count_chosen, params.chunks, &params));
  CHOIR_TRY(launch(stream, &place, 1, &params));
  return give(stream, k, &params, out_chosen);
}

choir_status_t choir__gpu_select_above(choir_stream_t* stream, const float* src,
                                       int64_t count, float threshold,
                                       choir__gpu_chosen_t* out_chosen) {
  *out_chosen = (choir__gpu_chosen_t){.k = 0};
  CHOIR_TRY(check_count(count, 0));
  uint32_t least;
  CHOIR_TRY(choir__select_least(threshold, &least));
  if (count == 0) return NULL;
  params_t params;
  CHOIR_TRY(prepare(stream, src, count, 0, &params));
  params.threshold = least;
  CHOIR_TRY(launch(stream, &set_threshold, 1, &params));
  CHOIR_TRY(launch(stream, &list, params.chunks, &params));
  CHOIR_TRY(launch(stream, &count_chosen, params.chunks, &params));
  CHOIR_TRY(launch(stream, &place, 1, &params));
  choir__cuda_limit_t limit;
  CHOIR_TRY(choir__gpu_read(stream, params.limit, &limit, sizeof(limit)));
  return give(stream, limit.found, &params, out_chosen);
}
