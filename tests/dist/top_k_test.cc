// SPDX-License-Identifier: Apache-2.0
// Against a full sort by magnitude, then index; and each kernel against the
// plain one.
#include "dist/top_k_internal.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

uint32_t Key(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// All indices, those of the largest magnitudes first.
std::vector<int32_t> Sorted(const std::vector<float>& src) {
  std::vector<int32_t> order(src.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return Key(src[static_cast<size_t>(a)]) > Key(src[static_cast<size_t>(b)]);
  });
  return order;
}

// Memory of exactly so many bytes, so that a sanitizer sees one more.
struct Scratch {
  explicit Scratch(size_t bytes)
      : data(aligned_alloc(64, (bytes + 63) / 64 * 64), free) {}
  std::unique_ptr<void, void (*)(void*)> data;
};

void Check(const std::vector<float>& src, const std::vector<int32_t>& sorted,
           int64_t k) {
  SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(src.size()));
  const auto count = static_cast<int64_t>(src.size());
  Scratch scratch(choir__top_k_scratch_bytes(count, k));
  std::vector<int32_t> indices(static_cast<size_t>(k) + 1, -7);
  std::vector<float> values(static_cast<size_t>(k) + 1, -7.0f);
  choir_status_t status = choir__top_k(src.data(), count, k, scratch.data.get(),
                                       indices.data(), values.data());
  ASSERT_EQ(status, nullptr) << choir_status_message(status);
  EXPECT_EQ(indices.back(), -7);
  EXPECT_EQ(values.back(), -7.0f);
  indices.pop_back();
  values.pop_back();
  std::vector<int32_t> expected(sorted.begin(), sorted.begin() + k);
  std::sort(expected.begin(), expected.end());
  ASSERT_TRUE(indices == expected);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(memcmp(&values[i], &src[static_cast<size_t>(indices[i])],
                     sizeof(float)),
              0);
}

// Several parts of it, from none to all.
void CheckShares(const std::vector<float>& src) {
  const auto count = static_cast<int64_t>(src.size());
  const std::vector<int32_t> sorted = Sorted(src);
  for (int64_t k : {int64_t{0}, int64_t{1}, count / 1000, count / 100,
                    count / 10, count / 2, count - 1, count})
    ASSERT_NO_FATAL_FAILURE(Check(src, sorted, k));
}

// What the values look like.
using Make = float (*)(std::mt19937_64& random, size_t i);

const std::pair<const char*, Make> kKinds[] = {
    {"cubed normal",
     [](std::mt19937_64& random, size_t) {
       const double x = std::normal_distribution<double>()(random);
       return static_cast<float>(x * x * x);
     }},
    {"uniform",
     [](std::mt19937_64& random, size_t) {
       return std::uniform_real_distribution<float>(-1, 1)(random);
     }},
    {"few different ones",
     [](std::mt19937_64& random, size_t) {
       return static_cast<float>(static_cast<int>(random() % 7)) - 3.0f;
     }},
    {"all equal", [](std::mt19937_64&, size_t) { return -2.5f; }},
    {"all zero", [](std::mt19937_64& random,
                    size_t) { return random() % 2 ? 0.0f : -0.0f; }},
    {"mostly zero",
     [](std::mt19937_64& random, size_t) {
       return random() % 200 ? 0.0f : std::normal_distribution<float>()(random);
     }},
    {"denormal",
     [](std::mt19937_64& random, size_t) {
       return std::ldexp(static_cast<float>(random() % 4096), -149);
     }},
    {"with infinities and NaN",
     [](std::mt19937_64& random, size_t) {
       const float inf = std::numeric_limits<float>::infinity();
       const float nan = std::numeric_limits<float>::quiet_NaN();
       const uint64_t which = random() % 1000;
       if (which < 3) return which ? inf : -inf;
       if (which < 5) return which == 3 ? nan : -nan;
       return std::normal_distribution<float>()(random);
     }},
    {"rising",
     [](std::mt19937_64&, size_t i) { return static_cast<float>(i); }},
    // The sample must not fall into step with the data.
    {"large at every 64th",
     [](std::mt19937_64& random, size_t i) {
       const float x = std::normal_distribution<float>()(random);
       return i % 64 == 0 ? 1000 * x : x;
     }},
};

TEST(TopKTest, EqualsAFullSort) {
  std::mt19937_64 random(1);
  for (const auto& [name, make] : kKinds) {
    SCOPED_TRACE(name);
    for (size_t count :
         {1,  2,   3,   15,   16,   17,   31,    33,    63,    64,
          65, 100, 127, 1000, 1023, 4096, 16384, 20000, 65537, 65536 + 63}) {
      std::vector<float> src(count);
      for (size_t i = 0; i < count; ++i) src[i] = make(random, i);
      ASSERT_NO_FATAL_FAILURE(CheckShares(src));
    }
  }
}

TEST(TopKTest, LargeCounts) {
  std::mt19937_64 random(2);
  for (const auto& [name, make] : kKinds) {
    SCOPED_TRACE(name);
    for (size_t count : {size_t{431080}, (size_t{1} << 20) + 5}) {
      std::vector<float> src(count);
      for (size_t i = 0; i < count; ++i) src[i] = make(random, i);
      ASSERT_NO_FATAL_FAILURE(
          Check(src, Sorted(src), static_cast<int64_t>(count) / 100));
    }
  }
}

TEST(TopKTest, LowerIndexWinsTies) {
  const std::vector<float> src = {1, -3, 3, 0, 3, -2, 2};
  int32_t indices[4];
  Scratch scratch(choir__top_k_scratch_bytes(7, 4));
  // No values wanted.
  ASSERT_EQ(
      choir__top_k(src.data(), 7, 2, scratch.data.get(), indices, nullptr),
      nullptr);
  EXPECT_EQ(indices[0], 1);
  EXPECT_EQ(indices[1], 2);
  ASSERT_EQ(
      choir__top_k(src.data(), 7, 4, scratch.data.get(), indices, nullptr),
      nullptr);
  EXPECT_EQ(std::vector<int32_t>(indices, indices + 4),
            (std::vector<int32_t>{1, 2, 4, 5}));
}

TEST(TopKTest, WrongArguments) {
  float value = 1;
  int32_t index = -1;
  Scratch scratch(choir__top_k_scratch_bytes(1, 1));
  struct Case {
    const float* src;
    int64_t count, k;
    void* memory;
    int32_t* indices;
    const char* message;
  };
  void* memory = scratch.data.get();
  const Case cases[] = {
      {&value, 1, 2, memory, &index,
       "top_k: k is 2 of 1 elements; 0 .. count are allowed, of 2^31 - 1 at "
       "most"},
      {&value, 1, -1, memory, &index,
       "top_k: k is -1 of 1 elements; 0 .. count are allowed, of 2^31 - 1 at "
       "most"},
      {&value, int64_t{1} << 31, 1, memory, &index,
       "top_k: k is 1 of 2147483648 elements; 0 .. count are allowed, of 2^31 "
       "- 1 at most"},
      {nullptr, 1, 1, memory, &index, "top_k: src is NULL"},
      {&value, 1, 1, nullptr, &index, "top_k: scratch is NULL"},
      {&value, 1, 1, memory, nullptr, "top_k: out_indices is NULL"},
  };
  for (const Case& one : cases) {
    choir_status_t status = choir__top_k(one.src, one.count, one.k, one.memory,
                                         one.indices, nullptr);
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_STREQ(choir_status_message(status), one.message);
    choir_status_free(status);
  }
  EXPECT_EQ(choir__top_k_scratch_bytes(1, 2), 0u);
  EXPECT_EQ(choir__top_k(nullptr, 0, 0, nullptr, nullptr, nullptr), nullptr);
}

TEST(TopKTest, KernelsCollectTheSame) {
  const choir__top_k_collect_t fast[] = {choir__top_k_collect_avx2(),
                                         choir__top_k_collect_avx512()};
  const choir__top_k_collect_t plain = choir__top_k_collect_plain();
  std::mt19937_64 random(3);
  for (const auto& [name, make] : kKinds) {
    SCOPED_TRACE(name);
    for (int64_t count = 1; count < 300; count += 7) {
      std::vector<float> src(static_cast<size_t>(count));
      for (size_t i = 0; i < src.size(); ++i) src[i] = make(random, i);
      for (int64_t most : {int64_t{0}, int64_t{1}, count / 3, count}) {
        const uint32_t some = Key(src[random() % src.size()]);
        for (uint32_t least :
             {uint32_t{0}, uint32_t{1}, some, some + 1, uint32_t{0x7fffffff}}) {
          const size_t room =
              static_cast<size_t>(most) + size_t{CHOIR__TOP_K_SLACK};
          std::vector<int32_t> expected_indices(room);
          std::vector<uint32_t> expected_keys(room);
          const int64_t expected =
              plain(src.data(), count, least, most, expected_indices.data(),
                    expected_keys.data());
          for (choir__top_k_collect_t collect : fast) {
            if (!collect) continue;
            std::vector<int32_t> indices(room);
            std::vector<uint32_t> keys(room);
            ASSERT_EQ(collect(src.data(), count, least, most, indices.data(),
                              keys.data()),
                      expected);
            if (expected > most) continue;
            const auto bytes = static_cast<size_t>(expected) * sizeof(int32_t);
            ASSERT_EQ(memcmp(indices.data(), expected_indices.data(), bytes),
                      0);
            ASSERT_EQ(memcmp(keys.data(), expected_keys.data(), bytes), 0);
          }
        }
      }
    }
  }
}

}  // namespace
