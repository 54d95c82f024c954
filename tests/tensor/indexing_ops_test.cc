// SPDX-License-Identifier: Apache-2.0
// Ops that choose, place and repeat elements, and binary cross entropy, against
// answers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::Count;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
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

TEST_F(IndexingOps, Pad) {
  auto attrs = Attrs<choir_pad_attrs_t>(CHOIR_OP_PAD);
  TensorPtr x = Floats({3}, {1, 2, 3});
  attrs.before[0] = 2;
  attrs.after[0] = 1;
  attrs.value = 9;
  Expect(Result(CHOIR_OP_PAD, {x.get()}, &attrs), {6}, {9, 9, 1, 2, 3, 9});
  attrs.mode = CHOIR_PAD_EDGE;
  Expect(Result(CHOIR_OP_PAD, {x.get()}, &attrs), {6}, {1, 1, 1, 2, 3, 3});
  attrs.mode = CHOIR_PAD_REFLECT;
  Expect(Result(CHOIR_OP_PAD, {x.get()}, &attrs), {6}, {3, 2, 1, 2, 3, 2});
  // Back and forth.
  attrs.before[0] = 5;
  Expect(Result(CHOIR_OP_PAD, {x.get()}, &attrs), {9},
         {2, 1, 2, 3, 2, 1, 2, 3, 2});
  TensorPtr dy = Floats({9}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Expect(Result(CHOIR_OP_PAD_GRAD, {x.get(), dy.get()}, &attrs), {3},
         {8, 25, 12});
  TensorPtr none = Floats({0}, {});
  EXPECT_STATUS(INVALID_ARGUMENT, "has no element; needs one to reflect",
                Failure(CHOIR_OP_PAD, {none.get()}, &attrs));
}

TEST_F(IndexingOps, PadCornersAndOtherDtypes) {
  auto attrs = Attrs<choir_pad_attrs_t>(CHOIR_OP_PAD);
  attrs.before[0] = 1;
  attrs.after[1] = 1;
  attrs.value = 300.5;
  TensorPtr bytes = Make<uint8_t>(device_.get(), {1, 2}, {1, 2});
  TensorPtr padded = Result(CHOIR_OP_PAD, {bytes.get()}, &attrs);
  EXPECT_EQ(ShapeOf(padded.get()), (Shape{2, 3}));
  EXPECT_EQ(Read<uint8_t>(padded),
            (std::vector<uint8_t>{255, 255, 255, 1, 2, 255}));
}

TEST_F(IndexingOps, TileAndRepeat) {
  TensorPtr x = Floats({2, 2}, {1, 2, 3, 4});
  auto tile = Attrs<choir_tile_attrs_t>(CHOIR_OP_TILE);
  tile.repeats[0] = 2;  // of the last dimension
  Expect(Result(CHOIR_OP_TILE, {x.get()}, &tile), {2, 4},
         {1, 2, 1, 2, 3, 4, 3, 4});
  tile.ndim = 3;
  tile.repeats[2] = 1;
  Expect(Result(CHOIR_OP_TILE, {x.get()}, &tile), {2, 2, 2},
         {1, 2, 3, 4, 1, 2, 3, 4});
  TensorPtr dy = Floats({2, 2, 2}, {1, 2, 3, 4, 10, 20, 30, 40});
  Expect(Result(CHOIR_OP_TILE_GRAD, {x.get(), dy.get()}, &tile), {2, 2},
         {11, 22, 33, 44});
  choir_repeat_attrs_t rows = {2, 0}, columns = {3, 1};
  Expect(Result(CHOIR_OP_REPEAT, {x.get()}, &rows), {4, 2},
         {1, 2, 1, 2, 3, 4, 3, 4});
  Expect(Result(CHOIR_OP_REPEAT, {x.get()}, &columns), {2, 6},
         {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
  TensorPtr wide = Counting({2, 6});
  Expect(Result(CHOIR_OP_REPEAT_GRAD, {x.get(), wide.get()}, &columns), {2, 2},
         {3, 12, 21, 30});
  columns.axis = 2;
  EXPECT_STATUS(INVALID_ARGUMENT, "repeat: axis is 2",
                Failure(CHOIR_OP_REPEAT, {x.get()}, &columns));
}

TEST_F(IndexingOps, TooLarge) {
  TensorPtr x = Counting({3, 4});
  choir_repeat_attrs_t often = {INT64_MAX, 1};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "repeat: ", Failure(CHOIR_OP_REPEAT, {x.get()}, &often));
  auto pad = Attrs<choir_pad_attrs_t>(CHOIR_OP_PAD);
  pad.before[0] = INT64_MAX;
  EXPECT_STATUS(INVALID_ARGUMENT, "pad: dimension 0",
                Failure(CHOIR_OP_PAD, {x.get()}, &pad));
  pad.before[0] = INT64_MAX / 2;
  pad.after[0] = INT64_MAX / 2;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "pad: ", Failure(CHOIR_OP_PAD, {x.get()}, &pad));
  TensorPtr deep = Indices({1, 1, 1, 1, 1, 1, 1, 1}, {0});
  EXPECT_STATUS(INVALID_ARGUMENT,
                "gather: ", Failure(CHOIR_OP_GATHER, {x.get(), deep.get()}));
}

TEST_F(IndexingOps, BinaryCrossEntropy) {
  TensorPtr p = Floats({2, 2}, {0.5f, 0.25f, 0, 1});
  TensorPtr t = Floats({2, 2}, {1, 0, 0, 1});
  // Only the first sample is in doubt.
  ExpectNear(
      Read<float>(Result(CHOIR_OP_BINARY_CROSS_ENTROPY, {p.get(), t.get()})),
      {(std::log(2.0) + std::log(4.0 / 3)) / 2}, 1e-6);
  TensorPtr dy = Floats({1}, {4});
  std::vector<TensorPtr> grads =
      Results(CHOIR_OP_BINARY_CROSS_ENTROPY_GRAD, {p.get(), t.get(), dy.get()});
  ExpectNear(Read<float>(grads[0]), {-4, 8.0 / 3, 2, -2}, 1e-6);
  // Sure and wrong.
  TensorPtr wrong = Floats({2, 2}, {0, 0, 0, 0});
  EXPECT_TRUE(std::isinf(Read<float>(
      Result(CHOIR_OP_BINARY_CROSS_ENTROPY, {wrong.get(), t.get()}))[0]));
}

}  // namespace
