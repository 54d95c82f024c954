// SPDX-License-Identifier: Apache-2.0
// Rounding to floating-point numbers of 8 and 4 bits.
#include "onnx/operators/onnx_small_floats_internal.h"

#include <math.h>

#include "onnx/onnx.h"

typedef struct small_float_s {
  int mantissa;   // bits of it that are written
  int lowest;     // exponent of the smallest normal number
  float largest;  // finite number
  bool has_infinity;
  bool has_nan;
  bool has_minus_zero;
} small_float_t;

static bool find_small(int32_t type, small_float_t* out_small) {
  switch (type) {
    case CHOIR_ONNX_FLOAT8E4M3FN:
      *out_small = (small_float_t){3, -6, 448, false, true, true};
      return true;
    case CHOIR_ONNX_FLOAT8E4M3FNUZ:
      *out_small = (small_float_t){3, -7, 240, false, true, false};
      return true;
    case CHOIR_ONNX_FLOAT8E5M2:
      *out_small = (small_float_t){2, -14, 57344, true, true, true};
      return true;
    case CHOIR_ONNX_FLOAT8E5M2FNUZ:
      *out_small = (small_float_t){2, -15, 57344, false, true, false};
      return true;
    case CHOIR_ONNX_FLOAT4E2M1:
      *out_small = (small_float_t){1, 0, 6, false, false, true};
      return true;
    default:
      return false;
  }
}

// Powers of two from 2^-127 to 2^127.
static float round_power(float value, bool saturate) {
  const float least = 0x1p-127f, largest = 0x1p127f;
  if (isnan(value)) return NAN;
  if (value < least) return saturate ? least : NAN;
  int exponent;
  // The fraction is from 0.5 to below 1, of a power of two 0.5.
  const float fraction = frexpf(value, &exponent);
  if (isinf(value)) return saturate ? largest : NAN;
  if (fraction >= 0.75f) ++exponent;
  if (exponent - 1 > 127) return saturate ? largest : NAN;
  return ldexpf(1, exponent - 1);
}

static float beyond_largest(const small_float_t* small, float value,
                            bool saturate) {
  if (saturate || !small->has_nan) return copysignf(small->largest, value);
  return small->has_infinity ? copysignf(INFINITY, value) : NAN;
}

float choir__onnx_round_small(int32_t type, float value, bool saturate) {
  small_float_t small;
  if (type == CHOIR_ONNX_FLOAT8E8M0) return round_power(value, saturate);
  if (!find_small(type, &small)) return value;
  if (isnan(value)) return small.has_nan ? NAN : 0.0f;
  if (isinf(value)) return beyond_largest(&small, value, saturate);
  int exponent;
  frexpf(value, &exponent);
  // The distance of neighbours around value is 2^step. Both divisions are
  // exact, so that only rintf rounds, half to even.
  int step = exponent - 1 < small.lowest ? small.lowest : exponent - 1;
  step -= small.mantissa;
  const float rounded = ldexpf(rintf(ldexpf(value, -step)), step);
  if (fabsf(rounded) > small.largest)
    return beyond_largest(&small, value, saturate);
  return rounded == 0 && !small.has_minus_zero ? 0.0f : rounded;
}
