// SPDX-License-Identifier: Apache-2.0
// Pooling and its gradients against loops over the padded image.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

struct Problem {
  Shape x;
  choir_pool2d_attrs_t attrs;
};

const Problem kProblems[] = {
    {{2, 3, 8, 6}, {{2, 2}, {2, 2}, {0, 0}}},
    {{2, 3, 7, 5}, {{3, 2}, {2, 1}, {1, 1}}},
    {{1, 17, 5, 5}, {{3, 3}, {1, 1}, {2, 2}}},
    {{3, 2, 9, 4}, {{1, 4}, {3, 4}, {0, 0}}},
    {{1, 1, 6, 6}, {{5, 5}, {4, 3}, {2, 0}}},
};

struct Answer {
  Shape y_shape;
  std::vector<double> max, index, mean, dy, max_dx, mean_dx;
};

Answer Solve(const Problem& problem, const std::vector<double>& x) {
  const choir_pool2d_attrs_t& a = problem.attrs;
  const Shape& s = problem.x;
  int64_t oh = (s[2] + 2 * a.padding[0] - a.kernel[0]) / a.stride[0] + 1;
  int64_t ow = (s[3] + 2 * a.padding[1] - a.kernel[1]) / a.stride[1] + 1;
  Answer answer;
  answer.y_shape = {s[0], s[1], oh, ow};
  answer.dy = Numbers(Count(answer.y_shape), 2);
  answer.max_dx.assign(x.size(), 0);
  answer.mean_dx.assign(x.size(), 0);
  for (int64_t image = 0; image < s[0] * s[1]; ++image) {
    for (int64_t i = 0; i < oh; ++i) {
      for (int64_t j = 0; j < ow; ++j) {
        double dy = static_cast<float>(answer.dy[answer.max.size()]);
        double best = -std::numeric_limits<double>::infinity(), sum = 0;
        size_t best_at = 0;
        int64_t place = 0, argmax_index = 0;
        for (int64_t k = 0; k < a.kernel[0]; ++k) {
          for (int64_t l = 0; l < a.kernel[1]; ++l, ++place) {
            int64_t row = i * a.stride[0] + k - a.padding[0];
            int64_t col = j * a.stride[1] + l - a.padding[1];
            if (row < 0 || row >= s[2] || col < 0 || col >= s[3]) continue;
            size_t at = static_cast<size_t>((image * s[2] + row) * s[3] + col);
            sum += x[at];
            answer.mean_dx[at] +=
                dy / static_cast<double>(a.kernel[0] * a.kernel[1]);
            if (x[at] > best) {
              best = x[at];
              best_at = at;
              argmax_index = place;
            }
          }
        }
        answer.max_dx[best_at] += dy;
        answer.max.push_back(best);
        answer.index.push_back(static_cast<double>(argmax_index));
        answer.mean.push_back(sum /
                              static_cast<double>(a.kernel[0] * a.kernel[1]));
      }
    }
  }
  return answer;
}

class Pool2d : public ::testing::TestWithParam<Problem> {
 protected:
  template <typename T>
  void Check(bool channels_last, double tolerance) {
    const Problem& problem = GetParam();
    std::vector<double> x = Numbers(Count(problem.x), 1);
    for (double& value : x) value = static_cast<float>(value);
    Answer answer = Solve(problem, x);
    auto make = [&](const Shape& shape, const std::vector<double>& values) {
      std::vector<float> narrow(values.begin(), values.end());
      std::vector<T> typed(narrow.begin(), narrow.end());
      return channels_last ? MakeChannelsLast(device_.get(), shape, typed)
                           : Make(device_.get(), shape, typed);
    };
    TensorPtr source = make(problem.x, x);
    TensorPtr dy = make(answer.y_shape, answer.dy);
    std::vector<TensorPtr> max =
        Results(CHOIR_OP_MAX_POOL2D, {source.get()}, &problem.attrs);
    ASSERT_EQ(ShapeOf(max[0].get()), answer.y_shape);
    ExpectNear(Read<T>(max[0]), answer.max, 0);
    ExpectNear(Read<uint8_t>(max[1]), answer.index, 0);
    ExpectNear(
        Read<T>(Result(CHOIR_OP_MAX_POOL2D_GRAD,
                       {source.get(), max[1].get(), dy.get()}, &problem.attrs)),
        answer.max_dx, tolerance);
    ExpectNear(
        Read<T>(Result(CHOIR_OP_AVG_POOL2D, {source.get()}, &problem.attrs)),
        answer.mean, tolerance);
    ExpectNear(Read<T>(Result(CHOIR_OP_AVG_POOL2D_GRAD,
                              {source.get(), dy.get()}, &problem.attrs)),
               answer.mean_dx, tolerance);
  }
  DevicePtr device_ = MakeDevice("cpu");
};

INSTANTIATE_TEST_SUITE_P(Problems, Pool2d, ::testing::ValuesIn(kProblems));

TEST_P(Pool2d, RowMajorF32) { Check<float>(false, 1e-6); }
TEST_P(Pool2d, ChannelsLastF32) { Check<float>(true, 1e-6); }
TEST_P(Pool2d, RowMajorF64) { Check<double>(false, 1e-14); }
TEST_P(Pool2d, ChannelsLastF64) { Check<double>(true, 1e-14); }

class Pool2dRules : public ::testing::TestWithParam<bool> {
 protected:
  TensorPtr MakeImage(const Shape& shape, const std::vector<float>& values) {
    return GetParam() ? MakeChannelsLast(device_.get(), shape, values)
                      : Make(device_.get(), shape, values);
  }
  DevicePtr device_ = MakeDevice("cpu");
};

INSTANTIATE_TEST_SUITE_P(Layouts, Pool2dRules, ::testing::Bool());

TEST_P(Pool2dRules, FirstOfEqualsWins) {
  TensorPtr x = MakeImage({1, 1, 2, 2}, {3, 3, 3, 3});
  std::vector<TensorPtr> y = Results(CHOIR_OP_MAX_POOL2D, {x.get()});
  EXPECT_EQ(Read<uint8_t>(y[1]), (std::vector<uint8_t>{0}));
}

TEST_P(Pool2dRules, PaddingNeverWins) {
  TensorPtr x = MakeImage({1, 1, 2, 2}, {-1, -2, -3, -4});
  choir_pool2d_attrs_t attrs = {{2, 2}, {2, 2}, {1, 1}};
  std::vector<TensorPtr> y = Results(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs);
  EXPECT_EQ(Read<float>(y[0]), (std::vector<float>{-1, -2, -3, -4}));
  EXPECT_EQ(Read<uint8_t>(y[1]), (std::vector<uint8_t>{3, 2, 1, 0}));
}

TEST_P(Pool2dRules, NanWins) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  TensorPtr x = MakeImage({1, 1, 2, 4}, {1, nan, 5, 2, 9, 3, 1, 7});
  std::vector<TensorPtr> y = Results(CHOIR_OP_MAX_POOL2D, {x.get()});
  std::vector<float> values = Read<float>(y[0]);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 7);
  EXPECT_EQ(Read<uint8_t>(y[1]), (std::vector<uint8_t>{1, 3}));
}

TEST_P(Pool2dRules, Refusals) {
  TensorPtr x = MakeImage({1, 1, 20, 20}, std::vector<float>(400));
  choir_pool2d_attrs_t attrs = {{16, 16}, {1, 1}, {0, 0}};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "max_pool2d: kernel is 16 x 16; needs at most 255 elements",
                Failure(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs));
  attrs = {{2, 2}, {1, 1}, {0, 2}};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "max_pool2d: padding is 2 columns for a kernel of 2; needs "
                "less than the kernel",
                Failure(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs));
  attrs = {{21, 2}, {1, 1}, {0, 0}};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "avg_pool2d: kernel covers 21 rows; needs to fit the padded "
                "image of 20",
                Failure(CHOIR_OP_AVG_POOL2D, {x.get()}, &attrs));
  TensorPtr flat = Make<float>(device_.get(), {2, 2}, {1, 2, 3, 4});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "avg_pool2d: x is f32 (2, 2); needs 4 dimensions",
                Failure(CHOIR_OP_AVG_POOL2D, {flat.get()}));
  attrs = {{2, 2}, {2, 2}, {0, 0}};
  TensorPtr dy = MakeImage({1, 1, 9, 10}, std::vector<float>(90));
  EXPECT_STATUS(INVALID_ARGUMENT, "avg_pool2d_grad: dy is f32 (1, 1, 9, 10)",
                Failure(CHOIR_OP_AVG_POOL2D_GRAD, {x.get(), dy.get()}, &attrs));
}

// An index that no forward pass can have made must not write anywhere.
TEST_P(Pool2dRules, ArgmaxOutsideTheImageAreRefused) {
  TensorPtr x = Make<double>(device_.get(), {1, 1, 2, 2}, {1, 2, 3, 4});
  TensorPtr dy = Make<double>(device_.get(), {1, 1, 1, 1}, {1});
  for (uint8_t bad : {uint8_t{4}, uint8_t{255}}) {
    TensorPtr index = Make<uint8_t>(device_.get(), {1, 1, 1, 1}, {bad});
    EXPECT_STATUS(
        OUT_OF_RANGE,
        "max_pool2d_grad: index " + std::to_string(bad) +
            " at element 0; needs a place of its window that is on "
            "the image, rows 0 .. 1, columns 0 .. 1",
        Failure(CHOIR_OP_MAX_POOL2D_GRAD, {x.get(), index.get(), dy.get()}));
  }
}

}  // namespace
