// SPDX-License-Identifier: Apache-2.0
// The loops of cpu_conv2d_direct.h for AVX-512.
#include "tensor/kernels/cpu/cpu_conv2d_direct.h"

#if defined(__AVX512F__)

#include "tensor/kernels/cpu/cpu_vectors.h"

// Tiles of up to 25 of the 32 registers.
#define FILTERS 5
#define TAPS 5
#define GRAD_CHANNELS(width) ((width) == 5 ? 3 : 4)
#define GRAD_PIXELS(width) 4
#define EACH_FILTERS(X) X(1) X(2) X(3) X(4) X(5)
#define TILE_BYTES (120 * 1024)
#define WHOLE_BYTES TILE_BYTES
#define EACH_TAPS(X, filters) \
  X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4) X(filters, 5)
#define EACH_GRAD_CHANNELS_3(X, width) \
  X(width, 1) X(width, 2) X(width, 3) X(width, 4)
#define EACH_GRAD_CHANNELS_5(X, width) X(width, 1) X(width, 2) X(width, 3)

CHOIR__BODY void transpose(__m512 r[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 2; k++) {
      const __m512d a = _mm512_castps_pd(t[i + k]);
      const __m512d b = _mm512_castps_pd(t[i + k + 2]);
      r[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // r[4 g + c]: columns c, c+4, c+8, c+12 of rows 4g .. 4g+3.
  for (int c = 0; c < 4; c++) {
    t[c] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);
    t[c + 4] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
    t[c + 8] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
    t[c + 12] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
  }
  for (int c = 0; c < 4; c++) {
    r[c] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0x88);
    r[c + 4] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0x88);
    r[c + 8] = _mm512_shuffle_f32x4(t[c], t[c + 8], 0xdd);
    r[c + 12] = _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0xdd);
  }
}

static void bytes_out(const uint8_t* bytes, int64_t count, uint8_t* dst,
                      int64_t sample_stride, int64_t samples) {
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t n = count - i < 16 ? count - i : 16;
    __m128i r[16], t[16];
    for (int k = 0; k < 16; k++)
      r[k] = k < n ? _mm_load_si128((const __m128i*)(bytes + (i + k) * LANES))
                   : _mm_setzero_si128();
    // Four times the even shuffle of the first eight rows with the last eight
    // is the transposition.
    for (int pass = 0; pass < 2; pass++) {
      for (int k = 0; k < 8; k++) {
        t[2 * k] = _mm_unpacklo_epi8(r[k], r[k + 8]);
        t[2 * k + 1] = _mm_unpackhi_epi8(r[k], r[k + 8]);
      }
      for (int k = 0; k < 8; k++) {
        r[2 * k] = _mm_unpacklo_epi8(t[k], t[k + 8]);
        r[2 * k + 1] = _mm_unpackhi_epi8(t[k], t[k + 8]);
      }
    }
    const lanes_t lanes = first_lanes(n);
    for (int s = 0; s < 16 && s < samples; s++)
      _mm_mask_storeu_epi8(dst + s * sample_stride + i, lanes, r[s]);
  }
}

CHOIR__BODY void best_of(vector_t a, vector_t b, vector_t c, vector_t d,
                         float* y, uint8_t* argmax) {
  const vector_t others[3] = {b, c, d};
  vector_t best = a;
  __m512i place = _mm512_setzero_si512();
  UNROLL
  for (int p = 0; p < 3; p++) {
    const __mmask16 wins =
        _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(best, best, _CMP_ORD_Q),
                                others[p], best, _CMP_NLE_UQ);
    best = _mm512_mask_mov_ps(best, wins, others[p]);
    place = _mm512_mask_mov_epi32(place, wins, _mm512_set1_epi32(p + 1));
  }
  STORE(y, best);
  _mm_store_si128((__m128i*)argmax, _mm512_cvtepi32_epi8(place));
}

CHOIR__BODY void sum_lanes(float* to, vector_t a, vector_t b, vector_t c,
                           vector_t d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd =
      _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 low = _mm512_castpd_ps(
      _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 high = _mm512_castpd_ps(
      _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 all = _mm512_add_ps(low, high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                    _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half),
                               _mm256_extractf128_ps(half, 1)));
}
CHOIR__BODY float sum_of(vector_t v) { return _mm512_reduce_add_ps(v); }

#include "tensor/kernels/cpu/cpu_conv2d_direct_loops.inc"

#else

typedef int choir__conv_avx512_is_absent_t;

#endif  // __AVX512F__
