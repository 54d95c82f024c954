// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <math.h>
#include <string.h>

typedef struct dtype_info_s {
  const char* name;
  size_t bytes;
  bool is_float;
} dtype_info_t;

static const dtype_info_t dtypes[CHOIR_DTYPE_COUNT] = {
#define CHOIR_DTYPE_INFO_(ENUM, name, bytes, is_float) \
  [CHOIR_DTYPE_##ENUM] = {#name, bytes, is_float},
    CHOIR_DTYPE_LIST(CHOIR_DTYPE_INFO_)
#undef CHOIR_DTYPE_INFO_
};

static bool is_dtype(choir_dtype_t dtype) {
  return (unsigned)dtype < (unsigned)CHOIR_DTYPE_COUNT;
}

size_t choir_dtype_bytes(choir_dtype_t dtype) {
  return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char* choir_dtype_name(choir_dtype_t dtype) {
  return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

bool choir_dtype_is_float(choir_dtype_t dtype) {
  return is_dtype(dtype) && dtypes[dtype].is_float;
}

choir_status_t choir_dtype_parse(const char* name, choir_dtype_t* out_dtype) {
  *out_dtype = CHOIR_DTYPE_F32;
  for (int i = 0; name && i < CHOIR_DTYPE_COUNT; ++i) {
    if (strcmp(name, dtypes[i].name) == 0) {
      *out_dtype = (choir_dtype_t)i;
      return NULL;
    }
  }
#define CHOIR_DTYPE_NAME_(ENUM, name, bytes, is_float) " " #name
  return CHOIR_ERROR(NOT_FOUND,
                     "choir_dtype_parse: no dtype is called '%s'; known "
                     "are" CHOIR_DTYPE_LIST(CHOIR_DTYPE_NAME_),
                     name ? name : "(null)");
#undef CHOIR_DTYPE_NAME_
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// All in integers, so that no rounding mode or flush-to-zero setting of the
// host program changes a bit.
uint16_t choir_f16_from_f32(float value) {
  uint32_t bits = float_bits(value);
  uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    // NaN: keep the upper payload, make it quiet.
    return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);  // >= 2^16
  if (magnitude >= 0x38800000u) {
    // Normal in f16 (>= 2^-14): rebias the exponent by 15 - 127, then round
    // away 13 bits. A carry runs into the exponent, up to infinity, rightly.
    uint32_t rebased = magnitude - (112u << 23);
    uint32_t odd = (rebased >> 13) & 1u;
    return (uint16_t)(sign | ((rebased + 0xfffu + odd) >> 13));
  }
  // Subnormal in f16: a multiple of 2^-24. Below half of that it is zero.
  if (magnitude < 0x33000000u) return sign;
  uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  // value = mantissa * 2^(e - 150); wanted value * 2^24, so shift by 126 - e.
  uint32_t shift = 126u - (magnitude >> 23);
  uint32_t kept = mantissa >> shift;
  uint32_t rest = mantissa & ((1u << shift) - 1u);
  uint32_t half = 1u << (shift - 1u);
  if (rest > half || (rest == half && (kept & 1u))) ++kept;
  return (uint16_t)(sign | kept);
}

float choir_f16_to_f32(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu)
    return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return bits_float(sign);
  // Subnormal: move the leading one to the hidden place.
  uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21u;
  mantissa = (mantissa << shift) & 0x3ffu;
  return bits_float(sign | ((113u - shift) << 23) | (mantissa << 13));
}

uint16_t choir_bf16_from_f32(float value) {
  uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)((bits >> 16) | 0x40u);
  uint32_t odd = (bits >> 16) & 1u;
  return (uint16_t)((bits + 0x7fffu + odd) >> 16);
}

float choir_bf16_to_f32(uint16_t bits) {
  return bits_float((uint32_t)bits << 16);
}

// double -> f32 rounded to odd: truncated, with the last bit set when anything
// was cut off. Rounding that once more to a shorter type gives what rounding
// the double directly would (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", 2008), since f32 has more than two bits to spare.
static float f32_round_to_odd(double value) {
  float nearest = (float)value;
  if (isnan(value) || (double)nearest == value) return nearest;
  uint32_t bits = float_bits(nearest);
  if (fabs((double)nearest) > fabs(value)) --bits;
  return bits_float(bits | 1u);
}

double choir_element_load(const void* element, choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F32: {
      float value;
      memcpy(&value, element, sizeof(value));
      return (double)value;
    }
    case CHOIR_DTYPE_F64: {
      double value;
      memcpy(&value, element, sizeof(value));
      return value;
    }
    case CHOIR_DTYPE_F16:
    case CHOIR_DTYPE_BF16: {
      uint16_t value;
      memcpy(&value, element, sizeof(value));
      return (double)(dtype == CHOIR_DTYPE_F16 ? choir_f16_to_f32(value)
                                               : choir_bf16_to_f32(value));
    }
    case CHOIR_DTYPE_I32: {
      int32_t value;
      memcpy(&value, element, sizeof(value));
      return (double)value;
    }
    case CHOIR_DTYPE_I64: {
      int64_t value;
      memcpy(&value, element, sizeof(value));
      return (double)value;
    }
    case CHOIR_DTYPE_U8:
      return (double)*(const uint8_t*)element;
    case CHOIR_DTYPE_BOOL:
      return *(const uint8_t*)element ? 1.0 : 0.0;
    case CHOIR_DTYPE_COUNT:
      break;
  }
  return 0.0;
}

// Converting a double outside the integer's range is undefined in C, so the
// ends are compared first. `last` is the largest double below 2^bits.
static int64_t saturate(double value, double first, double last, int64_t low,
                        int64_t high) {
  if (isnan(value)) return 0;
  if (value <= first) return low;
  if (value >= last) return high;
  return (int64_t)value;
}

void choir_element_store(void* element, choir_dtype_t dtype, double value) {
  switch (dtype) {
    case CHOIR_DTYPE_F32: {
      float rounded = (float)value;
      memcpy(element, &rounded, sizeof(rounded));
      return;
    }
    case CHOIR_DTYPE_F64:
      memcpy(element, &value, sizeof(value));
      return;
    case CHOIR_DTYPE_F16:
    case CHOIR_DTYPE_BF16: {
      float odd = f32_round_to_odd(value);
      uint16_t bits = dtype == CHOIR_DTYPE_F16 ? choir_f16_from_f32(odd)
                                               : choir_bf16_from_f32(odd);
      memcpy(element, &bits, sizeof(bits));
      return;
    }
    case CHOIR_DTYPE_I32: {
      int32_t integer = (int32_t)saturate(value, -2147483648.0, 2147483647.0,
                                          INT32_MIN, INT32_MAX);
      memcpy(element, &integer, sizeof(integer));
      return;
    }
    case CHOIR_DTYPE_I64: {
      int64_t integer = saturate(value, -9223372036854775808.0,
                                 9223372036854775808.0, INT64_MIN, INT64_MAX);
      memcpy(element, &integer, sizeof(integer));
      return;
    }
    case CHOIR_DTYPE_U8:
      *(uint8_t*)element = (uint8_t)saturate(value, 0.0, 255.0, 0, 255);
      return;
    case CHOIR_DTYPE_BOOL:
      *(uint8_t*)element = value != 0.0;
      return;
    case CHOIR_DTYPE_COUNT:
      return;
  }
}
