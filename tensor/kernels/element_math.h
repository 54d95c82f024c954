// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_ELEMENT_MATH_H_
#define CHOIR_TENSOR_KERNELS_ELEMENT_MATH_H_

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/body_backend.h"

// Elementary functions of f32 without calls and branches, so that loops over
// them vectorise. Right to a few units in the last place, and the same bits on
// every processor: sums, products, quotients and fmaf alone, and the compiler
// contracts none of them.

#ifdef __cplusplus
extern "C" {
#endif

CHOIR__BODY float choir__math_from_bits(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
CHOIR__BODY int32_t choir__math_bits(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// e^x = 2^n e^r with |r| <= ln(2) / 2, and e^r by its series. Results below the
// normal range are 0. For x up to 88.7; anything may come of a NaN.
CHOIR__BODY float choir__math_exp_in_range(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float shifted = fmaf(x, 1.44269504f, magic);
  const float n = shifted - magic;
  // ln(2) in two parts.
  const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
  float p = fmaf(r, 1.0f / 5040.0f, 1.0f / 720.0f);
  p = fmaf(p, r, 1.0f / 120.0f);
  p = fmaf(p, r, 1.0f / 24.0f);
  p = fmaf(p, r, 1.0f / 6.0f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r * r, r) + 1.0f;
  // n, in the last bits of the shifted number, is added to the exponent.
  const float y = choir__math_from_bits(
      (int32_t)((uint32_t)choir__math_bits(p) +
                ((uint32_t)choir__math_bits(shifted) << 23)));
  return x < -87.33654f ? 0.0f : y;
}
CHOIR__BODY float choir__math_exp(float x) {
  const float y = choir__math_exp_in_range(x);
  return x <= 88.72283f ? y : x + INFINITY;
}

// log(2^e m) with m in [sqrt(1/2), sqrt(2)) by atanh: log m = 2 atanh(s) with
// s = (m - 1) / (m + 1), |s| < 0.172.
CHOIR__BODY float choir__math_log(float x) {
  const bool small = x < 1.17549435e-38f;
  const float scaled = small ? x * 8388608.0f : x;
  // Moves the cut from 1 to sqrt(1/2).
  const int32_t moved =
      (int32_t)((uint32_t)choir__math_bits(scaled) - 0x3f3504f3u);
  const int32_t exponent = moved >> 23;
  const float m = choir__math_from_bits((moved & 0x007fffff) + 0x3f3504f3);
  const float e = (float)exponent - (small ? 23.0f : 0.0f);
  const float f = m - 1.0f;
  const float s = f / (2.0f + f);
  const float s2 = s * s;
  float p = 2.0f / 9.0f;
  p = p * s2 + 2.0f / 7.0f;
  p = p * s2 + 2.0f / 5.0f;
  p = p * s2 + 2.0f / 3.0f;
  const float half = 0.5f * f * f;
  // log(1+f) = f - (f^2/2 - s (f^2/2 + p s^2)), which keeps the bits of f.
  const float log_m = f - (half - s * (half + s2 * p));
  float y = e * 0.693359375f + (log_m + e * -2.12194440e-4f);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  y = x > 3.40282347e38f ? x : y;
  return x != x ? x : y;
}

// The power of two with the opposite exponent, kept in the normal range: 2^127
// for what lies below it, 2^-126 for what is 2^127 and more. 1 for 0,
// infinities and NaN.
CHOIR__BODY float choir__math_unit_scale(float x) {
  const int32_t magnitude = choir__math_bits(x) & 0x7fffffff;
  const int32_t exponent = magnitude >> 23;
  const int32_t opposite = exponent < 254 ? 254 - exponent : 1;
  const bool has_none = magnitude == 0 || exponent == 255;
  return choir__math_from_bits((has_none ? 127 : opposite) << 23);
}

CHOIR__BODY float choir__math_sigmoid(float x) {
  return 1.0f / (1.0f + choir__math_exp(-x));
}

// 1 - 2 / (e^2x + 1), and near 0, where that cancels, the odd series.
CHOIR__BODY float choir__math_tanh(float x) {
  const float big = 1.0f - 2.0f / (choir__math_exp(2.0f * x) + 1.0f);
  const float x2 = x * x;
  float p = -5.70498872745e-3f;
  p = p * x2 + 2.06390887954e-2f;
  p = p * x2 - 5.37397155531e-2f;
  p = p * x2 + 1.33314422036e-1f;
  p = p * x2 - 3.33332819422e-1f;
  const float small = x + x * x2 * p;
  return (x < 0.625f && x > -0.625f) ? small : big;
}

// The normal distribution up to x, to 5e-7. Its tail beyond z = |x| is
// 1/2 / D(z)^16, D a polynomial as in Hastings (Approximations for Digital
// Computers, 1955): of degree 8, fitted up to z = 4. Up to there the tail's
// relative error is 1.6e-6; farther out its absolute error is below 1e-10.
// D - 1 is squared first, as the rounding of D would count 16 times.
CHOIR__BODY float choir__math_normal(float x) {
  const float z = fabsf(x);
  float e = fmaf(z, 1.42462726e-7f, -9.25990062e-7f);
  e = fmaf(e, z, 6.44980196e-6f);
  e = fmaf(e, z, 5.33664665e-5f);
  e = fmaf(e, z, 2.44158116e-5f);
  e = fmaf(e, z, 0.0032911888f);
  e = fmaf(e, z, 0.0211356596f);
  e = fmaf(e, z, 0.0498679888f);
  e *= z;
  const float d2 = fmaf(e, e + 2.0f, 1.0f);
  const float d4 = d2 * d2;
  const float d8 = d4 * d4;
  const float tail = 0.5f / (d8 * d8);
  return x < 0.0f ? tail : 1.0f - tail;
}

// x times the normal distribution up to x (Hendrycks and Gimpel, 2016,
// arXiv:1606.08415), and its slope.
CHOIR__BODY float choir__math_gelu(float x) {
  return x * choir__math_normal(x);
}
CHOIR__BODY float choir__math_gelu_slope(float x) {
  return fmaf(x * 0.39894228f, choir__math_exp_in_range(-0.5f * x * x),
              choir__math_normal(x));
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_MATH_H_
