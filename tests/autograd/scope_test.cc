// SPDX-License-Identifier: Apache-2.0
#include "autograd/scope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "tests/autograd/scope_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Doubles;
using choir::testing::FailEveryAllocationOnCpu;
using choir::testing::FailingAllocator;
using choir::testing::kTraining;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Param;
using choir::testing::Read;
using choir::testing::ScopeTest;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

INSTANTIATE_TEST_SUITE_P(All, ScopeTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// ---- For functions that compute in a scope ----

TEST_P(ScopeTest, TellsWhereGradientsCanFlow) {
  choir_var_t* x = Leaf({2}, {1, 2});
  const TensorPtr tensor = Make(device_.get(), Shape{2}, Doubles{3, 4});
  choir_var_t* constant = choir_scope_input(scope_, tensor.get());
  EXPECT_TRUE(choir_var_wants_grad(x));
  EXPECT_FALSE(choir_var_wants_grad(constant));
  EXPECT_FALSE(choir_var_wants_grad(nullptr));
  EXPECT_TRUE(choir_var_wants_grad(choir_var_add(scope_, x, constant)));
  EXPECT_FALSE(choir_var_wants_grad(choir_var_exp(scope_, constant)));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, LendsMemoryAndHandsOutItsFailure) {
  const auto* memory = static_cast<const char*>(choir_scope_alloc(scope_, 100));
  ASSERT_NE(memory, nullptr);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory[i], 0);
  EXPECT_OK(choir_scope_take_failure(scope_));
  choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "on purpose"));
  EXPECT_STATUS(INTERNAL, "on purpose", choir_scope_take_failure(scope_));
  EXPECT_TRUE(choir_scope_is_ok(scope_));
  EXPECT_OK(choir_scope_end(scope_));
}

// ---- Several results ----

TEST_P(ScopeTest, ATupleLetsGradientsIntoEachOfIt) {
  choir_var_t* x = Leaf({2}, {1, 2});
  choir_var_t* const both[] = {choir_var_square(scope_, x),
                               choir_var_exp(scope_, x)};
  choir_var_t* y = choir_scope_tuple(scope_, {both, 2});
  choir_var_t* second = choir_scope_result(scope_, y, 1);
  EXPECT_EQ(choir_scope_result(scope_, y, 0), y);
  EXPECT_EQ(choir_scope_result(scope_, second, 0), second);
  choir_var_t* sum =
      choir_var_add(scope_, Dot(y, {2}, {1, 10}), Dot(second, {2}, {100, 0}));
  choir_scope_backward(scope_, sum, nullptr);
  const Doubles grad = Grad(x);
  ASSERT_EQ(grad.size(), 2u);
  EXPECT_NEAR(grad[0], 2 + 100 * std::exp(1), 1e-9);
  EXPECT_NEAR(grad[1], 40, 1e-9);
  EXPECT_EQ(choir_var_tensor(choir_scope_result(scope_, y, 2)), nullptr);
  EXPECT_STATUS(OUT_OF_RANGE, "scope_result: result 2; needs 0 .. 1",
                choir_scope_end(scope_));
}

// ---- Errors ----

TEST_P(ScopeTest, KeepsTheFirstErrorWithItsLabel) {
  EXPECT_TRUE(choir_scope_is_ok(scope_));
  choir_scope_set_label(scope_, "fc1");
  choir_var_t* wrong =
      choir_var_add(scope_, Input({2}, {1, 2}), Input({3}, {1, 2, 3}));
  EXPECT_FALSE(choir_scope_is_ok(scope_));
  EXPECT_EQ(choir_var_tensor(wrong), nullptr);
  EXPECT_EQ(choir_var_view(wrong), nullptr);
  EXPECT_EQ(choir_var_grad(wrong), nullptr);
  choir_scope_set_label(scope_, "fc2");
  // All that comes after does nothing.
  choir_var_t* next = choir_var_relu(scope_, wrong);
  EXPECT_EQ(choir_var_tensor(next), nullptr);
  EXPECT_EQ(choir_var_tensor(Input({1}, {1})), nullptr);
  EXPECT_EQ(choir_var_tensor(Leaf({1}, {1})), nullptr);
  Param param(device_.get(), "p", {1}, {5});
  EXPECT_EQ(choir_var_tensor(Use(&param)), nullptr);
  choir_var_matmul(scope_, Input({2}, {1, 2}), next, nullptr);
  choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "a later one"));
  choir_var_t* more[2] = {};
  choir_pool2d_attrs_t pool = {{1, 1}, {1, 1}, {0, 0}};
  choir_scope_op(scope_, CHOIR_OP_MAX_POOL2D, &next, 1, &pool, more);
  EXPECT_EQ(more[0], next);  // the failed variable, not rubbish
  choir_scope_backward(scope_, next, nullptr);
  choir_status_t status = choir_scope_end(scope_);
  EXPECT_EQ(std::string(choir_status_message(status)).find("fc1: add: "), 0u)
      << choir_status_message(status);
  EXPECT_NE(std::string(choir_status_origin(status)).find("elements.c"),
            std::string::npos)
      << choir_status_origin(status);
  EXPECT_STATUS(INVALID_ARGUMENT, "shapes (2) and (3)", status);
  EXPECT_EQ(param.grad(), (Doubles{-77}));
  // The next step starts afresh.
  choir_scope_begin(scope_, &kTraining);
  EXPECT_TRUE(choir_scope_is_ok(scope_));
  EXPECT_EQ(Read<double>(choir_var_tensor(Input({1}, {4}))), (Doubles{4}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, BeginDropsAnErrorThatNobodyTook) {
  choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "lost"));
  choir_scope_begin(scope_, &kTraining);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, FailOfNothingIsNoFailure) {
  choir_var_t* failed = choir_scope_fail(scope_, nullptr);
  EXPECT_EQ(choir_var_tensor(failed), nullptr);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, RefusesWhatIsNoVariable) {
  EXPECT_EQ(choir_var_tensor(choir_var_relu(scope_, nullptr)), nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "relu: source 0 is not a variable of this step",
                choir_scope_end(scope_));
  choir_scope_begin(scope_, &kTraining);
  choir_scope_input(scope_, nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT, "scope_input: the tensor is NULL",
                choir_scope_end(scope_));
  choir_scope_begin(scope_, &kTraining);
  std::vector<choir_var_t*> many(17, Input({1}, {1}));
  choir_concat_attrs_t attrs = {0};
  choir_var_concat(scope_, many.data(), 17, &attrs);
  EXPECT_STATUS(INVALID_ARGUMENT, "concat: 17 sources; at most 16",
                choir_scope_end(scope_));
}

TEST_P(ScopeTest, RefusesAParameterThatIsNotReady) {
  choir_param_t param = {};
  param.name = "fc.W";
  param.trainable = true;
  choir_scope_param(scope_, &param);
  EXPECT_STATUS(FAILED_PRECONDITION, "fc.W has no value yet",
                choir_scope_end(scope_));
  TensorPtr value = Tensor({1}, {1});
  param.value = value.get();
  choir_scope_begin(scope_, &kTraining);
  choir_scope_param(scope_, &param);
  EXPECT_STATUS(FAILED_PRECONDITION,
                "fc.W is trainable but has no gradient tensor",
                choir_scope_end(scope_));
  // Inference needs none.
  choir_scope_begin(scope_, nullptr);
  choir_scope_param(scope_, &param);
  EXPECT_OK(choir_scope_end(scope_));
}

// ---- The step ----

TEST_P(ScopeTest, KnowsItsStepAndNumbersRandomStreams) {
  const choir_step_t step = {true, 7, 12, 100, 16, 64};
  for (int round = 0; round < 2; ++round) {
    choir_scope_begin(scope_, &step);
    EXPECT_TRUE(choir_scope_step(scope_)->training);
    EXPECT_EQ(choir_scope_step(scope_)->seed, 7);
    EXPECT_EQ(choir_scope_step(scope_)->step, 12);
    EXPECT_EQ(choir_scope_step(scope_)->first_sample, 100);
    EXPECT_EQ(choir_scope_step(scope_)->sample_count, 16);
    EXPECT_EQ(choir_scope_step(scope_)->global_count, 64);
    EXPECT_EQ(choir_scope_next_random_stream(scope_), 0);
    EXPECT_EQ(choir_scope_next_random_stream(scope_), 1);
    EXPECT_OK(choir_scope_end(scope_));
  }
  choir_step_t later = step;
  later.random_stream = 5;
  choir_scope_begin(scope_, &later);
  EXPECT_EQ(choir_scope_next_random_stream(scope_), 5);
  EXPECT_EQ(choir_scope_next_random_stream(scope_), 6);
  choir_scope_begin(scope_, nullptr);
  EXPECT_FALSE(choir_scope_step(scope_)->training);
  EXPECT_EQ(choir_scope_device(scope_), device_.get());
  EXPECT_EQ(choir_scope_stream(scope_), choir_device_stream(device_.get()));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, KeepsTensorsOfTheStepAlive) {
  choir_var_t* x = nullptr;
  {
    TensorPtr tensor = Tensor({2}, {3, 4});
    x = choir_scope_input(scope_, tensor.get());
  }
  EXPECT_EQ(Read<double>(choir_var_tensor(choir_var_square(scope_, x))),
            (Doubles{9, 16}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, GivesFurtherResults) {
  choir_var_t* x = Leaf({1, 1, 1, 3}, {2, 7, 5});
  choir_pool2d_attrs_t pool = {{1, 3}, {1, 3}, {0, 0}};
  choir_var_t* index = nullptr;
  choir_var_t* y =
      choir_scope_op(scope_, CHOIR_OP_MAX_POOL2D, &x, 1, &pool, &index);
  EXPECT_EQ(Read<double>(choir_var_tensor(y)), (Doubles{7}));
  EXPECT_EQ(Read<uint8_t>(choir_var_tensor(index)), (std::vector<uint8_t>{1}));
  EXPECT_OK(choir_scope_end(scope_));
}

// ---- Gradients ----

TEST_P(ScopeTest, GradientOfALeaf) {
  choir_var_t* x = Leaf({3}, {1, -2, 3});
  choir_var_t* constant = Input({3}, {1, 1, 1});
  choir_var_t* loss =
      Dot(choir_var_square(scope_, choir_var_add(scope_, x, constant)), {3},
          {1, 10, 100});
  EXPECT_EQ(choir_var_grad(x), nullptr);
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_EQ(Grad(x), (Doubles{4, -20, 800}));
  EXPECT_EQ(choir_var_grad(constant), nullptr);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, ALeafThatIsTheLoss) {
  choir_var_t* x = Leaf({1}, {5});
  choir_scope_backward(scope_, x, nullptr);
  EXPECT_EQ(Grad(x), (Doubles{1}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, ALeafThatTheLossDoesNotReachHasNone) {
  choir_var_t* x = Leaf({1}, {5});
  choir_var_t* y = Leaf({1}, {6});
  choir_var_square(scope_, y);
  choir_scope_backward(scope_, choir_var_square(scope_, x), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{10}));
  EXPECT_EQ(choir_var_grad(y), nullptr);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, AddsOverUsesInOneOpAndInSeveral) {
  choir_var_t* x = Leaf({2}, {3, 5});
  choir_var_t* cube =
      choir_var_mul(scope_, choir_var_mul(scope_, x, x), x);  // 3 x^2
  choir_var_t* twice = choir_var_add(scope_, x, x);           // 2
  choir_var_t* none = choir_var_sub(scope_, x, x);            // 0
  choir_var_t* sum =
      choir_var_add(scope_, choir_var_add(scope_, cube, twice), none);
  choir_scope_backward(scope_, Dot(sum, {2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{29, 770}));
  EXPECT_OK(choir_scope_end(scope_));
}

// One gradient, handed on as it is for both sources.
TEST_P(ScopeTest, OneGradientForOneVariableTwice) {
  choir_var_t* x = Leaf({2}, {3, 5});
  choir_var_t* y = choir_var_square(scope_, x);
  choir_scope_backward(scope_, Dot(choir_var_add(scope_, y, y), {2}, {1, 10}),
                       nullptr);
  EXPECT_EQ(Grad(x), (Doubles{12, 200}));
  EXPECT_OK(choir_scope_end(scope_));
}

// A gradient that one rule hands on as it is must not grow when another use
// adds to it.
TEST_P(ScopeTest, ViewsOfAGradientAreNotAddedTo) {
  choir_var_t* x = Leaf({2, 2}, {1, 2, 3, 4});
  choir_var_t* other = Leaf({4}, {5, 6, 7, 8});
  choir_var_t* early = Dot(x, {2, 2}, {1000, 2000, 3000, 4000});
  choir_reshape_attrs_t flat = {1, {4}};
  choir_var_t* joined =
      choir_var_add(scope_, choir_var_reshape(scope_, x, &flat), other);
  choir_var_t* loss =
      choir_var_add(scope_, early, Dot(joined, {4}, {1, 2, 3, 4}));
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_EQ(Grad(x), (Doubles{1001, 2002, 3003, 4004}));
  EXPECT_EQ(Grad(other), (Doubles{1, 2, 3, 4}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, OneVariableTwiceInAConcat) {
  choir_var_t* x = Leaf({2}, {1, 2});
  choir_var_t* srcs[] = {x, x, x};
  choir_concat_attrs_t attrs = {0};
  choir_var_t* y = choir_var_concat(scope_, srcs, 3, &attrs);
  choir_scope_backward(scope_, Dot(y, {6}, {1, 2, 30, 40, 500, 600}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{531, 642}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, SumsOverBroadcastDimensions) {
  choir_var_t* column = Leaf({2, 1}, {1, 2});
  choir_var_t* row = Leaf({3}, {1, 1, 1});
  choir_var_t* scalar = Leaf({}, {2});
  choir_var_t* one = Leaf({1, 1, 1}, {3});
  choir_var_t* y = choir_var_mul(
      scope_, choir_var_add(scope_, choir_var_add(scope_, column, row), one),
      scalar);
  choir_scope_backward(scope_, Dot(y, {1, 2, 3}, {1, 2, 3, 10, 20, 30}),
                       nullptr);
  EXPECT_EQ(Grad(column), (Doubles{12, 120}));
  EXPECT_EQ(Grad(row), (Doubles{22, 44, 66}));
  EXPECT_EQ(Grad(one), (Doubles{132}));
  EXPECT_EQ(ShapeOf(choir_var_grad(one)), (Shape{1, 1, 1}));
  // sum of w * (column + row + 3): 5 * 6 + 6 * 60
  EXPECT_EQ(Grad(scalar), (Doubles{390}));
  EXPECT_EQ(ShapeOf(choir_var_grad(scalar)), (Shape{}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, CastsGradientsBack) {
  choir_var_t* x = Leaf({2}, {1.5, 2.5});
  choir_cast_attrs_t to_f32 = {CHOIR_DTYPE_F32};
  choir_cast_attrs_t to_f64 = {CHOIR_DTYPE_F64};
  choir_var_t* y = choir_var_cast(
      scope_, choir_var_square(scope_, choir_var_cast(scope_, x, &to_f32)),
      &to_f64);
  choir_scope_backward(scope_, Dot(y, {2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{3, 50}));
  EXPECT_OK(choir_scope_end(scope_));
}

// A staircase has no slope, though a cast back follows.
TEST_P(ScopeTest, WholeNumbersCarryNoGradient) {
  choir_var_t* x = Leaf({2}, {1.5, 2.5});
  choir_cast_attrs_t to_i32 = {CHOIR_DTYPE_I32};
  choir_cast_attrs_t to_f64 = {CHOIR_DTYPE_F64};
  choir_var_t* stairs =
      choir_var_cast(scope_, choir_var_cast(scope_, x, &to_i32), &to_f64);
  choir_var_t* y = choir_var_mul(scope_, stairs, x);
  choir_scope_backward(scope_, Dot(y, {2}, {1, 1}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{1, 2}));
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(ScopeTest, ConstantOpsCarryNoGradient) {
  choir_var_t* x = Leaf({2}, {1, 2});
  choir_var_t* mask = choir_var_greater(scope_, x, Input({}, {1.5}));
  choir_scope_backward(scope_, Dot(choir_var_mul(scope_, mask, x), {2}, {5, 7}),
                       nullptr);
  EXPECT_EQ(Grad(x), (Doubles{0, 7}));
  EXPECT_OK(choir_scope_end(scope_));
}

// ---- Parameters ----

TEST_P(ScopeTest, OverwritesAParametersGradientWhereItLies) {
  Param w(device_.get(), "w", {2}, {3, 4});
  choir_tensor_t* destination = w.get()->grad;
  for (int round = 0; round < 2; ++round) {  // not added up over steps
    choir_scope_begin(scope_, &kTraining);
    choir_var_t* var = Use(&w);
    EXPECT_EQ(Use(&w), var);
    choir_scope_backward(
        scope_, Dot(choir_var_square(scope_, var), {2}, {1, 10}), nullptr);
    EXPECT_EQ(w.get()->grad, destination);
    EXPECT_EQ(w.grad(), (Doubles{6, 80}));
    EXPECT_OK(choir_scope_end(scope_));
  }
}

TEST_P(ScopeTest, AParameterIsTheVariableThatItIsBoundTo) {
  Param w(device_.get(), "w", {2}, {3, 5});
  choir_var_t* x = Leaf({2}, {7, 11});
  choir_var_t* twice = choir_var_add(scope_, x, x);
  choir_scope_bind(scope_, w.get(), twice);
  choir_scope_backward(
      scope_, Dot(choir_var_square(scope_, Use(&w)), {2}, {1, 10}), nullptr);
  EXPECT_EQ(Grad(x), (Doubles{56, 880}));  // of (2 x)^2: 8 x
  EXPECT_EQ(w.grad(), (Doubles{-77, -77}));
  EXPECT_OK(choir_scope_end(scope_));
  choir_scope_begin(scope_, &kTraining);
  EXPECT_EQ(Read<double>(choir_var_tensor(Use(&w))), (Doubles{3, 5}));
  EXPECT_OK(choir_scope_end(scope_));
}

// Of x^2 (x + 1) relu(-x) and what carries no gradient, in another scope.
TEST_P(ScopeTest, TheTapeGoesOnInAnotherScope) {
  EXPECT_EQ(choir_scope_tape(scope_), nullptr);
  const TensorPtr values = Tensor({2}, {3, -2});
  choir_var_t* x = choir_scope_leaf(scope_, values.get());
  const choir_scale_attrs_t plus = {1, 1}, minus = {-1, 0};
  choir_var_square(scope_, Input({1}, {1}));
  choir_var_t* y = choir_var_square(scope_, x);
  choir_var_t* factor = choir_var_scale(scope_, x, &plus);
  y = choir_var_mul(scope_, y, factor);
  factor = choir_var_scale(scope_, x, &minus);
  y = choir_var_mul(scope_, y, choir_var_relu(scope_, factor));
  std::vector<const choir_tape_entry_t*> entries;
  for (auto* entry = choir_scope_tape(scope_); entry; entry = entry->previous)
    entries.insert(entries.begin(), entry);
  EXPECT_EQ(entries.size(), 6u);
  EXPECT_EQ(entries.front()->op, CHOIR_OP_SQUARE);
  EXPECT_EQ(entries.back()->results[0], y);
  choir_scope_t* other = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &other));
  choir_scope_begin(other, &kTraining);
  choir_var_t* leaf = choir_scope_leaf(other, values.get());
  std::map<choir_var_t*, choir_var_t*> found = {{x, leaf}};
  for (const choir_tape_entry_t* entry : entries) {
    std::vector<choir_var_t*> srcs;
    for (int32_t i = 0; i < entry->src_count; ++i)
      srcs.push_back(found.at(entry->srcs[i]));
    choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {
        choir_var_tensor(entry->results[0])};
    found[entry->results[0]] = choir_scope_record(
        other, entry->op, srcs.data(), entry->src_count, entry->attrs, results);
  }
  EXPECT_OK(choir_scope_end(scope_));
  const TensorPtr ones = Tensor({2}, {1, 10});
  choir_backward_options_t options = {};
  options.start = ones.get();
  choir_scope_backward(other, found.at(y), &options);
  // At -2 it is -x^4 - x^3, whose slope is -4 x^3 - 3 x^2: 20.
  EXPECT_EQ(Grad(leaf), (Doubles{0, 200}));
  EXPECT_OK(choir_scope_end(other));
  choir_scope_destroy(other);
}

TEST_P(ScopeTest, AddsOverTwoUsesOfAParameter) {
  Param w(device_.get(), "w", {2}, {3, 4});
  choir_var_t* loss =
      choir_var_add(scope_, Dot(Use(&w), {2}, {5, 6}),
                    Dot(choir_var_mul(scope_, Use(&w), Use(&w)), {2}, {1, 10}));
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_EQ(w.grad(), (Doubles{11, 86}));
  EXPECT_OK(choir_scope_end(scope_));
}

// Nothing else of the memory that a gradient is a part of changes.
TEST_P(ScopeTest, WritesIntoAStridedDestination) {
  TensorPtr bucket = Tensor({10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  choir_view_t view;
  const int64_t shape[] = {2, 2};
  ASSERT_OK(choir_view_make(CHOIR_DTYPE_F64, 2, shape, &view));
  view.strides[0] = 2;
  view.strides[1] = 4;
  view.offset = 2;
  view.buffer = choir_tensor_view(bucket.get())->buffer;
  choir_tensor_t* grad = nullptr;
  ASSERT_OK(choir_tensor_from_view(&view, &grad));
  TensorPtr value = Tensor({2, 2}, {1, 2, 3, 4});
  choir_param_t param = {};
  param.name = "w";
  param.value = value.get();
  param.grad = grad;
  param.trainable = true;
  choir_var_t* w = choir_scope_param(scope_, &param);
  choir_matmul_attrs_t attrs = {false, false};
  choir_var_t* y = choir_var_matmul(scope_, Input({1, 2}, {10, 20}), w, &attrs);
  choir_var_t* loss = choir_var_add(scope_, Dot(y, {1, 2}, {1, 2}),
                                    Dot(w, {2, 2}, {.1, .2, .3, .4}));
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_OK(choir_scope_end(scope_));
  choir::testing::ExpectNear(Read<double>(grad), {10.1, 20.2, 20.3, 40.4},
                             1e-14);
  Doubles all = Read<double>(bucket);
  for (int i : {0, 1, 3, 5, 7, 9}) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  choir_tensor_release(grad);
}

TEST_P(ScopeTest, AFrozenParameterIsAConstant) {
  Param w(device_.get(), "w", {2}, {3, 4});
  Param frozen(device_.get(), "frozen", {2}, {5, 6});
  frozen.get()->trainable = false;
  choir_param_t* params[] = {w.get(), frozen.get()};
  choir_backward_options_t options = {params, 2, nullptr, nullptr};
  choir_scope_backward(
      scope_, Dot(choir_var_mul(scope_, Use(&w), Use(&frozen)), {2}, {1, 10}),
      &options);
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(w.grad(), (Doubles{5, 60}));
  EXPECT_EQ(frozen.grad(), (Doubles{-77, -77}));
}

// Both results of one rule, one of them not wanted.
TEST_P(ScopeTest, AFrozenBiasBesideAWeight) {
  Param w(device_.get(), "w", {1, 1, 1, 1}, {3});
  Param b(device_.get(), "b", {1}, {4});
  b.get()->trainable = false;
  for (int uses = 1; uses <= 2; ++uses) {
    choir_scope_begin(scope_, &kTraining);
    choir_conv2d_attrs_t attrs = {{1, 1}, {0, 0}, {1, 1}, 1, 0};
    choir_var_t* y = choir_var_conv2d(scope_, Input({1, 1, 1, 2}, {5, 6}),
                                      Use(&w), Use(&b), &attrs);
    if (uses == 2) y = choir_var_conv2d(scope_, y, Use(&w), Use(&b), &attrs);
    choir_scope_backward(scope_, Dot(y, {1, 1, 1, 2}, {1, 10}), nullptr);
    EXPECT_OK(choir_scope_end(scope_));
    // One: 5 + 60. Two, y = w (w x + b) + b: 2 w x + b.
    EXPECT_EQ(w.grad(), (Doubles{uses == 1 ? 65.0 : 34 + 400}));
    EXPECT_EQ(b.grad(), (Doubles{-77}));
  }
}

TEST_P(ScopeTest, AParameterThatIsTheLoss) {
  Param w(device_.get(), "w", {1}, {3});
  choir_param_t* params[] = {w.get()};
  int calls = 0;
  choir_backward_options_t options = {
      params, 1,
      [](void* self, choir_param_t*) -> choir_status_t {
        ++*static_cast<int*>(self);
        return nullptr;
      },
      &calls};
  choir_scope_backward(scope_, Use(&w), &options);
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(w.grad(), (Doubles{1}));
  EXPECT_EQ(calls, 1);
}

// What a parameter remembers of a scope must not fit the next scope that
// happens to lie at the same address.
TEST_P(ScopeTest, AParameterOutlivesItsScope) {
  Param w(device_.get(), "w", {1}, {3});
  for (int round = 0; round < 4; ++round) {
    choir_scope_t* scope = nullptr;
    ASSERT_OK(choir_scope_create(device_.get(), &scope));
    choir_scope_begin(scope, &kTraining);
    choir_var_t* var = choir_scope_param(scope, w.get());
    choir_scope_backward(scope, choir_var_square(scope, var), nullptr);
    EXPECT_OK(choir_scope_end(scope));
    EXPECT_EQ(w.grad(), (Doubles{6}));
    choir_scope_destroy(scope);
  }
}

// ---- on_grad ----

struct Calls {
  std::vector<std::string> names;
  std::vector<Doubles> grads;  // as they were when called
  std::string fail_at;
  static choir_status_t OnGrad(void* self, choir_param_t* param) {
    Calls* calls = static_cast<Calls*>(self);
    calls->names.push_back(param->name);
    calls->grads.push_back(Read<double>(param->grad));
    if (calls->fail_at == param->name)
      return CHOIR_ERROR(ABORTED, "stop at %s", param->name);
    return nullptr;
  }
};

// w1, w2 and w3 one after the other, w1 once more at the end; `frozen` beside
// them, `unused` in no op and `aside` in one that the loss does not reach.
class OnGradTest : public ScopeTest {
 protected:
  choir_var_t* Loss() {
    choir_var_t* x = Input({1}, {2});
    x = choir_var_mul(scope_, x, Use(&w1_));
    x = choir_var_mul(scope_, x, Use(&w2_));
    x = choir_var_mul(scope_, x, Use(&frozen_));
    x = choir_var_mul(scope_, x, Use(&w3_));
    choir_var_square(scope_, Use(&aside_));
    return choir_var_mul(scope_, x, Use(&w1_));
  }
  Param w1_{device_.get(), "w1", {1}, {3}};
  Param w2_{device_.get(), "w2", {1}, {5}};
  Param w3_{device_.get(), "w3", {1}, {7}};
  Param frozen_{device_.get(), "frozen", {1}, {1}};
  Param unused_{device_.get(), "unused", {1}, {11}};
  Param aside_{device_.get(), "aside", {1}, {13}};
  Param idle_{device_.get(), "idle", {1}, {17}};
  choir_param_t* params_[7] = {w1_.get(),     unused_.get(), w2_.get(),
                               frozen_.get(), w3_.get(),     aside_.get(),
                               idle_.get()};
  Calls calls_;
  choir_backward_options_t options_ = {params_, 7, Calls::OnGrad, &calls_};
  void SetUp() override {
    ScopeTest::SetUp();
    frozen_.get()->trainable = false;
    idle_.get()->trainable = false;
  }
};
INSTANTIATE_TEST_SUITE_P(All, OnGradTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(OnGradTest, TellsEachOnceWhenItIsComplete) {
  choir_scope_backward(scope_, Loss(), &options_);
  EXPECT_OK(choir_scope_end(scope_));
  // The last layer first; w1 is complete with its first use only; then those
  // that the loss does not reach, in order of the list.
  EXPECT_EQ(calls_.names,
            (std::vector<std::string>{"w3", "w2", "w1", "unused", "aside"}));
  // loss = 2 w1^2 w2 w3
  EXPECT_EQ(calls_.grads, (std::vector<Doubles>{{90}, {126}, {420}, {0}, {0}}));
  EXPECT_EQ(w1_.grad(), (Doubles{420}));
  EXPECT_EQ(unused_.grad(), (Doubles{0}));
  EXPECT_EQ(frozen_.grad(), (Doubles{-77}));
  EXPECT_EQ(idle_.grad(), (Doubles{-77}));
}

TEST_P(OnGradTest, TellsThoseThatTheListLacksToo) {
  options_.param_count = 1;
  choir_scope_backward(scope_, Loss(), &options_);
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(calls_.names, (std::vector<std::string>{"w3", "w2", "w1"}));
  EXPECT_EQ(unused_.grad(), (Doubles{-77}));
}

TEST_P(OnGradTest, GivesZerosToAllWithoutALoss) {
  choir_scope_backward(scope_, nullptr, &options_);
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(calls_.names,
            (std::vector<std::string>{"w1", "unused", "w2", "w3", "aside"}));
  for (const Doubles& grad : calls_.grads) EXPECT_EQ(grad, (Doubles{0}));
  EXPECT_EQ(frozen_.grad(), (Doubles{-77}));
}

TEST_P(OnGradTest, AFailureStopsBackward) {
  calls_.fail_at = "w2";
  choir_scope_backward(scope_, Loss(), &options_);
  EXPECT_STATUS(ABORTED, "stop at w2", choir_scope_end(scope_));
  EXPECT_EQ(calls_.names, (std::vector<std::string>{"w3", "w2"}));
}

TEST_P(OnGradTest, NothingAfterAFailure) {
  choir_var_t* loss = Loss();
  choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "before"));
  choir_scope_backward(scope_, loss, &options_);
  EXPECT_STATUS(INTERNAL, "before", choir_scope_end(scope_));
  EXPECT_TRUE(calls_.names.empty());
}

// ---- Backward's own errors ----

TEST_P(ScopeTest, BackwardOncePerStep) {
  choir_var_t* loss = choir_var_square(scope_, Leaf({1}, {3}));
  choir_scope_backward(scope_, loss, nullptr);
  choir_scope_backward(scope_, loss, nullptr);
  EXPECT_STATUS(FAILED_PRECONDITION, "backward: called twice in one step",
                choir_scope_end(scope_));
}

TEST_P(ScopeTest, BackwardNeedsTraining) {
  choir_scope_begin(scope_, nullptr);
  choir_scope_backward(scope_, choir_var_square(scope_, Leaf({1}, {3})),
                       nullptr);
  EXPECT_STATUS(FAILED_PRECONDITION,
                "backward: the step was begun for inference",
                choir_scope_end(scope_));
}

TEST_P(ScopeTest, BackwardNeedsOneElement) {
  choir_scope_backward(scope_, choir_var_square(scope_, Leaf({2}, {3, 4})),
                       nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "backward: the loss is f64 (2); one element is needed",
                choir_scope_end(scope_));
}

TEST_P(ScopeTest, BackwardNeedsALossOfSomething) {
  choir_scope_backward(scope_, choir_var_square(scope_, Input({1}, {3})),
                       nullptr);
  EXPECT_STATUS(FAILED_PRECONDITION,
                "backward: the loss depends on no parameter",
                choir_scope_end(scope_));
}

TEST_P(ScopeTest, BackwardNamesTheOpAndItsLabel) {
  // cross_entropy's gradient is fine with these; a rule's op that fails is
  // made by a destination of the wrong shape.
  Param w(device_.get(), "w", {2}, {3, 4});
  TensorPtr wrong = Tensor({3}, {0, 0, 0});
  w.get()->grad = wrong.get();
  choir_scope_set_label(scope_, "fc7");
  choir_var_t* y = choir_var_exp(scope_, Use(&w));
  choir_scope_set_label(scope_, nullptr);
  choir_scope_backward(scope_, Dot(y, {2}, {1, 1}), nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT, "fc7: gradient of exp: mul: destination 0",
                choir_scope_end(scope_));
}

// ---- Where backward starts ----

TEST_P(ScopeTest, StartsFromAGivenGradient) {
  TensorPtr start = Tensor({2}, {1, 10});
  choir_backward_options_t options = {};
  options.start = start.get();
  choir_var_t* x = Leaf({2}, {3, 5});
  choir_scope_backward(scope_, choir_var_square(scope_, x), &options);
  EXPECT_EQ(Grad(x), (Doubles{6, 100}));
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(Read<double>(start), (Doubles{1, 10}));
  // Also where the leaf itself is asked.
  choir_scope_begin(scope_, &kTraining);
  x = Leaf({2}, {3, 5});
  choir_scope_backward(scope_, x, &options);
  EXPECT_EQ(Grad(x), (Doubles{1, 10}));
  EXPECT_OK(choir_scope_end(scope_));
  EXPECT_EQ(Read<double>(start), (Doubles{1, 10}));
}

TEST_P(ScopeTest, RefusesAStartOfAnotherShape) {
  TensorPtr start = Tensor({2}, {1, 10});
  choir_backward_options_t options = {};
  options.start = start.get();
  choir_var_t* x = Leaf({3}, {3, 5, 7});
  choir_scope_backward(scope_, choir_var_square(scope_, x), &options);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "backward: starts from a gradient f64 (2) for",
                choir_scope_end(scope_));
}

// ---- Memory ----

// A long step of inference needs less room than the same of training.
TEST_P(ScopeTest, InferenceKeepsNoTape) {
  Param w(device_.get(), "w", {1}, {0.5});
  uint64_t bytes[2];
  for (bool training : {false, true}) {
    choir_scope_begin(scope_, training ? &kTraining : nullptr);
    choir_var_t* y = Use(&w);
    choir_scale_attrs_t attrs = {1, 0};
    for (int i = 0; i < 2000; ++i) y = choir_var_scale(scope_, y, &attrs);
    ASSERT_OK(choir_stream_synchronize(choir_device_stream(device_.get())));
    bytes[training] = choir_device_memory(device_.get()).in_use_bytes;
    ASSERT_OK(choir_scope_end(scope_));
  }
  EXPECT_LT(bytes[0] + 2000 * 40, bytes[1]);
}

TEST_P(ScopeTest, InferenceAndTrainingAgreeOnTheResult) {
  Param w(device_.get(), "w", {2}, {3, 4});
  for (bool training : {false, true}) {
    choir_scope_begin(scope_, training ? &kTraining : nullptr);
    choir_var_t* y = choir_var_exp(scope_, Use(&w));
    EXPECT_EQ(Read<double>(choir_var_tensor(y)),
              (Doubles{std::exp(3.0), std::exp(4.0)}));
    EXPECT_OK(choir_scope_end(scope_));
  }
}

TEST_P(ScopeTest, ASteadyLoopAllocatesNothing) {
  FailingAllocator allocator;
  {
    choir_device_options_t options = {};
    options.allocator = allocator.get();
    options.threads = 1;
    DevicePtr device = MakeDevice(GetParam(), &options);
    choir_scope_t* scope = nullptr;
    ASSERT_OK(choir_scope_create(device.get(), &scope));
    Param w(device.get(), "w", {8, 8}, Doubles(64, 0.1));
    TensorPtr x = Make(device.get(), {16, 8}, Doubles(128, 0.5));
    // How much of a step is under way at once differs from step to step where
    // the stream is a thread.
    const int rounds = std::string(GetParam()) == "cpu_async" ? 200 : 6;
    uint64_t count = 0;
    int quiet = 0;  // steps without an allocation, one after the other
    for (int round = 0; round < rounds && quiet < 3; ++round) {
      choir_scope_begin(scope, &kTraining);
      choir_var_t* y = choir_scope_input(scope, x.get());
      for (int layer = 0; layer < 20; ++layer)
        y = choir_var_tanh(
            scope, choir_var_matmul(scope, y, choir_scope_param(scope, w.get()),
                                    nullptr));
      choir_scope_backward(scope, choir_var_mean(scope, y, nullptr), nullptr);
      ASSERT_OK(choir_scope_end(scope));
      ASSERT_OK(choir_stream_synchronize(choir_device_stream(device.get())));
      const uint64_t now = choir_device_memory(device.get()).base_allocations;
      quiet = now == count ? quiet + 1 : 0;
      count = now;
    }
    EXPECT_GT(count, 0u);
    EXPECT_EQ(quiet, 3);
    choir_scope_destroy(scope);
  }
}

// All that a step made is free after it.
TEST_P(ScopeTest, EndGivesEverythingBack) {
  Param w(device_.get(), "w", {4}, {1, 2, 3, 4});
  uint64_t before = 0;
  for (int round = 0; round < 3; ++round) {  // the first makes the tape's room
    choir_scope_begin(scope_, &kTraining);
    choir_var_t* y = choir_var_exp(scope_, Use(&w));
    if (round == 2)
      choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "in the middle"));
    choir_scope_backward(scope_, choir_var_mean(scope_, y, nullptr), nullptr);
    choir_status_free(choir_scope_end(scope_));
    ASSERT_OK(choir_stream_synchronize(choir_device_stream(device_.get())));
    const uint64_t after = choir_device_memory(device_.get()).in_use_bytes;
    if (round == 0) before = after;
    EXPECT_EQ(after, before);
  }
}

TEST(ScopeMemoryTest, SurvivesEveryFailedAllocation) {
  int64_t failed =
      FailEveryAllocationOnCpu([](choir_device_t* device) -> choir_status_t {
        choir_scope_t* scope = nullptr;
        choir_tensor_t* x = nullptr;
        choir_tensor_t* grad = nullptr;
        const int64_t shape[] = {40, 50};
        const std::vector<float> zeros(2000, 0.0f);
        choir_status_t status = choir_scope_create(device, &scope);
        if (!status)
          status = choir_tensor_from_data(device, CHOIR_DTYPE_F32, 2, shape,
                                          zeros.data(), &x);
        if (!status)
          status =
              choir_tensor_create(device, CHOIR_DTYPE_F32, 2, shape, &grad);
        if (!status) {
          choir_param_t param = {};
          param.name = "p";
          param.value = x;
          param.grad = grad;
          param.trainable = true;
          choir_scope_begin(scope, &kTraining);
          choir_var_t* y = choir_scope_param(scope, &param);
          choir_var_t* p = y;
          choir_conv2d_attrs_t conv = {{1, 1}, {0, 0}, {1, 1}, 1, 0};
          choir_reshape_attrs_t image = {4, {1, 1, 40, 50}};
          choir_reshape_attrs_t kernel = {4, {2000, 1, 1, 1}};
          choir_reshape_attrs_t bias = {1, {2000}};
          choir_slice_attrs_t part = {0, 0, 2, 1};
          choir_var_t* small = choir_var_slice(
              scope, choir_var_reshape(scope, p, &kernel), &part);
          choir_var_t* small_bias =
              choir_var_slice(scope, choir_var_reshape(scope, p, &bias), &part);
          y = choir_var_conv2d(scope, choir_var_reshape(scope, y, &image),
                               small, small_bias, &conv);
          y = choir_var_sigmoid(scope, y);
          choir_scope_backward(scope, choir_var_mean(scope, y, nullptr),
                               nullptr);
          status = choir_scope_end(scope);
        }
        choir_tensor_release(x);
        choir_tensor_release(grad);
        choir_scope_destroy(scope);
        return status;
      });
  EXPECT_GT(failed, 10);
}

}  // namespace
