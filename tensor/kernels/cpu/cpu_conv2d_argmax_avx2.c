// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_argmax.h for AVX2.
#include "tensor/kernels/cpu/cpu_conv2d_argmax.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <string.h>

#include "tensor/kernels/cpu/cpu_vectors.h"

// Sixteen registers hold that many filters' sums and a gradient.
#define FILTERS(vectors) (5 - (vectors))

// dy of `count` filters, zero where the activation was off (y NULL: none).
CHOIR__BODY vector_t take_some(const float* y, const float* dy, int64_t count) {
  const __m256 gradients = load_some(dy, count);
  if (!y) return gradients;
  return _mm256_and_ps(gradients,
                       _mm256_cmp_ps(load_some(y, count), SET1(0), _CMP_GT_OQ));
}

// Where the argmax indices of a 2 x 2 window are: `first`, and what is below
// and on the right of it. Returns the gradients, none for a argmax index that
// is none.
CHOIR__BODY vector_t place_some(const uint8_t* argmax, int64_t count,
                                int32_t first, int32_t below, int32_t right,
                                vector_t gradients, int32_t* offsets) {
  int64_t bytes = 0;
  if (count == LANES)
    memcpy(&bytes, argmax, LANES);
  else
    memcpy(&bytes, argmax, (size_t)count);
  const __m256i place = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
  const __m256i two = _mm256_set1_epi32(2), one = _mm256_set1_epi32(1);
  const __m256i down = _mm256_cmpeq_epi32(_mm256_and_si256(place, two), two);
  const __m256i aside = _mm256_cmpeq_epi32(_mm256_and_si256(place, one), one);
  const __m256i at = _mm256_add_epi32(
      _mm256_set1_epi32(first),
      _mm256_add_epi32(_mm256_and_si256(down, _mm256_set1_epi32(below)),
                       _mm256_and_si256(aside, _mm256_set1_epi32(right))));
  store_some(offsets, count, _mm256_castsi256_ps(at));
  return _mm256_and_ps(gradients, _mm256_castsi256_ps(_mm256_cmpgt_epi32(
                                      _mm256_set1_epi32(4), place)));
}

#include "tensor/kernels/cpu/cpu_conv2d_argmax_loops.inc"

#else

typedef int choir__argmax_avx2_is_absent_t;

#endif  // __AVX2__
