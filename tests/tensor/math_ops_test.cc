// SPDX-License-Identifier: Apache-2.0
// Functions of numbers that have no fast kernel, in f32 and f64, at numbers
// whose results mathematics tells, and at special ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const double kPi = 3.14159265358979323846;
const double kE = 2.71828182845904523536;

// -0 is not 0 and NaN is NaN.
bool Same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         (a == b && std::signbit(a) == std::signbit(b));
}

class MathOps : public ::testing::Test {
 protected:
  double At(choir_op_t op, std::vector<double> xs,
            const void* attrs = nullptr) {
    std::vector<TensorPtr> wide, narrow;
    std::vector<choir_tensor_t*> wide_srcs, narrow_srcs;
    for (double x : xs) {
      wide.push_back(Make<double>(device_.get(), {1}, {x}));
      narrow.push_back(
          Make<float>(device_.get(), {1}, {static_cast<float>(x)}));
      wide_srcs.push_back(wide.back().get());
      narrow_srcs.push_back(narrow.back().get());
    }
    double y = Read<double>(Result(op, wide_srcs, attrs))[0];
    float y_f32 = Read<float>(Result(op, narrow_srcs, attrs))[0];
    if (std::isnan(y) || std::isinf(y))
      EXPECT_TRUE(Same(y, y_f32)) << choir_op_name(op) << " " << xs[0];
    else
      EXPECT_NEAR(y_f32, y, 1e-5 * (1 + std::fabs(y)))
          << choir_op_name(op) << " " << xs[0];
    return y;
  }
  // f(x) = y for each pair.
  void Check(choir_op_t op, const std::vector<std::pair<double, double>>& pairs,
             const void* attrs = nullptr) {
    for (const auto& pair : pairs) {
      double y = At(op, {pair.first}, attrs);
      if (std::isnan(pair.second) || std::isinf(pair.second) ||
          pair.second == 0)
        EXPECT_TRUE(Same(y, pair.second))
            << choir_op_name(op) << "(" << pair.first << ") is " << y;
      else
        EXPECT_NEAR(y, pair.second, 2e-15 * (1 + std::fabs(pair.second)))
            << choir_op_name(op) << "(" << pair.first << ")";
    }
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(MathOps, Rounding) {
  Check(CHOIR_OP_CEIL, {{1.2, 2}, {-1.2, -1}, {3, 3}, {-0.5, -0.0}});
  Check(CHOIR_OP_FLOOR, {{1.2, 1}, {-1.2, -2}, {3, 3}, {0.5, 0}});
  Check(CHOIR_OP_ROUND, {{0.5, 1},
                         {1.5, 2},
                         {2.5, 3},
                         {-0.5, -1},
                         {-2.5, -3},
                         {2.4, 2},
                         {-2.6, -3}});
  Check(CHOIR_OP_ROUND_EVEN, {{0.5, 0},
                              {1.5, 2},
                              {2.5, 2},
                              {-0.5, -0.0},
                              {-1.5, -2},
                              {-2.5, -2},
                              {2.6, 3},
                              {-2.4, -2}});
  for (choir_op_t op : {CHOIR_OP_CEIL, CHOIR_OP_FLOOR, CHOIR_OP_ROUND,
                        CHOIR_OP_ROUND_EVEN, CHOIR_OP_SIGN})
    Check(op, {{kNan, kNan}});
  Check(CHOIR_OP_CEIL, {{-kInf, -kInf}, {kInf, kInf}});
  Check(CHOIR_OP_SIGN, {{-3, -1}, {0.1, 1}, {0, 0}, {kInf, 1}, {-kInf, -1}});
  TensorPtr whole = Make<int64_t>(device_.get(), {3}, {INT64_MIN, 0, 7});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_SIGN, {whole.get()})),
            (std::vector<int64_t>{-1, 0, 1}));
}

TEST_F(MathOps, CircularFunctions) {
  const double half = std::sqrt(0.5), root = std::sqrt(3.0);
  Check(CHOIR_OP_SIN,
        {{0, 0}, {kPi / 6, 0.5}, {-kPi / 4, -half}, {kPi / 2, 1}});
  Check(CHOIR_OP_COS,
        {{0, 1}, {kPi / 3, 0.5}, {3 * kPi / 4, -half}, {kPi, -1}});
  Check(CHOIR_OP_TAN, {{0, 0}, {kPi / 4, 1}, {-kPi / 3, -root}});
  Check(CHOIR_OP_ASIN, {{0.5, kPi / 6}, {-1, -kPi / 2}, {1.5, kNan}});
  Check(CHOIR_OP_ACOS, {{0.5, kPi / 3}, {-1, kPi}, {1, 0}, {-2, kNan}});
  Check(CHOIR_OP_ATAN, {{root, kPi / 3}, {-1, -kPi / 4}, {kInf, kPi / 2}});
}

TEST_F(MathOps, HyperbolicFunctions) {
  // With e^x = 2 or 3 they are fractions.
  const double two = std::log(2.0), three = std::log(3.0);
  Check(CHOIR_OP_SINH, {{two, 0.75}, {-three, -4.0 / 3}, {-kInf, -kInf}});
  Check(CHOIR_OP_COSH, {{two, 1.25}, {-three, 5.0 / 3}, {-kInf, kInf}});
  Check(CHOIR_OP_ASINH, {{0.75, two}, {-4.0 / 3, -three}, {1e-10, 1e-10}});
  Check(CHOIR_OP_ACOSH, {{1.25, two}, {5.0 / 3, three}, {1, 0}, {0.5, kNan}});
  Check(CHOIR_OP_ATANH, {{0.6, two}, {-0.8, -three}, {1, kInf}, {2, kNan}});
}

TEST_F(MathOps, PowersAndErf) {
  Check(CHOIR_OP_RECIPROCAL, {{4, 0.25}, {-0.5, -2}, {0, kInf}, {-kInf, -0.0}});
  // Abramowitz and Stegun, table 7.1.
  EXPECT_NEAR(At(CHOIR_OP_ERF, {0.5}), 0.5204998778, 1e-10);
  EXPECT_NEAR(At(CHOIR_OP_ERF, {-1}), -0.8427007929, 1e-10);
  Check(CHOIR_OP_ERF, {{0, 0}, {kInf, 1}, {-kInf, -1}});
  EXPECT_EQ(At(CHOIR_OP_POW, {2, 10}), 1024);
  EXPECT_NEAR(At(CHOIR_OP_POW, {9, -0.5}), 1.0 / 3, 1e-15);
  EXPECT_EQ(At(CHOIR_OP_POW, {-2, 3}), -8);
  EXPECT_EQ(At(CHOIR_OP_POW, {0, 0}), 1);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_POW, {-2, 0.5})));
}

TEST_F(MathOps, GradientsOfPow) {
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_BASE, {3, 2, 5}), 30);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_BASE, {-2, 3, 1}), 12);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_BASE, {0, 0, 1}), 0);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_BASE, {0, 1, 4}), 4);
  EXPECT_NEAR(At(CHOIR_OP_POW_GRAD_EXPONENT, {kE, 2, 1}), kE * kE, 1e-14);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_EXPONENT, {1, 5, 3}), 0);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_EXPONENT, {0, 2, 1}), 0);
  EXPECT_EQ(At(CHOIR_OP_POW_GRAD_EXPONENT, {-2, 2, 1}), 0);
}

TEST_F(MathOps, Activations) {
  Check(CHOIR_OP_SOFTPLUS, {{0, std::log(2.0)},
                            {std::log(3.0), std::log(4.0)},
                            {1000, 1000},
                            {-1000, 0},
                            {-40, std::exp(-40.0)},
                            {kInf, kInf},
                            {-kInf, 0},
                            {kNan, kNan}});
  EXPECT_NEAR(At(CHOIR_OP_SOFTPLUS, {-40}) / std::exp(-40.0), 1, 1e-12);
  Check(CHOIR_OP_SOFTSIGN,
        {{1, 0.5}, {-3, -0.75}, {0, 0}, {kInf, 1}, {-kInf, -1}, {kNan, kNan}});
  Check(CHOIR_OP_ELU, {{2, 2}, {-std::log(2.0), -0.5}, {-kInf, -1}, {0, 0}});
  choir_elu_attrs_t elu = {3};
  Check(CHOIR_OP_ELU, {{2, 2}, {-std::log(2.0), -1.5}}, &elu);
  Check(CHOIR_OP_SELU,
        {{2, 2 * 1.0507}, {-std::log(2.0), -1.0507 * 1.67326 / 2}});
  Check(CHOIR_OP_LEAKY_RELU, {{2, 2}, {-3, -0.03}, {kNan, kNan}});
  Check(CHOIR_OP_HARD_SIGMOID,
        {{0, 0.5}, {1, 0.7}, {-3, 0}, {3, 1}, {kInf, 1}, {kNan, kNan}});
  EXPECT_EQ(At(CHOIR_OP_PRELU, {-2, 0.25}), -0.5);
  EXPECT_EQ(At(CHOIR_OP_PRELU, {2, 0.25}), 2);
}

// One slope for each channel.
TEST_F(MathOps, PreluBroadcastsItsSlope) {
  TensorPtr x = Make<float>(device_.get(), {1, 2, 2}, {-1, 2, -3, -4});
  TensorPtr slope = Make<float>(device_.get(), {2, 1}, {0.5f, 2});
  TensorPtr y = Result(CHOIR_OP_PRELU, {x.get(), slope.get()});
  EXPECT_EQ(ShapeOf(y.get()), (Shape{1, 2, 2}));
  EXPECT_EQ(Read<float>(y), (std::vector<float>{-0.5f, 2, -6, -8}));
}

TEST_F(MathOps, GradientsBesideTheKink) {
  choir_elu_attrs_t half = {0.5};
  EXPECT_EQ(At(CHOIR_OP_ELU_GRAD, {2, 3}, &half), 3);
  EXPECT_NEAR(At(CHOIR_OP_ELU_GRAD, {-std::log(2.0), 4}, &half), 1, 1e-15);
  EXPECT_EQ(At(CHOIR_OP_LEAKY_RELU_GRAD, {-1, 4}, &half), 2);
  EXPECT_EQ(At(CHOIR_OP_LEAKY_RELU_GRAD, {1, 4}, &half), 4);
  EXPECT_EQ(At(CHOIR_OP_PRELU_GRAD, {-1, 0.25, 4}), 1);
  EXPECT_EQ(At(CHOIR_OP_PRELU_GRAD, {1, 0.25, 4}), 4);
  choir_clip_attrs_t range = {-1, 2};
  EXPECT_EQ(At(CHOIR_OP_CLIP_GRAD, {-1, 4}, &range), 4);
  EXPECT_EQ(At(CHOIR_OP_CLIP_GRAD, {2.5, 4}, &range), 0);
  EXPECT_EQ(At(CHOIR_OP_CLIP_GRAD, {-1.5, 4}, &range), 0);
}

TEST_F(MathOps, Clip) {
  // By default everything stays.
  Check(CHOIR_OP_CLIP, {{-1e30, -1e30}, {kInf, kInf}, {-kInf, -kInf}});
  choir_clip_attrs_t range = {-1, 2};
  Check(CHOIR_OP_CLIP,
        {{-3, -1}, {0.5, 0.5}, {7, 2}, {kInf, 2}, {-kInf, -1}, {kNan, kNan}},
        &range);
  choir_clip_attrs_t crossed = {2, -1};
  Check(CHOIR_OP_CLIP, {{-3, -1}, {0.5, -1}, {7, -1}}, &crossed);
  choir_clip_attrs_t wrong = {kNan, 2};
  TensorPtr x = Make<float>(device_.get(), {1}, {1});
  EXPECT_STATUS(INVALID_ARGUMENT, "clip: low is",
                Failure(CHOIR_OP_CLIP, {x.get()}, &wrong));
}

TEST_F(MathOps, Comparisons) {
  const double pairs[][2] = {{1, 2}, {2, 1}, {3, 3}, {kNan, 1}, {kNan, kNan}};
  const double expected[][5] = {
      {1, 0, 1, 0, 0}, {0, 1, 1, 0, 0}, {1, 1, 0, 1, 1}};
  const choir_op_t ops[] = {CHOIR_OP_LESS_EQUAL, CHOIR_OP_GREATER_EQUAL,
                            CHOIR_OP_NOT_EQUAL};
  for (int k = 0; k < 3; ++k)
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(At(ops[k], {pairs[i][0], pairs[i][1]}), expected[k][i])
          << choir_op_name(ops[k]) << " " << pairs[i][0] << " " << pairs[i][1];
  const int64_t large = (int64_t{1} << 53) + 1;  // no double
  TensorPtr a = Make<int64_t>(device_.get(), {1}, {large});
  TensorPtr b = Make<int64_t>(device_.get(), {1}, {large - 1});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_LESS_EQUAL, {a.get(), b.get()}))[0],
            0);
  EXPECT_EQ(
      Read<int64_t>(Result(CHOIR_OP_GREATER_EQUAL, {b.get(), a.get()}))[0], 0);
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_NOT_EQUAL, {a.get(), b.get()}))[0],
            1);
}

TEST_F(MathOps, Logic) {
  TensorPtr a = Make<int32_t>(device_.get(), {4}, {0, 0, 5, -1});
  TensorPtr b = Make<int32_t>(device_.get(), {4}, {0, 3, 0, 2});
  auto run = [&](choir_op_t op) {
    return Read<int32_t>(Result(op, {a.get(), b.get()}));
  };
  EXPECT_EQ(run(CHOIR_OP_LOGICAL_AND), (std::vector<int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(run(CHOIR_OP_LOGICAL_OR), (std::vector<int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(run(CHOIR_OP_LOGICAL_XOR), (std::vector<int32_t>{0, 1, 1, 0}));
  EXPECT_EQ(Read<int32_t>(Result(CHOIR_OP_LOGICAL_NOT, {a.get()})),
            (std::vector<int32_t>{1, 1, 0, 0}));
  // All but 0 is true.
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_AND, {0.25, -kInf}), 1);
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_AND, {0.25, -0.0}), 0);
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_OR, {0, kNan}), 1);
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_XOR, {0.5, kNan}), 0);
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_NOT, {kNan}), 0);
  EXPECT_EQ(At(CHOIR_OP_LOGICAL_NOT, {-0.0}), 1);
}

}  // namespace
