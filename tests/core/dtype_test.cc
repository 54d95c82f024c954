// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// What a half or bfloat16 means, by definition and in doubles: the oracle.
double Meaning(uint16_t bits, int exponent_bits, int mantissa_bits) {
  int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  int bias = (1 << (exponent_bits - 1)) - 1;
  double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::nan("") : sign * INFINITY;
  if (exponent == 0)
    return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits),
                           exponent - bias - mantissa_bits);
}

struct Format {
  const char* name;
  choir_dtype_t dtype;
  int exponent_bits;
  int mantissa_bits;
  uint16_t (*from)(float);
  float (*to)(uint16_t);
  uint16_t infinity;
};

const Format kFormats[] = {
    {"f16", CHOIR_DTYPE_F16, 5, 10, choir_f16_from_f32, choir_f16_to_f32,
     0x7c00},
    {"bf16", CHOIR_DTYPE_BF16, 8, 7, choir_bf16_from_f32, choir_bf16_to_f32,
     0x7f80},
};

class ShortFloatTest : public ::testing::TestWithParam<Format> {
 protected:
  double Meaning(uint16_t bits) const {
    return ::Meaning(bits, GetParam().exponent_bits, GetParam().mantissa_bits);
  }
  // The nearest value, ties to even, by definition: for a positive `value`.
  uint16_t Nearest(double value) const {
    uint16_t below = 0;
    uint16_t above = GetParam().infinity;
    while (above - below > 1) {
      uint16_t middle = static_cast<uint16_t>((below + above) / 2);
      (Meaning(middle) <= value ? below : above) = middle;
    }
    // Infinity stands for the next value that the exponent cannot express.
    double next = above == GetParam().infinity
                      ? 2 * Meaning(below) - Meaning(below - 1)
                      : Meaning(above);
    double to_below = value - Meaning(below);
    double to_above = next - value;
    if (to_below != to_above) return to_below < to_above ? below : above;
    return below & 1 ? above : below;
  }
};

TEST_P(ShortFloatTest, EveryValueMeansWhatItShould) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < 65536; ++i) {
    uint16_t bits = static_cast<uint16_t>(i);
    double meaning = Meaning(bits);
    float value = format.to(bits);
    if (std::isnan(meaning)) {
      ASSERT_TRUE(std::isnan(value)) << i;
      // Stays NaN with its sign, and becomes quiet.
      uint16_t back = format.from(value);
      ASSERT_TRUE(std::isnan(format.to(back))) << i;
      ASSERT_EQ(back & 0x8000, bits & 0x8000);
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), meaning) << i;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(format.from(value), bits) << i;
  }
}

TEST_P(ShortFloatTest, HalfwayGoesToEven) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i + 1 < format.infinity; ++i) {
    uint16_t below = static_cast<uint16_t>(i);
    uint16_t above = static_cast<uint16_t>(i + 1);
    uint16_t even = i % 2 == 0 ? below : above;
    double middle = (Meaning(below) + Meaning(above)) / 2;
    float halfway = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(halfway), middle);
    ASSERT_EQ(format.from(halfway), even) << i;
    ASSERT_EQ(format.from(-halfway), even | 0x8000) << i;
    ASSERT_EQ(format.from(std::nextafter(halfway, 0.0f)), below) << i;
    ASSERT_EQ(format.from(std::nextafter(halfway, INFINITY)), above) << i;
  }
}

TEST_P(ShortFloatTest, LargeBecomesInfinity) {
  const Format& format = GetParam();
  uint16_t largest = static_cast<uint16_t>(format.infinity - 1);
  double step = Meaning(largest) - Meaning(static_cast<uint16_t>(largest - 1));
  float halfway = static_cast<float>(Meaning(largest) + step / 2);
  EXPECT_EQ(format.from(halfway), format.infinity);
  EXPECT_EQ(format.from(std::nextafter(halfway, 0.0f)), largest);
  EXPECT_EQ(format.from(INFINITY), format.infinity);
  EXPECT_EQ(format.from(-INFINITY), format.infinity | 0x8000);
  EXPECT_EQ(format.from(std::numeric_limits<float>::max()), format.infinity);
  EXPECT_EQ(format.from(0.0f), 0);
  EXPECT_EQ(format.from(-0.0f), 0x8000);
}

TEST_P(ShortFloatTest, EveryNanStaysOne) {
  const Format& format = GetParam();
  for (uint32_t payload = 1; payload < (1u << 23); payload += 997) {
    ASSERT_TRUE(
        std::isnan(format.to(format.from(FromBits(0x7f800000u | payload)))));
    ASSERT_TRUE(
        std::isnan(format.to(format.from(FromBits(0xff800000u | payload)))));
  }
}

TEST_P(ShortFloatTest, RandomFloatsGoToTheNearest) {
  const Format& format = GetParam();
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    float value = FromBits(random() & 0x7fffffffu);
    if (std::isnan(value) || std::isinf(value)) continue;
    ASSERT_EQ(format.from(value), Nearest(value)) << Bits(value);
  }
}

TEST_P(ShortFloatTest, DoublesAreRoundedOnce) {
  const Format& format = GetParam();
  // Just above halfway by less than a float can show: rounded to f32 first, it
  // would look like a tie.
  for (uint32_t i = 0; i + 1 < format.infinity; i += 3) {
    double middle = (Meaning(static_cast<uint16_t>(i)) +
                     Meaning(static_cast<uint16_t>(i + 1))) /
                    2;
    for (int side = -1; side <= 1; ++side) {
      double value = middle * (1.0 + side * 0x1p-45);
      uint16_t bits = 0;
      choir_element_store(&bits, format.dtype, value);
      ASSERT_EQ(bits, Nearest(value)) << i << " " << side;
      choir_element_store(&bits, format.dtype, -value);
      ASSERT_EQ(bits, Nearest(value) | 0x8000) << i << " " << side;
    }
  }
  uint16_t bits = 0;
  choir_element_store(&bits, format.dtype, 1e300);
  EXPECT_EQ(bits, format.infinity);
  choir_element_store(&bits, format.dtype, -1e-300);
  EXPECT_EQ(bits, 0x8000);
  choir_element_store(&bits, format.dtype, std::nan(""));
  EXPECT_TRUE(std::isnan(choir_element_load(&bits, format.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Formats, ShortFloatTest, ::testing::ValuesIn(kFormats),
                         [](const auto& info) { return info.param.name; });

TEST(DtypeTest, NamesAndBytes) {
  for (int i = 0; i < CHOIR_DTYPE_COUNT; ++i) {
    choir_dtype_t dtype = static_cast<choir_dtype_t>(i);
    choir_dtype_t parsed;
    ASSERT_OK(choir_dtype_parse(choir_dtype_name(dtype), &parsed));
    EXPECT_EQ(parsed, dtype);
    EXPECT_GT(choir_dtype_bytes(dtype), 0u);
  }
  EXPECT_STREQ(choir_dtype_name(CHOIR_DTYPE_BF16), "bf16");
  EXPECT_STREQ(choir_dtype_name(CHOIR_DTYPE_BOOL), "bool");
  EXPECT_EQ(choir_dtype_bytes(CHOIR_DTYPE_I64), 8u);
  EXPECT_TRUE(choir_dtype_is_float(CHOIR_DTYPE_F16));
  EXPECT_FALSE(choir_dtype_is_float(CHOIR_DTYPE_I32));
  choir_dtype_t none = static_cast<choir_dtype_t>(99);
  EXPECT_STREQ(choir_dtype_name(none), "?");
  EXPECT_EQ(choir_dtype_bytes(none), 0u);
  EXPECT_FALSE(choir_dtype_is_float(none));
  EXPECT_EQ(choir_dtype_bytes(static_cast<choir_dtype_t>(-1)), 0u);
  choir_dtype_t parsed;
  EXPECT_STATUS(NOT_FOUND, "'f31'; known are f32 f64",
                choir_dtype_parse("f31", &parsed));
  EXPECT_STATUS(NOT_FOUND, "(null)", choir_dtype_parse(nullptr, &parsed));
}

double RoundTrip(choir_dtype_t dtype, double value) {
  char element[8];
  choir_element_store(element, dtype, value);
  return choir_element_load(element, dtype);
}

TEST(DtypeTest, IntegersTruncateAndSaturate) {
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, 2.9), 2);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, -2.9), -2);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, 1e30), 2147483647.0);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, -1e30), -2147483648.0);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, 2147483647.5), 2147483647.0);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I32, -2147483648.5), -2147483648.0);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I64, INFINITY), 0x1p63);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I64, -INFINITY), -0x1p63);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_I64, 0x1p62), 0x1p62);
  int64_t integer = 0;
  choir_element_store(&integer, CHOIR_DTYPE_I64, 0x1p63);
  EXPECT_EQ(integer, INT64_MAX);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_U8, 255.9), 255);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_U8, 300), 255);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_U8, -0.5), 0);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_U8, -5), 0);
  for (choir_dtype_t dtype : {CHOIR_DTYPE_I32, CHOIR_DTYPE_I64, CHOIR_DTYPE_U8})
    EXPECT_EQ(RoundTrip(dtype, std::nan("")), 0);
}

TEST(DtypeTest, BoolIsZeroOrOne) {
  uint8_t element = 7;
  EXPECT_EQ(choir_element_load(&element, CHOIR_DTYPE_BOOL), 1.0);
  choir_element_store(&element, CHOIR_DTYPE_BOOL, 0.25);
  EXPECT_EQ(element, 1);
  choir_element_store(&element, CHOIR_DTYPE_BOOL, 0.0);
  EXPECT_EQ(element, 0);
  choir_element_store(&element, CHOIR_DTYPE_BOOL, std::nan(""));
  EXPECT_EQ(element, 1);
}

TEST(DtypeTest, FloatsAreStoredNearest) {
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_F64, 0.1), 0.1);
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_F32, 0.1), static_cast<double>(0.1f));
  EXPECT_EQ(RoundTrip(CHOIR_DTYPE_F32, 1e300), INFINITY);
}

// Elements of a packed file need not be aligned.
TEST(DtypeTest, ElementsMayLieAnywhere) {
  char bytes[32];
  for (int i = 0; i < CHOIR_DTYPE_COUNT; ++i) {
    choir_dtype_t dtype = static_cast<choir_dtype_t>(i);
    choir_element_store(bytes + 1, dtype, 1.0);
    EXPECT_EQ(choir_element_load(bytes + 1, dtype), 1.0);
  }
}

}  // namespace
