// SPDX-License-Identifier: Apache-2.0
// choir_op_run: what it makes, where it writes, when it copies, what it
// refuses. What each op computes is tested elsewhere.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/record_list.h"
#include "core/stage.h"
#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeChannelsLast;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::StridesOf;
using choir::testing::TensorPtr;

class DispatchTest : public ::testing::Test {
 protected:
  void SetUp() override { choir_op_stats_reset(); }

  choir_status_t Into(choir_op_t op, const std::vector<choir_tensor_t*>& srcs,
                      const void* attrs, bool accumulate, choir_tensor_t* dst) {
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {dst};
    return choir_op_run(stream_, op, srcs.data(),
                        static_cast<int32_t>(srcs.size()), attrs, accumulate,
                        dsts);
  }

  // A tensor of `strides` over `room` elements of one value.
  TensorPtr MakeStrided(const Shape& shape, const Shape& strides,
                        int64_t offset, size_t room, float value) {
    TensorPtr all = Make(device_.get(), {static_cast<int64_t>(room)},
                         std::vector<float>(room, value));
    choir_view_t view;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32,
                              static_cast<int32_t>(shape.size()), shape.data(),
                              &view));
    for (size_t k = 0; k < strides.size(); ++k) view.strides[k] = strides[k];
    view.offset = offset;
    view.buffer = choir_tensor_view(all.get())->buffer;
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &tensor));
    return TensorPtr(tensor);
  }

  DevicePtr device_ = MakeDevice("cpu");
  choir_stream_t* stream_ = choir_device_stream(device_.get());
};

// ---- Destinations ----

TEST_F(DispatchTest, MakesResultsInTheLayoutOfTheSource) {
  TensorPtr rows = Make(device_.get(), {2, 3, 4, 5}, Floats(120, 1));
  EXPECT_EQ(StridesOf(Result(CHOIR_OP_RELU, {rows.get()}).get()),
            (Shape{60, 20, 5, 1}));
  TensorPtr last =
      MakeChannelsLast(device_.get(), {2, 3, 4, 5}, Floats(120, 1));
  EXPECT_EQ(StridesOf(Result(CHOIR_OP_RELU, {last.get()}).get()),
            (Shape{60, 1, 15, 3}));
  // A scalar beside it changes nothing.
  TensorPtr one = Make<float>(device_.get(), {}, {1});
  EXPECT_EQ(StridesOf(Result(CHOIR_OP_ADD, {one.get(), last.get()}).get()),
            (Shape{60, 1, 15, 3}));
}

TEST_F(DispatchTest, MakesImagesChannelsLast) {
  TensorPtr x = Make(device_.get(), {2, 3, 6, 6}, Floats(216, 1));
  TensorPtr w = Make(device_.get(), {4, 3, 3, 3}, Floats(108, 2));
  TensorPtr b = Make(device_.get(), {4}, Floats(4, 3));
  TensorPtr y = Result(CHOIR_OP_CONV2D, {x.get(), w.get(), b.get()});
  EXPECT_EQ(ShapeOf(y.get()), (Shape{2, 4, 4, 4}));
  EXPECT_EQ(StridesOf(y.get()), (Shape{64, 1, 16, 4}));
  std::vector<TensorPtr> pooled = Results(CHOIR_OP_MAX_POOL2D, {x.get()});
  EXPECT_EQ(StridesOf(pooled[0].get()), (Shape{27, 1, 9, 3}));
  EXPECT_EQ(StridesOf(pooled[1].get()), (Shape{27, 1, 9, 3}));
}

TEST_F(DispatchTest, WritesAndAddsWhereItIsTold) {
  TensorPtr x = Make<float>(device_.get(), {2, 2}, {1, -2, 3, -4});
  TensorPtr y = MakeStrided({2, 2}, {1, 3}, 2, 8, 10);
  ASSERT_OK(Into(CHOIR_OP_RELU, {x.get()}, nullptr, true, y.get()));
  EXPECT_EQ(Read<float>(y), (std::vector<float>{11, 10, 13, 10}));
  ASSERT_OK(Into(CHOIR_OP_RELU, {x.get()}, nullptr, false, y.get()));
  EXPECT_EQ(Read<float>(y), (std::vector<float>{1, 0, 3, 0}));
}

TEST_F(DispatchTest, GivesOneReferenceOnMadeResults) {
  uint64_t before = choir_device_memory(device_.get()).in_use_bytes;
  {
    TensorPtr x = Make(device_.get(), {1000}, Floats(1000, 1));
    TensorPtr y = Result(CHOIR_OP_RELU, {x.get()});
    x.reset();
    EXPECT_EQ(Read<float>(y).size(), 1000u);
  }
  EXPECT_EQ(choir_device_memory(device_.get()).in_use_bytes, before);
}

TEST_F(DispatchTest, NothingIsMadeWhenSomethingFails) {
  TensorPtr x = Make<float>(device_.get(), {2, 3}, Floats(6, 1));
  TensorPtr labels = Make<int64_t>(device_.get(), {2}, {0, 3});
  uint64_t before = choir_device_memory(device_.get()).in_use_bytes;
  EXPECT_STATUS(
      OUT_OF_RANGE, "softmax_cross_entropy: label 3 at row 1; needs 0 .. 2",
      Failure(CHOIR_OP_SOFTMAX_CROSS_ENTROPY, {x.get(), labels.get()}));
  EXPECT_EQ(choir_device_memory(device_.get()).in_use_bytes, before);
}

TEST_F(DispatchTest, EmptyResultsNeedNoRecord) {
  choir_count_stage_t count;
  choir_count_stage_init(&count);
  choir_stream_push_stage(stream_, &count.stage);
  TensorPtr none = Make<float>(device_.get(), {0, 3}, {});
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_RELU, {none.get()}).get()), (Shape{0, 3}));
  EXPECT_EQ(count.records, 0u);
  // The sum of nothing is something.
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_SUM, {none.get()})),
            (std::vector<float>{0}));
  EXPECT_EQ(count.records, 1u);
  choir_stream_pop_stage(stream_, &count.stage);
}

// ---- In place ----

TEST_F(DispatchTest, ElementwiseInPlace) {
  TensorPtr x = Make<float>(device_.get(), {3}, {-1, 2, -3});
  ASSERT_OK(Into(CHOIR_OP_RELU, {x.get()}, nullptr, false, x.get()));
  EXPECT_EQ(Read<float>(x), (std::vector<float>{0, 2, 0}));
  TensorPtr y = Make<float>(device_.get(), {3}, {1, 1, 1});
  ASSERT_OK(Into(CHOIR_OP_ADD, {y.get(), x.get()}, nullptr, false, x.get()));
  EXPECT_EQ(Read<float>(x), (std::vector<float>{1, 3, 1}));
}

TEST_F(DispatchTest, RefusesOverlaps) {
  TensorPtr all = Make<float>(device_.get(), {6}, {0, 1, 2, 3, 4, 5});
  choir_view_t view = *choir_tensor_view(all.get());
  view.shape[0] = 4;
  choir_tensor_t* raw = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  TensorPtr first(raw);
  view.offset = 2;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  TensorPtr last(raw);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "relu: destination 0 shares memory with source 0; needs the "
                "same elements in the same layout, or others",
                Into(CHOIR_OP_RELU, {first.get()}, nullptr, false, last.get()));
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "matmul: destination 0 shares memory with source 0; needs memory of its "
      "own",
      [&] {
        TensorPtr square = Make<float>(device_.get(), {2, 2}, {1, 2, 3, 4});
        return Into(CHOIR_OP_MATMUL, {square.get(), square.get()}, nullptr,
                    false, square.get());
      }());
  // Broadcast over itself: the same memory, but not the same elements.
  TensorPtr row = MakeStrided({1, 2}, {2, 1}, 0, 4, 1);
  choir_view_t matrix_view = *choir_tensor_view(row.get());
  matrix_view.shape[0] = 2;
  ASSERT_OK(choir_tensor_from_view(&matrix_view, &raw));
  TensorPtr matrix(raw);
  EXPECT_STATUS(INVALID_ARGUMENT, "shares memory with source 1",
                Into(CHOIR_OP_ADD, {matrix.get(), row.get()}, nullptr, false,
                     matrix.get()));
}

// Halves of one buffer, element by element side by side, do not meet.
TEST_F(DispatchTest, AllowsInterleavedOperands) {
  TensorPtr even = MakeStrided({4}, {2}, 0, 8, 3);
  choir_view_t view = *choir_tensor_view(even.get());
  view.offset = 1;
  choir_tensor_t* raw = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &raw));
  TensorPtr odd(raw);
  ASSERT_OK(Into(CHOIR_OP_NEG, {even.get()}, nullptr, false, odd.get()));
  EXPECT_EQ(Read<float>(odd), (std::vector<float>{-3, -3, -3, -3}));
  EXPECT_EQ(Read<float>(even), (std::vector<float>{3, 3, 3, 3}));
}

TEST_F(DispatchTest, OptimizerStepsReturnTheirSources) {
  TensorPtr p = Make<float>(device_.get(), {2}, {1, 2});
  TensorPtr g = Make<float>(device_.get(), {2}, {1, 1});
  TensorPtr v = Make<float>(device_.get(), {2}, {0, 0});
  auto attrs = Attrs<choir_sgd_update_attrs_t>(CHOIR_OP_SGD_UPDATE);
  attrs.lr = 0.5;
  std::vector<TensorPtr> made =
      Results(CHOIR_OP_SGD_UPDATE, {p.get(), g.get(), v.get()}, &attrs);
  EXPECT_EQ(made[0].get(), p.get());
  EXPECT_EQ(made[1].get(), v.get());
  EXPECT_EQ(Read<float>(p), (std::vector<float>{0.5, 1.5}));
  // Given, they must be the sources.
  choir_tensor_t* srcs[] = {p.get(), g.get(), v.get()};
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {p.get(), v.get()};
  ASSERT_OK(
      choir_op_run(stream_, CHOIR_OP_SGD_UPDATE, srcs, 3, &attrs, false, dsts));
  EXPECT_EQ(Read<float>(p), (std::vector<float>{0, 1}));
  TensorPtr other = Make<float>(device_.get(), {2}, {0, 0});
  dsts[0] = other.get();
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "sgd_update: destination 0 is another tensor; needs source 0",
      choir_op_run(stream_, CHOIR_OP_SGD_UPDATE, srcs, 3, &attrs, false, dsts));
  // p as its own gradient would be read after it was written.
  srcs[1] = p.get();
  dsts[0] = nullptr;
  dsts[1] = nullptr;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "sgd_update: destination 0 shares memory with source 1",
      choir_op_run(stream_, CHOIR_OP_SGD_UPDATE, srcs, 3, &attrs, false, dsts));
  EXPECT_EQ(dsts[0], nullptr);
  EXPECT_EQ(dsts[1], nullptr);
}

// ---- View ops ----

class ViewOps : public DispatchTest {
 protected:
  bool SharesBuffer(const TensorPtr& a, const TensorPtr& b) {
    return choir_tensor_view(a.get())->buffer ==
           choir_tensor_view(b.get())->buffer;
  }
  choir_reshape_attrs_t To(const Shape& shape) {
    choir_reshape_attrs_t attrs = {};
    attrs.ndim = static_cast<int64_t>(shape.size());
    for (size_t k = 0; k < shape.size(); ++k) attrs.shape[k] = shape[k];
    return attrs;
  }
  TensorPtr x_ = Make<float>(device_.get(), {2, 3}, {0, 1, 2, 3, 4, 5});
};

TEST_F(ViewOps, AreViewsWhenStridesCanTell) {
  choir_reshape_attrs_t shape = To({3, -1});
  TensorPtr reshaped = Result(CHOIR_OP_RESHAPE, {x_.get()}, &shape);
  EXPECT_TRUE(SharesBuffer(x_, reshaped));
  EXPECT_EQ(ShapeOf(reshaped.get()), (Shape{3, 2}));
  TensorPtr turned = Result(CHOIR_OP_TRANSPOSE, {x_.get()});
  EXPECT_TRUE(SharesBuffer(x_, turned));
  EXPECT_EQ(Read<float>(turned), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  auto cut = Attrs<choir_slice_attrs_t>(CHOIR_OP_SLICE);
  cut.axis = 1;
  cut.start = 1;
  TensorPtr slice = Result(CHOIR_OP_SLICE, {x_.get()}, &cut);
  EXPECT_TRUE(SharesBuffer(x_, slice));
  EXPECT_EQ(Read<float>(slice), (std::vector<float>{1, 2, 4, 5}));
  choir_reshape_attrs_t large = To({2, 2, 3});
  TensorPtr repeated = Result(CHOIR_OP_BROADCAST_TO, {x_.get()}, &large);
  EXPECT_TRUE(SharesBuffer(x_, repeated));
  EXPECT_EQ(Read<float>(repeated),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  auto flat = Attrs<choir_flatten_attrs_t>(CHOIR_OP_FLATTEN);
  flat.axis = 0;
  EXPECT_EQ(ShapeOf(Result(CHOIR_OP_FLATTEN, {x_.get()}, &flat).get()),
            (Shape{6}));
  choir_op_stats_t stats = choir_op_stats();
  EXPECT_EQ(stats.reorders, 0u);
  EXPECT_EQ(stats.reference_runs, 0u);
}

TEST_F(ViewOps, CopyAndCountWhenTheyCannot) {
  TensorPtr turned = Result(CHOIR_OP_TRANSPOSE, {x_.get()});
  choir_reshape_attrs_t shape = To({6});
  TensorPtr flat = Result(CHOIR_OP_RESHAPE, {turned.get()}, &shape);
  EXPECT_FALSE(SharesBuffer(x_, flat));
  EXPECT_EQ(Read<float>(flat), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(choir_op_stats().reorders, 1u);
  EXPECT_EQ(choir_op_stats().reorder_bytes, 24u);
  // What a classifier does after its last pooling.
  std::vector<float> values = Floats(2 * 3 * 2 * 2, 1);
  TensorPtr images = MakeChannelsLast(device_.get(), {2, 3, 2, 2}, values);
  TensorPtr rows = Result(CHOIR_OP_FLATTEN, {images.get()});
  EXPECT_EQ(ShapeOf(rows.get()), (Shape{2, 12}));
  EXPECT_EQ(Read<float>(rows), values);
  EXPECT_EQ(choir_op_stats().reorders, 2u);
  choir_op_stats_reset();
  EXPECT_EQ(choir_op_stats().reorders, 0u);
}

TEST_F(ViewOps, IntoDestinations) {
  TensorPtr turned =
      Make<float>(device_.get(), {3, 2}, {10, 10, 10, 10, 10, 10});
  ASSERT_OK(Into(CHOIR_OP_TRANSPOSE, {x_.get()}, nullptr, true, turned.get()));
  EXPECT_EQ(Read<float>(turned), (std::vector<float>{10, 13, 11, 14, 12, 15}));
  // Neither side can be seen in the other's shape.
  TensorPtr source = Result(CHOIR_OP_TRANSPOSE, {x_.get()});  // (3, 2)
  TensorPtr target = MakeStrided({2, 3}, {4, 1}, 1, 9, 100);
  choir_reshape_attrs_t shape = To({2, 3});
  ASSERT_OK(
      Into(CHOIR_OP_RESHAPE, {source.get()}, &shape, false, target.get()));
  EXPECT_EQ(Read<float>(target), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  ASSERT_OK(Into(CHOIR_OP_RESHAPE, {source.get()}, &shape, true, target.get()));
  EXPECT_EQ(Read<float>(target), (std::vector<float>{0, 6, 2, 8, 4, 10}));
}

TEST_F(ViewOps, NeverOntoThemselves) {
  TensorPtr square = Make<float>(device_.get(), {2, 2}, {1, 2, 3, 4});
  EXPECT_STATUS(
      INVALID_ARGUMENT, "transpose: destination 0 shares memory with source 0",
      Into(CHOIR_OP_TRANSPOSE, {square.get()}, nullptr, false, square.get()));
}

// ---- Records and kernels ----

TEST_F(DispatchTest, ElementwiseRecordsHaveOneShape) {
  choir_record_list_t* list = nullptr;
  ASSERT_OK(
      choir_record_list_create(choir_device_allocator(device_.get()), &list));
  choir_record_stage_t stage;
  choir_record_stage_init(&stage, list, true);
  choir_stream_push_stage(stream_, &stage.stage);
  TensorPtr x = Make(device_.get(), {2, 3}, Floats(6, 1));
  TensorPtr row = Make(device_.get(), {3}, Floats(3, 2));
  Result(CHOIR_OP_ADD, {x.get(), row.get()});
  choir_stream_pop_stage(stream_, &stage.stage);
  ASSERT_EQ(choir_record_list_count(list), 1u);
  const choir_record_t* record = choir_record_list_get(list, 0);
  EXPECT_EQ(record->src_count, 2);
  EXPECT_EQ(record->dst_count, 1);
  EXPECT_EQ(record->label, nullptr);
  for (int i = 0; i < 3; ++i) {
    const choir_view_t& view = record->operands[i];
    EXPECT_EQ(Shape(view.shape, view.shape + view.ndim), (Shape{2, 3}));
  }
  EXPECT_EQ(record->operands[1].strides[0], 0);
  choir_record_list_destroy(list);
}

// A recorded list runs again with the same result: attributes are its own.
TEST_F(DispatchTest, RecordsReplay) {
  choir_record_list_t* list = nullptr;
  ASSERT_OK(
      choir_record_list_create(choir_device_allocator(device_.get()), &list));
  choir_record_stage_t stage;
  choir_record_stage_init(&stage, list, false);
  choir_stream_push_stage(stream_, &stage.stage);
  TensorPtr x = Make<float>(device_.get(), {3}, {1, 2, 3});
  TensorPtr y = Make<float>(device_.get(), {3}, {0, 0, 0});
  {
    choir_scale_attrs_t attrs = {2, 1};
    ASSERT_OK(Into(CHOIR_OP_SCALE, {x.get()}, &attrs, false, y.get()));
    attrs = {100, 100};
  }
  choir_stream_pop_stage(stream_, &stage.stage);
  EXPECT_EQ(Read<float>(y), (std::vector<float>{0, 0, 0}));
  ASSERT_OK(choir_record_list_replay(list, stream_));
  EXPECT_EQ(Read<float>(y), (std::vector<float>{3, 5, 7}));
  choir_record_list_destroy(list);
}

TEST_F(DispatchTest, CountsReferenceRuns) {
  TensorPtr x = Make<double>(device_.get(), {2, 2}, {1, 2, 3, 4});
  choir_op_stats_reset();
  Result(CHOIR_OP_MATMUL, {x.get(), x.get()});
  EXPECT_EQ(choir_op_stats().reference_runs, 1u);
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// ---- Refusals that the op suite does not make ----

TEST_F(DispatchTest, RefusesNonsense) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
  TensorPtr x = Make<float>(device_.get(), {2}, {1, 2});
  choir_tensor_t* srcs[] = {x.get()};
  EXPECT_STATUS(INVALID_ARGUMENT, "op: 1000 is no op",
                choir_op_run(stream_, static_cast<choir_op_t>(1000), srcs, 1,
                             nullptr, false, dsts));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "relu: stream, srcs or dsts is NULL",
      choir_op_run(nullptr, CHOIR_OP_RELU, srcs, 1, nullptr, false, dsts));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "relu: stream, srcs or dsts is NULL",
      choir_op_run(stream_, CHOIR_OP_RELU, nullptr, 1, nullptr, false, dsts));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "relu: stream, srcs or dsts is NULL",
      choir_op_run(stream_, CHOIR_OP_RELU, srcs, 1, nullptr, false, nullptr));
}

TEST_F(DispatchTest, SaysWhatWasGivenAndNeeded) {
  TensorPtr x = Make(device_.get(), {2, 3}, Floats(6, 1));
  TensorPtr y = Make(device_.get(), {2, 4}, Floats(8, 1));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "relu: destination 0 is f32 (2, 4); needs f32 (2, 3)",
                Into(CHOIR_OP_RELU, {x.get()}, nullptr, false, y.get()));
  TensorPtr whole = Make<int32_t>(device_.get(), {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_STATUS(INVALID_ARGUMENT, "add: source 1 is i32; needs f32",
                Failure(CHOIR_OP_ADD, {x.get(), whole.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "exp: source 0 is i32; needs f32, f64, f16, bf16",
                Failure(CHOIR_OP_EXP, {whole.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT, "add: got 1 sources; needs 2",
                Failure(CHOIR_OP_ADD, {x.get()}));
  std::vector<choir_tensor_t*> many(16, x.get());
  EXPECT_STATUS(INVALID_ARGUMENT, "concat: got 16 sources; needs 1 to 15",
                Failure(CHOIR_OP_CONCAT, many));
}

// Attributes go through their field table.
TEST_F(DispatchTest, ChecksAttributes) {
  TensorPtr x = Make(device_.get(), {1, 1, 4, 4}, Floats(16, 1));
  auto attrs = Attrs<choir_pool2d_attrs_t>(CHOIR_OP_MAX_POOL2D);
  attrs.stride[1] = 0;
  EXPECT_STATUS(INVALID_ARGUMENT, "stride",
                Failure(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs));
}

}  // namespace
