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

// 32 elements.
typedef struct lanes_s {
  __m256 a, b, c, d;
} lanes_t;

static inline lanes_t load_lanes(const float* src) {
  return (lanes_t){_mm256_loadu_ps(src), _mm256_loadu_ps(src + 8),
                   _mm256_loadu_ps(src + 16), _mm256_loadu_ps(src + 24)};
}

static inline void store_lanes(float* dst, lanes_t x) {
  _mm256_storeu_ps(dst, x.a);
  _mm256_storeu_ps(dst + 8, x.b);
  _mm256_storeu_ps(dst + 16, x.c);
  _mm256_storeu_ps(dst + 24, x.d);
}

// All sources' elements from `i` on; shares NULL: their sum.
static inline lanes_t combine_lanes(const float* const* sources,
                                    const float* shares, int32_t source_count,
                                    size_t i) {
  lanes_t x = load_lanes(sources[0] + i);
  if (shares) {
    const __m256 share = _mm256_set1_ps(shares[0]);
    x.a = _mm256_mul_ps(share, x.a);
    x.b = _mm256_mul_ps(share, x.b);
    x.c = _mm256_mul_ps(share, x.c);
    x.d = _mm256_mul_ps(share, x.d);
  }
  for (int32_t r = 1; r < source_count; ++r) {
    const lanes_t y = load_lanes(sources[r] + i);
    if (shares) {
      const __m256 share = _mm256_set1_ps(shares[r]);
      x.a = _mm256_fmadd_ps(share, y.a, x.a);
      x.b = _mm256_fmadd_ps(share, y.b, x.b);
      x.c = _mm256_fmadd_ps(share, y.c, x.c);
      x.d = _mm256_fmadd_ps(share, y.d, x.d);
    } else {
      x.a = _mm256_add_ps(x.a, y.a);
      x.b = _mm256_add_ps(x.b, y.b);
      x.c = _mm256_add_ps(x.c, y.c);
      x.d = _mm256_add_ps(x.d, y.d);
    }
  }
  return x;
}

// 32 elements at a time, from `start` on, stay in four registers from the first
// source to the last destination: twice the speed of a block in the cache.
static void fused_from(const float* const* sources, const float* shares,
                       int32_t source_count, float* const* destinations,
                       int32_t destination_count, size_t start, size_t count) {
  size_t i = start;
  for (; i + 32 <= count; i += 32) {
    const lanes_t x = combine_lanes(sources, shares, source_count, i);
    for (int32_t k = 0; k < destination_count; ++k)
      store_lanes(destinations[k] + i, x);
  }
  fused_rest(sources, shares, source_count, destinations, destination_count, i,
             count);
}

static void fused_f32(const float* const* sources, const float* shares,
                      int32_t source_count, float* const* destinations,
                      int32_t destination_count, size_t count) {
  fused_from(sources, shares, source_count, destinations, destination_count, 0,
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

// Writes past the caches take little time of their own among reads that wait
// for memory; behind them, they take all of theirs.
static void average_and_copy(const float* const* sources, const float* shares,
                             int32_t source_count, float* dst, size_t count,
                             float* away, const float* from,
                             size_t away_count) {
  const size_t both = count < away_count ? count : away_count;
  size_t i = 0;
  for (; (uintptr_t)away % 32 == 0 && i + 32 <= both; i += 32) {
    store_lanes(dst + i, combine_lanes(sources, shares, source_count, i));
    const lanes_t x = load_lanes(from + i);
    _mm256_stream_ps(away + i, x.a);
    _mm256_stream_ps(away + i + 8, x.b);
    _mm256_stream_ps(away + i + 16, x.c);
    _mm256_stream_ps(away + i + 24, x.d);
  }
  fused_from(sources, shares, source_count, &dst, 1, i, count);
  copy_away(away + i, from + i, (away_count - i) * sizeof(float));
}

#define FUSED_F32 fused_f32
#define AVERAGE_AND_COPY average_and_copy
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
