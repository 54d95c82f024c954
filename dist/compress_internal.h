// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMPRESS_INTERNAL_H_
#define CHOIR_DIST_COMPRESS_INTERNAL_H_

#include "core/dtype.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// What strategies compute before and after an exchange: 16-bit arrays, sparse
// messages, residuals. Selection of the largest is in top_k_internal.h.
//
// Arrays are f32, dense, of `count` elements at any float's address; counts may
// be 0. No function takes memory or starts threads, and all may be called from
// any. Results have the same bits on every processor and from every compiler
// (of a NaN, that it is one): products and sums are rounded one by one except
// where fma is written.

// ---- 16 bits ----

// dst = src * 2^exponent as F16 or BF16, rounded to nearest, ties to even.
// Returns how many were clipped: what is finite, but larger in magnitude than
// `most` or than the largest finite number of the type, becomes that number.
// (The largest that _decode brings back finite, which is less for an exponent
// below -112 and for BF16 below 0.) NaN and infinity stay what they are. The
// product itself is rounded to f32 where it is subnormal. -126 <= exponent <=
// 126.
int64_t choir__half_encode(choir_dtype_t dtype, const float* src, int64_t count,
                           int32_t exponent, float most, uint16_t* dst);
// dst = src * 2^-exponent.
void choir__half_decode(choir_dtype_t dtype, const uint16_t* src, int64_t count,
                        int32_t exponent, float* dst);
// What loops for both need: the factor 2^exponent, and the largest magnitude of
// a product with it.
float choir__half_scale(int32_t exponent);
float choir__half_limit(choir_dtype_t dtype, int32_t exponent, float most);

// ---- Selection by threshold ----

// Magnitudes are in the order of their bits: those of the least one that a
// threshold lets through. INVALID_ARGUMENT: the threshold is NaN.
choir_status_t choir__select_least(float threshold, uint32_t* out_least)
    CHOIR_NODISCARD;

// Elements with |x| >= threshold, and every NaN, in order of index. *out_found
// says how many, or most + 1 when there are more than `most`; then the arrays
// hold nothing of use. Both have room for most + CHOIR__TOP_K_SLACK elements.
// INVALID_ARGUMENT: the threshold is NaN, count is not in 0 .. 2^31 - 1, most
// is negative, a pointer is NULL.
choir_status_t choir__select_above(const float* src, int64_t count,
                                   float threshold, int64_t most,
                                   int32_t* out_indices, float* out_values,
                                   int64_t* out_found) CHOIR_NODISCARD;

// ---- Sparse messages ----
//
// k of count elements as bytes, little-endian, at any address:
//
//   0   "CHS1"
//   4   u32  checksum of all that follows (FNV-1a over 64-bit words, folded)
//   8   u8   kind of values
//   9   u8   Rice parameter r
//   10  i8   exponent (F16; else 0)
//   11  u8   log2 of the values in a block (few bits; else 0)
//   12  u32  count
//   16  u32  k
//   20  u32  bytes of gaps
//   24  f64  the sender's weight
//   32       gaps, then values
//
// A gap is the number of elements that are left out before an index. Its code:
// gap >> r zeros, a one, the r lower bits of gap, from the lowest bit of the
// first byte on. r = floor(log2(mean gap)), or 0 for a mean below 1: within 4 %
// of the entropy of indices chosen by chance where k is below a tenth of count.
//
// Values are f32; f16 as of choir__half_encode; or 2, 3 or 4 bits: of each
// block the smallest magnitude `least` and a `width` as f32, then in groups of
// eight values `bits` bytes, lowest bit first, the last group filled up with
// zeros. A code's highest bit is the sign, the others a level j:
//   |value| = fma(j + 0.5, width, least), width = (largest - least) / levels,
//   levels = 2^(bits - 1).
// So the error is at most half a width (and a rounding); a block of one
// magnitude is exact. A block with an infinity or a NaN is all NaN.
typedef enum choir__value_kind_e {
  CHOIR__VALUES_F32 = 0,
  CHOIR__VALUES_F16 = 1,
  CHOIR__VALUES_BITS2 = 2,  // the number is the count of bits
  CHOIR__VALUES_BITS3 = 3,
  CHOIR__VALUES_BITS4 = 4,
} choir__value_kind_t;

typedef struct choir__message_config_s {
  choir__value_kind_t kind;
  int32_t exponent;  // F16: values are sent times 2^exponent, -126 .. 126
  int32_t block;     // few bits: values in a block, 128, 256, 512 or 1024
  double weight;     // number of samples; finite, not negative
} choir__message_config_t;

// Bytes that choir__message_encode may write, of which the last eight are never
// part of the message; never fewer for a larger k. 0 where an argument is
// wrong.
size_t choir__message_most_bytes(const choir__message_config_t* config,
                                 int64_t count, int64_t k);

// Writes k values, whose indices increase, to message, which has room for
// choir__message_most_bytes. out_sent[k] (NULL: not wanted; may be `values`):
// what every receiver decodes. *out_clipped (NULL: not wanted): values that F16
// could not hold. INVALID_ARGUMENT: count, k or the config is out of its range,
// an index is not, a pointer is NULL.
choir_status_t choir__message_encode(const choir__message_config_t* config,
                                     int64_t count, int64_t k,
                                     const int32_t* indices,
                                     const float* values, void* message,
                                     size_t* out_bytes, float* out_sent,
                                     int64_t* out_clipped) CHOIR_NODISCARD;

// A message that came in; points into its bytes.
typedef struct choir__message_s {
  int64_t count;
  int64_t k;
  choir__message_config_t config;
  int32_t rice;
  const uint8_t* gaps;
  size_t gap_bytes;
  const uint8_t* values;
} choir__message_t;

// Checks header, lengths and checksum of `bytes` bytes for a receiver with
// `count` elements. INVALID_ARGUMENT says what is wrong.
choir_status_t choir__message_open(const void* message, size_t bytes,
                                   int64_t count, choir__message_t* out_message)
    CHOIR_NODISCARD;
// out_indices[k], increasing, and out_values[k]. INVALID_ARGUMENT: the gaps do
// not lead to k indices below count (a sender's mistake, as the checksum fits);
// no index outside is ever written or followed.
choir_status_t choir__message_decode(const choir__message_t* message,
                                     int32_t* out_indices, float* out_values)
    CHOIR_NODISCARD;
// dense[index] = fma(share, value, dense[index]) for all k: called rank after
// rank, it sums in rank order. Errors as of _decode; a part may be added then.
choir_status_t choir__message_add(const choir__message_t* message, float share,
                                  float* dense) CHOIR_NODISCARD;

// ---- What is not sent ----
//
// Error feedback: u = gradient + residual in the residual's place; select and
// encode from it; then subtract what was sent. Where a value was sent as f32,
// exactly 0 is kept; as f16, u - f16(u), which f32 holds exactly unless it was
// clipped from beyond 2^29 (scaled): so sent + kept is u to the bit.

// residual = fma(decay, residual, gradient); decay 1: the f32 sum.
void choir__residual_add(float decay, const float* gradient, int64_t count,
                         float* residual);
// residual[indices[i]] -= sent[i]; what is not finite then becomes 0: an
// infinity or NaN was sent once, and would be sent for ever.
void choir__residual_subtract(const int32_t* indices, const float* sent,
                              int64_t k, float* residual);
// dst[indices[i]] = 0: factor masking.
void choir__residual_mask(const int32_t* indices, int64_t k, float* dst);

// Momentum correction (DGC): u = fma(momentum, u, factor * gradient), the same
// bits as of the SGD step's velocity; then v += u. `factor` clips.
void choir__momentum_add(float momentum, float factor, const float* gradient,
                         int64_t count, float* u, float* v);
// Sum of squares in double: element i goes to partial sum i % 16, the sixteen
// are added in pairs.
double choir__squared_norm(const float* src, int64_t count);

// ---- Differences of parameters ----

// dst = a - b; dst may be a or b.
void choir__pass_subtract(const float* a, const float* b, int64_t count,
                          float* dst);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMPRESS_INTERNAL_H_
