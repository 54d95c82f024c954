// SPDX-License-Identifier: Apache-2.0
// Random ops and dropout: which number goes where, whatever the batch, the
// layout and the device.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/random.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::TensorPtr;

class RandomOps : public ::testing::TestWithParam<const char*> {
 protected:
  TensorPtr Zeros(const Shape& shape) {
    return Make(device_.get(), shape,
                std::vector<float>(static_cast<size_t>(Count(shape)), 0));
  }
  DevicePtr device_ = MakeDevice(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Devices, RandomOps, ::testing::Values("cpu", "null"),
                         [](const auto& info) { return info.param; });

choir_random_attrs_t RandomAttrs() {
  choir_random_attrs_t attrs = {};
  attrs.seed = 42;
  attrs.stream = 3;
  attrs.step = 7;
  attrs.first_sample = 1000;
  attrs.low = -0.25;
  attrs.high = 0.75;
  return attrs;
}

TEST_P(RandomOps, DrawByTheirKeyAndPlace) {
  const choir_random_attrs_t attrs = RandomAttrs();
  const choir_random_key_t key = {42, 3, 7};
  TensorPtr x = Zeros({5, 3, 7});
  std::vector<float> uniform =
      Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs));
  std::vector<float> normal =
      Read<float>(Result(CHOIR_OP_RANDOM_NORMAL, {x.get()}, &attrs));
  for (uint64_t sample = 0; sample < 5; ++sample) {
    for (uint64_t element = 0; element < 21; ++element) {
      uint32_t word = choir_random_word(key, 1000 + sample, element);
      size_t at = sample * 21 + element;
      EXPECT_EQ(uniform[at],
                std::fmaf(1, choir_random_to_uniform(word), -0.25f));
      EXPECT_EQ(normal[at],
                std::fmaf(0.75f, choir_random_to_normal(word), -0.25f));
    }
  }
}

TEST_P(RandomOps, WholeTensorIsOneSample) {
  choir_random_attrs_t attrs = RandomAttrs();
  attrs.whole_tensor = true;
  attrs.low = 0;
  attrs.high = 1;
  TensorPtr x = Zeros({6, 5});
  std::vector<float> got =
      Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs));
  for (uint64_t i = 0; i < 30; ++i)
    EXPECT_EQ(got[i],
              choir_random_to_uniform(choir_random_word({42, 3, 7}, 1000, i)));
  // In f64 it is the same number, not rounded again.
  TensorPtr wide = Make<double>(device_.get(), {6, 5}, std::vector<double>(30));
  attrs.low = 1.0 / 3;
  attrs.high = 4.0 / 3;
  std::vector<double> doubles =
      Read<double>(Result(CHOIR_OP_RANDOM_UNIFORM, {wide.get()}, &attrs));
  for (size_t i = 0; i < 30; ++i)
    EXPECT_EQ(doubles[i], std::fma(4.0 / 3 - 1.0 / 3, got[i], 1.0 / 3));
}

// Two batches of 3 draw what one batch of 6 draws; so do all layouts.
TEST_P(RandomOps, IndependentOfBatchAndLayout) {
  std::vector<float> values(6 * 2 * 3 * 4, 1);
  auto dropout = Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
  dropout.ratio = 0.4;
  dropout.seed = 9;
  choir_random_attrs_t random = RandomAttrs();
  random.first_sample = 0;
  TensorPtr all = Make(device_.get(), {6, 2, 3, 4}, values);
  TensorPtr last = MakeChannelsLast(device_.get(), {6, 2, 3, 4}, values);
  TensorPtr half =
      Make(device_.get(), {3, 2, 3, 4}, std::vector<float>(3 * 24, 1));
  for (choir_op_t op :
       {CHOIR_OP_DROPOUT, CHOIR_OP_RANDOM_UNIFORM, CHOIR_OP_RANDOM_NORMAL}) {
    const void* attrs = op == CHOIR_OP_DROPOUT
                            ? static_cast<const void*>(&dropout)
                            : static_cast<const void*>(&random);
    std::vector<float> whole = Read<float>(Result(op, {all.get()}, attrs));
    EXPECT_EQ(Read<float>(Result(op, {last.get()}, attrs)), whole);
    dropout.first_sample = 0;
    random.first_sample = 0;
    std::vector<float> halves = Read<float>(Result(op, {half.get()}, attrs));
    dropout.first_sample = 3;
    random.first_sample = 3;
    std::vector<float> second = Read<float>(Result(op, {half.get()}, attrs));
    dropout.first_sample = 0;
    random.first_sample = 0;
    halves.insert(halves.end(), second.begin(), second.end());
    EXPECT_EQ(halves, whole) << choir_op_name(op);
  }
}

TEST_P(RandomOps, EveryPartOfTheKeyCounts) {
  TensorPtr x = Zeros({64});
  choir_random_attrs_t attrs = RandomAttrs();
  std::vector<float> first =
      Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs));
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs)),
            first);
  for (int64_t choir_random_attrs_t::*part :
       {&choir_random_attrs_t::seed, &choir_random_attrs_t::stream,
        &choir_random_attrs_t::step}) {
    choir_random_attrs_t other = attrs;
    other.*part += 1;
    EXPECT_NE(Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &other)),
              first);
  }
}

TEST_P(RandomOps, Distributions) {
  choir_random_attrs_t attrs = RandomAttrs();
  TensorPtr x = Zeros({100, 400});
  double sum = 0, squares = 0, smallest = 1, largest = -1;
  for (float value :
       Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs))) {
    sum += value;
    smallest = std::min<double>(smallest, value);
    largest = std::max<double>(largest, value);
  }
  EXPECT_NEAR(sum / 40000, 0.25, 0.01);
  EXPECT_NEAR(smallest, -0.25, 1e-3);
  EXPECT_NEAR(largest, 0.75, 1e-3);
  EXPECT_GE(smallest, -0.25);
  EXPECT_LE(largest, 0.75);
  sum = 0;
  for (float value :
       Read<float>(Result(CHOIR_OP_RANDOM_NORMAL, {x.get()}, &attrs))) {
    sum += value;
    squares += (value + 0.25) * (value + 0.25);
  }
  EXPECT_NEAR(sum / 40000, -0.25, 0.02);
  EXPECT_NEAR(std::sqrt(squares / 40000), 0.75, 0.01);
}

TEST_P(RandomOps, DropoutKeepsByItsWordAndScales) {
  auto attrs = Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
  attrs.ratio = 0.3;
  attrs.seed = -5;
  attrs.stream = 2;
  attrs.step = 11;
  attrs.first_sample = 50;
  std::vector<float> values = Floats(40 * 50, 1);
  TensorPtr x = Make(device_.get(), {40, 50}, values);
  std::vector<float> got =
      Read<float>(Result(CHOIR_OP_DROPOUT, {x.get()}, &attrs));
  const choir_random_key_t key = {static_cast<uint64_t>(-5), 2, 11};
  int dropped = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    double u =
        choir_random_to_uniform(choir_random_word(key, 50 + i / 50, i % 50));
    dropped += u < 0.3;
    EXPECT_EQ(got[i],
              u < 0.3 ? 0 : values[i] * static_cast<float>(1 / (1 - 0.3)));
  }
  EXPECT_NEAR(dropped / 2000.0, 0.3, 0.03);
  // A ratio of 0 keeps all.
  attrs.ratio = 0;
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_DROPOUT, {x.get()}, &attrs)), values);
  attrs.ratio = 1;
  EXPECT_STATUS(INVALID_ARGUMENT, "dropout: ratio is 1; needs to be below 1",
                Failure(CHOIR_OP_DROPOUT, {x.get()}, &attrs));
}

// The same elements are dropped, and the others are those of f32 rounded.
TEST_P(RandomOps, DropoutOf16BitsIsThatOfF32Rounded) {
  auto attrs = Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
  attrs.ratio = 0.2;
  attrs.seed = 3;
  const choir_cast_attrs_t wide = {CHOIR_DTYPE_F32};
  for (const Shape& shape : {Shape{3, 9001}, Shape{40, 7}, Shape{1}}) {
    TensorPtr x = Make(device_.get(), shape, Floats(Count(shape), 2));
    for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
      const choir_cast_attrs_t narrow = {dtype};
      TensorPtr x16 = Result(CHOIR_OP_CAST, {x.get()}, &narrow);
      TensorPtr x32 = Result(CHOIR_OP_CAST, {x16.get()}, &wide);
      TensorPtr want = Result(CHOIR_OP_DROPOUT, {x32.get()}, &attrs);
      TensorPtr rounded = Result(CHOIR_OP_CAST, {want.get()}, &narrow);
      TensorPtr got = Result(CHOIR_OP_DROPOUT, {x16.get()}, &attrs);
      EXPECT_EQ(choir_tensor_dtype(got.get()), dtype);
      EXPECT_EQ(Read<float>(Result(CHOIR_OP_CAST, {got.get()}, &wide)),
                Read<float>(Result(CHOIR_OP_CAST, {rounded.get()}, &wide)));
    }
  }
}

TEST_P(RandomOps, ScalarsAreOneSample) {
  TensorPtr x = Zeros({});
  choir_random_attrs_t attrs = RandomAttrs();
  attrs.low = 0;
  attrs.high = 1;
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_RANDOM_UNIFORM, {x.get()}, &attrs))[0],
            choir_random_to_uniform(choir_random_word({42, 3, 7}, 1000, 0)));
}

}  // namespace
