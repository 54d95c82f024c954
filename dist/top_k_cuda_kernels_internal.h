// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_TOP_K_CUDA_KERNELS_INTERNAL_H_
#define CHOIR_DIST_TOP_K_CUDA_KERNELS_INTERNAL_H_

#include <stdint.h>

// What the host hands the kernels of top_k_cuda.cu. Keys are the 31 bits of a
// magnitude: a high digit of 11 bits, a middle and a low one of 10.
enum {
  CHOIR__TOP_K_HIGH_BINS = 1 << 11,
  CHOIR__TOP_K_BINS = 1 << 10,
  CHOIR__TOP_K_LOW_BITS = 20,  // below the high digit
  // Elements that one block goes through; their places in it fit 16 bits, and
  // counts of them share a word.
  CHOIR__TOP_K_CHUNK = 4096,
};

typedef struct choir__cuda_limit_s {
  uint32_t least;  // keys from it on are listed
  uint32_t above;  // elements with a higher digit than it
  uint32_t limit;  // keys above it are chosen,
  uint32_t ties;   // and so many of those at it, from the first element on
  uint32_t found;  // chosen elements
} choir__cuda_limit_t;

typedef struct choir__cuda_top_k_s {
  const float* src;
  uint32_t count;
  uint32_t k;          // 0: by threshold
  uint32_t threshold;  // the least key, all of which are chosen
  uint32_t chunks;
  uint32_t blocks;  // of the kernel that counts high digits
  choir__cuda_limit_t* limit;
  // By k: elements of each digit; of the middle one and of both lower ones
  // those whose high digit is that of `least`.
  uint32_t* high;    // [HIGH_BINS]
  uint32_t* middle;  // [BINS]
  uint32_t* lower;   // [BINS][BINS]
  // For each chunk the places in it of keys from `least` on, and how many.
  uint16_t* listed;  // [chunks][CHUNK]
  uint32_t* listed_count;
  // Of those, keys above the limit, and 2^16 times those at it; then how many
  // of either are before the chunk.
  uint32_t* counts;
  uint32_t* larger_before;
  uint32_t* ties_before;
  int32_t* indices;
  float* values;
} choir__cuda_top_k_t;

#endif  // CHOIR_DIST_TOP_K_CUDA_KERNELS_INTERNAL_H_
