// SPDX-License-Identifier: Apache-2.0
// Ops that choose and place elements, against answers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

class IndexingOps : public ::testing::Test {
 protected:
  TensorPtr Floats(const Shape& shape, const std::vector<float>& values) {
    return Make<float>(device_.get(), shape, values);
  }
  TensorPtr Indices(const Shape& shape, const std::vector<int64_t>& values) {
    return Make<int64_t>(device_.get(), shape, values);
  }
  // 0, 1, 2, ...
  TensorPtr Counting(const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(Count(shape)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i);
    return Floats(shape, values);
  }
  void Expect(const TensorPtr& got, const Shape& shape,
              const std::vector<float>& values) {
    EXPECT_EQ(ShapeOf(got.get()), shape);
    EXPECT_EQ(Read<float>(got), values);
  }

  DevicePtr device_ = MakeDevice("cpu");
};

TEST_F(IndexingOps, WhereBroadcastsAllThree) {
  TensorPtr condition = Make<uint8_t>(device_.get(), {2, 1}, {0, 7});
  TensorPtr x = Floats({3}, {1, 2, 3});
  TensorPtr y = Floats({}, {-1});
  Expect(Result(CHOIR_OP_WHERE, {condition.get(), x.get(), y.get()}), {2, 3},
         {-1, -1, -1, 1, 2, 3});
  TensorPtr real = Floats({2, 1}, {NAN, -0.0f});
  Expect(Result(CHOIR_OP_WHERE, {real.get(), x.get(), y.get()}), {2, 3},
         {1, 2, 3, -1, -1, -1});
  // Bits stay, also those that no double holds.
  const int64_t large = (int64_t{1} << 53) + 1;
  TensorPtr wide = Indices({1}, {large});
  EXPECT_EQ(Read<int64_t>(Result(CHOIR_OP_WHERE,
                                 {condition.get(), wide.get(), wide.get()})),
            (std::vector<int64_t>{large, large}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "where: source 2 is i64; needs f32",
      Failure(CHOIR_OP_WHERE, {condition.get(), x.get(), wide.get()}));
}

TEST_F(IndexingOps, Gather) {
  TensorPtr x = Counting({3, 4});
  TensorPtr rows = Indices({2}, {2, 0});
  Expect(Result(CHOIR_OP_GATHER, {x.get(), rows.get()}), {2, 4},
         {8, 9, 10, 11, 0, 1, 2, 3});
  choir_gather_attrs_t columns = {1};
  TensorPtr table = Indices({2, 2}, {-1, 0, 1, 1});
  Expect(Result(CHOIR_OP_GATHER, {x.get(), table.get()}, &columns), {3, 2, 2},
         {3, 0, 1, 1, 7, 4, 5, 5, 11, 8, 9, 9});
  TensorPtr one = Make<int32_t>(device_.get(), {}, {-3});
  Expect(Result(CHOIR_OP_GATHER, {x.get(), one.get()}), {4}, {0, 1, 2, 3});
}

TEST_F(IndexingOps, GatherGradAddsWhatWasTakenTwice) {
  TensorPtr x = Counting({3, 2});
  TensorPtr rows = Indices({3}, {2, 0, -1});
  TensorPtr dy = Floats({3, 2}, {1, 2, 10, 20, 100, 200});
  Expect(Result(CHOIR_OP_GATHER_GRAD, {x.get(), rows.get(), dy.get()}), {3, 2},
         {10, 20, 0, 0, 101, 202});
}

TEST_F(IndexingOps, IndicesOutside) {
  TensorPtr x = Counting({3, 4});
  TensorPtr high = Indices({2, 2}, {0, 1, 3, 2});
  EXPECT_STATUS(OUT_OF_RANGE,
                "gather: index 3 at element 2 of source 1; needs -3 .. 2",
                Failure(CHOIR_OP_GATHER, {x.get(), high.get()}));
  TensorPtr low = Indices({1, 4}, {0, 1, -4, 2});
  EXPECT_STATUS(
      OUT_OF_RANGE,
      "gather_elements: index -4 at element 2 of source 1; needs -3 .. 2",
      Failure(CHOIR_OP_GATHER_ELEMENTS, {x.get(), low.get()}));
  TensorPtr row = Counting({1, 4});
  EXPECT_STATUS(
      OUT_OF_RANGE, "scatter_elements: index -4 at element 2",
      Failure(CHOIR_OP_SCATTER_ELEMENTS, {x.get(), low.get(), row.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "scatter_elements: updates is f32 (3, 4); needs the shape of indices",
      Failure(CHOIR_OP_SCATTER_ELEMENTS, {x.get(), low.get(), x.get()}));
}

TEST_F(IndexingOps, GatherElements) {
  TensorPtr x = Floats({2, 2}, {1, 2, 3, 4});
  TensorPtr indices = Indices({2, 2}, {0, 0, 1, 0});
  choir_gather_elements_attrs_t along = {1};
  Expect(Result(CHOIR_OP_GATHER_ELEMENTS, {x.get(), indices.get()}, &along),
         {2, 2}, {1, 1, 4, 3});
  TensorPtr square = Counting({3, 3});
  TensorPtr rows = Indices({2, 3}, {1, 2, 0, 2, 0, 0});
  Expect(Result(CHOIR_OP_GATHER_ELEMENTS, {square.get(), rows.get()}), {2, 3},
         {3, 7, 2, 6, 1, 2});
  TensorPtr dy = Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  Expect(Result(CHOIR_OP_GATHER_ELEMENTS_GRAD,
                {square.get(), rows.get(), dy.get()}),
         {3, 3}, {0, 5, 9, 1, 0, 0, 4, 2, 0});
}

TEST_F(IndexingOps, ScatterElementsKeepsTheLast) {
  TensorPtr x = Counting({3, 3});
  TensorPtr rows = Indices({2, 3}, {1, 0, 2, 0, 0, 1});
  TensorPtr updates = Floats({2, 3}, {10, 20, 30, 40, 50, 60});
  Expect(
      Result(CHOIR_OP_SCATTER_ELEMENTS, {x.get(), rows.get(), updates.get()}),
      {3, 3}, {40, 50, 2, 10, 4, 60, 6, 7, 30});
  // 20 went where 50 came later.
  TensorPtr dy = Floats({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Expect(Result(CHOIR_OP_SCATTER_ELEMENTS_GRAD, {dy.get(), rows.get()}), {2, 3},
         {4, 0, 9, 1, 2, 6});
}

TEST_F(IndexingOps, OneHot) {
  TensorPtr indices = Indices({3}, {2, 0, -1});
  auto attrs = Attrs<choir_one_hot_attrs_t>(CHOIR_OP_ONE_HOT);
  attrs.depth = 3;
  Expect(Result(CHOIR_OP_ONE_HOT, {indices.get()}, &attrs), {3, 3},
         {0, 0, 1, 1, 0, 0, 0, 0, 1});
  attrs.axis = 0;
  attrs.dtype = CHOIR_DTYPE_I32;
  attrs.on = 5;
  attrs.off = -2;
  TensorPtr first = Indices({2, 2}, {1, 0, 2, 1});
  TensorPtr result = Result(CHOIR_OP_ONE_HOT, {first.get()}, &attrs);
  EXPECT_EQ(ShapeOf(result.get()), (Shape{3, 2, 2}));
  EXPECT_EQ(Read<int32_t>(result),
            (std::vector<int32_t>{-2, 5, -2, -2, 5, -2, -2, 5, -2, -2, 5, -2}));
  attrs.axis = 3;
  EXPECT_STATUS(INVALID_ARGUMENT, "one_hot: axis is 3",
                Failure(CHOIR_OP_ONE_HOT, {first.get()}, &attrs));
  attrs.axis = -1;
  attrs.depth = 2;
  EXPECT_STATUS(OUT_OF_RANGE,
                "one_hot: index 2 at element 2 of source 0; "
                "needs -2 .. 1",
                Failure(CHOIR_OP_ONE_HOT, {first.get()}, &attrs));
}

}  // namespace
