// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_direct.h for AVX2.
#include "tensor/kernels/cpu/cpu_conv2d_direct.h"

#if defined(__AVX2__) && defined(__FMA__)

#include "tensor/kernels/cpu/cpu_vectors.h"

// Tiles of up to twelve of the sixteen registers: what they are multiplied by
// takes the rest.
#define FILTERS 3
#define TAPS 4
#define GRAD_CHANNELS(width) ((width) == 5 ? 1 : 2)
#define GRAD_PIXELS(width) ((width) == 5 ? 4 : 3)
#define EACH_FILTERS(X) X(1) X(2) X(3)
#define TILE_BYTES (36 * 1024)
#define WHOLE_BYTES (50 * 1024)
#define EACH_TAPS(X, filters) \
  X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4)
#define EACH_GRAD_CHANNELS_3(X, width) X(width, 1) X(width, 2)
#define EACH_GRAD_CHANNELS_5(X, width) X(width, 1)

CHOIR__BODY void transpose(__m256 r[8]) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  // r[4 g + c]: columns c and c + 4 of rows 4 g .. 4 g + 3.
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; k++) {
      const __m256d a = _mm256_castps_pd(t[i + k]);
      const __m256d b = _mm256_castps_pd(t[i + k + 2]);
      r[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
      r[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    }
  }
  for (int c = 0; c < 4; c++) {
    const __m256 low = r[c], high = r[c + 4];
    r[c] = _mm256_permute2f128_ps(low, high, 0x20);
    r[c + 4] = _mm256_permute2f128_ps(low, high, 0x31);
  }
}

static void bytes_out(const uint8_t* bytes, int64_t count, uint8_t* dst,
                      int64_t sample_stride, int64_t samples) {
  for (int64_t s = 0; s < LANES && s < samples; s++)
    for (int64_t i = 0; i < count; i++)
      dst[s * sample_stride + i] = bytes[i * LANES + s];
}

CHOIR__BODY void best_of(vector_t a, vector_t b, vector_t c, vector_t d,
                         float* y, uint8_t* argmax) {
  const vector_t others[3] = {b, c, d};
  vector_t best = a, place = SET1(0);
  UNROLL
  for (int p = 0; p < 3; p++) {
    const __m256 wins =
        _mm256_and_ps(_mm256_cmp_ps(best, best, _CMP_ORD_Q),
                      _mm256_cmp_ps(others[p], best, _CMP_NLE_UQ));
    best = _mm256_blendv_ps(best, others[p], wins);
    place = _mm256_blendv_ps(
        place, _mm256_castsi256_ps(_mm256_set1_epi32(p + 1)), wins);
  }
  STORE(y, best);
  const __m256i places = _mm256_castps_si256(place);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(places),
                                        _mm256_extracti128_si256(places, 1));
  _mm_storel_epi64((__m128i*)argmax, _mm_packus_epi16(words, words));
}

CHOIR__BODY void sum_lanes(float* to, vector_t a, vector_t b, vector_t c,
                           vector_t d) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all),
                               _mm256_extractf128_ps(all, 1)));
}
CHOIR__BODY float sum_of(vector_t v) {
  float sums[4];
  sum_lanes(sums, v, v, v, v);
  return sums[0];
}

#include "tensor/kernels/cpu/cpu_conv2d_direct_loops.inc"

#else

typedef int choir__conv_avx2_is_absent_t;

#endif  // __AVX2__
