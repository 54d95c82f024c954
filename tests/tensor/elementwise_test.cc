// SPDX-License-Identifier: Apache-2.0
// Elementwise ops against the C library in double, in f32 and f64 (fast
// kernels and references), at ordinary and at special numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Elementwise : public ::testing::Test {
 protected:
  template <typename T>
  TensorPtr MakeFrom(const Shape& shape, const std::vector<double>& values) {
    return Make<T>(device_.get(), shape,
                   std::vector<T>(values.begin(), values.end()));
  }

  template <typename T>
  void CheckUnary(choir_op_t op, const std::function<double(double)>& f,
                  const std::vector<double>& inputs, double tolerance) {
    TensorPtr x = MakeFrom<T>({static_cast<int64_t>(inputs.size())}, inputs);
    std::vector<double> expected;
    for (double input : inputs) expected.push_back(f(static_cast<T>(input)));
    SCOPED_TRACE(choir_op_name(op));
    ExpectNear(Read<T>(Result(op, {x.get()})), expected, tolerance);
  }
  void CheckUnary(choir_op_t op, const std::function<double(double)>& f,
                  double low, double high) {
    std::vector<double> inputs = Numbers(1001, 1);
    for (double& input : inputs) input = low + (high - low) * (input + 1) / 2;
    CheckUnary<float>(op, f, inputs, 2e-6);
    CheckUnary<double>(op, f, inputs, 1e-14);
  }

  template <typename T>
  void CheckBinary(choir_op_t op,
                   const std::function<double(double, double)>& f,
                   double tolerance) {
    std::vector<double> a = Numbers(3 * 1 * 5, 2), b = Numbers(4 * 5, 3);
    for (double& value : b) value += value < 0 ? -0.5 : 0.5;
    a[3] = b[3];  // an equal pair for the comparisons
    TensorPtr left = MakeFrom<T>({3, 1, 5}, a);
    TensorPtr right = MakeFrom<T>({4, 5}, b);
    TensorPtr result = Result(op, {left.get(), right.get()});
    EXPECT_EQ(ShapeOf(result.get()), (Shape{3, 4, 5}));
    std::vector<double> expected;
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 4; ++j) {
        for (size_t k = 0; k < 5; ++k)
          expected.push_back(
              f(static_cast<T>(a[i * 5 + k]), static_cast<T>(b[j * 5 + k])));
      }
    }
    SCOPED_TRACE(choir_op_name(op));
    ExpectNear(Read<T>(result), expected, tolerance);
  }
  void CheckBinary(choir_op_t op,
                   const std::function<double(double, double)>& f) {
    CheckBinary<float>(op, f, 2e-7);
    CheckBinary<double>(op, f, 1e-15);
  }

  template <typename T>
  void CheckGradient(choir_op_t op,
                     const std::function<double(double, double)>& f,
                     double tolerance) {
    std::vector<double> y = Numbers(999, 4), dy = Numbers(999, 5);
    TensorPtr left = MakeFrom<T>({27, 37}, y);
    TensorPtr right = MakeFrom<T>({27, 37}, dy);
    std::vector<double> expected;
    for (size_t i = 0; i < y.size(); ++i)
      expected.push_back(f(static_cast<T>(y[i]), static_cast<T>(dy[i])));
    SCOPED_TRACE(choir_op_name(op));
    ExpectNear(Read<T>(Result(op, {left.get(), right.get()})), expected,
               tolerance);
  }
  void CheckGradient(choir_op_t op,
                     const std::function<double(double, double)>& f) {
    CheckGradient<float>(op, f, 2e-6);
    CheckGradient<double>(op, f, 1e-14);
  }

  // One number in, one out; in f32 and f64.
  double At(choir_op_t op, double x) {
    TensorPtr wide = Make<double>(device_.get(), {1}, {x});
    TensorPtr narrow = Make<float>(device_.get(), {1}, {static_cast<float>(x)});
    double from_wide = Read<double>(Result(op, {wide.get()}))[0];
    float from_narrow = Read<float>(Result(op, {narrow.get()}))[0];
    if (std::isnan(from_wide)) {
      EXPECT_TRUE(std::isnan(from_narrow)) << choir_op_name(op) << " " << x;
    } else {
      EXPECT_EQ(static_cast<float>(from_wide), from_narrow)
          << choir_op_name(op) << " " << x;
    }
    return from_wide;
  }
  double At(choir_op_t op, double a, double b) {
    TensorPtr left = Make<double>(device_.get(), {}, {a});
    TensorPtr right = Make<double>(device_.get(), {}, {b});
    TensorPtr left_f32 =
        Make<float>(device_.get(), {}, {static_cast<float>(a)});
    TensorPtr right_f32 =
        Make<float>(device_.get(), {}, {static_cast<float>(b)});
    double wide = Read<double>(Result(op, {left.get(), right.get()}))[0];
    float narrow =
        Read<float>(Result(op, {left_f32.get(), right_f32.get()}))[0];
    EXPECT_TRUE(static_cast<float>(wide) == narrow ||
                (std::isnan(wide) && std::isnan(narrow)))
        << choir_op_name(op) << " " << a << " " << b << ": " << narrow;
    return wide;
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(Elementwise, OneSource) {
  CheckUnary(
      CHOIR_OP_NEG, [](double x) { return -x; }, -5, 5);
  CheckUnary(
      CHOIR_OP_ABS, [](double x) { return std::fabs(x); }, -5, 5);
  CheckUnary(
      CHOIR_OP_EXP, [](double x) { return std::exp(x); }, -20, 20);
  CheckUnary(
      CHOIR_OP_LOG, [](double x) { return std::log(x); }, 1e-6, 50);
  CheckUnary(
      CHOIR_OP_SQRT, [](double x) { return std::sqrt(x); }, 0, 50);
  CheckUnary(
      CHOIR_OP_SQUARE, [](double x) { return x * x; }, -5, 5);
  CheckUnary(
      CHOIR_OP_RELU, [](double x) { return std::max(x, 0.0); }, -5, 5);
  CheckUnary(
      CHOIR_OP_SIGMOID, [](double x) { return 1 / (1 + std::exp(-x)); }, -30,
      30);
  CheckUnary(
      CHOIR_OP_TANH, [](double x) { return std::tanh(x); }, -10, 10);
  CheckUnary(
      CHOIR_OP_GELU,
      [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }, -6, 6);
}

TEST_F(Elementwise, UnitScaleIsThePowerThatBringsItToOne) {
  for (double x : {1.0, 1.5, 2.0, 3.999, 0.75, 65504.0, 1e-30, 1e30, 0x1p-126,
                   0x1p126, 0x1.8p126}) {
    for (double signed_x : {x, -x}) {
      const double scale = At(CHOIR_OP_UNIT_SCALE, signed_x);
      EXPECT_EQ(std::exp2(std::ilogb(scale)), scale) << x;
      EXPECT_GE(scale * x, 1) << x;
      EXPECT_LT(scale * x, 2) << x;
    }
  }
  // What no normal number brings there.
  EXPECT_EQ(At(CHOIR_OP_UNIT_SCALE, 0x1p-149), 0x1p127);
  EXPECT_EQ(At(CHOIR_OP_UNIT_SCALE, 0x1.cp-127), 0x1p127);
  EXPECT_EQ(At(CHOIR_OP_UNIT_SCALE, 0x1.8p127), 0x1p-126);
  for (double x : {0.0, -0.0, kInf, -kInf, kNan})
    EXPECT_EQ(At(CHOIR_OP_UNIT_SCALE, x), 1) << x;
}

TEST_F(Elementwise, TwoSources) {
  CheckBinary(CHOIR_OP_ADD, [](double a, double b) { return a + b; });
  CheckBinary(CHOIR_OP_SUB, [](double a, double b) { return a - b; });
  CheckBinary(CHOIR_OP_MUL, [](double a, double b) { return a * b; });
  CheckBinary(CHOIR_OP_DIV, [](double a, double b) { return a / b; });
  CheckBinary(CHOIR_OP_MAXIMUM,
              [](double a, double b) { return std::max(a, b); });
  CheckBinary(CHOIR_OP_MINIMUM,
              [](double a, double b) { return std::min(a, b); });
  CheckBinary(CHOIR_OP_LESS, [](double a, double b) { return a < b; });
  CheckBinary(CHOIR_OP_GREATER, [](double a, double b) { return a > b; });
  CheckBinary(CHOIR_OP_EQUAL, [](double a, double b) { return a == b; });
}

TEST_F(Elementwise, Gradients) {
  CheckGradient(CHOIR_OP_RELU_GRAD,
                [](double y, double dy) { return y > 0 ? dy : 0; });
  CheckGradient(CHOIR_OP_ABS_GRAD,
                [](double x, double dy) { return std::copysign(1.0, x) * dy; });
  CheckGradient(CHOIR_OP_SIGMOID_GRAD,
                [](double y, double dy) { return dy * y * (1 - y); });
  CheckGradient(CHOIR_OP_TANH_GRAD,
                [](double y, double dy) { return dy * (1 - y * y); });
  // The derivatives of gelu, gelu_tanh and silu by central differences.
  auto check = [this](choir_op_t op, double (*f)(double)) {
    auto slope = [f](double x, double dy) {
      return dy * (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
    };
    CheckGradient<float>(op, slope, 2e-6);
    CheckGradient<double>(op, slope, 1e-9);
  };
  check(CHOIR_OP_GELU_GRAD,
        [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); });
  check(CHOIR_OP_GELU_TANH_GRAD, [](double x) {
    return x / 2 *
           (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
  });
  check(CHOIR_OP_SILU_GRAD, [](double x) { return x / (1 + std::exp(-x)); });
}

TEST_F(Elementwise, SpecialNumbers) {
  EXPECT_EQ(At(CHOIR_OP_RELU, -kInf), 0);
  EXPECT_EQ(At(CHOIR_OP_RELU, kInf), kInf);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_RELU, kNan)));
  EXPECT_EQ(At(CHOIR_OP_ABS, -kInf), kInf);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_ABS, kNan)));
  EXPECT_EQ(At(CHOIR_OP_EXP, 0), 1);
  EXPECT_EQ(At(CHOIR_OP_EXP, kInf), kInf);
  EXPECT_EQ(At(CHOIR_OP_EXP, -kInf), 0);
  EXPECT_EQ(At(CHOIR_OP_EXP, 1000), kInf);
  EXPECT_EQ(At(CHOIR_OP_EXP, -1000), 0);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_EXP, kNan)));
  EXPECT_EQ(At(CHOIR_OP_LOG, 1), 0);
  EXPECT_EQ(At(CHOIR_OP_LOG, 0), -kInf);
  EXPECT_EQ(At(CHOIR_OP_LOG, kInf), kInf);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_LOG, -1)));
  EXPECT_EQ(At(CHOIR_OP_SQRT, 0), 0);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_SQRT, -1)));
  EXPECT_EQ(At(CHOIR_OP_SIGMOID, 0), 0.5);
  EXPECT_EQ(At(CHOIR_OP_SIGMOID, kInf), 1);
  EXPECT_EQ(At(CHOIR_OP_SIGMOID, -kInf), 0);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_SIGMOID, kNan)));
  EXPECT_EQ(At(CHOIR_OP_TANH, 0), 0);
  EXPECT_EQ(At(CHOIR_OP_TANH, kInf), 1);
  EXPECT_EQ(At(CHOIR_OP_TANH, -kInf), -1);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_TANH, kNan)));
  EXPECT_EQ(At(CHOIR_OP_GELU, 0), 0);
  EXPECT_EQ(At(CHOIR_OP_GELU, 100), 100);
  EXPECT_EQ(At(CHOIR_OP_GELU, -100), 0);
  EXPECT_EQ(At(CHOIR_OP_GELU_TANH, 100), 100);
  EXPECT_EQ(At(CHOIR_OP_GELU_TANH, -100), 0);
  EXPECT_EQ(At(CHOIR_OP_DIV, 1, 0), kInf);
  EXPECT_TRUE(std::isnan(At(CHOIR_OP_DIV, 0, 0)));
}

// A NaN is never lost, on whichever side it comes.
TEST_F(Elementwise, NanIsLargestAndSmallest) {
  for (choir_op_t op : {CHOIR_OP_MAXIMUM, CHOIR_OP_MINIMUM}) {
    EXPECT_TRUE(std::isnan(At(op, kNan, 1)));
    EXPECT_TRUE(std::isnan(At(op, 1, kNan)));
  }
  EXPECT_EQ(At(CHOIR_OP_MAXIMUM, -kInf, 1), 1);
  EXPECT_EQ(At(CHOIR_OP_MINIMUM, -kInf, 1), -kInf);
  for (choir_op_t op : {CHOIR_OP_LESS, CHOIR_OP_GREATER, CHOIR_OP_EQUAL})
    EXPECT_EQ(At(op, kNan, kNan), 0);
}

// At the kink the gradient is 0.
TEST_F(Elementwise, GradientsAtTheKink) {
  EXPECT_EQ(At(CHOIR_OP_RELU_GRAD, 0, 3), 0);
  EXPECT_EQ(At(CHOIR_OP_ABS_GRAD, 0, 3), 0);
}

TEST_F(Elementwise, IntegersAreExactAndWrap) {
  const int64_t large = (int64_t{1} << 53) + 1;  // no double
  TensorPtr a =
      Make<int64_t>(device_.get(), {3}, {large, INT64_MAX, INT64_MIN});
  TensorPtr one = Make<int64_t>(device_.get(), {}, {1});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ADD, {a.get(), one.get()})),
            (std::vector<int64_t>{large + 1, INT64_MIN, INT64_MIN + 1}));
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_NEG, {a.get()})),
            (std::vector<int64_t>{-large, -INT64_MAX, INT64_MIN}));
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_ABS, {a.get()})),
            (std::vector<int64_t>{large, INT64_MAX, INT64_MIN}));
  TensorPtr near = Make<int64_t>(device_.get(), {3}, {large - 1, 0, 0});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_GREATER, {a.get(), near.get()})),
            (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_MAXIMUM, {a.get(), near.get()})),
            (std::vector<int64_t>{large, INT64_MAX, 0}));
  TensorPtr bytes = Make<uint8_t>(device_.get(), {3}, {3, 200, 255});
  TensorPtr five = Make<uint8_t>(device_.get(), {}, {5});
  EXPECT_EQ(Read<uint8_t>(Result(CHOIR_OP_SUB, {bytes.get(), five.get()})),
            (std::vector<uint8_t>{254, 195, 250}));
  EXPECT_EQ(Read<uint8_t>(Result(CHOIR_OP_SQUARE, {bytes.get()})),
            (std::vector<uint8_t>{9, 64, 1}));
  TensorPtr words = Make<int32_t>(device_.get(), {2}, {INT32_MAX, 70000});
  EXPECT_EQ(Read<int32_t>(Result(CHOIR_OP_MUL, {words.get(), words.get()})),
            (std::vector<int32_t>{1, 605032704}));
}

TEST_F(Elementwise, Scale) {
  std::vector<double> inputs = Numbers(100, 6);
  choir_scale_attrs_t attrs = {0.1, -3};
  TensorPtr x = MakeFrom<float>({100}, inputs);
  std::vector<double> expected;
  for (double input : inputs)
    expected.push_back(static_cast<double>(0.1f) * static_cast<float>(input) -
                       3);
  ExpectNear(Read<float>(Result(CHOIR_OP_SCALE, {x.get()}, &attrs)), expected,
             2e-7);
  // By default it changes nothing.
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SCALE, {x.get()})), Read<float>(x));
}

TEST_F(Elementwise, FillRoundsAsStoringDoes) {
  TensorPtr bytes = Make<uint8_t>(device_.get(), {2}, {1, 2});
  choir_fill_attrs_t attrs = {300.7};
  EXPECT_EQ(Read<uint8_t>(Result(CHOIR_OP_FILL, {bytes.get()}, &attrs)),
            (std::vector<uint8_t>{255, 255}));
  attrs.value = -2.9;
  TensorPtr whole = Make<int64_t>(device_.get(), {1}, {5});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_FILL, {whole.get()}, &attrs)),
            (std::vector<int64_t>{-2}));
  attrs.value = 0.1;
  TensorPtr real = Make<float>(device_.get(), {1}, {5});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_FILL, {real.get()}, &attrs)),
            (std::vector<float>{0.1f}));
}

// 16 bits are computed in f32 and rounded once, wherever a strip of a long row
// ends.
TEST_F(Elementwise, LongRowsOf16BitsAreThoseOfF32Rounded) {
  const auto cast = [](const TensorPtr& x, choir_dtype_t dtype) {
    const choir_cast_attrs_t attrs = {dtype};
    return Result(CHOIR_OP_CAST, {x.get()}, &attrs);
  };
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    for (int64_t count : {512, 513, 1024, 1299, 4096}) {
      TensorPtr a = cast(MakeFrom<float>({count}, Numbers(count, 1)), dtype);
      TensorPtr b = cast(MakeFrom<float>({count}, Numbers(count, 2)), dtype);
      TensorPtr one = cast(MakeFrom<float>({1}, {0.7}), dtype);
      const auto check = [&](choir_op_t op, const TensorPtr& x,
                             const TensorPtr& y) {
        TensorPtr wide_x = cast(x, CHOIR_DTYPE_F32);
        TensorPtr wide_y = cast(y, CHOIR_DTYPE_F32);
        TensorPtr want = cast(Result(op, {wide_x.get(), wide_y.get()}), dtype);
        EXPECT_EQ(
            Read<float>(cast(Result(op, {x.get(), y.get()}), CHOIR_DTYPE_F32)),
            Read<float>(cast(want, CHOIR_DTYPE_F32)))
            << choir_op_name(op) << " of " << count;
      };
      check(CHOIR_OP_GELU_GRAD, a, b);
      check(CHOIR_OP_ADD, a, b);
      check(CHOIR_OP_MUL, a, one);
      check(CHOIR_OP_SUB, one, b);
    }
  }
}

TEST_F(Elementwise, Refusals) {
  TensorPtr a = Make<float>(device_.get(), {2, 3}, std::vector<float>(6));
  TensorPtr b = Make<float>(device_.get(), {4}, std::vector<float>(4));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "add: ", Failure(CHOIR_OP_ADD, {a.get(), b.get()}));
  TensorPtr row = Make<float>(device_.get(), {3}, std::vector<float>(3));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "relu_grad: source 1 is f32 (3); needs the shape of source 0, "
                "f32 (2, 3)",
                Failure(CHOIR_OP_RELU_GRAD, {a.get(), row.get()}));
  TensorPtr c = Make<float>(device_.get(), {3}, std::vector<float>(3));
  EXPECT_STATUS(INVALID_ARGUMENT, "prelu_grad: ",
                Failure(CHOIR_OP_PRELU_GRAD, {a.get(), c.get(), b.get()}));
}

}  // namespace
