// SPDX-License-Identifier: Apache-2.0
// Built with -mavx2 -mfma -mf16c on x86-64, without elsewhere.
#include "dist/compress_kernels_internal.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/dtype.h"

enum { STEP = 8 };

static inline __m256 load(const float* src) { return _mm256_loadu_ps(src); }

static inline __m256i load_halves(const uint16_t* src) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void*)src));
}

// Of eight 32-bit numbers the lower halves.
static inline __m128i pack(__m256i words) {
  return _mm_packus_epi32(_mm256_castsi256_si128(words),
                          _mm256_extracti128_si256(words, 1));
}

static inline __m256 clip_step(__m256 x, float scale, float limit,
                               __m256i* clipped) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 most = _mm256_set1_ps(limit);
  const __m256 y = _mm256_mul_ps(x, _mm256_set1_ps(scale));
  const __m256 clips =
      _mm256_and_ps(_mm256_cmp_ps(_mm256_andnot_ps(sign, y), most, _CMP_GT_OQ),
                    _mm256_cmp_ps(_mm256_andnot_ps(sign, x),
                                  _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
  *clipped = _mm256_sub_epi32(*clipped, _mm256_castps_si256(clips));
  return _mm256_blendv_ps(y, _mm256_or_ps(most, _mm256_and_ps(sign, y)), clips);
}

static inline __m128i f16_from_step(__m256 y) {
  return _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
}

static inline __m256 f16_to_step(const uint16_t* src) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const void*)src));
}

static inline __m128i bf16_from_step(__m256 y) {
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd),
      16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(y, y, _CMP_UNORD_Q));
  return pack(_mm256_blendv_epi8(rounded, quiet, is_nan));
}

static inline __m256 bf16_to_step(const uint16_t* src) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(load_halves(src), 16));
}

static int64_t sum_lanes(__m256i lanes) {
  uint32_t counts[STEP];
  _mm256_storeu_si256((void*)counts, lanes);
  int64_t sum = 0;
  for (int lane = 0; lane < STEP; ++lane) sum += counts[lane];
  return sum;
}

#define HALF_STEPS(type)                                                      \
  static int64_t type##_encode_steps(const float* src, int64_t count,         \
                                     float scale, float limit, uint16_t* dst, \
                                     int64_t* clipped) {                      \
    __m256i lanes = _mm256_setzero_si256();                                   \
    int64_t i = 0;                                                            \
    for (; i + STEP <= count; i += STEP)                                      \
      _mm_storeu_si128(                                                       \
          (void*)(dst + i),                                                   \
          type##_from_step(clip_step(load(src + i), scale, limit, &lanes)));  \
    *clipped += sum_lanes(lanes);                                             \
    return i;                                                                 \
  }                                                                           \
  static int64_t type##_decode_steps(const uint16_t* src, int64_t count,      \
                                     float scale, float* dst) {               \
    const __m256 scales = _mm256_set1_ps(scale);                              \
    int64_t i = 0;                                                            \
    for (; i + STEP <= count; i += STEP)                                      \
      _mm256_storeu_ps(dst + i,                                               \
                       _mm256_mul_ps(type##_to_step(src + i), scales));       \
    return i;                                                                 \
  }

HALF_STEPS(f16)
HALF_STEPS(bf16)

#define COMPRESS_TABLE table_avx2
#include "dist/compress_kernels.inc"

const choir__compress_table_t* choir__compress_table_avx2(void) {
  // f16c, which clang 14 cannot ask for, came before avx2 on every processor.
  const bool can =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can ? &table_avx2 : NULL;
}

#else

const choir__compress_table_t* choir__compress_table_avx2(void) { return NULL; }

#endif
