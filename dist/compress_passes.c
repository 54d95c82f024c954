// SPDX-License-Identifier: Apache-2.0
// Functions that go over an array once: which loop, and the plain loops.
#include <math.h>
#include <string.h>

#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"

#define f16_encode_steps(...) 0
#define f16_decode_steps(...) 0
#define bf16_encode_steps(...) 0
#define bf16_decode_steps(...) 0
#define COMPRESS_TABLE table_plain
#include "dist/compress_kernels.inc"

const choir__compress_table_t* choir__compress_table_plain(void) {
  return &table_plain;
}

const choir__compress_table_t* choir__compress_table(void) {
  const choir__compress_table_t* best = choir__compress_table_avx512();
  if (!best) best = choir__compress_table_avx2();
  return best ? best : &table_plain;
}

float choir__half_scale(int32_t exponent) { return ldexpf(1.0f, exponent); }

// The largest number of the type whose product with 2^-exponent is finite.
static float largest_half(choir_dtype_t dtype, int32_t exponent) {
  const int own = dtype == CHOIR_DTYPE_F16 ? 15 : 127;
  const int largest = 127 + exponent < own ? 127 + exponent : own;
  const float ones =
      dtype == CHOIR_DTYPE_F16 ? 2.0f - 0x1p-10f : 2.0f - 0x1p-7f;
  return ldexpf(ones, largest);
}

float choir__half_limit(choir_dtype_t dtype, int32_t exponent, float most) {
  return fminf(largest_half(dtype, exponent), ldexpf(most, exponent));
}

int64_t choir__half_encode(choir_dtype_t dtype, const float* src, int64_t count,
                           int32_t exponent, float most, uint16_t* dst) {
  return choir__compress_table()->half_encode[dtype == CHOIR_DTYPE_BF16](
      src, count, choir__half_scale(exponent),
      choir__half_limit(dtype, exponent, most), dst);
}

void choir__half_decode(choir_dtype_t dtype, const uint16_t* src, int64_t count,
                        int32_t exponent, float* dst) {
  choir__compress_table()->half_decode[dtype == CHOIR_DTYPE_BF16](
      src, count, choir__half_scale(-exponent), dst);
}

void choir__residual_add(float decay, const float* gradient, int64_t count,
                         float* residual) {
  choir__compress_table()->residual_add(decay, gradient, count, residual);
}

void choir__residual_subtract(const int32_t* indices, const float* sent,
                              int64_t k, float* residual) {
  for (int64_t i = 0; i < k; ++i) {
    const float rest = residual[indices[i]] - sent[i];
    residual[indices[i]] = isfinite(rest) ? rest : 0;
  }
}

void choir__residual_mask(const int32_t* indices, int64_t k, float* dst) {
  for (int64_t i = 0; i < k; ++i) dst[indices[i]] = 0;
}

void choir__momentum_add(float momentum, float factor, const float* gradient,
                         int64_t count, float* u, float* v) {
  choir__compress_table()->momentum_add(momentum, factor, gradient, count, u,
                                        v);
}

double choir__squared_norm(const float* src, int64_t count) {
  return choir__compress_table()->squared_norm(src, count);
}

void choir__pass_subtract(const float* a, const float* b, int64_t count,
                          float* dst) {
  choir__compress_table()->subtract(a, b, count, dst);
}
