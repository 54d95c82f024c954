// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMPRESS_KERNELS_INTERNAL_H_
#define CHOIR_DIST_COMPRESS_KERNELS_INTERNAL_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// The loops under compress_internal.h, once for each instruction set.

typedef int64_t (*choir__half_encode_t)(const float* src, int64_t count,
                                        float scale, float limit,
                                        uint16_t* dst);
typedef void (*choir__half_decode_t)(const uint16_t* src, int64_t count,
                                     float scale, float* dst);
typedef struct choir__compress_table_s {
  // f16, then bf16.
  choir__half_encode_t half_encode[2];
  choir__half_decode_t half_decode[2];
  void (*subtract)(const float* a, const float* b, int64_t count, float* dst);
  void (*residual_add)(float decay, const float* gradient, int64_t count,
                       float* residual);
  void (*momentum_add)(float momentum, float factor, const float* gradient,
                       int64_t count, float* u, float* v);
  double (*squared_norm)(const float* src, int64_t count);
  void (*scatter_add)(const int32_t* indices, const float* values, int64_t k,
                      float share, float* dense);
} choir__compress_table_t;

// NULL where the build or the processor has no AVX2, AVX-512.
const choir__compress_table_t* choir__compress_table_plain(void);
const choir__compress_table_t* choir__compress_table_avx2(void);
const choir__compress_table_t* choir__compress_table_avx512(void);
// The best one for this processor.
const choir__compress_table_t* choir__compress_table(void);

// ---- Gaps ----

int32_t choir__gaps_rice(int64_t count, int64_t k);
// Most bytes of the gaps of k out of count indices, with this parameter.
size_t choir__gaps_most_bytes(int64_t count, int64_t k, int32_t rice);
// Up to eight bytes beyond the result are overwritten.
choir_status_t choir__gaps_encode(int64_t count, int64_t k, int32_t rice,
                                  const int32_t* indices, uint8_t* gaps,
                                  size_t* out_bytes) CHOIR_NODISCARD;

typedef struct choir__gaps_reader_s {
  const uint8_t* gaps;
  size_t bytes;
  int64_t count;
  int64_t k;
  int32_t rice;
  // Where it stands.
  uint64_t bit;
  int64_t done;
  int64_t index;  // the last one; -1 at first
} choir__gaps_reader_t;

// The next n indices, n <= k - done; after the last one, checks that the gaps
// end with it.
choir_status_t choir__gaps_decode(choir__gaps_reader_t* reader, int64_t n,
                                  int32_t* out_indices) CHOIR_NODISCARD;

// ---- Values of few bits ----

// Bytes of n values in blocks of `block`.
size_t choir__levels_bytes(int32_t bits, int32_t block, int64_t n);
// One block of 1 .. 1024 values. out_sent as of choir__message_encode.
size_t choir__levels_encode(int32_t bits, const float* values, int64_t n,
                            uint8_t* out, float* out_sent);
size_t choir__levels_decode(int32_t bits, const uint8_t* bytes, int64_t n,
                            float* out_values);

// For tests that make messages with mistakes.
uint32_t choir__message_checksum(const uint8_t* message, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMPRESS_KERNELS_INTERNAL_H_
