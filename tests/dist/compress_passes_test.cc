// SPDX-License-Identifier: Apache-2.0
// 16-bit arrays, residuals and other passes, against one element at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"
#include "dist/top_k_internal.h"
#include "tests/dist/compress_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Bits;
using choir_testing::Counts;
using choir_testing::Kinds;
using choir_testing::MakeValues;
using choir_testing::Same;

constexpr choir_dtype_t kHalves[] = {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16};

size_t Size(int64_t count) { return static_cast<size_t>(count); }

// ---- 16 bits ----

// The largest number of the type that comes back finite.
double HalfLimit(choir_dtype_t dtype, int exponent) {
  const bool is_f16 = dtype == CHOIR_DTYPE_F16;
  const double ones = is_f16 ? 2047.0 / 1024 : 255.0 / 128;
  return std::ldexp(ones, std::min(is_f16 ? 15 : 127, 127 + exponent));
}

uint16_t EncodeOne(choir_dtype_t dtype, float x, int exponent, bool* clips) {
  const double limit = HalfLimit(dtype, exponent);
  const double exact = std::ldexp(static_cast<double>(x), exponent);
  *clips = std::isfinite(x) && std::fabs(exact) > limit;
  const auto scaled =
      static_cast<float>(*clips ? std::copysign(limit, exact) : exact);
  return dtype == CHOIR_DTYPE_F16 ? choir_f16_from_f32(scaled)
                                  : choir_bf16_from_f32(scaled);
}

float DecodeOne(choir_dtype_t dtype, uint16_t half, int exponent) {
  const float x = dtype == CHOIR_DTYPE_F16 ? choir_f16_to_f32(half)
                                           : choir_bf16_to_f32(half);
  return static_cast<float>(std::ldexp(static_cast<double>(x), -exponent));
}

bool SameHalf(choir_dtype_t dtype, uint16_t a, uint16_t b) {
  return a == b || (std::isnan(DecodeOne(dtype, a, 0)) &&
                    std::isnan(DecodeOne(dtype, b, 0)));
}

void CheckHalf(choir_dtype_t dtype, const std::vector<float>& src,
               int exponent) {
  SCOPED_TRACE(std::string(choir_dtype_name(dtype)) + ", exponent " +
               std::to_string(exponent) + ", " + std::to_string(src.size()));
  const auto count = static_cast<int64_t>(src.size());
  std::vector<uint16_t> halves(src.size() + 1, 0x1234);
  int64_t expected_clipped = 0;
  const int64_t clipped = choir__half_encode(dtype, src.data(), count, exponent,
                                             INFINITY, halves.data());
  for (size_t i = 0; i < src.size(); ++i) {
    bool clips;
    const uint16_t expected = EncodeOne(dtype, src[i], exponent, &clips);
    expected_clipped += clips;
    ASSERT_TRUE(SameHalf(dtype, halves[i], expected))
        << i << ": " << src[i] << " became " << halves[i] << ", not "
        << expected;
  }
  EXPECT_EQ(clipped, expected_clipped);
  EXPECT_EQ(halves.back(), 0x1234);
  std::vector<float> back(src.size() + 1, -9.0f);
  choir__half_decode(dtype, halves.data(), count, exponent, back.data());
  for (size_t i = 0; i < src.size(); ++i) {
    ASSERT_TRUE(Same(back[i], DecodeOne(dtype, halves[i], exponent))) << i;
    // Never a silent infinity.
    ASSERT_EQ(std::isfinite(back[i]), std::isfinite(src[i])) << src[i];
  }
  EXPECT_EQ(back.back(), -9.0f);
}

TEST(CompressPassesTest, HalvesRoundTrip) {
  uint64_t seed = 0;
  for (choir_dtype_t dtype : kHalves)
    for (const auto& [name, make] : Kinds()) {
      SCOPED_TRACE(name);
      for (int64_t count : Counts())
        for (int exponent : {0, 11, -3})
          ASSERT_NO_FATAL_FAILURE(
              CheckHalf(dtype, MakeValues(make, count, ++seed), exponent));
      for (int exponent : {-126, -113, -112, 126})
        ASSERT_NO_FATAL_FAILURE(
            CheckHalf(dtype, MakeValues(make, 4099, ++seed), exponent));
    }
}

TEST(CompressPassesTest, HalfLimits) {
  const float values[] = {65504.0f, 65504.004f, -65520.0f, 65519.0f,
                          INFINITY, -INFINITY,  3e38f,     1.0f};
  uint16_t halves[8];
  EXPECT_EQ(choir__half_encode(CHOIR_DTYPE_F16, values, 8, 0, INFINITY, halves),
            4);
  EXPECT_EQ(std::vector<uint16_t>(halves, halves + 8),
            (std::vector<uint16_t>{0x7bff, 0x7bff, 0xfbff, 0x7bff, 0x7c00,
                                   0xfc00, 0x7bff, 0x3c00}));
  // BF16 reaches as far as f32, but for its last 2^-9.
  const float largest[] = {3.3895314e38f, 3.4e38f, -3.4028235e38f};
  EXPECT_EQ(
      choir__half_encode(CHOIR_DTYPE_BF16, largest, 3, 0, INFINITY, halves), 2);
  EXPECT_EQ(std::vector<uint16_t>(halves, halves + 3),
            (std::vector<uint16_t>{0x7f7f, 0x7f7f, 0xff7f}));
  // A scale brings gradients far below 1 to where F16 has its full precision.
  const float small[] = {1.2345678e-7f};
  float back[1];
  EXPECT_EQ(choir__half_encode(CHOIR_DTYPE_F16, small, 1, 20, INFINITY, halves),
            0);
  choir__half_decode(CHOIR_DTYPE_F16, halves, 1, 20, back);
  EXPECT_NEAR(back[0] / small[0], 1.0f, 0x1p-11);
}

// ---- What is not sent ----

// One step: what is sent and what is kept are what there was, to the bit of the
// f32 sum.
void CheckFeedback(const choir__message_config_t& config,
                   const std::vector<float>& gradient,
                   const std::vector<float>& before, int64_t k) {
  SCOPED_TRACE("kind " + std::to_string(config.kind) + ", " +
               std::to_string(k) + " of " + std::to_string(gradient.size()));
  const auto count = static_cast<int64_t>(gradient.size());
  std::vector<float> residual = before;
  choir__residual_add(1.0f, gradient.data(), count, residual.data());
  const std::vector<float> u = residual;
  for (size_t i = 0; i < u.size(); ++i)
    ASSERT_TRUE(Same(u[i], gradient[i] + before[i])) << i;
  std::vector<int32_t> indices(Size(k));
  std::vector<float> values(Size(k));
  std::vector<char> scratch(choir__top_k_scratch_bytes(count, k) + 64);
  void* aligned = scratch.data();
  size_t room = scratch.size();
  std::align(64, room - 64, aligned, room);
  ASSERT_OK(choir__top_k(residual.data(), count, k, aligned, indices.data(),
                         values.data()));
  std::vector<uint8_t> message(choir__message_most_bytes(&config, count, k));
  size_t bytes;
  // The values' place takes what is sent.
  ASSERT_OK(choir__message_encode(&config, count, k, indices.data(),
                                  values.data(), message.data(), &bytes,
                                  values.data(), nullptr));
  choir__residual_subtract(indices.data(), values.data(), k, residual.data());
  // What a receiver with share 1 has.
  std::vector<float> sent(gradient.size(), 0.0f);
  choir__message_t opened;
  ASSERT_OK(choir__message_open(message.data(), bytes, count, &opened));
  ASSERT_OK(choir__message_add(&opened, 1.0f, sent.data()));
  for (size_t i = 0; i < u.size(); ++i) {
    if (!std::isfinite(u[i])) continue;
    // Clipped from so far away that what is kept has to be rounded.
    if (config.kind == CHOIR__VALUES_F16 &&
        std::ldexp(std::fabs(u[i]), config.exponent) >= 0x1p29f)
      continue;
    // -0 + 0 is 0.
    ASSERT_EQ(sent[i] + residual[i], u[i]) << i;
    if (config.kind == CHOIR__VALUES_F32) {
      ASSERT_TRUE(residual[i] == 0 || Same(residual[i], u[i])) << i;
    }
  }
}

TEST(CompressPassesTest, SentAndKeptAreWhatThereWas) {
  uint64_t seed = 0;
  for (const choir__message_config_t& config :
       {choir__message_config_t{CHOIR__VALUES_F32, 0, 0, 1},
        choir__message_config_t{CHOIR__VALUES_F16, 0, 0, 1},
        choir__message_config_t{CHOIR__VALUES_F16, 20, 0, 1}})
    for (const auto& [name, make] : Kinds()) {
      SCOPED_TRACE(name);
      for (int64_t count : Counts())
        for (int64_t k : {int64_t{0}, count / 100, count / 3, count}) {
          ++seed;
          ASSERT_NO_FATAL_FAILURE(
              CheckFeedback(config, MakeValues(make, count, seed),
                            MakeValues(make, count, seed + 1000000), k));
        }
    }
}

// Of values of few bits what is kept has to be rounded where what is sent is
// less than half or more than twice the value; then by half a unit.
TEST(CompressPassesTest, FewBitsAreKeptWithinARounding) {
  for (choir__value_kind_t kind :
       {CHOIR__VALUES_BITS2, CHOIR__VALUES_BITS3, CHOIR__VALUES_BITS4})
    for (int64_t count : Counts()) {
      const choir__message_config_t config = {kind, 0, 128, 1};
      const std::vector<float> u = MakeValues(Kinds()[1].second, count, 21);
      std::vector<float> kept = u;
      std::vector<float> sent(u.size());
      std::vector<int32_t> indices(u.size());
      std::iota(indices.begin(), indices.end(), 0);
      std::vector<uint8_t> message(
          choir__message_most_bytes(&config, count, count));
      size_t bytes;
      ASSERT_OK(choir__message_encode(&config, count, count, indices.data(),
                                      u.data(), message.data(), &bytes,
                                      sent.data(), nullptr));
      choir__residual_subtract(indices.data(), sent.data(), count, kept.data());
      for (size_t i = 0; i < u.size(); ++i) {
        const double sum = static_cast<double>(sent[i]) + kept[i];
        const double largest = std::max(std::fabs(u[i]), std::fabs(sent[i]));
        ASSERT_LE(std::fabs(sum - u[i]), largest * 0x1p-24) << i;
        const float ratio = sent[i] / u[i];
        if (ratio >= 0.5f && ratio <= 2) {
          ASSERT_EQ(sum, u[i]) << i;
        }
      }
    }
}

// DGC: what is sent starts from nothing, the rest goes on.
TEST(CompressPassesTest, FactorMasking) {
  const int64_t count = 1000;
  const std::vector<float> gradient = MakeValues(Kinds()[1].second, count, 31);
  std::vector<float> u = MakeValues(Kinds()[1].second, count, 32);
  std::vector<float> v = MakeValues(Kinds()[1].second, count, 33);
  choir__momentum_add(0.9f, 1, gradient.data(), count, u.data(), v.data());
  const std::vector<float> u_before = u;
  const std::vector<float> v_before = v;
  std::vector<int32_t> indices;
  std::vector<float> sent;
  for (int32_t i = 3; i < count; i += 1 + i % 50) {
    indices.push_back(i);
    sent.push_back(v[static_cast<size_t>(i)]);
  }
  const auto k = static_cast<int64_t>(indices.size());
  choir__residual_mask(indices.data(), k, u.data());
  choir__residual_subtract(indices.data(), sent.data(), k, v.data());
  size_t next = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    const bool is_sent =
        next < indices.size() && indices[next] == static_cast<int32_t>(i);
    next += is_sent;
    ASSERT_EQ(Bits(u[i]), Bits(is_sent ? 0.0f : u_before[i])) << i;
    ASSERT_EQ(Bits(v[i]), Bits(is_sent ? 0.0f : v_before[i])) << i;
  }
  EXPECT_EQ(next, indices.size());
}

TEST(CompressPassesTest, ResidualDecays) {
  for (int64_t count : Counts()) {
    const std::vector<float> gradient = MakeValues(Kinds()[2].second, count, 1);
    const std::vector<float> before = MakeValues(Kinds()[2].second, count, 2);
    std::vector<float> residual = before;
    choir__residual_add(0.95f, gradient.data(), count, residual.data());
    for (size_t i = 0; i < residual.size(); ++i)
      ASSERT_EQ(Bits(residual[i]),
                Bits(std::fma(0.95f, before[i], gradient[i])));
  }
}

TEST(CompressPassesTest, MaskAndSubtractTouchWhatTheyName) {
  std::vector<float> dst = {1, 2, 3, 4, 5};
  const int32_t indices[] = {1, 4};
  const float sent[] = {0.5f, 5.0f};
  choir__residual_subtract(indices, sent, 2, dst.data());
  EXPECT_EQ(dst, (std::vector<float>{1, 1.5f, 3, 4, 0}));
  choir__residual_mask(indices, 1, dst.data());
  EXPECT_EQ(dst, (std::vector<float>{1, 0, 3, 4, 0}));
}

// ---- Other passes ----

// It was sent, and must not be sent again for ever.
TEST(CompressPassesTest, WhatIsNotFiniteIsNotKept) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> residual = {1.5f, inf, -inf, std::nanf(""), 2.0f, inf};
  const int32_t indices[] = {0, 1, 2, 3, 5};
  // As they are, and as f16 limits them.
  const float sent[] = {1.25f, inf, -511.75f, std::nanf(""), 511.75f};
  choir__residual_subtract(indices, sent, 5, residual.data());
  EXPECT_EQ(residual, (std::vector<float>{0.25f, 0, 0, 0, 2.0f, 0}));
}

TEST(CompressPassesTest, MomentumCorrection) {
  uint64_t seed = 0;
  for (const auto& [name, make] : Kinds()) {
    SCOPED_TRACE(name);
    for (int64_t count : Counts()) {
      const std::vector<float> gradient = MakeValues(make, count, ++seed);
      std::vector<float> u = MakeValues(make, count, ++seed);
      std::vector<float> v = MakeValues(make, count, ++seed);
      const std::vector<float> u_before = u;
      const std::vector<float> v_before = v;
      choir__momentum_add(0.9f, 0.3f, gradient.data(), count, u.data(),
                          v.data());
      for (size_t i = 0; i < u.size(); ++i) {
        const float scaled = 0.3f * gradient[i];
        ASSERT_TRUE(Same(u[i], std::fma(0.9f, u_before[i], scaled))) << i;
        ASSERT_TRUE(Same(v[i], v_before[i] + u[i])) << i;
      }
    }
  }
}

TEST(CompressPassesTest, SquaredNorm) {
  for (int64_t count : Counts()) {
    const std::vector<float> src = MakeValues(Kinds()[2].second, count, 3);
    double sums[16] = {0};
    double any_order = 0;
    for (size_t i = 0; i < src.size(); ++i) {
      const double x = src[i];
      sums[i % 16] += x * x;
      any_order += x * x;
    }
    for (int width = 8; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    const double norm = choir__squared_norm(src.data(), count);
    EXPECT_EQ(norm, sums[0]) << count;
    EXPECT_NEAR(norm, any_order, 1e-12 * any_order) << count;
  }
  const float large[] = {3e38f};
  EXPECT_EQ(choir__squared_norm(large, 1),
            static_cast<double>(large[0]) * large[0]);
  EXPECT_TRUE(std::isnan(choir__squared_norm(
      MakeValues([](std::mt19937_64&) { return std::nanf(""); }, 1, 1).data(),
      1)));
}

TEST(CompressPassesTest, Differences) {
  uint64_t seed = 0;
  for (const auto& [name, make] : Kinds()) {
    SCOPED_TRACE(name);
    for (int64_t count : Counts()) {
      const std::vector<float> a = MakeValues(make, count, ++seed);
      const std::vector<float> b = MakeValues(make, count, ++seed);
      std::vector<float> difference(a.size() + 1, -9.0f);
      choir__pass_subtract(a.data(), b.data(), count, difference.data());
      // In place, on either side.
      std::vector<float> left = a;
      std::vector<float> right = b;
      choir__pass_subtract(left.data(), b.data(), count, left.data());
      choir__pass_subtract(a.data(), right.data(), count, right.data());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(Same(difference[i], a[i] - b[i])) << i;
        ASSERT_TRUE(Same(left[i], difference[i])) << i;
        ASSERT_TRUE(Same(right[i], difference[i])) << i;
      }
      EXPECT_EQ(difference.back(), -9.0f);
    }
  }
}

// ---- Each instruction set ----

// What all loops of a table make of one set of arrays, one behind the other.
std::vector<float> RunAll(const choir__compress_table_t* table,
                          const std::vector<float>& a,
                          const std::vector<float>& b) {
  const auto count = static_cast<int64_t>(a.size());
  std::vector<float> all;
  std::vector<float> dst(a.size() + 1, -9.0f);
  std::vector<float> other = dst;
  const auto keep = [&](std::vector<float>* array) {
    all.insert(all.end(), array->begin(), array->end());
    std::copy(b.begin(), b.end(), array->begin());
  };
  for (int type = 0; type < 2; ++type) {
    std::vector<uint16_t> halves(a.size() + 1, 0x1234);
    all.push_back(static_cast<float>(table->half_encode[type](
        a.data(), count, 8.0f, 65504.0f, halves.data())));
    all.insert(all.end(), halves.begin(), halves.end());
    table->half_decode[type](halves.data(), count, 0.125f, dst.data());
    keep(&dst);
  }
  table->subtract(a.data(), b.data(), count, dst.data());
  keep(&dst);
  table->residual_add(0.9f, a.data(), count, dst.data());
  keep(&dst);
  std::copy(b.begin(), b.end(), other.begin());
  table->momentum_add(0.9f, 0.7f, a.data(), count, dst.data(), other.data());
  keep(&dst);
  keep(&other);
  const double norm = table->squared_norm(a.data(), count);
  all.push_back(static_cast<float>(norm));
  all.push_back(static_cast<float>(norm - all.back()));
  std::vector<int32_t> indices;
  for (int32_t i = 0; i < count; i += 1 + i % 5) indices.push_back(i);
  table->scatter_add(indices.data(), a.data(),
                     static_cast<int64_t>(indices.size()), 0.3f, dst.data());
  keep(&dst);
  return all;
}

TEST(CompressPassesTest, EachInstructionSetGivesTheSameBits) {
  uint64_t seed = 0;
  for (const choir__compress_table_t* table :
       {choir__compress_table_avx2(), choir__compress_table_avx512()}) {
    if (!table) continue;
    for (const auto& [name, make] : Kinds()) {
      SCOPED_TRACE(name);
      for (int64_t count : Counts()) {
        const std::vector<float> a = MakeValues(make, count, ++seed);
        const std::vector<float> b = MakeValues(make, count, ++seed);
        const std::vector<float> got = RunAll(table, a, b);
        const std::vector<float> expected =
            RunAll(choir__compress_table_plain(), a, b);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_TRUE(Same(got[i], expected[i]))
              << count << " elements, place " << i << ": " << got[i] << ", not "
              << expected[i];
      }
    }
  }
}

}  // namespace
