// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_

#include <stdint.h>

#include "core/body_backend.h"

// For files that are built for one instruction set, *_avx2.c and *_avx512.c:
// its vectors behind short names, so that the loops are one *_loops.inc.
//
//   NAME(name)       name_avx2 or name_avx512
//   LANES            floats in a vector_t
//   LOAD, STORE      at addresses of a whole vector; LOADU, STOREU at any
//   load_some(p, n)  the first n lanes, 1 <= n <= LANES, and zeros
//   store_some(...)  the first n lanes; both touch no other memory
//   MAX(a, b)        b where one of them is a NaN
//   FMA(a, b, c)     a b + c, rounded once

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

#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_
