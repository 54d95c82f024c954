// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace {

using Words = std::vector<uint32_t>;

Words Philox(const Words& counter, const Words& key) {
  Words out(4);
  choir_random_philox(counter.data(), key.data(), out.data());
  return out;
}

// kat_vectors of Random123 (Salmon et al.), philox4x32 with 10 rounds.
TEST(RandomTest, PhiloxGivesThePublishedWords) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(Words(4, 0xffffffff), Words(2, 0xffffffff)),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                   {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, BlockIsPhiloxOfThePlace) {
  choir_random_key_t key = {0x0123456789abcdefull, 77, 12};
  uint32_t philox_key[2];
  choir_random_philox_key(key, philox_key);
  uint32_t block[4];
  choir_random_block(key, 0xaabbccdd11223344ull, 9, block);
  EXPECT_EQ(Words(block, block + 4), Philox({9, 12, 0x11223344, 0xaabbccdd},
                                            {philox_key[0], philox_key[1]}));
  for (uint64_t element = 0; element < 4; ++element) {
    EXPECT_EQ(choir_random_word(key, 0xaabbccdd11223344ull, 36 + element),
              block[element]);
  }
}

// Written down once, so that a change of the mapping (and with it of every
// run's numbers) cannot go unseen.
TEST(RandomTest, NumbersOfARunStay) {
  uint32_t block[4];
  choir_random_block({42, 3, 5}, 7, 1, block);
  EXPECT_EQ(Words(block, block + 4),
            (Words{0xa31dcfab, 0x395ee007, 0x5f0acd41, 0xcc9f9a4f}));
  EXPECT_EQ(choir_random_permute({42, 3, 5}, 60000, 0), 52155u);
  EXPECT_EQ(choir_random_permute({42, 3, 5}, 60000, 59999), 23805u);
  EXPECT_EQ(choir_random_to_normal(0x12345678), -0x1.77b262p+0f);
  EXPECT_EQ(choir_random_to_normal(0x7ffffff0), -0x1.36d268p-27f);
  EXPECT_EQ(choir_random_to_normal(0xfffffe00), 0x1.4aac34p+2f);
}

TEST(RandomTest, EveryPartOfTheKeyMatters) {
  std::set<Words> seen;
  int drawn = 0;
  auto draw = [&](uint64_t seed, uint32_t stream, uint32_t step,
                  uint64_t sample, uint32_t block) {
    uint32_t out[4];
    choir_random_block({seed, stream, step}, sample, block, out);
    seen.insert(Words(out, out + 4));
    ++drawn;
  };
  for (uint64_t i = 1; i < 200; ++i) {
    uint32_t small = static_cast<uint32_t>(i);
    draw(i, 0, 0, 0, 0);
    draw(0, small, 0, 0, 0);
    draw(0, 0, small, 0, 0);
    draw(0, 0, 0, i, 0);
    draw(0, 0, 0, 0, small);
    draw(i << 32, 0, 0, 0, 0);
    draw(0, 0, 0, i << 32, 0);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(drawn));
}

TEST(RandomTest, UniformLiesInTheUnitInterval) {
  EXPECT_EQ(choir_random_to_uniform(0), 0.0f);
  EXPECT_EQ(choir_random_to_uniform(255), 0.0f);
  EXPECT_EQ(choir_random_to_uniform(256), 0x1p-24f);
  EXPECT_EQ(choir_random_to_uniform(0xffffffff), 1.0f - 0x1p-24f);
  choir_random_key_t key = {1, 2, 3};
  double sum = 0.0;
  double squares = 0.0;
  const int kCount = 400000;
  std::vector<int> bins(100);
  for (int i = 0; i < kCount; ++i) {
    double value = choir_random_to_uniform(choir_random_word(
        key, static_cast<uint64_t>(i / 100), static_cast<uint64_t>(i % 100)));
    sum += value;
    squares += value * value;
    ++bins[static_cast<size_t>(value * 100)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.003);
  EXPECT_NEAR(squares / kCount, 1.0 / 3.0, 0.003);
  // Chi-square with 99 degrees of freedom: 99 +- 14.
  double chi = 0.0;
  for (int bin : bins) chi += std::pow(bin - kCount / 100, 2) / (kCount / 100);
  EXPECT_LT(chi, 180.0);
  EXPECT_GT(chi, 45.0);
}

// The normal number that `word` stands for, in doubles: the root of
// erfc(-x / sqrt 2) / 2 = u by bisection.
double ReferenceNormal(uint32_t word) {
  bool upper = word >= 0x80000000u;
  double tail = ((upper ? ~word : word) + 0.5) * 0x1p-32;
  double low = -7.0;
  double high = 0.0;
  for (int i = 0; i < 80; ++i) {
    double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < tail ? low : high) = middle;
  }
  double value = (low + high) / 2;
  return upper ? -value : value;
}

TEST(RandomTest, NormalIsAccurate) {
  double worst = 0.0;
  auto check = [&](uint32_t word) {
    double expected = ReferenceNormal(word);
    double given = choir_random_to_normal(word);
    double error = std::fabs(given - expected) / std::fabs(expected);
    worst = std::max(worst, error);
    ASSERT_LT(error, 1e-6) << word << ": " << given << ", " << expected;
  };
  for (uint32_t i = 0; i < 40000; ++i) {
    check(i * 107374u);  // across the range
    check(i);            // the lower end
    check(~i);           // the upper end
    check(0x80000000u + i - 20000u);
  }
  // Around the seam of the two ranges: |u - 1/2| = 0.425.
  for (int i = -2000; i < 2000; ++i) {
    check(static_cast<uint32_t>(0.075 * 0x1p32) + static_cast<uint32_t>(i));
    check(static_cast<uint32_t>(0.925 * 0x1p32) + static_cast<uint32_t>(i));
  }
  ::testing::Test::RecordProperty("worst_relative_error_1e9",
                                  static_cast<int>(worst * 1e9));
}

TEST(RandomTest, NormalIsSymmetricFiniteAndRising) {
  for (uint32_t word : {0u, 1u, 2u, 1000u, 0x12345678u, 0x7fffffffu}) {
    float value = choir_random_to_normal(word);
    EXPECT_TRUE(std::isfinite(value));
    EXPECT_LT(value, 0.0f);
    EXPECT_EQ(choir_random_to_normal(~word), -value);
  }
  EXPECT_NEAR(choir_random_to_normal(0), -6.3379, 1e-3);
  float before = -100.0f;
  for (uint64_t word = 0; word < (uint64_t{1} << 32); word += 40961) {
    float value = choir_random_to_normal(static_cast<uint32_t>(word));
    ASSERT_GT(value, before) << word;
    before = value;
  }
}

TEST(RandomTest, NormalHasTheRightMomentsAndQuantiles) {
  choir_random_key_t key = {99, 1, 0};
  const int kCount = 1000000;
  double moments[5] = {};
  std::vector<float> values;
  for (int i = 0; i < kCount / 4; ++i) {
    uint32_t block[4];
    choir_random_block(key, static_cast<uint64_t>(i / 50),
                       static_cast<uint32_t>(i % 50), block);
    for (uint32_t word : block) {
      float value = choir_random_to_normal(word);
      values.push_back(value);
      for (int power = 1; power <= 4; ++power)
        moments[power] += std::pow(value, power) / kCount;
    }
  }
  EXPECT_NEAR(moments[1], 0.0, 0.005);
  EXPECT_NEAR(moments[2], 1.0, 0.007);
  EXPECT_NEAR(moments[3], 0.0, 0.02);
  EXPECT_NEAR(moments[4], 3.0, 0.05);
  std::sort(values.begin(), values.end());
  auto quantile = [&](double p) {
    return values[static_cast<size_t>(p * kCount)];
  };
  EXPECT_NEAR(quantile(0.001), -3.0902, 0.04);
  EXPECT_NEAR(quantile(0.025), -1.9600, 0.012);
  EXPECT_NEAR(quantile(0.25), -0.6745, 0.006);
  EXPECT_NEAR(quantile(0.5), 0.0, 0.006);
  EXPECT_NEAR(quantile(0.8413447), 1.0, 0.008);
  EXPECT_NEAR(quantile(0.999), 3.0902, 0.04);
}

TEST(RandomTest, NeighboursAreUncorrelated) {
  choir_random_key_t key = {5, 0, 0};
  const int kCount = 200000;
  double element = 0.0;
  double sample = 0.0;
  double step = 0.0;
  for (int i = 0; i < kCount; ++i) {
    uint64_t at = static_cast<uint64_t>(i);
    float here = choir_random_to_normal(choir_random_word(key, at, 0));
    element += here * choir_random_to_normal(choir_random_word(key, at, 1));
    sample += here * choir_random_to_normal(choir_random_word(key, at + 1, 0));
    step += here * choir_random_to_normal(choir_random_word({5, 0, 1}, at, 0));
  }
  for (double sum : {element, sample, step})
    EXPECT_LT(std::fabs(sum / kCount), 5.0 / std::sqrt(kCount));
}

TEST(PermuteTest, IsABijection) {
  std::vector<uint64_t> counts;
  for (uint64_t count = 1; count <= 130; ++count) counts.push_back(count);
  for (uint64_t count : {255, 256, 257, 1000, 4095, 4096, 4097, 60000, 65537})
    counts.push_back(count);
  for (uint64_t count : counts) {
    for (uint32_t step = 0; step < 3; ++step) {
      std::vector<bool> seen(count);
      for (uint64_t i = 0; i < count; ++i) {
        uint64_t place = choir_random_permute({1, 2, step}, count, i);
        ASSERT_LT(place, count);
        ASSERT_FALSE(seen[place]) << count << " " << i;
        seen[place] = true;
      }
    }
  }
}

TEST(PermuteTest, LargeCountsStayInside) {
  for (uint64_t count : {uint64_t{1} << 32, (uint64_t{1} << 33) + 1,
                         uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i)
      seen.insert(choir_random_permute({7, 0, 0}, count, count - 1 - i));
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_LT(*seen.rbegin(), count);
  }
  EXPECT_EQ(choir_random_permute({7, 0, 0}, 0, 0), 0u);
}

TEST(PermuteTest, AllOrdersOfAFewAppear) {
  for (uint64_t count = 2; count <= 4; ++count) {
    std::map<std::vector<uint64_t>, int> orders;
    for (uint32_t step = 0; step < 4000; ++step) {
      std::vector<uint64_t> order;
      for (uint64_t i = 0; i < count; ++i)
        order.push_back(choir_random_permute({11, 4, step}, count, i));
      ++orders[order];
    }
    size_t factorial = count == 2 ? 2 : count == 3 ? 6 : 24;
    EXPECT_EQ(orders.size(), factorial);
  }
}

TEST(PermuteTest, MixesWell) {
  // Where a sample goes is unrelated to where it came from: the mean distance
  // of two uniform places is a third.
  const uint64_t kCount = 60000;
  double distance = 0.0;
  int neighbours = 0;
  uint64_t before = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    uint64_t place = choir_random_permute({3, 1, 0}, kCount, i);
    distance += std::fabs(static_cast<double>(place) - static_cast<double>(i));
    if (i > 0 && (place == before + 1 || before == place + 1)) ++neighbours;
    before = place;
  }
  EXPECT_NEAR(distance / kCount / kCount, 1.0 / 3.0, 0.01);
  EXPECT_LT(neighbours, 20);  // 2 expected
}

// Vectors from the FNV reference (Noll).
TEST(HashTest, IsFnv1a) {
  EXPECT_EQ(choir_hash_bytes(CHOIR_HASH_START, "", 0), 0xcbf29ce484222325ull);
  EXPECT_EQ(choir_hash_bytes(CHOIR_HASH_START, "a", 1), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(choir_hash_bytes(CHOIR_HASH_START, "foobar", 6),
            0x85944171f73967e8ull);
  uint64_t hash = choir_hash_bytes(CHOIR_HASH_START, "foo", 3);
  EXPECT_EQ(choir_hash_bytes(hash, "bar", 3), 0x85944171f73967e8ull);
}

}  // namespace
