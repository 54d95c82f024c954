// SPDX-License-Identifier: Apache-2.0
// Built with -mavx512f and friends on x86-64, without elsewhere.
#include "dist/top_k_internal.h"

#if defined(__AVX512F__)
#include <immintrin.h>

// Takes the lowest element of the mask, if there is one, without a branch:
// where large ones lie no branch can guess.
static inline uint64_t take(const float* src, int64_t i, uint64_t mask,
                            int32_t* out_indices, uint32_t* out_bits,
                            int64_t* found) {
  const int64_t at = i + __builtin_ctzll(mask | (uint64_t)1 << 63);
  out_indices[*found] = (int32_t)at;
  __builtin_memcpy(out_bits + *found, src + at, sizeof(*out_bits));
  *found += mask != 0;
  return mask & (mask - 1);
}

static inline uint64_t find_large(const float* src, __m512i limit) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  uint64_t mask = 0;
  for (int v = 0; v < 4; ++v)
    mask |= (uint64_t)_mm512_cmpge_epu32_mask(
                _mm512_and_si512(_mm512_loadu_si512(src + 16 * v), magnitude),
                limit)
            << 16 * v;
  return mask;
}

static int64_t collect(const float* src, int64_t count, uint32_t least,
                       int64_t most, int32_t* out_indices, uint32_t* out_bits) {
  const __m512i limit = _mm512_set1_epi32((int32_t)least);
  int64_t found = 0;
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    // Up to 64 more than there may be: the room for it is there.
    if (found > most) return most + 1;
    uint64_t mask = find_large(src + i, limit);
    // Of 64 elements one or so is large, seldom more than two.
    mask = take(src, i, mask, out_indices, out_bits, &found);
    mask = take(src, i, mask, out_indices, out_bits, &found);
    while (mask) mask = take(src, i, mask, out_indices, out_bits, &found);
  }
  return choir__top_k_collect_rest(src, i, count, least, most, found,
                                   out_indices, out_bits);
}

choir__top_k_collect_t choir__top_k_collect_avx512(void) {
  return __builtin_cpu_supports("avx512f") ? collect : NULL;
}

#else

choir__top_k_collect_t choir__top_k_collect_avx512(void) { return NULL; }

#endif
