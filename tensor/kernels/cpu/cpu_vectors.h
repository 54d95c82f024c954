// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/body_backend.h"

// For files that are built for one instruction set, *_avx2.c and *_avx512.c, or
// for any processor, *_base.c: its vectors behind short names, so that the
// loops are one *_loops.inc.
//
//   NAME(name)       name_avx2, name_avx512 or name_base
//   LANES            floats in a vector_t
//   LOAD, STORE      at addresses of a whole vector; LOADU, STOREU at any
//   load_some(p, n)  the first n lanes, 1 <= n <= LANES, and zeros
//   store_some(...)  the first n lanes; both touch no other memory
//   load_some_16, store_some_16, round_to_16
//                    likewise of bf16 or f16 (`is_f16`), rounded once, and to
//                    what they can hold
//   MAX(a, b)        b where one of them is a NaN
//   FMA(a, b, c)     a b + c, rounded once
//
// Without an instruction set there is what cpu_conv2d_argmax_loops.inc uses.

// Before loops of a constant few: gcc has to take them apart early for an array
// of sums to be registers all along.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(__AVX512F__)

#include <immintrin.h>

#define NAME(name) name##_avx512
#define LANES 16
typedef __m512 vector_t;
typedef __mmask16 lanes_t;
#define SET1(x) _mm512_set1_ps(x)
#define LOAD(p) _mm512_load_ps(p)
#define LOADU(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_store_ps(p, v)
#define STOREU(p, v) _mm512_storeu_ps(p, v)
#define ADD(a, b) _mm512_add_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)

CHOIR__BODY lanes_t first_lanes(int64_t count) {
  return (lanes_t)(0xffffu >> (LANES - count));
}
CHOIR__BODY vector_t load_some(const float* from, int64_t count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), from);
}
CHOIR__BODY void store_some(void* to, int64_t count, vector_t v) {
  _mm512_mask_storeu_ps(to, first_lanes(count), v);
}

CHOIR__BODY vector_t load_some_16(const bool is_f16, const void* from,
                                  int64_t count) {
  const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(count), from);
  if (is_f16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
CHOIR__BODY __m256i to_16(const bool is_f16, vector_t v) {
  if (is_f16)
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd =
      _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded =
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // A NaN keeps its bits and is quiet.
  rounded =
      _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                           bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
CHOIR__BODY void store_some_16(const bool is_f16, void* to, int64_t count,
                               vector_t v) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), to_16(is_f16, v));
}
CHOIR__BODY vector_t round_to_16(const bool is_f16, vector_t v) {
  const __m256i half = to_16(is_f16, v);
  if (is_f16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#define NAME(name) name##_avx2
#define LANES 8
typedef __m256 vector_t;
typedef __m256i lanes_t;
#define SET1(x) _mm256_set1_ps(x)
#define LOAD(p) _mm256_load_ps(p)
#define LOADU(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_store_ps(p, v)
#define STOREU(p, v) _mm256_storeu_ps(p, v)
#define ADD(a, b) _mm256_add_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

CHOIR__BODY lanes_t first_lanes(int64_t count) {
  static const int32_t masks[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256((const __m256i*)(masks + LANES - count));
}
CHOIR__BODY vector_t load_some(const float* from, int64_t count) {
  return _mm256_maskload_ps(from, first_lanes(count));
}
// Of a float's or an integer's vector. A masked store takes AMD's processors
// some forty operations.
CHOIR__BODY void store_some(void* to, int64_t count, vector_t v) {
  if (count == LANES) {
    _mm256_storeu_ps(to, v);
    return;
  }
  char* at = to;
  __m128 part = _mm256_castps256_ps128(v);
  if (count & 4) {
    _mm_storeu_ps((float*)at, part);
    at += 4 * sizeof(float);
    part = _mm256_extractf128_ps(v, 1);
  }
  if (count & 2) {
    _mm_storel_pi((__m64*)at, part);
    at += 2 * sizeof(float);
    part = _mm_movehl_ps(part, part);
  }
  if (count & 1) _mm_storeu_si32(at, _mm_castps_si128(part));
}

CHOIR__BODY vector_t from_16(const bool is_f16, __m128i half) {
  if (is_f16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
CHOIR__BODY __m128i to_16(const bool is_f16, vector_t v) {
  if (is_f16)
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd =
      _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  // A NaN keeps its bits and is quiet.
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i kept = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
                       _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  const __m256i high = _mm256_srli_epi32(kept, 16);
  return _mm256_castsi256_si128(
      _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8));
}
CHOIR__BODY vector_t load_some_16(const bool is_f16, const void* from,
                                  int64_t count) {
  __m128i half = _mm_setzero_si128();
  if (count == LANES)
    half = _mm_loadu_si128(from);
  else
    memcpy(&half, from, (size_t)count * sizeof(uint16_t));
  return from_16(is_f16, half);
}
CHOIR__BODY void store_some_16(const bool is_f16, void* to, int64_t count,
                               vector_t v) {
  const __m128i half = to_16(is_f16, v);
  if (count == LANES)
    _mm_storeu_si128(to, half);
  else
    memcpy(to, &half, (size_t)count * sizeof(uint16_t));
}
CHOIR__BODY vector_t round_to_16(const bool is_f16, vector_t v) {
  return from_16(is_f16, to_16(is_f16, v));
}

#else

#include "tensor/kernels/cpu/cpu_panels.h"

#define NAME(name) name##_base
#define LANES 4
typedef choir__panel_f32_t vector_t;
#define SET1(x) ((float)(x) - (vector_t){0})
#define LOAD(p) (*(const vector_t*)(p))
#define LOADU(p) LOAD(p)
#define STORE(p, v) (*(vector_t*)(p) = (v))
#define STOREU(p, v) STORE(p, v)
#define ADD(a, b) ((a) + (b))
#define FMA(a, b, c) choir__panel_fma(a, b, c)

CHOIR__BODY vector_t load_some(const float* from, int64_t count) {
  vector_t v = {0};
  for (int64_t i = 0; i < count; i++) v[i] = from[i];
  return v;
}
CHOIR__BODY void store_some(void* to, int64_t count, vector_t v) {
  memcpy(to, &v, (size_t)count * sizeof(float));
}

#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_
