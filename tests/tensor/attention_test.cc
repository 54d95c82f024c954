// SPDX-License-Identifier: Apache-2.0
// Attention against the ops that it stands for, with the random numbers of
// dropout; its memory; what it refuses. All else: tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::RunOp;
using choir::testing::Shape;
using choir::testing::TensorPtr;

class Attention : public ::testing::Test {
 protected:
  TensorPtr Input(const Shape& shape, uint32_t seed) {
    return Make(device_.get(), shape,
                Floats(choir::testing::Count(shape), seed));
  }
  // softmax(scale q k^T) v by ops, causal, with dropout.
  std::vector<float> ByParts(choir_tensor_t* q, choir_tensor_t* k,
                             choir_tensor_t* v,
                             const choir_attention_attrs_t& attrs) {
    const int64_t t = choir_tensor_shape(q)[2], s = choir_tensor_shape(k)[2];
    std::vector<uint8_t> seen;
    for (int64_t i = 0; i < t; ++i)
      for (int64_t j = 0; j < s; ++j) seen.push_back(j <= i + attrs.offset);
    auto times = Attrs<choir_matmul_attrs_t>(CHOIR_OP_MATMUL);
    times.transpose_b = true;
    auto scale = Attrs<choir_scale_attrs_t>(CHOIR_OP_SCALE);
    scale.factor = attrs.scale;
    auto dropout = Attrs<choir_dropout_attrs_t>(CHOIR_OP_DROPOUT);
    dropout.ratio = attrs.dropout;
    dropout.seed = attrs.seed;
    dropout.stream = attrs.stream;
    dropout.step = attrs.step;
    dropout.first_sample = attrs.first_sample;
    TensorPtr products = Result(CHOIR_OP_MATMUL, {q, k}, &times);
    products = Result(CHOIR_OP_SCALE, {products.get()}, &scale);
    TensorPtr mask = Make(device_.get(), {t, s}, seen);
    TensorPtr none = Make<float>(device_.get(), {1}, {-INFINITY});
    products = Result(CHOIR_OP_WHERE, {mask.get(), products.get(), none.get()});
    TensorPtr weights = Result(CHOIR_OP_SOFTMAX, {products.get()});
    weights = Result(CHOIR_OP_DROPOUT, {weights.get()}, &dropout);
    return Read<float>(Result(CHOIR_OP_MATMUL, {weights.get(), v}));
  }
  choir_status_t Try(const std::vector<Shape>& shapes,
                     const choir_attention_attrs_t& attrs) {
    std::vector<TensorPtr> inputs, results;
    std::vector<choir_tensor_t*> srcs;
    for (const Shape& shape : shapes) {
      inputs.push_back(Input(shape, 1));
      srcs.push_back(inputs.back().get());
    }
    return RunOp(CHOIR_OP_ATTENTION, srcs, &attrs, &results);
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(Attention, DropsTheWeightsThatDropoutDrops) {
  TensorPtr q = Input({2, 3, 70, 8}, 1);
  TensorPtr k = Input({2, 3, 135, 8}, 2);
  TensorPtr v = Input({2, 3, 135, 5}, 3);
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  attrs.scale = 1.5;
  attrs.causal = true;
  attrs.offset = 65;
  for (double dropout : {0.0, 0.3}) {
    attrs.dropout = dropout;
    attrs.seed = 5;
    attrs.stream = 7;
    attrs.step = 11;
    attrs.first_sample = 1000;
    std::vector<TensorPtr> results;
    ASSERT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &attrs,
                    &results));
    const std::vector<float> want = ByParts(q.get(), k.get(), v.get(), attrs);
    ExpectNear(Read<float>(results[0]),
               std::vector<double>(want.begin(), want.end()), 1e-5);
  }
}

// All weights of a head would be 16 MiB.
TEST_F(Attention, MemoryGrowsWithRowsNotWithTheirSquare) {
  const Shape shape = {1, 1, 2048, 16};
  TensorPtr q = Input(shape, 1), k = Input(shape, 2), v = Input(shape, 3);
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  std::vector<TensorPtr> y, grads;
  ASSERT_OK(RunOp(CHOIR_OP_ATTENTION, {q.get(), k.get(), v.get()}, &attrs, &y));
  ASSERT_OK(RunOp(CHOIR_OP_ATTENTION_GRAD,
                  {q.get(), k.get(), v.get(), y[0].get(), y[1].get(), q.get()},
                  &attrs, &grads));
  EXPECT_LT(choir_device_memory(device_.get()).peak_bytes, 8u << 20);
}

TEST_F(Attention, RefusesWhatDoesNotFit) {
  auto attrs = Attrs<choir_attention_attrs_t>(CHOIR_OP_ATTENTION);
  EXPECT_STATUS(INVALID_ARGUMENT, "h a multiple of g",
                Try({{2, 3, 4, 5}, {2, 3, 4, 6}, {2, 3, 4, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "h a multiple of g",
                Try({{2, 3, 4, 5}, {2, 2, 4, 5}, {2, 2, 4, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs v's first three sizes to be k's",
                Try({{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 6, 5}}, attrs));
  EXPECT_STATUS(INVALID_ARGUMENT, "q is f32 (3, 4, 5); needs 4 dimensions",
                Try({{3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}}, attrs));
  attrs.dropout = 1;
  EXPECT_STATUS(INVALID_ARGUMENT, "dropout is 1; needs to be below 1",
                Try({{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}}, attrs));
}

}  // namespace
