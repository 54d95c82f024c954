// SPDX-License-Identifier: Apache-2.0
// Built with -mavx2 -mfma -mf16c on x86-64, without elsewhere.
#include "dist/rank_reduce_internal.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

static void f16_to_f32(float* dst, const uint16_t* src, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                  (const __m128i*)(const void*)(src + i))));
  for (; i < count; ++i) dst[i] = choir_f16_to_f32(src[i]);
}

static void f16_from_f32(uint16_t* dst, const float* src, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(
        (__m128i*)(void*)(dst + i),
        _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i) dst[i] = choir_f16_from_f32(src[i]);
}

static void bf16_to_f32(float* dst, const uint16_t* src, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = (uint32_t)src[i] << 16;
    memcpy(dst + i, &bits, sizeof(bits));
  }
}

static void bf16_from_f32(uint16_t* dst, const float* src, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, src + i, sizeof(bits));
    uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    dst[i] = (uint16_t)(is_nan ? (bits >> 16) | 0x40u : rounded);
  }
}

static void fused_rest(const float* const* sources, const float* shares,
                       int32_t source_count, float* const* destinations,
                       int32_t destination_count, size_t start, size_t count) {
  for (size_t i = start; i < count; ++i) {
    float acc = shares ? shares[0] * sources[0][i] : sources[0][i];
    for (int32_t r = 1; r < source_count; ++r)
      acc = shares ? fmaf(shares[r], sources[r][i], acc) : acc + sources[r][i];
    for (int32_t d = 0; d < destination_count; ++d) destinations[d][i] = acc;
  }
}

// 32 elements at a time stay in four registers from the first source to the
// last destination: twice the speed of a block in the cache.
static void fused_f32(const float* const* sources, const float* shares,
                      int32_t source_count, float* const* destinations,
                      int32_t destination_count, size_t count) {
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const float* src = sources[0] + i;
    __m256 a = _mm256_loadu_ps(src);
    __m256 b = _mm256_loadu_ps(src + 8);
    __m256 c = _mm256_loadu_ps(src + 16);
    __m256 d = _mm256_loadu_ps(src + 24);
    if (shares) {
      __m256 share = _mm256_set1_ps(shares[0]);
      a = _mm256_mul_ps(share, a);
      b = _mm256_mul_ps(share, b);
      c = _mm256_mul_ps(share, c);
      d = _mm256_mul_ps(share, d);
    }
    for (int32_t r = 1; r < source_count; ++r) {
      src = sources[r] + i;
      if (shares) {
        __m256 share = _mm256_set1_ps(shares[r]);
        a = _mm256_fmadd_ps(share, _mm256_loadu_ps(src), a);
        b = _mm256_fmadd_ps(share, _mm256_loadu_ps(src + 8), b);
        c = _mm256_fmadd_ps(share, _mm256_loadu_ps(src + 16), c);
        d = _mm256_fmadd_ps(share, _mm256_loadu_ps(src + 24), d);
      } else {
        a = _mm256_add_ps(a, _mm256_loadu_ps(src));
        b = _mm256_add_ps(b, _mm256_loadu_ps(src + 8));
        c = _mm256_add_ps(c, _mm256_loadu_ps(src + 16));
        d = _mm256_add_ps(d, _mm256_loadu_ps(src + 24));
      }
    }
    for (int32_t k = 0; k < destination_count; ++k) {
      float* dst = destinations[k] + i;
      _mm256_storeu_ps(dst, a);
      _mm256_storeu_ps(dst + 8, b);
      _mm256_storeu_ps(dst + 16, c);
      _mm256_storeu_ps(dst + 24, d);
    }
  }
  fused_rest(sources, shares, source_count, destinations, destination_count, i,
             count);
}

// Cache lines of `dst` whole, the ends by memcpy. The fence puts what is on its
// way before a later store.
static void copy_away(void* dst, const void* src, size_t bytes) {
  char* to = dst;
  const char* from = src;
  size_t head = (size_t)(-(uintptr_t)to & 63);
  if (head > bytes) head = bytes;
  memcpy(to, from, head);
  size_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    const __m256i a = _mm256_loadu_si256((const void*)(from + i));
    const __m256i b = _mm256_loadu_si256((const void*)(from + i + 32));
    _mm256_stream_si256((void*)(to + i), a);
    _mm256_stream_si256((void*)(to + i + 32), b);
  }
  memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

#define FUSED_F32 fused_f32
#define REDUCE_TABLE table_avx2
#include "dist/rank_reduce_kernels.inc"

const choir__reduce_table_t* choir__reduce_table_avx2(void) {
  // f16c, which clang 14 cannot ask for, came before avx2 on every processor.
  bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can ? &table_avx2 : NULL;
}

#else

const choir__reduce_table_t* choir__reduce_table_avx2(void) { return NULL; }

#endif
