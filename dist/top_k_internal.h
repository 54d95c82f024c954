// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_TOP_K_INTERNAL_H_
#define CHOIR_DIST_TOP_K_INTERNAL_H_

#include <string.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// The k elements of largest magnitude, exactly: what a sparse exchange of
// gradients sends. Magnitudes are compared as the bits of |x|, so that a NaN is
// larger than infinity and the result is always the same set. Of equal
// magnitudes the lower index goes first.

// Bytes that choir__top_k needs beside its results; 0 where its arguments are
// wrong.
size_t choir__top_k_scratch_bytes(int64_t count, int64_t k);

// out_indices[k], increasing, and out_values[k] (NULL: not wanted) of
// src[count]; 0 <= k <= count <= 2^31 - 1. `scratch` has
// choir__top_k_scratch_bytes(count, k) bytes, 64-byte aligned; no memory is
// taken. INVALID_ARGUMENT else. Reads src about once where values of a sample
// tell where the limit lies; where they do not (many equal values, k a large
// part of count), four times. Threads: any.
choir_status_t choir__top_k(const float* src, int64_t count, int64_t k,
                            void* scratch, int32_t* out_indices,
                            float* out_values) CHOIR_NODISCARD;

// ---- For tests and kernels ----

// Elements whose magnitude's bits are `least` or more, in order: their indices
// and their bits, with the sign. Stops when more than `most` are found; returns
// how many, or most + 1. Both results have room for `most` +
// CHOIR__TOP_K_SLACK.
#define CHOIR__TOP_K_SLACK 64
typedef int64_t (*choir__top_k_collect_t)(const float* src, int64_t count,
                                          uint32_t least, int64_t most,
                                          int32_t* out_indices,
                                          uint32_t* out_bits);
// The same from element `begin` on, with `found` already there: the elements
// that fill no vector, and all of them without one.
static inline int64_t choir__top_k_collect_rest(const float* src, int64_t begin,
                                                int64_t count, uint32_t least,
                                                int64_t most, int64_t found,
                                                int32_t* out_indices,
                                                uint32_t* out_bits) {
  if (found > most) return most + 1;
  for (int64_t i = begin; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, src + i, sizeof(bits));
    if ((bits & 0x7fffffffu) < least) continue;
    if (found == most) return most + 1;
    out_indices[found] = (int32_t)i;
    out_bits[found++] = bits;
  }
  return found;
}
// NULL where the build or the processor has no AVX2, AVX-512.
choir__top_k_collect_t choir__top_k_collect_plain(void);
choir__top_k_collect_t choir__top_k_collect_avx2(void);
choir__top_k_collect_t choir__top_k_collect_avx512(void);
// The best one for this processor.
choir__top_k_collect_t choir__top_k_collect_best(void);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_TOP_K_INTERNAL_H_
