// SPDX-License-Identifier: Apache-2.0
// What the moving ops make of numbers, and what they refuse; sharing and
// copying is tested with dispatch.
#include <gtest/gtest.h>

#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::StridesOf;
using choir::testing::TensorPtr;

class ViewOpsTest : public ::testing::Test {
 protected:
  choir_status_t FailedReshape(const Shape& shape) {
    choir_reshape_attrs_t attrs = {};
    attrs.ndim = static_cast<int64_t>(shape.size());
    for (size_t k = 0; k < shape.size(); ++k) attrs.shape[k] = shape[k];
    return Failure(CHOIR_OP_RESHAPE, {x_.get()}, &attrs);
  }
  DevicePtr device_ = MakeDevice("cpu");
  TensorPtr x_ = Make<float>(device_.get(), {2, 3}, {0, 1, 2, 3, 4, 5});
};

TEST_F(ViewOpsTest, ReshapeRefusals) {
  EXPECT_STATUS(INVALID_ARGUMENT, "reshape: x is f32 (2, 3), asked for ",
                FailedReshape({4}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "needs as many elements (6), at most one size "
                "-1",
                FailedReshape({-1, -1}));
  EXPECT_STATUS(INVALID_ARGUMENT, "reshape: x is", FailedReshape({4, -1}));
  EXPECT_STATUS(INVALID_ARGUMENT, "reshape: x is", FailedReshape({0, -1}));
  EXPECT_STATUS(INVALID_ARGUMENT, "reshape: x is",
                FailedReshape({INT64_MAX, INT64_MAX, 3}));
  EXPECT_STATUS(INVALID_ARGUMENT, "reshape: shape", FailedReshape({-2, 3}));
}

TEST_F(ViewOpsTest, FlattenBehindTheLastAxis) {
  choir_flatten_attrs_t attrs = {2};
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_FLATTEN, {x_.get()}, &attrs).get()),
            (Shape{2, 3, 1}));
  attrs.axis = 3;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "flatten: axis is 3, x is f32 (2, 3); needs an axis up to its "
                "dimensions",
                Failure(CHOIR_OP_FLATTEN, {x_.get()}, &attrs));
}

TEST_F(ViewOpsTest, TransposeByAxes) {
  TensorPtr x = Make<float>(device_.get(), {2, 1, 3}, {0, 1, 2, 3, 4, 5});
  auto attrs = Attrs<choir_transpose_attrs_t>(CHOIR_OP_TRANSPOSE);
  attrs.axes[0] = 2;
  attrs.axes[1] = 0;
  attrs.axes[2] = 1;
  TensorPtr y = Result(CHOIR_OP_TRANSPOSE, {x.get()}, &attrs);
  EXPECT_EQ(ShapeOf(y.get()), (Shape{3, 2, 1}));
  EXPECT_EQ(Read<float>(y), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  attrs.axes[1] = 2;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "transpose: ", Failure(CHOIR_OP_TRANSPOSE, {x.get()}, &attrs));
  // Some -1 but not all is a mistake.
  attrs.axes[1] = -1;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "transpose: ", Failure(CHOIR_OP_TRANSPOSE, {x.get()}, &attrs));
}

TEST_F(ViewOpsTest, SliceOfNothing) {
  TensorPtr none = Make<float>(device_.get(), {2, 0, 3}, {});
  auto attrs = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
  attrs.axis = 2;
  attrs.start = 1;
  TensorPtr part = Result(CHOIR_OP_SLICE, {none.get()}, &attrs);
  EXPECT_EQ(ShapeOf(part.get()), (Shape{2, 0, 2}));
}

TEST_F(ViewOpsTest, SliceToTheEndAndPastIt) {
  auto attrs = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
  attrs.axis = 1;
  attrs.start = 1;
  attrs.stop = 100;
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SLICE, {x_.get()}, &attrs)),
            (std::vector<float>{1, 2, 4, 5}));
  attrs.start = 0;
  attrs.step = 2;
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SLICE, {x_.get()}, &attrs)),
            (std::vector<float>{0, 2, 3, 5}));
  attrs.start = 4;
  EXPECT_STATUS(OUT_OF_RANGE,
                "slice: ", Failure(CHOIR_OP_SLICE, {x_.get()}, &attrs));
  attrs.axis = 2;
  EXPECT_STATUS(OUT_OF_RANGE,
                "slice: ", Failure(CHOIR_OP_SLICE, {x_.get()}, &attrs));
  attrs.axis = 0;
  attrs.start = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "slice: start",
                Failure(CHOIR_OP_SLICE, {x_.get()}, &attrs));
}

TEST_F(ViewOpsTest, BroadcastRefusals) {
  choir_broadcast_to_attrs_t attrs = {};
  attrs.ndim = 2;
  attrs.shape[0] = 2;
  attrs.shape[1] = 4;
  EXPECT_STATUS(INVALID_ARGUMENT, "broadcast_to: ",
                Failure(CHOIR_OP_BROADCAST_TO, {x_.get()}, &attrs));
  attrs.ndim = 1;
  EXPECT_STATUS(INVALID_ARGUMENT, "broadcast_to: ",
                Failure(CHOIR_OP_BROADCAST_TO, {x_.get()}, &attrs));
}

TEST_F(ViewOpsTest, ConcatAlongEachAxis) {
  TensorPtr y = Make<float>(device_.get(), {1, 3}, {6, 7, 8});
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_CONCAT, {x_.get(), y.get(), x_.get()})),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5}));
  choir_concat_attrs_t columns = {1};
  TensorPtr z = Make<float>(device_.get(), {2, 1}, {10, 20});
  TensorPtr joined = Result(CHOIR_OP_CONCAT, {z.get(), x_.get()}, &columns);
  EXPECT_EQ(ShapeOf(joined.get()), (Shape{2, 4}));
  EXPECT_EQ(Read<float>(joined),
            (std::vector<float>{10, 0, 1, 2, 20, 3, 4, 5}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "concat: source 1 is f32 (1, 3), source 0 is f32 (2, 3); needs "
                "equal sizes except along axis 1",
                Failure(CHOIR_OP_CONCAT, {x_.get(), y.get()}, &columns));
  columns.axis = 2;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "concat: axis is 2, source 0 is f32 (2, 3); needs an axis "
                "below its dimensions",
                Failure(CHOIR_OP_CONCAT, {x_.get(), y.get()}, &columns));
}

TEST_F(ViewOpsTest, ConcatKeepsChannelsLast) {
  TensorPtr a =
      MakeChannelsLast<float>(device_.get(), {1, 2, 1, 2}, {0, 1, 2, 3});
  TensorPtr b = MakeChannelsLast<float>(device_.get(), {1, 1, 1, 2}, {4, 5});
  choir_concat_attrs_t channels = {1};
  TensorPtr joined = Result(CHOIR_OP_CONCAT, {a.get(), b.get()}, &channels);
  EXPECT_EQ(Read<float>(joined), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(StridesOf(joined.get())[1], 1);
}

}  // namespace
