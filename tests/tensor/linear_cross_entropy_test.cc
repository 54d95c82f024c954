// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy and its gradient against plain loops in double, and
// against the ops that they stand for; bits and threads, memory, what they
// refuse. All else: tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

struct Sizes {
  int64_t n, d, c;
};
// Around tiles of 256, no class to choose among, vocabularies of letters and of
// GPT-2.
constexpr Sizes kAll[] = {
    {1, 1, 1},     {3, 4, 1},     {300, 7, 1},   {2, 3, 2},
    {5, 9, 65},    {64, 32, 65},  {257, 16, 65}, {255, 8, 255},
    {256, 8, 256}, {257, 8, 257}, {7, 300, 30},  {13, 20, 1000},
    {4, 8, 50257}, {1, 5, 50257}, {513, 6, 513}, {96, 64, 768}};

choir_linear_cross_entropy_attrs_t AttrsFor(bool transposed) {
  auto attrs =
      Attrs<choir_linear_cross_entropy_attrs_t>(CHOIR_OP_LINEAR_CROSS_ENTROPY);
  attrs.transpose = transposed;
  return attrs;
}

Shape WeightShape(const Sizes& s, bool transposed) {
  return transposed ? Shape{s.c, s.d} : Shape{s.d, s.c};
}

// All classes come up, the last one first.
std::vector<int32_t> Labels(const Sizes& s) {
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < s.n; ++r)
    labels.push_back(static_cast<int32_t>((r + 1) * (s.c - 1) * 7 % s.c));
  return labels;
}

struct Answer {
  double loss = 0;
  std::vector<double> sums, dx, dw;
};

// In plain loops, for W (c, d).
Answer Expected(const Sizes& s, const std::vector<float>& x,
                const std::vector<float>& w, const std::vector<int32_t>& labels,
                double dy) {
  const size_t n = static_cast<size_t>(s.n), d = static_cast<size_t>(s.d),
               c = static_cast<size_t>(s.c);
  const double rows = static_cast<double>(n);
  Answer answer;
  answer.dx.resize(n * d);
  answer.dw.resize(c * d);
  for (size_t r = 0; r < n; ++r) {
    const size_t label = static_cast<size_t>(labels[r]);
    std::vector<double> logits(c);
    double sum = 0;
    for (size_t j = 0; j < c; ++j) {
      for (size_t i = 0; i < d; ++i)
        logits[j] += static_cast<double>(x[r * d + i]) * w[j * d + i];
      sum += std::exp(logits[j]);
    }
    answer.sums.push_back(std::log(sum));
    answer.loss += (std::log(sum) - logits[label]) / rows;
    for (size_t j = 0; j < c; ++j) {
      const double slope =
          dy / rows * (std::exp(logits[j]) / sum - (j == label ? 1 : 0));
      for (size_t i = 0; i < d; ++i) {
        answer.dx[r * d + i] += slope * w[j * d + i];
        answer.dw[j * d + i] += slope * x[r * d + i];
      }
    }
  }
  return answer;
}

template <typename T>
std::vector<T> Transposed(const std::vector<T>& a, int64_t rows,
                          int64_t columns) {
  std::vector<T> b;
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i)
      b.push_back(a[static_cast<size_t>(i * columns + j)]);
  return b;
}

class LinearCrossEntropy : public ::testing::Test {
 protected:
  void TearDown() override { choir__isa_limit(CHOIR__ISA_AVX512); }

  // x, labels, W, loss, sums, dx, dW on a device.
  struct Run {
    TensorPtr x, labels, w, loss, sums, dx, dw;
  };
  static Run RunOn(choir_device_t* device, const Sizes& s, bool transposed) {
    const auto attrs = AttrsFor(transposed);
    Run run;
    run.x = Make(device, {s.n, s.d}, Floats(s.n * s.d, 1));
    run.labels = Make(device, {s.n}, Labels(s));
    const std::vector<float> w = Floats(s.c * s.d, 2);
    run.w = Make(device, WeightShape(s, transposed),
                 transposed ? w : Transposed(w, s.c, s.d));
    auto forward =
        Results(CHOIR_OP_LINEAR_CROSS_ENTROPY,
                {run.x.get(), run.labels.get(), run.w.get()}, &attrs);
    run.loss = std::move(forward[0]);
    run.sums = std::move(forward[1]);
    const TensorPtr dy = Make<float>(device, {1}, {kDy});
    auto backward = Results(
        CHOIR_OP_LINEAR_CROSS_ENTROPY_GRAD,
        {run.x.get(), run.labels.get(), run.w.get(), run.sums.get(), dy.get()},
        &attrs);
    run.dx = std::move(backward[0]);
    run.dw = std::move(backward[1]);
    return run;
  }
  static std::vector<std::vector<float>> Numbers(const Run& run) {
    return {Read<float>(run.loss), Read<float>(run.sums), Read<float>(run.dx),
            Read<float>(run.dw)};
  }

  static constexpr float kDy = 1.5f;
  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(LinearCrossEntropy, IsWhatPlainLoopsGive) {
  for (const Sizes& s : kAll) {
    const Answer want =
        Expected(s, Floats(s.n * s.d, 1), Floats(s.c * s.d, 2), Labels(s), kDy);
    for (bool transposed : {false, true}) {
      SCOPED_TRACE(std::to_string(s.n) + " rows, " + std::to_string(s.d) +
                   " features, " + std::to_string(s.c) + " classes" +
                   (transposed ? ", transposed" : ""));
      const uint64_t before = choir_op_stats().reference_runs;
      const Run run = RunOn(device_.get(), s, transposed);
      EXPECT_EQ(choir_op_stats().reference_runs, before);
      ExpectNear(Read<float>(run.loss), {want.loss}, 2e-6);
      ExpectNear(Read<float>(run.sums), want.sums, 2e-6);
      ExpectNear(Read<float>(run.dx), want.dx, 2e-6);
      ExpectNear(Read<float>(run.dw),
                 transposed ? want.dw : Transposed(want.dw, s.c, s.d), 2e-6);
    }
  }
}

TEST_F(LinearCrossEntropy, IsTheLossOfTheProduct) {
  for (const Sizes& s : kAll) {
    SCOPED_TRACE(s.c);
    const Run run = RunOn(device_.get(), s, true);
    auto times = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
    times.transpose_b = true;
    TensorPtr logits =
        Result(CHOIR_OP_MATMUL, {run.x.get(), run.w.get()}, &times);
    const std::vector<float> loss = Read<float>(Result(
        CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {logits.get(), run.labels.get()}));
    ExpectNear(Read<float>(run.loss), {static_cast<double>(loss[0])}, 2e-6);
  }
}

TEST_F(LinearCrossEntropy, HasTheSameBitsForEveryNumberOfThreads) {
  for (choir__isa_t isa : {CHOIR__ISA_AVX512, CHOIR__ISA_AVX2}) {
    if (choir__isa_limit(isa) == CHOIR__ISA_BASE) continue;
    for (const Sizes& s : {Sizes{700, 300, 600}, Sizes{64, 32, 65},
                           Sizes{257, 500, 513}, Sizes{5, 40, 5000}}) {
      for (bool transposed : {false, true}) {
        const auto want = Numbers(RunOn(device_.get(), s, transposed));
        for (int threads : {2, 3, 4}) {
          choir_device_options_t options = {};
          options.threads = threads;
          DevicePtr device = MakeDevice("cpu", &options);
          EXPECT_EQ(Numbers(RunOn(device.get(), s, transposed)), want)
              << threads << " threads, " << s.c << " classes";
        }
      }
    }
  }
}

// Rows of any number of dimensions are rows.
TEST_F(LinearCrossEntropy, TakesRowsOfSeveralDimensions) {
  const Sizes s = {12, 5, 40};
  const auto attrs = AttrsFor(true);
  const Run flat = RunOn(device_.get(), s, true);
  TensorPtr x = Make(device_.get(), {2, 6, 5}, Floats(60, 1));
  TensorPtr labels = Make(device_.get(), {2, 6}, Labels(s));
  auto deep = Results(CHOIR_OP_LINEAR_CROSS_ENTROPY,
                      {x.get(), labels.get(), flat.w.get()}, &attrs);
  EXPECT_EQ(Read<float>(deep[0]), Read<float>(flat.loss));
  EXPECT_EQ(Read<float>(deep[1]), Read<float>(flat.sums));
  EXPECT_EQ(ShapeOf(deep[1].get()), (Shape{2, 6}));
}

// Logits of 600 rows would be 120 MB; W and dW are 3 MB each.
TEST_F(LinearCrossEntropy, HoldsNoLogitsOfABatch) {
  const Sizes s = {600, 16, 50257};
  (void)RunOn(device_.get(), s, true);
  const size_t logits = static_cast<size_t>(s.n * s.c) * sizeof(float);
  EXPECT_LT(choir_device_memory(device_.get()).peak_bytes, logits / 12);
}

// A gradient that is added to takes no memory beside it.
TEST_F(LinearCrossEntropy, AddsToGradientsWhereTheyLie) {
  const Sizes s = {300, 16, 20000};
  const auto attrs = AttrsFor(true);
  const Run run = RunOn(device_.get(), s, true);
  const std::vector<float> dx = Read<float>(run.dx), dw = Read<float>(run.dw);
  const TensorPtr dy = Make<float>(device_.get(), {1}, {kDy});
  choir_tensor_t* srcs[] = {run.x.get(), run.labels.get(), run.w.get(),
                            run.sums.get(), dy.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {run.dx.get(), run.dw.get()};
  const uint64_t before = choir_device_memory(device_.get()).peak_bytes;
  ASSERT_OK(choir_op_run(choir_device_stream(device_.get()),
                         CHOIR_OP_LINEAR_CROSS_ENTROPY_GRAD, srcs, 5, &attrs,
                         true, dsts));
  EXPECT_EQ(choir_device_memory(device_.get()).peak_bytes, before);
  const std::vector<float> dx2 = Read<float>(run.dx), dw2 = Read<float>(run.dw);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx2[i], 2 * dx[i], 1e-6);
  for (size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(dw2[i], 2 * dw[i], 1e-6);
}

TEST_F(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const auto attrs = AttrsFor(false), transposed = AttrsFor(true);
  const auto numbers = [this](const Shape& shape) {
    return Make(device_.get(), shape, Floats(choir::testing::Count(shape), 1));
  };
  TensorPtr x = numbers({3, 4}), w = numbers({4, 6}), vector = numbers({4});
  TensorPtr labels = Make<int64_t>(device_.get(), {3}, {0, 5, 1});
  TensorPtr two = Make<int64_t>(device_.get(), {2}, {0, 5});
  const auto refused = [&](choir_tensor_t* a, choir_tensor_t* b,
                           choir_tensor_t* c,
                           const choir_linear_cross_entropy_attrs_t& settings) {
    return Failure(CHOIR_OP_LINEAR_CROSS_ENTROPY, {a, b, c}, &settings);
  };
  EXPECT_STATUS(INVALID_ARGUMENT,
                "linear_cross_entropy: x has 4 features; W (classes, features) "
                "needs 6",
                refused(x.get(), labels.get(), w.get(), transposed));
  EXPECT_STATUS(INVALID_ARGUMENT, "W is f32 (4); needs 2 dimensions",
                refused(x.get(), labels.get(), vector.get(), attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "x is f32 (4); needs 2 dimensions",
                refused(vector.get(), labels.get(), w.get(), attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "labels is i64 (2); needs the shape of x",
                refused(x.get(), two.get(), w.get(), attrs));
}

// As softmax_cross_entropy does: no label is left out of the mean.
TEST_F(LinearCrossEntropy, RefusesLabelsOutOfRange) {
  const auto attrs = AttrsFor(false);
  for (int64_t label : {int64_t{6}, int64_t{-1}, int64_t{-100}}) {
    for (bool is_f64 : {false, true}) {
      const std::vector<double> values = choir::testing::Numbers(24, 3);
      const std::vector<double> half(values.begin(), values.begin() + 12);
      TensorPtr x = is_f64 ? Make(device_.get(), {3, 4}, half)
                           : Make(device_.get(), {3, 4}, Floats(12, 3));
      TensorPtr w = is_f64 ? Make(device_.get(), {4, 6}, values)
                           : Make(device_.get(), {4, 6}, Floats(24, 3));
      TensorPtr labels = Make<int64_t>(device_.get(), {3}, {0, 5, label});
      EXPECT_STATUS(OUT_OF_RANGE,
                    "linear_cross_entropy: label " + std::to_string(label) +
                        " at row 2; needs 0 .. 5",
                    Failure(CHOIR_OP_LINEAR_CROSS_ENTROPY,
                            {x.get(), labels.get(), w.get()}, &attrs));
    }
  }
}

}  // namespace
