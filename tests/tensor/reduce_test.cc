// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ReduceTest : public ::testing::Test {
 protected:
  DevicePtr device_ = MakeDevice("cpu");
};

// Sum, mean and max of (4, 3, 5, 6) over each axis by plain loops.
template <typename T>
void CheckAxes(choir_device_t* device, double tolerance) {
  const Shape shape = {4, 3, 5, 6};
  std::vector<double> numbers = Numbers(360, 1);
  std::vector<T> values(numbers.begin(), numbers.end());
  for (bool channels_last : {false, true}) {
    TensorPtr x = channels_last ? MakeChannelsLast(device, shape, values)
                                : Make(device, shape, values);
    for (int64_t axis = 0; axis < 4; ++axis) {
      int64_t inner = 1;
      for (size_t k = static_cast<size_t>(axis) + 1; k < 4; ++k)
        inner *= shape[k];
      int64_t size = shape[static_cast<size_t>(axis)];
      std::vector<double> sums, means, maxima, places;
      for (int64_t outer = 0; outer < 360 / (size * inner); ++outer) {
        for (int64_t i = 0; i < inner; ++i) {
          double sum = 0, largest = -10, place = 0;
          for (int64_t k = 0; k < size; ++k) {
            double value =
                values[static_cast<size_t>((outer * size + k) * inner + i)];
            sum += value;
            if (value > largest) place = static_cast<double>(k);
            largest = std::max(largest, value);
          }
          sums.push_back(sum);
          means.push_back(sum / static_cast<double>(size));
          maxima.push_back(largest);
          places.push_back(place);
        }
      }
      Shape without = shape, kept = shape;
      without.erase(without.begin() + axis);
      kept[static_cast<size_t>(axis)] = 1;
      choir_reduce_attrs_t attrs = {axis, false};
      TensorPtr sum = Result(CHOIR_OP_SUM, {x.get()}, &attrs);
      EXPECT_EQ(ShapeOf(sum.get()), without);
      ExpectNear(Read<T>(sum), sums, tolerance);
      ExpectNear(Read<T>(Result(CHOIR_OP_MAX, {x.get()}, &attrs)), maxima, 0);
      ExpectNear(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {x.get()}, &attrs)),
                 places, 0);
      attrs.keep_dims = true;
      TensorPtr mean = Result(CHOIR_OP_MEAN, {x.get()}, &attrs);
      EXPECT_EQ(ShapeOf(mean.get()), kept);
      ExpectNear(Read<T>(mean), means, tolerance);
    }
    double total = 0;
    for (T value : values) total += value;
    TensorPtr sum = Result(CHOIR_OP_SUM, {x.get()});
    EXPECT_EQ(ShapeOf(sum.get()), (Shape{}));
    ExpectNear(Read<T>(sum), {total}, tolerance);
    ExpectNear(Read<T>(Result(CHOIR_OP_MEAN, {x.get()})), {total / 360},
               tolerance);
  }
}

TEST_F(ReduceTest, OverEachAxis) {
  CheckAxes<float>(device_.get(), 1e-6);
  CheckAxes<double>(device_.get(), 1e-14);
}

TEST_F(ReduceTest, KeepsAllDimensionsWhenAsked) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  choir_reduce_attrs_t attrs = {-1, true};
  TensorPtr sum = Result(CHOIR_OP_SUM, {x.get()}, &attrs);
  EXPECT_EQ(ShapeOf(sum.get()), (Shape{1, 1}));
  EXPECT_EQ(Read<float>(sum), (std::vector<float>{21}));
}

// One running sum in f32 would drift: late terms are lost beside 10000.
TEST_F(ReduceTest, LongSumsKeepTheirSmallTerms) {
  std::vector<float> values(1000000, 0.01f);
  TensorPtr x = Make(device_.get(), {1000000}, values);
  EXPECT_NEAR(Read<float>(Result(CHOIR_OP_SUM, {x.get()}))[0], 10000, 0.1);
  EXPECT_NEAR(Read<float>(Result(CHOIR_OP_MEAN, {x.get()}))[0], 0.01, 1e-7);
}

TEST_F(ReduceTest, IntegerSumsAreExact) {
  const int64_t large = int64_t{1} << 60;
  TensorPtr x = Make<int64_t>(device_.get(), {4}, {large, 1, -large, 2});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_SUM, {x.get()})),
            (std::vector<int64_t>{3}));
  TensorPtr y = Make<int32_t>(device_.get(), {3}, {INT32_MAX, INT32_MAX, 2});
  EXPECT_EQ(Read<int32_t>(Result(CHOIR_OP_SUM, {y.get()})),
            (std::vector<int32_t>{0}));
}

TEST_F(ReduceTest, FirstOfEqualsAndNan) {
  TensorPtr x =
      Make<float>(device_.get(), {2, 4}, {1, 3, 3, 2, -5, -5, -6, -5});
  choir_reduce_attrs_t rows = {1, false};
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {x.get()}, &rows)),
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {x.get()})),
            (std::vector<int64_t>{1}));
  TensorPtr y = Make<float>(device_.get(), {4}, {1, kNan, 3, kNan});
  EXPECT_TRUE(std::isnan(Read<float>(Result(CHOIR_OP_MAX, {y.get()}))[0]));
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {y.get()}))[0], 1);
  TensorPtr z = Make<int64_t>(device_.get(), {3}, {-7, -7, -9});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_MAX, {z.get()}))[0], -7);
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ARGMAX, {z.get()}))[0], 0);
}

TEST_F(ReduceTest, Nothing) {
  TensorPtr none = Make<float>(device_.get(), {2, 0}, {});
  choir_reduce_attrs_t rows = {1, false};
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SUM, {none.get()}, &rows)),
            (std::vector<float>{0, 0}));
  EXPECT_TRUE(
      std::isnan(Read<float>(Result(CHOIR_OP_MEAN, {none.get()}, &rows))[1]));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "max: x is f32 (2, 0); needs at least one element along the "
                "axis",
                Failure(CHOIR_OP_MAX, {none.get()}, &rows));
  EXPECT_STATUS(INVALID_ARGUMENT, "argmax: x is",
                Failure(CHOIR_OP_ARGMAX, {none.get()}));
  // No rows: no result, but no failure.
  choir_reduce_attrs_t columns = {0, false};
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_MAX, {none.get()}, &columns).get()),
            (Shape{0}));
}

TEST_F(ReduceTest, MaxGradGoesToTheFirstMaximum) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, {1, 7, 7, 4, 2, 3});
  TensorPtr y = Make<float>(device_.get(), {2}, {7, 4});
  TensorPtr dy = Make<float>(device_.get(), {2}, {10, 20});
  choir_reduce_attrs_t rows = {1, false};
  EXPECT_EQ(Read<float>(
                Result(CHOIR_OP_MAX_GRAD, {x.get(), y.get(), dy.get()}, &rows)),
            (std::vector<float>{0, 10, 0, 20, 0, 0}));
  TensorPtr wrong = Make<float>(device_.get(), {3}, {1, 2, 3});
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "max_grad: dy is f32 (3); needs the shape of max(x), f32 (2)",
      Failure(CHOIR_OP_MAX_GRAD, {x.get(), y.get(), wrong.get()}, &rows));
}

TEST_F(ReduceTest, RefusesAxesThatAreNotThere) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  choir_reduce_attrs_t attrs = {2, false};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sum: axis is 2, x is f32 (2, 3); needs an axis below its "
                "dimensions or -1",
                Failure(CHOIR_OP_SUM, {x.get()}, &attrs));
  attrs.axis = -2;
  EXPECT_STATUS(INVALID_ARGUMENT, "sum: axis",
                Failure(CHOIR_OP_SUM, {x.get()}, &attrs));
}

}  // namespace
