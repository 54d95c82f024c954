// SPDX-License-Identifier: Apache-2.0
// Convolution and its gradients, written out anew as one loop over all seven
// indices of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Floats;
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
  Shape x, w;
  choir_conv2d_attrs_t attrs;
};

const Problem kProblems[] = {
    {{2, 3, 7, 6}, {4, 3, 3, 3}, {{1, 1}, {0, 0}, {1, 1}, 1, 0}},
    {{2, 3, 7, 6}, {4, 3, 3, 2}, {{2, 1}, {1, 0}, {1, 1}, 1, 0}},
    {{1, 4, 9, 8}, {6, 2, 3, 3}, {{1, 2}, {2, 1}, {2, 1}, 2, 0}},
    {{3, 4, 5, 5}, {4, 1, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, 4, 0}},
    {{1, 1, 28, 28}, {3, 1, 5, 5}, {{1, 1}, {0, 0}, {1, 1}, 1, 0}},
    {{2, 5, 4, 4}, {3, 5, 1, 1}, {{2, 2}, {0, 0}, {1, 1}, 1, 0}},
};

// Everything that a convolution and its gradients give, in double.
struct Answer {
  Shape y_shape;
  std::vector<double> y, dx, dw, db;
};

Answer Solve(const Problem& problem, const std::vector<double>& x,
             const std::vector<double>& w, const std::vector<double>& b,
             std::vector<double>* dy) {
  const choir_conv2d_attrs_t& a = problem.attrs;
  const Shape& xs = problem.x;
  const Shape& ws = problem.w;
  Answer answer;
  int64_t oh = (xs[2] + 2 * a.padding[0] - a.dilation[0] * (ws[2] - 1) - 1) /
                   a.stride[0] +
               1;
  int64_t ow = (xs[3] + 2 * a.padding[1] - a.dilation[1] * (ws[3] - 1) - 1) /
                   a.stride[1] +
               1;
  answer.y_shape = {xs[0], ws[0], oh, ow};
  answer.y.assign(static_cast<size_t>(Count(answer.y_shape)), 0);
  answer.dx.assign(x.size(), 0);
  answer.dw.assign(w.size(), 0);
  answer.db.assign(b.size(), 0);
  *dy = Numbers(Count(answer.y_shape), 9);
  for (double& value : *dy) value = static_cast<float>(value);
  int64_t channels = xs[1] / a.groups, filters = ws[0] / a.groups;
  for (int64_t n = 0; n < xs[0]; ++n) {
    for (int64_t o = 0; o < ws[0]; ++o) {
      for (int64_t i = 0; i < oh; ++i) {
        for (int64_t j = 0; j < ow; ++j) {
          size_t y_at =
              static_cast<size_t>(((n * ws[0] + o) * oh + i) * ow + j);
          answer.y[y_at] += b[static_cast<size_t>(o)];
          answer.db[static_cast<size_t>(o)] += (*dy)[y_at];
          for (int64_t c = 0; c < channels; ++c) {
            for (int64_t k = 0; k < ws[2]; ++k) {
              for (int64_t l = 0; l < ws[3]; ++l) {
                int64_t row =
                    i * a.stride[0] - a.padding[0] + k * a.dilation[0];
                int64_t col =
                    j * a.stride[1] - a.padding[1] + l * a.dilation[1];
                if (row < 0 || row >= xs[2] || col < 0 || col >= xs[3])
                  continue;
                int64_t channel = o / filters * channels + c;
                size_t x_at = static_cast<size_t>(
                    ((n * xs[1] + channel) * xs[2] + row) * xs[3] + col);
                size_t w_at = static_cast<size_t>(
                    ((o * channels + c) * ws[2] + k) * ws[3] + l);
                answer.y[y_at] += x[x_at] * w[w_at];
                answer.dx[x_at] += (*dy)[y_at] * w[w_at];
                answer.dw[w_at] += (*dy)[y_at] * x[x_at];
              }
            }
          }
        }
      }
    }
  }
  return answer;
}

class Conv2d : public ::testing::TestWithParam<Problem> {
 protected:
  template <typename T>
  void Check(bool channels_last, double tolerance) {
    const Problem& problem = GetParam();
    auto numbers = [](int64_t count, uint32_t seed) {
      std::vector<double> values = Numbers(count, seed);
      for (double& value : values) value = static_cast<float>(value);
      return values;
    };
    std::vector<double> x = numbers(Count(problem.x), 6),
                        w = numbers(Count(problem.w), 7),
                        b = numbers(problem.w[0], 8), dy;
    Answer answer = Solve(problem, x, w, b, &dy);
    auto make = [&](const Shape& shape, const std::vector<double>& values) {
      std::vector<T> typed(values.begin(), values.end());
      return channels_last && shape.size() == 4
                 ? MakeChannelsLast(device_.get(), shape, typed)
                 : Make(device_.get(), shape, typed);
    };
    TensorPtr x_tensor = make(problem.x, x), w_tensor = make(problem.w, w),
              b_tensor = make({problem.w[0]}, b);
    TensorPtr y = Result(CHOIR_OP_CONV2D,
                         {x_tensor.get(), w_tensor.get(), b_tensor.get()},
                         &problem.attrs);
    ASSERT_EQ(ShapeOf(y.get()), answer.y_shape);
    ExpectNear(Read<T>(y), answer.y, tolerance);
    TensorPtr dy_tensor = make(answer.y_shape, dy);
    TensorPtr dx = Result(CHOIR_OP_CONV2D_GRAD_DATA,
                          {x_tensor.get(), w_tensor.get(), dy_tensor.get()},
                          &problem.attrs);
    ExpectNear(Read<T>(dx), answer.dx, tolerance);
    std::vector<TensorPtr> grads = Results(
        CHOIR_OP_CONV2D_GRAD_WEIGHT,
        {x_tensor.get(), w_tensor.get(), dy_tensor.get()}, &problem.attrs);
    ExpectNear(Read<T>(grads[0]), answer.dw, tolerance);
    ExpectNear(Read<T>(grads[1]), answer.db, tolerance);
    // With an activation the result is the same, cut at 0.
    choir_conv2d_attrs_t relu = problem.attrs;
    relu.activation = CHOIR_ACTIVATION_RELU;
    for (double& value : answer.y) value = std::max(value, 0.0);
    ExpectNear(Read<T>(Result(CHOIR_OP_CONV2D,
                              {x_tensor.get(), w_tensor.get(), b_tensor.get()},
                              &relu)),
               answer.y, tolerance);
  }
  DevicePtr device_ = MakeDevice("cpu");
};

INSTANTIATE_TEST_SUITE_P(Problems, Conv2d, ::testing::ValuesIn(kProblems));

TEST_P(Conv2d, RowMajorF32) { Check<float>(false, 2e-5); }
TEST_P(Conv2d, ChannelsLastF32) { Check<float>(true, 2e-5); }
TEST_P(Conv2d, RowMajorF64) { Check<double>(false, 1e-13); }
TEST_P(Conv2d, ChannelsLastF64) { Check<double>(true, 1e-13); }

class Conv2dRefusals : public ::testing::Test {
 protected:
  TensorPtr Zeros(const Shape& shape) {
    return Make(device_.get(), shape,
                std::vector<float>(static_cast<size_t>(Count(shape)), 0));
  }
  choir_status_t Conv(const Shape& x, const Shape& w, const Shape& b) {
    TensorPtr x_tensor = Zeros(x), w_tensor = Zeros(w), b_tensor = Zeros(b);
    return Failure(CHOIR_OP_CONV2D,
                   {x_tensor.get(), w_tensor.get(), b_tensor.get()}, &attrs_);
  }
  DevicePtr device_ = MakeDevice("cpu");
  choir_conv2d_attrs_t attrs_ = Attrs<choir_conv2d_attrs_t>(CHOIR_OP_CONV2D);
};

TEST_F(Conv2dRefusals, Shapes) {
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: x has 3 channels in 1 groups; needs 4 in each",
                Conv({1, 3, 5, 5}, {2, 4, 3, 3}, {2}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: x is f32 (3, 5, 5); needs 4 dimensions",
                Conv({3, 5, 5}, {2, 3, 3, 3}, {2}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: W is f32 (2, 3, 3); needs 4 dimensions",
                Conv({1, 3, 5, 5}, {2, 3, 3}, {2}));
  EXPECT_STATUS(INVALID_ARGUMENT, "conv2d: b is f32 (3); needs shape (2)",
                Conv({1, 3, 5, 5}, {2, 3, 3, 3}, {3}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: kernel covers 6 x 3; needs to fit the padded image of "
                "5 x 5",
                Conv({1, 3, 5, 5}, {2, 3, 6, 3}, {2}));
  attrs_.dilation[1] = 3;
  attrs_.padding[0] = 1;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: kernel covers 6 x 7; needs to fit the padded image of "
                "7 x 5",
                Conv({1, 3, 5, 5}, {2, 3, 6, 3}, {2}));
  EXPECT_STATUS(INVALID_ARGUMENT, "conv2d: kernel is 0 x 3, image ",
                Conv({1, 3, 5, 5}, {2, 3, 0, 3}, {2}));
}

TEST_F(Conv2dRefusals, Groups) {
  attrs_.groups = 2;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: W has 5 filters; needs a multiple of the 2 groups",
                Conv({1, 4, 5, 5}, {5, 2, 3, 3}, {5}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d: x has 4 channels in 2 groups; needs 4 in each",
                Conv({1, 4, 5, 5}, {4, 4, 3, 3}, {4}));
  attrs_.groups = 0;
  EXPECT_STATUS(INVALID_ARGUMENT, "conv2d: groups",
                Conv({1, 4, 5, 5}, {4, 4, 3, 3}, {4}));
}

TEST_F(Conv2dRefusals, Gradients) {
  TensorPtr x = Zeros({1, 3, 5, 5}), w = Zeros({2, 3, 3, 3}),
            dy = Zeros({1, 2, 4, 3});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "conv2d_grad_data: dy is f32 (1, 2, 4, 3); needs the shape of "
                "conv(x, W), f32 (1, 2, 3, 3)",
                Failure(CHOIR_OP_CONV2D_GRAD_DATA, {x.get(), w.get(), dy.get()},
                        &attrs_));
  EXPECT_STATUS(INVALID_ARGUMENT, "conv2d_grad_weight: dy is",
                Failure(CHOIR_OP_CONV2D_GRAD_WEIGHT,
                        {x.get(), w.get(), dy.get()}, &attrs_));
}

}  // namespace
