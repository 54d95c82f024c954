// SPDX-License-Identifier: Apache-2.0
// Built with -mavx2 on x86-64, without elsewhere.
#include "dist/top_k_internal.h"

#if defined(__AVX2__)
#include <immintrin.h>

// Few elements are large: 32 are looked at for one branch, and those that are
// large are taken one by one.
static int64_t collect(const float* src, int64_t count, uint32_t least,
                       int64_t most, int32_t* out_indices, uint32_t* out_bits) {
  if (least == 0)
    return choir__top_k_collect_rest(src, 0, count, least, most, 0, out_indices,
                                     out_bits);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  // Magnitudes have no sign bit, so that signed comparison will do.
  const __m256i below = _mm256_set1_epi32((int32_t)(least - 1));
  int64_t found = 0;
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    uint32_t large = 0;
    for (int v = 0; v < 4; ++v) {
      const __m256i key = _mm256_and_si256(
          _mm256_loadu_si256((const __m256i*)(const void*)(src + i + 8 * v)),
          magnitude);
      const __m256i is_large = _mm256_cmpgt_epi32(key, below);
      large |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_large))
               << 8 * v;
    }
    if (large && found > most) return most + 1;
    for (; large; large &= large - 1) {
      const int64_t at = i + __builtin_ctz(large);
      out_indices[found] = (int32_t)at;
      __builtin_memcpy(out_bits + found++, src + at, sizeof(*out_bits));
    }
  }
  return choir__top_k_collect_rest(src, i, count, least, most, found,
                                   out_indices, out_bits);
}

choir__top_k_collect_t choir__top_k_collect_avx2(void) {
  return __builtin_cpu_supports("avx2") ? collect : NULL;
}

#else

choir__top_k_collect_t choir__top_k_collect_avx2(void) { return NULL; }

#endif
