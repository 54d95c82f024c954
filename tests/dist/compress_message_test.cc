// SPDX-License-Identifier: Apache-2.0
// Sparse messages: round trips, sizes, what is told of broken ones.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"
#include "tests/dist/compress_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Bits;
using choir_testing::Counts;
using choir_testing::Kinds;
using choir_testing::MakeValues;
using choir_testing::Same;

constexpr choir__message_config_t kConfigs[] = {
    {CHOIR__VALUES_F32, 0, 0, 64.0},    {CHOIR__VALUES_F16, 0, 0, 0.5},
    {CHOIR__VALUES_F16, 12, 0, 3.0},    {CHOIR__VALUES_BITS2, 0, 128, 1.0},
    {CHOIR__VALUES_BITS3, 0, 256, 0.0}, {CHOIR__VALUES_BITS4, 0, 1024, 7.0},
};

// So many different indices below count, increasing.
std::vector<int32_t> Choose(int64_t count, int64_t k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<uint64_t>(count - i);
    const uint64_t wanted = static_cast<uint64_t>(k) - chosen.size();
    if (random() % left < wanted) chosen.push_back(static_cast<int32_t>(i));
  }
  return chosen;
}

struct Sent {
  std::vector<uint8_t> bytes;
  std::vector<float> sent;
  int64_t clipped = -1;
};

// Into memory of exactly the size that was asked for.
Sent Encode(const choir__message_config_t& config, int64_t count,
            const std::vector<int32_t>& indices,
            const std::vector<float>& values) {
  const auto k = static_cast<int64_t>(indices.size());
  const size_t most = choir__message_most_bytes(&config, count, k);
  std::unique_ptr<uint8_t[]> memory(new uint8_t[most]);
  Sent result;
  result.sent.assign(values.size(), -9.0f);
  size_t bytes = 0;
  EXPECT_OK(choir__message_encode(&config, count, k, indices.data(),
                                  values.data(), memory.get(), &bytes,
                                  result.sent.data(), &result.clipped));
  EXPECT_LE(bytes + 8, most);
  result.bytes.assign(memory.get(), memory.get() + bytes);
  return result;
}

// What is sent of values, from the format's description.
float ExpectedHalf(int exponent, float value) {
  const float scaled = std::ldexp(value, exponent);
  const bool clips = std::isfinite(value) && std::fabs(scaled) > 65504;
  const uint16_t half =
      choir_f16_from_f32(clips ? std::copysign(65504.0f, value) : scaled);
  return std::ldexp(choir_f16_to_f32(half), -exponent);
}

void ExpectBlock(int bits, const float* values, size_t n, float* out) {
  float least = std::fabs(values[0]);
  float largest = least;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= std::isfinite(values[i]);
    least = std::min(least, std::fabs(values[i]));
    largest = std::max(largest, std::fabs(values[i]));
  }
  const int levels = 1 << (bits - 1);
  const float width = (largest - least) / static_cast<float>(levels);
  for (size_t i = 0; i < n; ++i) {
    int level = 0;
    if (finite && width > 0)
      level = std::min(
          levels - 1, static_cast<int>((std::fabs(values[i]) - least) / width));
    const float magnitude =
        std::fma(static_cast<float>(level) + 0.5f, width, least);
    out[i] = finite ? std::copysign(magnitude, values[i]) : std::nanf("");
  }
}

std::vector<float> Expected(const choir__message_config_t& config,
                            const std::vector<float>& values) {
  std::vector<float> sent = values;
  if (config.kind == CHOIR__VALUES_F16)
    for (float& value : sent) value = ExpectedHalf(config.exponent, value);
  if (config.kind >= CHOIR__VALUES_BITS2) {
    const auto block = static_cast<size_t>(config.block);
    for (size_t start = 0; start < values.size(); start += block)
      ExpectBlock(config.kind, &values[start],
                  std::min(block, values.size() - start), &sent[start]);
  }
  return sent;
}

void CheckRoundTrip(const choir__message_config_t& config, int64_t count,
                    const std::vector<int32_t>& indices,
                    const std::vector<float>& values) {
  SCOPED_TRACE("kind " + std::to_string(config.kind) + ", " +
               std::to_string(indices.size()) + " of " + std::to_string(count));
  const Sent sent = Encode(config, count, indices, values);
  choir__message_t message;
  ASSERT_OK(choir__message_open(sent.bytes.data(), sent.bytes.size(), count,
                                &message));
  EXPECT_EQ(message.count, count);
  ASSERT_EQ(message.k, static_cast<int64_t>(indices.size()));
  EXPECT_EQ(message.config.kind, config.kind);
  EXPECT_EQ(message.config.exponent, config.exponent);
  EXPECT_EQ(message.config.weight, config.weight);
  std::vector<int32_t> got_indices(indices.size(), -1);
  std::vector<float> got(indices.size(), -9.0f);
  ASSERT_OK(choir__message_decode(&message, got_indices.data(), got.data()));
  ASSERT_EQ(got_indices, indices);
  const std::vector<float> wanted = Expected(config, values);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(Same(got[i], wanted[i])) << i << ": " << values[i] << " became "
                                         << got[i] << ", not " << wanted[i];
    ASSERT_TRUE(Same(got[i], sent.sent[i])) << i;
  }
  // The sum has the same bits as one over the decoded list.
  const float share = 0.3f;
  std::vector<float> expected(static_cast<size_t>(count));
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = static_cast<float>(i % 97) * 0.01f - 0.5f;
  std::vector<float> dense = expected;
  for (size_t i = 0; i < got.size(); ++i) {
    float& at = expected[static_cast<size_t>(indices[i])];
    at = std::fma(share, got[i], at);
  }
  ASSERT_OK(choir__message_add(&message, share, dense.data()));
  for (size_t i = 0; i < dense.size(); ++i)
    ASSERT_TRUE(Same(dense[i], expected[i])) << i;
}

TEST(CompressMessageTest, RoundTrips) {
  uint64_t seed = 0;
  for (const choir__message_config_t& config : kConfigs) {
    for (const auto& [name, make] : Kinds()) {
      SCOPED_TRACE(name);
      for (int64_t count : Counts()) {
        for (int64_t k : {int64_t{0}, count / 100, count / 10, count / 2,
                          count - 1, count}) {
          if (k < 0) continue;
          ++seed;
          ASSERT_NO_FATAL_FAILURE(CheckRoundTrip(config, count,
                                                 Choose(count, k, seed),
                                                 MakeValues(make, k, seed)));
        }
      }
    }
  }
}

TEST(CompressMessageTest, GapsFarApartAndClose) {
  const int64_t count = INT32_MAX;
  const std::vector<int32_t> lists[] = {
      {0},
      {INT32_MAX - 1},
      {0, INT32_MAX - 1},
      {0, 1, 2, 3, 4, 5, 6, INT32_MAX - 1},
      {5, 1 << 20, (1 << 20) + 1, 1 << 30, INT32_MAX - 2, INT32_MAX - 1},
  };
  for (const std::vector<int32_t>& indices : lists) {
    const Sent sent = Encode(kConfigs[0], count, indices,
                             std::vector<float>(indices.size(), 1.5f));
    choir__message_t message;
    ASSERT_OK(choir__message_open(sent.bytes.data(), sent.bytes.size(), count,
                                  &message));
    std::vector<int32_t> got(indices.size());
    std::vector<float> values(indices.size());
    ASSERT_OK(choir__message_decode(&message, got.data(), values.data()));
    EXPECT_EQ(got, indices);
  }
  // A run of ten at the front, though the mean gap is large: the longest code.
  std::vector<int32_t> run(100);
  std::iota(run.begin(), run.end(), 0);
  run.back() = 999999;
  ASSERT_NO_FATAL_FAILURE(CheckRoundTrip(
      kConfigs[1], 1000000, run, MakeValues(Kinds()[0].second, 100, 5)));
}

// By hand: 3 of 20, mean gap 17 / 3, so r = 2. Gaps 4, 0, 9: codes (from the
// lowest bit) 0 1 00, 1 00, 0 0 1 10.
TEST(CompressMessageTest, BytesOfTheFormat) {
  const Sent sent = Encode(kConfigs[0], 20, {4, 5, 15}, {1.0f, -2.0f, 0.5f});
  const uint8_t expected[] = {
      'C',  'H',  'S',  '1',  0, 0, 0, 0,    0, 2, 0, 0,   20, 0, 0,    0,  //
      3,    0,    0,    0,    2, 0, 0, 0,    0, 0, 0, 0,   0,  0, 0x50, 0x40,
      0x12, 0x06,  //
      0,    0,    0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f};
  ASSERT_EQ(sent.bytes.size(), sizeof(expected));
  for (size_t i = 0; i < sizeof(expected); ++i) {
    if (i >= 4 && i < 8) continue;  // the checksum
    EXPECT_EQ(sent.bytes[i], expected[i]) << i;
  }
  // 2 bits: magnitudes 1 to 5, so levels 2 and 4; codes 00, 11, 01, 10.
  const choir__message_config_t bits2 = {CHOIR__VALUES_BITS2, 0, 128, 1.0};
  const Sent few = Encode(bits2, 4, {0, 1, 2, 3}, {1.0f, -5.0f, 3.5f, -1.25f});
  EXPECT_EQ(few.sent, (std::vector<float>{2, -4, 4, -2}));
  // The ones of four gaps of 0, least 1, width 2, the codes and their filling.
  EXPECT_EQ(
      std::vector<uint8_t>(few.bytes.begin() + 32, few.bytes.end()),
      (std::vector<uint8_t>{0x0f, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0x9c, 0}));
}

// Every list fits the size that was asked for: the worst has all its gap in one
// place, or single elements with full codes before it.
TEST(CompressMessageTest, MostBytesIsEnough) {
  for (int64_t count : {1, 2, 10, 64, 65, 100, 1000}) {
    for (int64_t k = 1; k <= count; k += 1 + k / 7) {
      std::vector<int32_t> first(static_cast<size_t>(k));
      std::iota(first.begin(), first.end(), 0);
      std::vector<int32_t> last = first;
      for (int32_t& index : last) index += static_cast<int32_t>(count - k);
      std::vector<int32_t> both = first;
      both.back() = static_cast<int32_t>(count - 1);
      const std::vector<float> values(static_cast<size_t>(k), 1.0f);
      for (const choir__message_config_t& config : kConfigs)
        for (const std::vector<int32_t>& indices : {first, last, both})
          Encode(config, count, indices, values);
    }
  }
}

// A strategy asks once, for the most that it will ever choose.
TEST(CompressMessageTest, MostBytesGrowWithK) {
  for (const choir__message_config_t& config : kConfigs)
    for (int64_t count : {1, 2, 3, 7, 64, 100, 1000, 4099, 100003}) {
      size_t last = 0;
      for (int64_t k = 0; k <= count; ++k) {
        const size_t most = choir__message_most_bytes(&config, count, k);
        ASSERT_GE(most, last) << k << " of " << count;
        last = most;
      }
    }
}

// Near the entropy of the choice: -p log2 p - (1-p) log2 (1-p) bits over p.
TEST(CompressMessageTest, GapsAreNearTheirEntropy) {
  for (double p : {0.3, 0.1, 0.03, 0.01, 0.003, 0.001}) {
    const int64_t count = 200000;
    const auto k = static_cast<int64_t>(p * static_cast<double>(count));
    const std::vector<int32_t> indices = Choose(count, k, 3);
    const Sent sent = Encode(kConfigs[0], count, indices,
                             std::vector<float>(static_cast<size_t>(k), 1.0f));
    const auto gap_bytes = static_cast<double>(sent.bytes.size()) - 32.0 -
                           4.0 * static_cast<double>(k);
    const double entropy = -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) / p;
    const double bits = 8 * gap_bytes / static_cast<double>(k);
    EXPECT_LT(bits, entropy * (p <= 0.1 ? 1.04 : 1.1)) << p;
    EXPECT_GT(bits, entropy * 0.98) << p;
  }
}

// The error is half a width at most; of a block of one magnitude, none.
TEST(CompressMessageTest, ErrorOfFewBits) {
  for (const choir__message_config_t& config : kConfigs) {
    if (config.kind < CHOIR__VALUES_BITS2) continue;
    const auto block = static_cast<size_t>(config.block);
    const std::vector<float> values = MakeValues(Kinds()[1].second, 3000, 11);
    const Sent sent = Encode(config, 3000, Choose(3000, 3000, 1), values);
    for (size_t start = 0; start < values.size(); start += block) {
      const size_t end = std::min(start + block, values.size());
      float least = INFINITY;
      float largest = 0;
      for (size_t i = start; i < end; ++i) {
        least = std::min(least, std::fabs(values[i]));
        largest = std::max(largest, std::fabs(values[i]));
      }
      const double half = (static_cast<double>(largest) - least) /
                          (1 << static_cast<int>(config.kind));
      for (size_t i = start; i < end; ++i)
        ASSERT_LE(std::fabs(static_cast<double>(values[i]) - sent.sent[i]),
                  half * (1 + 1e-6) + largest * 0x1p-23);
    }
    const Sent equal = Encode(config, 9, Choose(9, 9, 1),
                              {.1f, -.1f, .1f, .1f, -.1f, .1f, .1f, .1f, -.1f});
    EXPECT_EQ(equal.sent, (std::vector<float>{.1f, -.1f, .1f, .1f, -.1f, .1f,
                                              .1f, .1f, -.1f}));
  }
}

TEST(CompressMessageTest, F16ClipsAndCounts) {
  const float inf = INFINITY;
  const Sent sent = Encode(kConfigs[1], 5, {0, 1, 2, 3, 4},
                           {65504.0f, -65505.0f, 1e30f, inf, 1.0f});
  EXPECT_EQ(sent.clipped, 2);
  EXPECT_EQ(sent.sent,
            (std::vector<float>{65504.0f, -65504.0f, 65504.0f, inf, 1.0f}));
  EXPECT_EQ(Encode(kConfigs[0], 1, {0}, {1e30f}).clipped, 0);
}

// ---- Mistakes ----

TEST(CompressMessageTest, WrongArguments) {
  uint8_t memory[256];
  const int32_t indices[] = {3, 5};
  const float values[] = {1.0f, 2.0f};
  size_t bytes = 0;
  const auto encode = [&](choir__message_config_t config, int64_t count,
                          int64_t k, const int32_t* list) {
    if (list == indices) {
      EXPECT_EQ(choir__message_most_bytes(&config, count, k), 0u);
    }
    return choir__message_encode(&config, count, k, list, values, memory,
                                 &bytes, nullptr, nullptr);
  };
  const choir__message_config_t good = kConfigs[0];
  choir__message_config_t config = good;
  config.kind = static_cast<choir__value_kind_t>(5);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: no kind of values has number 5; 0 is f32, 1 "
                "f16, 2 to 4 are bits",
                encode(config, 10, 2, indices));
  config = kConfigs[1];
  config.exponent = 127;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: exponent 127; -126 .. 126 are allowed",
                encode(config, 10, 2, indices));
  config = kConfigs[3];
  for (int32_t block : {0, -128, 64, 200, 2048}) {
    config.block = block;
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "sparse message: blocks of " + std::to_string(block) +
                      " values; 128, 256, 512 or 1024 are allowed",
                  encode(config, 10, 2, indices));
  }
  config = good;
  for (double weight : {-1.0, HUGE_VAL, std::nan("")}) {
    config.weight = weight;
    EXPECT_STATUS(INVALID_ARGUMENT, "; a finite one of 0 or more is needed",
                  encode(config, 10, 2, indices));
  }
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: k is 3 of 2 elements; 0 .. count are allowed, "
                "of 2^31 - 1 at most",
                encode(good, 2, 3, indices));
  EXPECT_STATUS(INVALID_ARGUMENT, "sparse message: k is -1 of 2 elements",
                encode(good, 2, -1, indices));
  EXPECT_STATUS(INVALID_ARGUMENT, "k is 2 of 2147483648 elements",
                encode(good, int64_t{1} << 31, 2, indices));
  EXPECT_STATUS(INVALID_ARGUMENT, "sparse message: indices is NULL",
                encode(good, 10, 2, nullptr));
  const int32_t wrong[][2] = {{5, 5}, {5, 3}, {-1, 3}, {3, 10}};
  const char* const told[] = {
      "index 1 of 2 is 5 after 5", "index 1 of 2 is 3 after 5",
      "index 0 of 2 is -1 after -1", "index 1 of 2 is 10 after 3"};
  for (int i = 0; i < 4; ++i)
    EXPECT_STATUS(INVALID_ARGUMENT,
                  std::string("sparse message: ") + told[i] +
                      "; indices must increase and be below 10",
                  encode(good, 10, 2, wrong[i]));
  EXPECT_STATUS(INVALID_ARGUMENT, "sparse message: message is NULL",
                choir__message_encode(&good, 10, 2, indices, values, nullptr,
                                      &bytes, nullptr, nullptr));
  EXPECT_EQ(bytes, 0u);
}

Sent Example(const choir__message_config_t& config) {
  return Encode(config, 1000, Choose(1000, 50, 4),
                MakeValues(Kinds()[0].second, 50, 4));
}

// Opens, and decodes and adds if that succeeds, in memory of its exact size.
choir_status_t Use(const std::vector<uint8_t>& bytes, int64_t count) {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  choir__message_t message;
  choir_status_t status =
      choir__message_open(copy.get(), bytes.size(), count, &message);
  if (status) return status;
  std::vector<int32_t> indices(static_cast<size_t>(message.k));
  std::vector<float> values(static_cast<size_t>(message.k));
  std::vector<float> dense(static_cast<size_t>(count));
  status = choir__message_decode(&message, indices.data(), values.data());
  choir_status_t added = choir__message_add(&message, 1.0f, dense.data());
  EXPECT_EQ(status == nullptr, added == nullptr);
  return choir_status_join(status, added);
}

void PutChecksum(std::vector<uint8_t>* bytes) {
  const uint32_t checksum =
      choir__message_checksum(bytes->data(), bytes->size());
  memcpy(bytes->data() + 4, &checksum, sizeof(checksum));
}

TEST(CompressMessageTest, BrokenMessagesSayWhatIsWrong) {
  const Sent sent = Example(kConfigs[3]);
  const auto with = [&](size_t at, std::vector<uint8_t> put) {
    std::vector<uint8_t> bytes = sent.bytes;
    std::copy(put.begin(), put.end(),
              bytes.begin() + static_cast<std::ptrdiff_t>(at));
    PutChecksum(&bytes);
    return Use(bytes, 1000);
  };
  ASSERT_OK(Use(sent.bytes, 1000));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: it begins with bytes 43 48 53 32, not with "
                "'CHS1'",
                with(3, {'2'}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: it is of 1000 elements; 999 are expected here",
                Use(sent.bytes, 999));
  EXPECT_STATUS(INVALID_ARGUMENT, "no kind of values has number 9",
                with(8, {9}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sparse message: Rice parameter 31; 0 .. 30 are allowed",
                with(9, {31}));
  EXPECT_STATUS(INVALID_ARGUMENT, "blocks of 2048 values", with(11, {11}));
  EXPECT_STATUS(INVALID_ARGUMENT, "k is 1001 of 1000 elements",
                with(16, {0xe9, 3}));
  EXPECT_STATUS(INVALID_ARGUMENT, "bytes came; its header speaks of",
                with(20, {1}));
  EXPECT_STATUS(INVALID_ARGUMENT, "weight", with(31, {0xff}));
  EXPECT_STATUS(INVALID_ARGUMENT, "sparse message: message is NULL", [] {
    choir__message_t message;
    return choir__message_open(nullptr, 100, 1000, &message);
  }());
  // Gaps: 50 of 1000 have r = 4.
  const size_t gap_bytes = sent.bytes[20];
  // Fifty gaps of 0: a one and four zeros each.
  std::vector<uint8_t> ones(gap_bytes, 0);
  for (size_t bit = 0; bit < 250; bit += 5)
    ones[bit / 8] = static_cast<uint8_t>(ones[bit / 8] | 1u << bit % 8);
  EXPECT_STATUS(INVALID_ARGUMENT, "bytes of gaps end in index 0 of 50",
                with(32, std::vector<uint8_t>(gap_bytes, 0)));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "the gap after index -1 leads out of 1000 elements",
                with(32, {0, 0, 0, 0, 0, 0, 0, 0, 0x80}));
  EXPECT_STATUS(INVALID_ARGUMENT, "indices take 250 bits; no more may follow",
                with(32, ones));
}

TEST(CompressMessageTest, TruncatedMessages) {
  for (const choir__message_config_t& config : kConfigs) {
    const Sent sent = Example(config);
    for (size_t bytes = 0; bytes < sent.bytes.size(); ++bytes) {
      const std::vector<uint8_t> part(
          sent.bytes.begin(),
          sent.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_STATUS(INVALID_ARGUMENT, std::to_string(bytes) + " bytes came; ",
                    Use(part, 1000));
    }
    std::vector<uint8_t> longer = sent.bytes;
    longer.push_back(0);
    EXPECT_STATUS(INVALID_ARGUMENT, " bytes came; its header speaks of ",
                  Use(longer, 1000));
  }
}

TEST(CompressMessageTest, EveryFlippedBitIsFound) {
  for (const choir__message_config_t& config : kConfigs) {
    const Sent sent = Example(config);
    for (size_t bit = 0; bit < 8 * sent.bytes.size(); ++bit) {
      std::vector<uint8_t> bytes = sent.bytes;
      bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ 1u << bit % 8);
      EXPECT_STATUS(INVALID_ARGUMENT, "sparse message: ", Use(bytes, 1000));
    }
  }
}

// With a right checksum, whatever a message says it is used within its bounds
// (a sanitizer looks on) and gives indices that increase.
TEST(CompressMessageTest, RandomChangesStayInBounds) {
  std::mt19937_64 random(8);
  int accepted = 0;
  for (const choir__message_config_t& config : kConfigs) {
    const Sent sent = Example(config);
    for (int round = 0; round < 3000; ++round) {
      std::vector<uint8_t> bytes = sent.bytes;
      // Mostly the gaps, else anything but the first letters.
      const size_t changes = 1 + random() % 4;
      for (size_t i = 0; i < changes; ++i) {
        const size_t at =
            random() % 4 ? 32 + random() % sent.bytes[20] : 8 + random() % 40;
        bytes[at] = static_cast<uint8_t>(random());
      }
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      if (bytes.size() >= 8) PutChecksum(&bytes);
      choir_status_t status = Use(bytes, 1000);
      if (!status) ++accepted;
      EXPECT_TRUE(!status ||
                  choir_status_code(status) == CHOIR_STATUS_INVALID_ARGUMENT);
      choir_status_free(status);
    }
  }
  // Changes of values or of the lower bits of gaps can be right messages.
  EXPECT_GT(accepted, 100);
}

}  // namespace
