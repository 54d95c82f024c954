// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

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
using choir::testing::TensorPtr;

constexpr double kEpsilon = 0.01;

class BatchNorm : public ::testing::Test {
 protected:
  template <typename T>
  std::vector<T> As(const std::vector<double>& values) {
    return std::vector<T>(values.begin(), values.end());
  }
  DevicePtr device_ = MakeDevice("cpu");
  choir_batch_norm_attrs_t attrs_ = {kEpsilon};
};

// y of one channel at a time; the elements of channel c lie `image` together,
// every `channels * image`.
struct Normalised {
  std::vector<double> y, mean, variance;
};

Normalised Normalise(const Shape& shape, const std::vector<double>& x,
                     const std::vector<double>& scale,
                     const std::vector<double>& bias) {
  int64_t channels = shape[1];
  int64_t image = Count(shape) / (shape[0] * channels);
  Normalised result;
  result.y.resize(x.size());
  for (int64_t c = 0; c < channels; ++c) {
    std::vector<size_t> places;
    for (int64_t n = 0; n < shape[0]; ++n) {
      for (int64_t i = 0; i < image; ++i)
        places.push_back(static_cast<size_t>((n * channels + c) * image + i));
    }
    double mean = 0, variance = 0;
    for (size_t place : places) mean += x[place];
    mean /= static_cast<double>(places.size());
    for (size_t place : places)
      variance += (x[place] - mean) * (x[place] - mean);
    variance /= static_cast<double>(places.size());
    size_t at = static_cast<size_t>(c);
    for (size_t place : places)
      result.y[place] =
          scale[at] * (x[place] - mean) / std::sqrt(variance + kEpsilon) +
          bias[at];
    result.mean.push_back(mean);
    result.variance.push_back(variance);
  }
  return result;
}

TEST_F(BatchNorm, Forward) {
  for (const Shape& shape :
       {Shape{6, 3}, Shape{4, 5, 3, 2}, Shape{2, 3, 7}, Shape{1, 2, 4, 4}}) {
    std::vector<double> x = Numbers(Count(shape), 1),
                        scale = Numbers(shape[1], 2),
                        bias = Numbers(shape[1], 3);
    Normalised expected = Normalise(shape, x, scale, bias);
    TensorPtr scale_f64 = Make(device_.get(), {shape[1]}, scale),
              bias_f64 = Make(device_.get(), {shape[1]}, bias),
              x_f64 = Make(device_.get(), shape, x);
    std::vector<TensorPtr> got =
        Results(CHOIR_OP_BATCH_NORM,
                {x_f64.get(), scale_f64.get(), bias_f64.get()}, &attrs_);
    ExpectNear(Read<double>(got[0]), expected.y, 1e-12);
    ExpectNear(Read<double>(got[1]), expected.mean, 1e-12);
    ExpectNear(Read<double>(got[2]), expected.variance, 1e-12);
    TensorPtr inferred = Result(CHOIR_OP_BATCH_NORM_INFER,
                                {x_f64.get(), scale_f64.get(), bias_f64.get(),
                                 got[1].get(), got[2].get()},
                                &attrs_);
    ExpectNear(Read<double>(inferred), expected.y, 1e-12);
    if (shape.size() != 4) continue;
    TensorPtr scale_f32 = Make(device_.get(), {shape[1]}, As<float>(scale)),
              bias_f32 = Make(device_.get(), {shape[1]}, As<float>(bias)),
              x_f32 = MakeChannelsLast(device_.get(), shape, As<float>(x));
    got = Results(CHOIR_OP_BATCH_NORM,
                  {x_f32.get(), scale_f32.get(), bias_f32.get()}, &attrs_);
    ExpectNear(Read<float>(got[0]), expected.y, 2e-6);
    ExpectNear(Read<float>(got[1]), expected.mean, 1e-6);
    ExpectNear(Read<float>(got[2]), expected.variance, 1e-6);
  }
}

// Images of 16 bits and f32 in one record go through f32; of bf16 alone not.
TEST_F(BatchNorm, ImagesOfTwoDtypes) {
  const Shape shape = {2, 20, 3, 3};
  const std::vector<double> x = Numbers(Count(shape), 1);
  const choir_cast_attrs_t to_bf16 = {CHOIR_DTYPE_BF16};
  const choir_cast_attrs_t to_f32 = {CHOIR_DTYPE_F32};
  TensorPtr made = MakeChannelsLast(device_.get(), shape, As<float>(x)),
            bf16 = Result(CHOIR_OP_CAST, {made.get()}, &to_bf16),
            same = Result(CHOIR_OP_CAST, {bf16.get()}, &to_f32),
            scale = Make(device_.get(), {20}, As<float>(Numbers(20, 2))),
            bias = Make(device_.get(), {20}, As<float>(Numbers(20, 3)));
  const std::vector<TensorPtr> want = Results(
      CHOIR_OP_BATCH_NORM, {same.get(), scale.get(), bias.get()}, &attrs_);
  for (bool is_wide : {true, false}) {
    TensorPtr y = Result(CHOIR_OP_COPY, {(is_wide ? same : bf16).get()});
    choir_tensor_t* srcs[] = {bf16.get(), scale.get(), bias.get()};
    choir_tensor_t* dsts[] = {y.get(), nullptr, nullptr};
    const uint64_t widened = choir_op_stats().widened;
    ASSERT_OK(choir_op_run(choir_device_stream(device_.get()),
                           CHOIR_OP_BATCH_NORM, srcs, 3, &attrs_, false, dsts));
    const TensorPtr mean(dsts[1]), var(dsts[2]);
    EXPECT_EQ(choir_op_stats().widened, widened + is_wide);
    EXPECT_EQ(Read<float>(mean), Read<float>(want[1]));
    EXPECT_EQ(Read<float>(var), Read<float>(want[2]));
    const TensorPtr rounded =
        is_wide ? nullptr : Result(CHOIR_OP_CAST, {want[0].get()}, &to_bf16);
    const TensorPtr got = Result(CHOIR_OP_CAST, {y.get()}, &to_f32);
    EXPECT_EQ(
        Read<float>(got),
        Read<float>(is_wide ? Result(CHOIR_OP_COPY, {want[0].get()})
                            : Result(CHOIR_OP_CAST, {rounded.get()}, &to_f32)));
  }
}

// A variance is what is left of large numbers: it must not be lost.
TEST_F(BatchNorm, FarFromZero) {
  TensorPtr x =
      Make<float>(device_.get(), {4, 1}, {10001, 10002, 10003, 10004});
  TensorPtr scale = Make<float>(device_.get(), {1}, {1});
  TensorPtr bias = Make<float>(device_.get(), {1}, {0});
  std::vector<TensorPtr> got =
      Results(CHOIR_OP_BATCH_NORM, {x.get(), scale.get(), bias.get()}, &attrs_);
  EXPECT_NEAR(Read<float>(got[1])[0], 10002.5, 1e-3);
  EXPECT_NEAR(Read<float>(got[2])[0], 1.25, 1e-4);
}

// Central differences of sum(dy * y) in f64.
TEST_F(BatchNorm, Gradient) {
  const Shape shape = {3, 2, 2, 2};
  std::vector<double> x = Numbers(24, 4), scale = Numbers(2, 5),
                      bias = Numbers(2, 6), dy = Numbers(24, 7);
  Normalised forward = Normalise(shape, x, scale, bias);
  auto loss = [&](const std::vector<double>& at_x,
                  const std::vector<double>& at_scale,
                  const std::vector<double>& at_bias) {
    std::vector<double> y = Normalise(shape, at_x, at_scale, at_bias).y;
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  auto differences = [&](std::vector<double>* values) {
    std::vector<double> slopes;
    for (double& value : *values) {
      double kept = value;
      value = kept + 1e-5;
      double above = loss(x, scale, bias);
      value = kept - 1e-5;
      slopes.push_back((above - loss(x, scale, bias)) / 2e-5);
      value = kept;
    }
    return slopes;
  };
  TensorPtr x_tensor = Make(device_.get(), shape, x),
            scale_tensor = Make(device_.get(), {2}, scale),
            mean = Make(device_.get(), {2}, forward.mean),
            variance = Make(device_.get(), {2}, forward.variance),
            dy_tensor = Make(device_.get(), shape, dy);
  std::vector<TensorPtr> got =
      Results(CHOIR_OP_BATCH_NORM_GRAD,
              {x_tensor.get(), scale_tensor.get(), mean.get(), variance.get(),
               dy_tensor.get()},
              &attrs_);
  ExpectNear(Read<double>(got[0]), differences(&x), 1e-8);
  ExpectNear(Read<double>(got[1]), differences(&scale), 1e-8);
  ExpectNear(Read<double>(got[2]), differences(&bias), 1e-8);
}

TEST_F(BatchNorm, Refusals) {
  TensorPtr x = Make<float>(device_.get(), {4, 3}, std::vector<float>(12));
  TensorPtr two = Make<float>(device_.get(), {2}, {1, 2});
  TensorPtr three = Make<float>(device_.get(), {3}, {1, 2, 3});
  TensorPtr none = Make<float>(device_.get(), {0, 3}, {});
  EXPECT_STATUS(
      INVALID_ARGUMENT, "batch_norm: scale is f32 (2); needs shape (3)",
      Failure(CHOIR_OP_BATCH_NORM, {x.get(), two.get(), three.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "batch_norm: x is f32 (3); needs 2 or more dimensions and an "
      "element",
      Failure(CHOIR_OP_BATCH_NORM, {three.get(), three.get(), three.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "batch_norm: x is f32 (0, 3)",
      Failure(CHOIR_OP_BATCH_NORM, {none.get(), three.get(), three.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "batch_norm_infer: var is f32 (2); needs shape (3)",
      Failure(CHOIR_OP_BATCH_NORM_INFER,
              {x.get(), three.get(), three.get(), three.get(), two.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "batch_norm_grad: dy is f32 (3)",
      Failure(CHOIR_OP_BATCH_NORM_GRAD,
              {x.get(), three.get(), three.get(), three.get(), three.get()}));
}

// The ops that do several in one pass have the bits of those several.
TEST_F(BatchNorm, WithItsReluHasTheBitsOfTheSeparateOps) {
  static const Shape kShapes[] = {
      {4, 3, 7, 5},     {2, 20, 6, 6},    {3, 1, 5, 5},    {2, 16, 3, 3},
      {1, 8, 4, 4},     {2, 33, 2, 3},    {1, 4, 1, 1},    {5, 2, 9, 9},
      {16, 16, 8, 8},   {3, 17, 5, 7},    {2, 31, 4, 4},   {7, 32, 6, 5},
      {2, 47, 3, 11},   {3, 48, 5, 5},    {4, 64, 4, 4},   {2, 65, 4, 4},
      {1, 96, 6, 6},    {2, 112, 3, 3},   {3, 128, 2, 5},  {9, 10, 13, 7},
      {32, 64, 12, 12}, {20, 16, 32, 32}, {1, 15, 23, 29}, {1, 160, 3, 1}};
  uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const auto image = [&] {
      return MakeChannelsLast<float>(device_.get(), shape,
                                     Floats(Count(shape), ++seed));
    };
    const auto vector = [&] {
      return Make<float>(device_.get(), {shape[1]}, Floats(shape[1], ++seed));
    };
    TensorPtr x = image(), residual = image(), dy = image(), dy2 = image();
    TensorPtr scale = vector(), bias = vector();

    const auto norm = Results(CHOIR_OP_BATCH_NORM,
                              {x.get(), scale.get(), bias.get()}, &attrs_);
    TensorPtr relu = Result(CHOIR_OP_RELU, {norm[0].get()});
    TensorPtr sum = Result(CHOIR_OP_ADD, {norm[0].get(), residual.get()});
    TensorPtr relu_of_sum = Result(CHOIR_OP_RELU, {sum.get()});
    auto one = Results(CHOIR_OP_BATCH_NORM_RELU,
                       {x.get(), scale.get(), bias.get()}, &attrs_);
    EXPECT_EQ(Read<float>(one[0]), Read<float>(relu));
    EXPECT_EQ(Read<float>(one[1]), Read<float>(norm[1]));
    EXPECT_EQ(Read<float>(one[2]), Read<float>(norm[2]));
    one = Results(CHOIR_OP_BATCH_NORM_RELU,
                  {x.get(), scale.get(), bias.get(), residual.get()}, &attrs_);
    EXPECT_EQ(Read<float>(one[0]), Read<float>(relu_of_sum));

    TensorPtr both = Result(CHOIR_OP_ADD, {dy.get(), dy2.get()});
    for (bool second : {false, true}) {
      choir_tensor_t* whole = second ? both.get() : dy.get();
      const auto grads = [&](const TensorPtr& y) {
        TensorPtr g = Result(CHOIR_OP_RELU_GRAD, {y.get(), whole});
        auto results = Results(
            CHOIR_OP_BATCH_NORM_GRAD,
            {x.get(), scale.get(), norm[1].get(), norm[2].get(), g.get()},
            &attrs_);
        results.push_back(std::move(g));
        return results;
      };
      std::vector<choir_tensor_t*> srcs = {x.get(),       scale.get(),
                                           bias.get(),    norm[1].get(),
                                           norm[2].get(), dy.get()};
      if (second) srcs.push_back(dy2.get());
      auto want = grads(relu);
      auto got = Results(CHOIR_OP_BATCH_NORM_RELU_GRAD, srcs, &attrs_);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(Read<float>(got[i]), Read<float>(want[i])) << i;
      srcs = {x.get(),       scale.get(),       norm[1].get(),
              norm[2].get(), relu_of_sum.get(), dy.get()};
      if (second) srcs.push_back(dy2.get());
      want = grads(relu_of_sum);
      got = Results(CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD, srcs, &attrs_);
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(Read<float>(got[i]), Read<float>(want[i])) << i;
    }
  }
}

}  // namespace
