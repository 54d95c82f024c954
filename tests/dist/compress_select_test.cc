// SPDX-License-Identifier: Apache-2.0
// Selection by threshold, against a loop over all elements.
#include <gtest/gtest.h>

#include <string>

#include "dist/compress_internal.h"
#include "dist/top_k_internal.h"
#include "tests/dist/compress_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Bits;
using choir_testing::Counts;
using choir_testing::Kinds;
using choir_testing::MakeValues;

void Check(const std::vector<float>& src, float threshold, int64_t most) {
  SCOPED_TRACE(std::to_string(threshold) + " of " + std::to_string(src.size()) +
               ", at most " + std::to_string(most));
  std::vector<int32_t> expected;
  for (size_t i = 0; i < src.size(); ++i)
    if (std::fabs(src[i]) >= threshold || std::isnan(src[i]))
      expected.push_back(static_cast<int32_t>(i));
  const size_t room = static_cast<size_t>(most) + size_t{CHOIR__TOP_K_SLACK};
  std::vector<int32_t> indices(room);
  std::vector<float> values(room);
  int64_t found = -1;
  ASSERT_OK(choir__select_above(src.data(), static_cast<int64_t>(src.size()),
                                threshold, most, indices.data(), values.data(),
                                &found));
  if (static_cast<int64_t>(expected.size()) > most) {
    EXPECT_EQ(found, most + 1);
    return;
  }
  ASSERT_EQ(found, static_cast<int64_t>(expected.size()));
  indices.resize(expected.size());
  EXPECT_EQ(indices, expected);
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(Bits(values[i]), Bits(src[static_cast<size_t>(expected[i])]));
}

TEST(CompressSelectTest, EqualsALoop) {
  uint64_t seed = 0;
  for (const auto& [name, make] : Kinds()) {
    SCOPED_TRACE(name);
    for (int64_t count : Counts()) {
      const std::vector<float> src = MakeValues(make, count, ++seed);
      for (float threshold :
           {0.0f, -0.0f, -1.0f, 1e-45f, 1e-6f, 0.3f, 1.0f, INFINITY,
            count > 0 && !std::isnan(src[0]) ? std::fabs(src[0]) : 2.0f})
        for (int64_t most : {count, count / 3, int64_t{0}})
          ASSERT_NO_FATAL_FAILURE(Check(src, threshold, most));
    }
  }
}

TEST(CompressSelectTest, WrongArguments) {
  const float src[] = {1.0f};
  int32_t index;
  float value;
  int64_t found = 7;
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "select_above: the threshold is NaN; a number is needed",
      choir__select_above(src, 1, std::nanf(""), 1, &index, &value, &found));
  EXPECT_EQ(found, 0);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "select_above: -1 elements, 1 wanted at most; 0 .. 2^31 - 1 "
                "and 0 or more are allowed",
                choir__select_above(src, -1, 1, 1, &index, &value, &found));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "2147483648 elements",
      choir__select_above(src, int64_t{1} << 31, 1, 1, &index, &value, &found));
  EXPECT_STATUS(INVALID_ARGUMENT, "1 elements, -1 wanted at most",
                choir__select_above(src, 1, 1, -1, &index, &value, &found));
  EXPECT_STATUS(INVALID_ARGUMENT, "select_above: src is NULL",
                choir__select_above(nullptr, 1, 1, 1, &index, &value, &found));
  EXPECT_STATUS(INVALID_ARGUMENT, "select_above: out_indices is NULL",
                choir__select_above(src, 1, 1, 1, nullptr, &value, &found));
  EXPECT_STATUS(INVALID_ARGUMENT, "select_above: out_values is NULL",
                choir__select_above(src, 1, 1, 1, &index, nullptr, &found));
}

}  // namespace
