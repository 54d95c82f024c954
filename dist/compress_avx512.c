// SPDX-License-Identifier: Apache-2.0
// Built with -mavx512f and friends on x86-64, without elsewhere.
#include "dist/compress_kernels_internal.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/dtype.h"

enum { STEP = 16 };

static inline __m256i load_halves(const uint16_t* src) {
  return _mm256_loadu_si256((const void*)src);
}

static inline __m512 clip_step(__m512 x, float scale, float limit,
                               int64_t* clipped) {
  const __m512 most = _mm512_set1_ps(limit);
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(scale));
  const __mmask16 beyond =
      _mm512_cmp_ps_mask(_mm512_abs_ps(y), most, _CMP_GT_OQ);
  const __mmask16 clips = _mm512_mask_cmp_ps_mask(
      beyond, _mm512_abs_ps(x), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
  *clipped += __builtin_popcount(clips);
  const __m512i sign =
      _mm512_and_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(INT32_MIN));
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(
      _mm512_castps_si512(y), clips, _mm512_castps_si512(most), sign));
}

static inline __m256i f16_from_step(__m512 y) {
  return _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
}

static inline __m512 f16_to_step(const uint16_t* src) {
  return _mm512_cvtph_ps(load_halves(src));
}

static inline __m256i bf16_from_step(__m512 y) {
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_epi32(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd),
      16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40)));
}

static inline __m512 bf16_to_step(const uint16_t* src) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(src)), 16));
}

#define HALF_STEPS(type)                                                       \
  static int64_t type##_encode_steps(const float* src, int64_t count,          \
                                     float scale, float limit, uint16_t* dst,  \
                                     int64_t* clipped) {                       \
    int64_t i = 0;                                                             \
    for (; i + STEP <= count; i += STEP)                                       \
      _mm256_storeu_si256((void*)(dst + i),                                    \
                          type##_from_step(clip_step(_mm512_loadu_ps(src + i), \
                                                     scale, limit, clipped))); \
    return i;                                                                  \
  }                                                                            \
  static int64_t type##_decode_steps(const uint16_t* src, int64_t count,       \
                                     float scale, float* dst) {                \
    const __m512 scales = _mm512_set1_ps(scale);                               \
    int64_t i = 0;                                                             \
    for (; i + STEP <= count; i += STEP)                                       \
      _mm512_storeu_ps(dst + i,                                                \
                       _mm512_mul_ps(type##_to_step(src + i), scales));        \
    return i;                                                                  \
  }

HALF_STEPS(f16)
HALF_STEPS(bf16)

#define COMPRESS_TABLE table_avx512
#include "dist/compress_kernels.inc"

const choir__compress_table_t* choir__compress_table_avx512(void) {
  const bool can =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return can ? &table_avx512 : NULL;
}

#else

const choir__compress_table_t* choir__compress_table_avx512(void) {
  return NULL;
}

#endif
