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
//   first_lanes(n)   the first n lanes, 1 <= n <= LANES, for LOAD_SOME (zeros
//                    elsewhere) and STORE_SOME, which touch no other memory
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
#define LOAD_SOME(p, lanes) _mm512_maskz_loadu_ps(lanes, p)
#define STORE(p, v) _mm512_store_ps(p, v)
#define STOREU(p, v) _mm512_storeu_ps(p, v)
#define STORE_SOME(p, lanes, v) _mm512_mask_storeu_ps(p, lanes, v)
#define ADD(a, b) _mm512_add_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)

CHOIR__BODY lanes_t first_lanes(int64_t count) {
  return (lanes_t)(0xffffu >> (LANES - count));
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
#define LOAD_SOME(p, lanes) _mm256_maskload_ps(p, lanes)
#define STORE(p, v) _mm256_store_ps(p, v)
#define STOREU(p, v) _mm256_storeu_ps(p, v)
#define STORE_SOME(p, lanes, v) _mm256_maskstore_ps(p, lanes, v)
#define ADD(a, b) _mm256_add_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

CHOIR__BODY lanes_t first_lanes(int64_t count) {
  static const int32_t masks[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256((const __m256i*)(masks + LANES - count));
}

#endif

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_VECTORS_H_
