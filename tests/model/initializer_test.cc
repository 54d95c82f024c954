// SPDX-License-Identifier: Apache-2.0
#include "model/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

constexpr choir_random_key_t kKey = {42, 3, 0};

class InitializerTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<float> Fill(const choir_initializer_t& initializer,
                          const Shape& shape = {100, 200},
                          choir_random_key_t key = kKey) {
    TensorPtr tensor =
        Make(device_.get(), shape,
             std::vector<float>(
                 static_cast<size_t>(choir::testing::Count(shape)), -99.0f));
    EXPECT_OK(choir_initialize(tensor.get(), &initializer, key));
    return Read<float>(tensor);
  }
  // Mean and deviation of many draws, within four standard errors.
  static void ExpectMoments(const std::vector<float>& values, double mean,
                            double deviation) {
    double n = static_cast<double>(values.size());
    double sum = 0;
    for (float value : values) sum += static_cast<double>(value);
    EXPECT_NEAR(sum / n, mean, 4 * deviation / std::sqrt(n));
    double squares = 0;
    for (float value : values)
      squares += std::pow(static_cast<double>(value) - mean, 2);
    EXPECT_NEAR(std::sqrt(squares / n), deviation,
                4 * deviation / std::sqrt(2 * n));
  }
  static void ExpectBounds(const std::vector<float>& values, double low,
                           double high) {
    auto [least, most] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*least, static_cast<float>(low));
    EXPECT_LE(*most, static_cast<float>(high));
    // 20000 draws come close to the ends.
    EXPECT_LT(*least, low + 0.001 * (high - low));
    EXPECT_GT(*most, high - 0.001 * (high - low));
  }
  DevicePtr device_ = MakeDevice(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, InitializerTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(InitializerTest, Constant) {
  EXPECT_EQ(Fill({CHOIR_INITIALIZER_CONSTANT, 2.5, 0, 0, 0}, {3}),
            (std::vector<float>{2.5, 2.5, 2.5}));
}

// Number e of the key, and nothing else, decides element e.
TEST_P(InitializerTest, UniformDrawsFromTheKey) {
  std::vector<float> values =
      Fill({CHOIR_INITIALIZER_UNIFORM, -1, 3, 0, 0}, {4, 5});
  for (size_t e = 0; e < values.size(); ++e) {
    float u = choir_random_to_uniform(choir_random_word(kKey, 0, e));
    EXPECT_EQ(values[e], std::fma(4.0f, u, -1.0f)) << e;
  }
}

TEST_P(InitializerTest, NormalDrawsFromTheKey) {
  std::vector<float> values =
      Fill({CHOIR_INITIALIZER_NORMAL, 1, 0.5, 0, 0}, {4, 5});
  for (size_t e = 0; e < values.size(); ++e) {
    float z = choir_random_to_normal(choir_random_word(kKey, 0, e));
    EXPECT_EQ(values[e], std::fma(0.5f, z, 1.0f)) << e;
  }
}

TEST_P(InitializerTest, UniformsHaveTheirBoundsAndMoments) {
  struct {
    choir_initializer_t initializer;
    double low;
    double high;
  } cases[] = {
      {{CHOIR_INITIALIZER_UNIFORM, -0.5, 1.5, 0, 0}, -0.5, 1.5},
      {{CHOIR_INITIALIZER_GLOROT_UNIFORM, 9, 9, 30, 20},
       -std::sqrt(6.0 / 50),
       std::sqrt(6.0 / 50)},
      {{CHOIR_INITIALIZER_HE_UNIFORM, 9, 9, 24, 7}, -0.5, 0.5},
  };
  for (const auto& one : cases) {
    std::vector<float> values = Fill(one.initializer);
    ExpectBounds(values, one.low, one.high);
    ExpectMoments(values, (one.low + one.high) / 2,
                  (one.high - one.low) / std::sqrt(12.0));
  }
}

TEST_P(InitializerTest, NormalsHaveTheirMoments) {
  ExpectMoments(Fill({CHOIR_INITIALIZER_NORMAL, 2, 0.25, 0, 0}), 2, 0.25);
  ExpectMoments(Fill({CHOIR_INITIALIZER_GLOROT_NORMAL, 9, 9, 30, 20}), 0, 0.2);
  ExpectMoments(Fill({CHOIR_INITIALIZER_HE_NORMAL, 9, 9, 8, 0}), 0, 0.5);
  // Normal, not uniform: 4.55 % lie beyond two deviations.
  std::vector<float> values = Fill({CHOIR_INITIALIZER_NORMAL, 0, 1, 0, 0});
  auto beyond = std::count_if(values.begin(), values.end(),
                              [](float value) { return std::fabs(value) > 2; });
  EXPECT_NEAR(static_cast<double>(beyond) / 20000, 0.0455, 0.006);
}

TEST_P(InitializerTest, LayoutAndDeviceChangeNothing) {
  const Shape shape = {5, 4, 3, 2};
  for (choir_initializer_kind_t kind :
       {CHOIR_INITIALIZER_UNIFORM, CHOIR_INITIALIZER_HE_NORMAL}) {
    const choir_initializer_t initializer = {kind, -1, 1, 12, 5};
    std::vector<float> rows = Fill(initializer, shape);
    TensorPtr last =
        MakeChannelsLast(device_.get(), shape, std::vector<float>(120));
    ASSERT_OK(choir_initialize(last.get(), &initializer, kKey));
    EXPECT_EQ(Read<float>(last), rows);
    DevicePtr cpu = MakeDevice("cpu");
    TensorPtr other = Make(cpu.get(), shape, std::vector<float>(120));
    ASSERT_OK(choir_initialize(other.get(), &initializer, kKey));
    EXPECT_EQ(Read<float>(other), rows);
    // The shape does not matter either, only the number of an element.
    EXPECT_EQ(Fill(initializer, {120}), rows);
  }
}

TEST_P(InitializerTest, EveryPartOfTheKeyMatters) {
  const choir_initializer_t normal = {CHOIR_INITIALIZER_NORMAL, 0, 1, 0, 0};
  std::vector<float> values = Fill(normal, {9});
  EXPECT_EQ(Fill(normal, {9}), values);
  EXPECT_NE(Fill(normal, {9}, {43, 3, 0}), values);
  EXPECT_NE(Fill(normal, {9}, {42, 4, 0}), values);
  EXPECT_NE(Fill(normal, {9}, {42, 3, 1}), values);
  EXPECT_NE(Fill(normal, {9}, {42 + (UINT64_C(1) << 40), 3, 0}), values);
  // All 64 bits of a seed are welcome.
  EXPECT_NE(Fill(normal, {9}, {~UINT64_C(0), 3, 0}), values);
}

TEST_P(InitializerTest, RefusesFansThatItCannotUse) {
  TensorPtr tensor = Make<float>(device_.get(), {2}, {7, 8});
  for (choir_initializer_kind_t kind :
       {CHOIR_INITIALIZER_GLOROT_UNIFORM, CHOIR_INITIALIZER_GLOROT_NORMAL,
        CHOIR_INITIALIZER_HE_UNIFORM, CHOIR_INITIALIZER_HE_NORMAL}) {
    const choir_initializer_t none = {kind, 0, 0, 0, 5};
    EXPECT_STATUS(INVALID_ARGUMENT, "initialize: fan_in is 0",
                  choir_initialize(tensor.get(), &none, kKey));
  }
  const choir_initializer_t half = {CHOIR_INITIALIZER_GLOROT_NORMAL, 0, 0, 5,
                                    -1};
  EXPECT_STATUS(INVALID_ARGUMENT, "fan_out -1",
                choir_initialize(tensor.get(), &half, kKey));
  const choir_initializer_t unknown = {CHOIR_INITIALIZER_COUNT, 0, 0, 1, 1};
  EXPECT_STATUS(INVALID_ARGUMENT, "initialize: kind 7; one of 0 .. 6",
                choir_initialize(tensor.get(), &unknown, kKey));
  EXPECT_EQ(Read<float>(tensor), (std::vector<float>{7, 8}));
}

}  // namespace
