// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_HALF_MATH_H_
#define CHOIR_TENSOR_KERNELS_HALF_MATH_H_

#include "tensor/kernels/element_math.h"

// f16 and bf16, from and to f32, for loops of hosts and threads of GPUs.

#ifdef __cplusplus
extern "C" {
#endif

CHOIR__BODY float choir__half_float(uint32_t bits) {
  return choir__math_from_bits((int32_t)bits);
}

// The same bits as core's conversions, without branches.
CHOIR__BODY uint16_t choir__bf16_from(float value) {
  const uint32_t bits = (uint32_t)choir__math_bits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // A choice of floats, as compilers would make one of 16 bits, and slower.
  const float kept =
      choir__half_float(value != value ? bits | 0x00400000u : rounded);
  return (uint16_t)((uint32_t)choir__math_bits(kept) >> 16);
}
CHOIR__BODY float choir__bf16_to(uint16_t bits) {
  return choir__half_float((uint32_t)bits << 16);
}
CHOIR__BODY uint16_t choir__f16_from(float value) {
  const uint32_t bits = (uint32_t)choir__math_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t x = bits & 0x7fffffffu;
  // Ties go to even by adding the last kept bit; a carry out of the mantissa
  // is a right result too.
  const uint32_t normal = (x - (112u << 23) + 0xfffu + ((x >> 13) & 1u)) >> 13;
  // Below 2^-14 the sum with 1/2 leaves the rounded mantissa in the low bits.
  const uint32_t tiny =
      (uint32_t)choir__math_bits(choir__half_float(x) + 0.5f) - (126u << 23);
  const uint32_t big =
      x > 0x7f800000u ? 0x7e00u | ((x >> 13) & 0x3ffu) : 0x7c00u;
  const uint32_t finite = x < (113u << 23) ? tiny : normal;
  return (uint16_t)((x >= 0x47800000u ? big : finite) | sign);
}
CHOIR__BODY float choir__f16_to(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t x = (uint32_t)(half & 0x7fffu) << 13;
  // 2^112 moves the exponent's zero point and makes subnormals right.
  const float scaled = choir__half_float(x) * 5.192296858534828e33f;
  const uint32_t big = x | 0x7f800000u;
  return choir__half_float(
      (x >= (31u << 23) ? big : (uint32_t)choir__math_bits(scaled)) | sign);
}

// double to f32 with the last bit set when anything was cut off: rounding that
// to f16 or bf16 gives what rounding the double at once would (core/dtype.c).
CHOIR__BODY float choir__round_to_odd(double value) {
  const float nearest = (float)value;
  const double size = fabs((double)nearest);
  const bool is_below = size<fabs(value), is_above = size> fabs(value);
  const uint32_t bits = (uint32_t)choir__math_bits(nearest) - is_above;
  return choir__half_float(bits | (uint32_t)(is_below || is_above));
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_HALF_MATH_H_
