// SPDX-License-Identifier: Apache-2.0
// Ops that a program ran without the scope, and operators of its own, on the
// tape.
#include <gtest/gtest.h>

#include <cmath>

#include <string>
#include <vector>

#include "autograd/functions.h"
#include "autograd/scope.h"
#include "core/callback.h"
#include "tests/autograd/scope_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Doubles;
using choir::testing::FailEveryAllocationOnCpu;
using choir::testing::kTraining;
using choir::testing::Make;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

class OutsideOpsTest : public choir::testing::ScopeTest {};

INSTANTIATE_TEST_SUITE_P(All, OutsideOpsTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// Runs an op as a program would that does not use the scope for it.
std::vector<TensorPtr> RunOutside(choir_device_t* device, choir_op_t op,
                                  const std::vector<choir_tensor_t*>& srcs,
                                  const void* attrs) {
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {};
  EXPECT_OK(choir_op_run(choir_device_stream(device), op, srcs.data(),
                         static_cast<int32_t>(srcs.size()), attrs, false,
                         results));
  std::vector<TensorPtr> owned;
  for (int32_t i = 0; i < choir_op_result_count(op); ++i)
    owned.emplace_back(results[i]);
  return owned;
}

TEST_P(OutsideOpsTest, RecordsAnOpThatRanOutside) {
  TensorPtr x = Tensor({2}, {3, 5});
  choir_var_t* y = nullptr;
  choir_var_t* leaf = choir_scope_leaf(scope_, x.get());
  {
    std::vector<TensorPtr> square =
        RunOutside(device_.get(), CHOIR_OP_SQUARE, {x.get()}, nullptr);
    choir_tensor_t* result = square[0].get();
    y = choir_scope_record(scope_, CHOIR_OP_SQUARE, &leaf, 1, nullptr, &result);
    EXPECT_EQ(choir_var_tensor(y), result);
  }  // the scope keeps it
  EXPECT_EQ(Read<double>(choir_var_tensor(y)), (Doubles{9, 25}));
  choir_scope_backward(scope_, Dot(y, {2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(leaf), (Doubles{6, 100}));
  EXPECT_OK(choir_scope_end(scope_));
}

// Attributes and all results: max_pool2d's rule needs both.
TEST_P(OutsideOpsTest, RecordsAttributesAndFurtherResults) {
  TensorPtr x = Tensor({1, 1, 1, 4}, {2, 7, 5, 1});
  choir_pool2d_attrs_t pool = {{1, 2}, {1, 2}, {0, 0}};
  std::vector<TensorPtr> made =
      RunOutside(device_.get(), CHOIR_OP_MAX_POOL2D, {x.get()}, &pool);
  choir_tensor_t* results[] = {made[0].get(), made[1].get()};
  choir_var_t* leaf = choir_scope_leaf(scope_, x.get());
  choir_var_t* y =
      choir_scope_record(scope_, CHOIR_OP_MAX_POOL2D, &leaf, 1, &pool, results);
  pool = {};  // copied
  choir_scope_backward(scope_, Dot(y, {1, 1, 1, 2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(leaf), (Doubles{0, 1, 10, 0}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, RecordRefusesWhatIsNoVariable) {
  TensorPtr x = Tensor({1}, {3});
  choir_tensor_t* result = x.get();
  choir_var_t* none = nullptr;
  choir_var_t* failed =
      choir_scope_record(scope_, CHOIR_OP_RELU, &none, 1, nullptr, &result);
  EXPECT_EQ(choir_var_tensor(failed), nullptr);
  // After a failure it does nothing.
  choir_var_t* next =
      choir_scope_record(scope_, CHOIR_OP_RELU, &failed, 1, nullptr, &result);
  EXPECT_EQ(choir_var_tensor(next), nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "relu: source 0 is not a variable of this step",
                choir_scope_end(scope_));
}

// y = sum over i of factor[i] * source i, for sources of one shape.
struct WeightedSum {
  choir_device_t* device = nullptr;
  Doubles factors;  // NaN: no contribution
  Shape wrong;      // of source 0's gradient, where given
  bool fails = false;
  int calls = 0;
  Doubles dy;

  choir_custom_op_t op() { return {"weighted_sum", Backward, this}; }
  static choir_status_t Backward(void* self, choir_tensor_t* dy,
                                 choir_tensor_t** out_grads) {
    auto* sum = static_cast<WeightedSum*>(self);
    ++sum->calls;
    sum->dy = Read<double>(dy);
    for (size_t i = 0; i < sum->factors.size(); ++i) {
      if (std::isnan(sum->factors[i])) continue;
      Doubles values = sum->dy;
      for (double& value : values) value *= sum->factors[i];
      Shape shape = ShapeOf(dy);
      if (i == 0 && !sum->wrong.empty()) shape = sum->wrong;
      out_grads[i] = Make(sum->device, shape, values).release();
    }
    // What it has set by then is freed by the scope.
    if (sum->fails) return CHOIR_ERROR(UNAVAILABLE, "not today");
    return nullptr;
  }
};

TEST_P(OutsideOpsTest, CustomOpGivesItsGradients) {
  WeightedSum sum{device_.get(), {2, -3, 5}};
  choir_custom_op_t op = sum.op();
  choir_var_t* a = Leaf({2}, {1, 2});
  choir_var_t* b = choir_var_square(scope_, Leaf({2}, {3, 4}));
  choir_var_t* constant = Input({2}, {10, 20});
  choir_var_t* srcs[] = {a, constant, b};
  choir_var_t* y = choir_scope_record_custom(scope_, &op, srcs, 3,
                                             Tensor({2}, {17, 24}).get());
  op = {};  // copied
  EXPECT_EQ(Read<double>(choir_var_tensor(y)), (Doubles{17, 24}));
  // Used twice: called once, with the sum.
  choir_var_t* loss = Dot(choir_var_add(scope_, y, y), {2}, {1, 10});
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_EQ(sum.calls, 1);
  EXPECT_EQ(sum.dy, (Doubles{2, 20}));
  EXPECT_EQ(Grad(a), (Doubles{4, 40}));
  EXPECT_EQ(choir_var_grad(constant), nullptr);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, GradientsGoOnBehindACustomOp) {
  WeightedSum sum{device_.get(), {2, 3}};
  choir_custom_op_t op = sum.op();
  choir_var_t* x = Leaf({2}, {3, 4});
  choir_var_t* srcs[] = {choir_var_square(scope_, x), x};
  choir_var_t* y = choir_scope_record_custom(scope_, &op, srcs, 2,
                                             Tensor({2}, {27, 44}).get());
  choir_scope_backward(scope_, Dot(y, {2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{2 * 6 + 3, 10 * (2 * 8 + 3)}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, CustomOpMayContributeNothing) {
  WeightedSum sum{device_.get(), {std::nan(""), 3}};
  choir_custom_op_t op = sum.op();
  choir_var_t* a = Leaf({1}, {1});
  choir_var_t* b = Leaf({1}, {2});
  choir_var_t* srcs[] = {a, b};
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, srcs, 2, Tensor({1}, {6}).get());
  choir_scope_backward(scope_, y, nullptr);
  EXPECT_EQ(sum.calls, 1);
  EXPECT_EQ(choir_var_grad(a), nullptr);
  EXPECT_EQ(Grad(b), (Doubles{3}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, CustomOpIsNotAskedWithoutNeed) {
  WeightedSum sum{device_.get(), {2}};
  choir_custom_op_t op = sum.op();
  // Of constants, and beside the loss.
  choir_var_t* constant = Input({1}, {1});
  choir_var_t* x = Leaf({1}, {1});
  TensorPtr two = Tensor({1}, {2});
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, &constant, 1, two.get());
  choir_scope_record_custom(scope_, &op, &x, 1, two.get());
  choir_scope_backward(scope_, choir_var_mul(scope_, x, y), nullptr);
  EXPECT_EQ(sum.calls, 0);
  EXPECT_EQ(Grad(x), (Doubles{2}));
  EXPECT_OK(choir_scope_end(scope_));
  // Outside of training.
  choir_scope_begin(scope_, nullptr);
  x = Leaf({1}, {1});
  y = choir_scope_record_custom(scope_, &op, &x, 1, two.get());
  EXPECT_EQ(Read<double>(choir_var_tensor(y)), (Doubles{2}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, CustomOpWithAGradientOfTheWrongShape) {
  WeightedSum sum{device_.get(), {2, 3}};
  sum.wrong = {2, 1};
  choir_custom_op_t op = sum.op();
  choir_var_t* srcs[] = {Leaf({2}, {1, 2}), Leaf({2}, {3, 4})};
  choir_var_t* y = choir_scope_record_custom(scope_, &op, srcs, 2,
                                             Tensor({2}, {11, 16}).get());
  choir_scope_set_label(scope_, "head");
  choir_scope_backward(scope_, Dot(y, {2}, {1, 1}), nullptr);
  EXPECT_FALSE(choir_scope_is_ok(scope_));
  EXPECT_STATUS(INVALID_ARGUMENT, "weighted_sum: backward gave f64 (2, 1) for",
                choir_scope_end(scope_));
}

TEST_P(OutsideOpsTest, CustomOpThatFails) {
  WeightedSum sum{device_.get(), {2, 3}};
  sum.fails = true;
  choir_custom_op_t op = sum.op();
  choir_scope_set_label(scope_, "head");
  choir_var_t* srcs[] = {Leaf({1}, {1}), Leaf({1}, {3})};
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, srcs, 2, Tensor({1}, {11}).get());
  choir_scope_backward(scope_, y, nullptr);
  EXPECT_STATUS(UNAVAILABLE, "head: gradient of weighted_sum: not today",
                choir_scope_end(scope_));
  // The next step is not troubled by it.
  sum.fails = false;
  choir_scope_begin(scope_, &kTraining);
  choir_var_t* x = Leaf({1}, {1});
  srcs[0] = srcs[1] = x;
  y = choir_scope_record_custom(scope_, &op, srcs, 2, Tensor({1}, {5}).get());
  choir_scope_backward(scope_, y, nullptr);
  EXPECT_EQ(Grad(x), (Doubles{5}));
  EXPECT_OK(choir_scope_end(scope_));
}

// As a function of Python's that an exception leaves: nothing is written.
void LeftEarly(void* self, void* const* arguments, choir_status_t*) {
  // The gradient is set by then: the scope frees it.
  choir_tensor_retain(static_cast<choir_tensor_t*>(arguments[0]));
  *static_cast<choir_tensor_t**>(arguments[1]) =
      static_cast<choir_tensor_t*>(arguments[0]);
  ++*static_cast<int*>(self);
}

TEST_P(OutsideOpsTest, CustomOpWhoseCallbackIsLeft) {
  int calls = 0;
  choir_callback_t callback = {LeftEarly, &calls};
  choir_custom_op_t op = {"python", choir_custom_op_callback, &callback};
  choir_var_t* x = Leaf({1}, {1});
  choir_var_t* y =
      choir_scope_record_custom(scope_, &op, &x, 1, Tensor({1}, {5}).get());
  choir_scope_backward(scope_, y, nullptr);
  EXPECT_STATUS(INTERNAL,
                "gradient of python: callback: the program's function",
                choir_scope_end(scope_));
  EXPECT_EQ(calls, 1);
}

TEST_P(OutsideOpsTest, CustomOpRefusesWhatIsNoVariable) {
  WeightedSum sum{device_.get(), {2}};
  choir_custom_op_t op = sum.op();
  choir_var_t* none = nullptr;
  TensorPtr two = Tensor({1}, {2});
  choir_scope_record_custom(scope_, &op, &none, 1, two.get());
  EXPECT_STATUS(INVALID_ARGUMENT,
                "weighted_sum: source 0 is not a variable of this step",
                choir_scope_end(scope_));
}

// ---- Memory ----

// dx = dy, in a tensor of its own.
choir_status_t HandOn(void* self, choir_tensor_t* dy,
                      choir_tensor_t** out_grads) {
  return choir_op_run(static_cast<choir_stream_t*>(self), CHOIR_OP_COPY, &dy, 1,
                      nullptr, false, out_grads);
}

TEST(OutsideOpsMemoryTest, RecordsSurviveEveryFailedAllocation) {
  int64_t failed =
      FailEveryAllocationOnCpu([](choir_device_t* device) -> choir_status_t {
        choir_stream_t* stream = choir_device_stream(device);
        choir_scope_t* scope = nullptr;
        choir_tensor_t* x = nullptr;
        choir_tensor_t* y = nullptr;
        const int64_t shape[] = {1};
        const float three = 3;
        choir_status_t status = choir_scope_create(device, &scope);
        if (!status)
          status = choir_tensor_from_data(device, CHOIR_DTYPE_F32, 1, shape,
                                          &three, &x);
        if (!status)
          status =
              choir_op_run(stream, CHOIR_OP_SQUARE, &x, 1, nullptr, false, &y);
        if (!status) {
          choir_scope_begin(scope, &kTraining);
          choir_var_t* leaf = choir_scope_leaf(scope, x);
          const choir_custom_op_t op = {"hand_on", HandOn, stream};
          choir_var_t* last =
              choir_scope_record(scope, CHOIR_OP_SQUARE, &leaf, 1, nullptr, &y);
          // More than one block of the scope's memory holds.
          for (int i = 0; i < 400; ++i)
            last = choir_scope_record_custom(scope, &op, &last, 1, y);
          choir_scope_backward(scope, last, nullptr);
          if (choir_scope_is_ok(scope)) {
            EXPECT_EQ(Read<float>(choir_var_grad(leaf)),
                      (std::vector<float>{6}));
          }
          status = choir_scope_end(scope);
        }
        choir_tensor_release(x);
        choir_tensor_release(y);
        choir_scope_destroy(scope);
        return status;
      });
  EXPECT_GT(failed, 8);
}

}  // namespace
