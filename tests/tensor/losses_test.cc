// SPDX-License-Identifier: Apache-2.0
// Softmax, its gradients, the losses and counting hits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

constexpr size_t kRows = 6, kClasses = 11;

// One problem in float precision, so that f32 and f64 see the same numbers.
struct Problem {
  std::vector<double> x, p, log_p, dy;
  std::vector<int64_t> labels;
  double loss = 0;
};

Problem MakeProblem() {
  Problem problem;
  problem.x = Numbers(kRows * kClasses, 1);
  problem.dy = Numbers(kRows * kClasses, 2);
  for (double& value : problem.x) value = static_cast<float>(value * 8);
  for (double& value : problem.dy) value = static_cast<float>(value);
  for (size_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (size_t i = 0; i < kClasses; ++i)
      sum += std::exp(problem.x[row * kClasses + i]);
    for (size_t i = 0; i < kClasses; ++i) {
      problem.p.push_back(std::exp(problem.x[row * kClasses + i]) / sum);
      problem.log_p.push_back(std::log(problem.p.back()));
    }
    problem.labels.push_back(static_cast<int64_t>((row * 7 + 3) % kClasses));
    problem.loss -= problem.log_p[row * kClasses +
                                  static_cast<size_t>(problem.labels.back())] /
                    static_cast<double>(kRows);
  }
  return problem;
}

template <typename T>
class Losses : public ::testing::Test {
 protected:
  TensorPtr MakeFrom(const Shape& shape, const std::vector<double>& values) {
    return Make<T>(device_.get(), shape,
                   std::vector<T>(values.begin(), values.end()));
  }
  TensorPtr Matrix(const std::vector<double>& values) {
    return MakeFrom({kRows, kClasses}, values);
  }
  DevicePtr device_ = MakeDevice("cpu");
  Problem problem_ = MakeProblem();
  double tolerance_ = sizeof(T) == 4 ? 3e-6 : 1e-13;
};

using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Losses, Types);

TYPED_TEST(Losses, Softmax) {
  TensorPtr x = this->Matrix(this->problem_.x);
  ExpectNear(Read<TypeParam>(Result(CHOIR_OP_SOFTMAX, {x.get()})),
             this->problem_.p, this->tolerance_);
  ExpectNear(Read<TypeParam>(Result(CHOIR_OP_LOG_SOFTMAX, {x.get()})),
             this->problem_.log_p, this->tolerance_);
}

TYPED_TEST(Losses, SoftmaxGradients) {
  std::vector<double> dx, log_dx;
  const Problem& problem = this->problem_;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kClasses; ++i) {
      double sum = 0, log_sum = 0;
      // The rows of the Jacobians, term by term.
      for (size_t k = 0; k < kClasses; ++k) {
        size_t at = row * kClasses + k;
        double p = problem.p[row * kClasses + i];
        sum += problem.dy[at] * problem.p[at] * ((i == k ? 1 : 0) - p);
        log_sum += problem.dy[at] * ((i == k ? 1 : 0) - p);
      }
      dx.push_back(sum);
      log_dx.push_back(log_sum);
    }
  }
  TensorPtr dy = this->Matrix(problem.dy);
  TensorPtr p = this->Matrix(problem.p);
  ExpectNear(
      Read<TypeParam>(Result(CHOIR_OP_SOFTMAX_GRAD, {p.get(), dy.get()})), dx,
      this->tolerance_);
  TensorPtr log_p = this->Matrix(problem.log_p);
  ExpectNear(Read<TypeParam>(
                 Result(CHOIR_OP_LOG_SOFTMAX_GRAD, {log_p.get(), dy.get()})),
             log_dx, this->tolerance_);
}

TYPED_TEST(Losses, SoftmaxOfLargeNumbers) {
  TensorPtr x = this->MakeFrom({2, 3}, {1000, 1000, -1000, -1e30, 0, 0});
  ExpectNear(Read<TypeParam>(Result(CHOIR_OP_SOFTMAX, {x.get()})),
             {0.5, 0.5, 0, 0, 0.5, 0.5}, 1e-6);
  TensorPtr labels = Make<int32_t>(this->device_.get(), {2}, {2, 1});
  std::vector<TensorPtr> loss =
      Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels.get()});
  ExpectNear(Read<TypeParam>(loss[0]),
             {(2000 + std::log(2.0) + std::log(2.0)) / 2}, 1e-6);
}

// Rows of logits far from 0, near to each other and not, against long double.
// What counts is how far a logit is from the largest: all of that is there.
std::vector<std::vector<double>> LargeLogits() {
  std::vector<std::vector<double>> rows;
  for (double size : {1e4, 1e6, 1e15, 3e38, -1e4, -1e6, -3e38}) {
    // The distance between two neighbours of float.
    const double next = std::fabs(size) * 0x1p-23;
    rows.push_back({size, size, size});
    rows.push_back({size - next, size, size - 3 * next});
    rows.push_back({size, size - 5 * next, -size / 2});
    rows.push_back({size / 2, size, 0});
  }
  for (std::vector<double>& row : rows)
    for (double& x : row) x = static_cast<float>(x);
  return rows;
}

TYPED_TEST(Losses, LogSoftmaxOfLargeLogits) {
  for (choir__isa_t isa :
       {CHOIR__ISA_BASE, CHOIR__ISA_AVX2, CHOIR__ISA_AVX512}) {
    choir__isa_limit(isa);
    for (const char* name : {"cpu", "null"}) {
      DevicePtr device = MakeDevice(name);
      for (const std::vector<double>& row : LargeLogits()) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(row[0]) + ", " +
                     std::to_string(row[1]) + ", " + std::to_string(row[2]));
        const std::vector<TypeParam> typed(row.begin(), row.end());
        TensorPtr x = Make<TypeParam>(device.get(), {1, 3}, typed);
        const long double most = *std::max_element(row.begin(), row.end());
        long double sum = 0;
        for (double value : row) sum += std::exp(value - most);
        const auto y = Read<TypeParam>(Result(CHOIR_OP_LOG_SOFTMAX, {x.get()}));
        const auto p = Read<TypeParam>(Result(CHOIR_OP_SOFTMAX, {x.get()}));
        for (int64_t i = 0; i < 3; ++i) {
          const auto k = static_cast<size_t>(i);
          const long double expected = (row[k] - most) - std::log(sum);
          const double size = std::fmax(1, std::fabs(expected));
          if (expected < -std::numeric_limits<TypeParam>::max())
            EXPECT_EQ(y[k], -std::numeric_limits<TypeParam>::infinity());
          else
            EXPECT_NEAR(y[k], expected, this->tolerance_ * size);
          EXPECT_NEAR(p[k], std::exp(expected), this->tolerance_);
          TensorPtr label = Make<int64_t>(device.get(), {1}, {i});
          std::vector<TensorPtr> loss =
              Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), label.get()});
          if (-expected > std::numeric_limits<TypeParam>::max())
            EXPECT_EQ(Read<TypeParam>(loss[0])[0],
                      std::numeric_limits<TypeParam>::infinity());
          else
            EXPECT_NEAR(Read<TypeParam>(loss[0])[0], -expected,
                        this->tolerance_ * size);
          EXPECT_NEAR(Read<TypeParam>(loss[1])[k], std::exp(expected),
                      this->tolerance_);
        }
      }
    }
  }
  choir__isa_limit(CHOIR__ISA_AVX512);
}

TYPED_TEST(Losses, SoftmaxCrossEntropy) {
  const Problem& problem = this->problem_;
  TensorPtr x = this->Matrix(problem.x);
  TensorPtr wide = Make(this->device_.get(), {kRows}, problem.labels);
  TensorPtr narrow =
      Make(this->device_.get(), {kRows},
           std::vector<int32_t>(problem.labels.begin(), problem.labels.end()));
  for (const TensorPtr* labels : {&wide, &narrow}) {
    std::vector<TensorPtr> got =
        Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels->get()});
    EXPECT_EQ(ShapeOf(got[0].get()), (Shape{1}));
    ExpectNear(Read<TypeParam>(got[0]), {problem.loss}, this->tolerance_);
    ExpectNear(Read<TypeParam>(got[1]), problem.p, this->tolerance_);
    TensorPtr dy = this->MakeFrom({1}, {2.5});
    std::vector<double> dx = problem.p;
    for (size_t row = 0; row < kRows; ++row)
      dx[row * kClasses + static_cast<size_t>(problem.labels[row])] -= 1;
    for (double& value : dx) value *= 2.5 / static_cast<double>(kRows);
    ExpectNear(Read<TypeParam>(Result(CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD,
                                      {got[1].get(), labels->get(), dy.get()})),
               dx, this->tolerance_);
  }
}

TYPED_TEST(Losses, CrossEntropyOfProbabilities) {
  const Problem& problem = this->problem_;
  TensorPtr p = this->Matrix(problem.p);
  TensorPtr labels = Make(this->device_.get(), {kRows}, problem.labels);
  ExpectNear(
      Read<TypeParam>(Result(CHOIR_OP_CROSS_ENTROPY, {p.get(), labels.get()})),
      {problem.loss}, this->tolerance_);
  TensorPtr dy = this->MakeFrom({1}, {-3});
  std::vector<double> dp(problem.p.size(), 0);
  for (size_t row = 0; row < kRows; ++row) {
    size_t at = row * kClasses + static_cast<size_t>(problem.labels[row]);
    dp[at] = 3 / (static_cast<double>(kRows) *
                  static_cast<double>(static_cast<TypeParam>(problem.p[at])));
  }
  ExpectNear(Read<TypeParam>(Result(CHOIR_OP_CROSS_ENTROPY_GRAD,
                                    {p.get(), labels.get(), dy.get()})),
             dp, this->tolerance_);
}

TYPED_TEST(Losses, MeanSquares) {
  const Problem& problem = this->problem_;
  TensorPtr x = this->Matrix(problem.x);
  TensorPtr t = this->Matrix(problem.dy);
  double sum = 0;
  for (size_t i = 0; i < problem.x.size(); ++i)
    sum += (problem.x[i] - problem.dy[i]) * (problem.x[i] - problem.dy[i]);
  TensorPtr loss = Result(CHOIR_OP_MSE_LOSS, {x.get(), t.get()});
  EXPECT_EQ(ShapeOf(loss.get()), (Shape{1}));
  ExpectNear(Read<TypeParam>(loss),
             {sum / static_cast<double>(problem.x.size())}, this->tolerance_);
}

// A rank whose part of the last batch is empty adds nothing, and no NaN.
TYPED_TEST(Losses, NoRowsCostNothing) {
  TensorPtr x = this->MakeFrom({0, 10}, {});
  TensorPtr labels = Make<int64_t>(this->device_.get(), {0}, {});
  std::vector<double> zero = {0};
  ExpectNear(Read<TypeParam>(Results(CHOIR_OP_SOFTMAX_CROSS_ENTROPY,
                                     {x.get(), labels.get()})[0]),
             zero, 0);
  ExpectNear(
      Read<TypeParam>(Result(CHOIR_OP_CROSS_ENTROPY, {x.get(), labels.get()})),
      zero, 0);
  ExpectNear(Read<TypeParam>(Result(CHOIR_OP_MSE_LOSS, {x.get(), x.get()})),
             zero, 0);
  ExpectNear(
      Read<int64_t>(Result(CHOIR_OP_COUNT_CORRECT, {x.get(), labels.get()})),
      zero, 0);
}

TYPED_TEST(Losses, CountCorrect) {
  TensorPtr x = this->MakeFrom({4, 3}, {1, 2, 3,  //
                                        5, 5, 1,  // the first of equals
                                        5, 5, 1,  //
                                        -1, -2, -3});
  TensorPtr labels = Make<int64_t>(this->device_.get(), {4}, {2, 0, 1, 0});
  TensorPtr count = Result(CHOIR_OP_COUNT_CORRECT, {x.get(), labels.get()});
  EXPECT_EQ(Read<int64_t>(count), (std::vector<int64_t>{3}));
  // Counts of several batches add up.
  choir_tensor_t* srcs[] = {x.get(), labels.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {count.get()};
  ASSERT_OK(choir_op_run(choir_device_stream(this->device_.get()),
                         CHOIR_OP_COUNT_CORRECT, srcs, 2, nullptr, true, dsts));
  EXPECT_EQ(Read<int64_t>(count), (std::vector<int64_t>{6}));
}

// Rows of many classes, of which the largest stands at the beginning, in the
// middle or at the end, twice or not at all a number.
TYPED_TEST(Losses, CountCorrectOfManyClasses) {
  constexpr int64_t kClasses = 2500;
  const int64_t places[] = {0, 1, 700, 1023, 1024, 1025, 2047, 2499};
  std::vector<double> rows;
  std::vector<int64_t> labels;
  int64_t correct = 0;
  for (int64_t first : places)
    for (int64_t second : places)
      for (double largest : {3.0, static_cast<double>(NAN), HUGE_VAL}) {
        std::vector<double> row(kClasses);
        for (int64_t c = 0; c < kClasses; ++c)
          row[static_cast<size_t>(c)] = 2 * std::sin(static_cast<double>(c));
        row[static_cast<size_t>(first)] = largest;
        row[static_cast<size_t>(second)] = largest;
        rows.insert(rows.end(), row.begin(), row.end());
        labels.push_back(first);
        correct += first <= second;
      }
  const int64_t count = static_cast<int64_t>(labels.size());
  TensorPtr x = this->MakeFrom({count, kClasses}, rows);
  TensorPtr all = Make<int64_t>(this->device_.get(), {count}, labels);
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_COUNT_CORRECT, {x.get(), all.get()})),
            (std::vector<int64_t>{correct}));
}

TYPED_TEST(Losses, LabelsThatAreNoClass) {
  choir_device_t* device = this->device_.get();
  TensorPtr x = this->MakeFrom({4, 10}, std::vector<double>(40, 0.1));
  TensorPtr dy = this->MakeFrom({1}, {1});
  for (int64_t bad :
       {int64_t{12}, int64_t{10}, int64_t{-1}, int64_t{1} << 40, INT64_MIN}) {
    TensorPtr labels = Make<int64_t>(device, {4}, {0, 9, 5, bad});
    std::string text =
        ": label " + std::to_string(bad) + " at row 3; needs 0 .. 9";
    EXPECT_STATUS(
        OUT_OF_RANGE, "softmax_cross_entropy" + text,
        Failure(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels.get()}));
    EXPECT_STATUS(OUT_OF_RANGE, "softmax_cross_entropy_grad" + text,
                  Failure(CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD,
                          {x.get(), labels.get(), dy.get()}));
    EXPECT_STATUS(OUT_OF_RANGE, "cross_entropy" + text,
                  Failure(CHOIR_OP_CROSS_ENTROPY, {x.get(), labels.get()}));
    EXPECT_STATUS(OUT_OF_RANGE, "cross_entropy_grad" + text,
                  Failure(CHOIR_OP_CROSS_ENTROPY_GRAD,
                          {x.get(), labels.get(), dy.get()}));
    EXPECT_STATUS(OUT_OF_RANGE, "count_correct" + text,
                  Failure(CHOIR_OP_COUNT_CORRECT, {x.get(), labels.get()}));
  }
}

TYPED_TEST(Losses, Refusals) {
  choir_device_t* device = this->device_.get();
  TensorPtr x = this->MakeFrom({4, 10}, std::vector<double>(40, 0.1));
  TensorPtr labels = Make<int64_t>(device, {5}, {0, 1, 2, 3, 4});
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "softmax_cross_entropy: labels is i64 (5); needs shape (4)",
      Failure(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "softmax_cross_entropy: source 1 is " +
                    std::string(sizeof(TypeParam) == 4 ? "f32" : "f64") +
                    "; needs i32, i64",
                Failure(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), x.get()}));
  TensorPtr vector = this->MakeFrom({4}, {1, 2, 3, 4});
  EXPECT_STATUS(INVALID_ARGUMENT, "mse_loss: t is",
                Failure(CHOIR_OP_MSE_LOSS, {x.get(), vector.get()}));
  TensorPtr scalar = this->MakeFrom({}, {1});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "softmax: source 0 is a scalar; needs 1 or more dimensions",
                Failure(CHOIR_OP_SOFTMAX, {scalar.get()}));
  TensorPtr no_class = this->MakeFrom({4, 0}, {});
  TensorPtr four = Make<int64_t>(device, {4}, {0, 0, 0, 0});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "count_correct: x has 0 classes; needs at least 1",
                Failure(CHOIR_OP_COUNT_CORRECT, {no_class.get(), four.get()}));
}

}  // namespace
