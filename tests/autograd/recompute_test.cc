// SPDX-License-Identifier: Apache-2.0
// Activations that are dropped and computed again.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "tests/autograd/scope_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Doubles;
using choir::testing::FailEveryAllocationOnCpu;
using choir::testing::kTraining;
using choir::testing::Param;
using choir::testing::Read;
using choir::testing::ScopeTest;
using choir::testing::TensorPtr;

class RecomputeTest : public ScopeTest {
 protected:
  // n x 3 -> n x 3: dropout(relu(x W)) + x, and what lies on the way.
  struct Part {
    choir_var_t* product = nullptr;
    choir_var_t* dropped = nullptr;
    choir_var_t* y = nullptr;
  };
  Part Run(choir_var_t* x, choir_var_t* w) {
    Part part;
    part.product = choir_var_matmul(scope_, x, w, nullptr);
    const choir_dropout_attrs_t attrs = {0.4, 3, 5, 0, 0};
    choir_var_t* relu = choir_var_relu(scope_, part.product);
    part.dropped = choir_var_dropout(scope_, relu, &attrs);
    part.y = choir_var_add(scope_, part.dropped, x);
    return part;
  }
  // Gradients of x, W and V of a loss over three such parts, with W twice;
  // marks: which of them are computed again, bit by bit; 8: all as one, too.
  std::vector<Doubles> Gradients(int marks) {
    choir_scope_begin(scope_, &kTraining);
    Param w(device_.get(), "W", {3, 3}, {1, .5, -1, 2, -.3, .7, .1, .9, -2});
    Param v(device_.get(), "V", {3, 3}, {.3, -1, .2, 1, .6, -.7, .8, .4, 1.5});
    choir_var_t* x =
        Leaf({4, 3}, {1, 2, -.5, .3, -1, .8, 2, .1, -.7, -3, 1, 1});
    choir_var_t* y = x;
    const choir_tape_entry_t* start = choir_scope_tape(scope_);
    choir_param_t* const params[] = {w.get(), v.get(), w.get()};
    for (int i = 0; i < 3; ++i) {
      const choir_tape_entry_t* since = choir_scope_tape(scope_);
      const Part part = Run(y, choir_scope_param(scope_, params[i]));
      y = part.y;
      if (!(marks >> i & 1)) continue;
      choir_scope_recompute(scope_, since, y);
      EXPECT_EQ(choir_var_tensor(part.product), nullptr);
      EXPECT_EQ(choir_var_view(part.dropped), nullptr);
      EXPECT_NE(choir_var_tensor(y), nullptr);
    }
    if (marks & 8) choir_scope_recompute(scope_, start, y);
    const Doubles slopes = {1, -3, 5, 2, 7, -1, .5, -.2, 4, 1, 1, -6};
    choir_scope_backward(scope_, Dot(y, {4, 3}, slopes), nullptr);
    std::vector<Doubles> gradients = {Grad(x), w.grad(), v.grad()};
    EXPECT_OK(choir_scope_end(scope_));
    return gradients;
  }
};

INSTANTIATE_TEST_SUITE_P(All, RecomputeTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(RecomputeTest, GradientsHaveTheSameBits) {
  const std::vector<Doubles> plain = Gradients(0);
  for (const Doubles& gradient : plain)
    EXPECT_NE(gradient, Doubles(gradient.size(), 0.0));
  for (int marks = 1; marks < 16; ++marks)
    EXPECT_EQ(Gradients(marks), plain) << "parts " << marks;
}

TEST_P(RecomputeTest, DropsAgainWhatBackwardHasSeen) {
  Param w(device_.get(), "W", {3, 3}, {1, .5, -1, 2, -.3, .7, .1, .9, -2});
  choir_var_t* x = Leaf({1, 3}, {1, 2, -.5});
  const Part part = Run(x, Use(&w));
  choir_scope_recompute(scope_, nullptr, part.y);
  choir_scope_backward(scope_, Dot(part.y, {1, 3}, {1, -3, 5}), nullptr);
  EXPECT_EQ(choir_var_tensor(part.product), nullptr);
  EXPECT_EQ(choir_var_tensor(part.dropped), nullptr);
  EXPECT_EQ(Grad(x).size(), 3u);
  EXPECT_OK(choir_scope_end(scope_));
}

// Rules that join the gradient of what comes behind a part to that of its last
// op must not, as the part is not there yet.
TEST_P(RecomputeTest, WhatComesBehindAPartIsNotJoinedToIt) {
  std::vector<Doubles> gradients[2];
  for (int again = 0; again < 2; ++again) {
    choir_scope_begin(scope_, &kTraining);
    Doubles image(2 * 3 * 4), slopes(2 * 3 * 4);
    for (size_t i = 0; i < image.size(); ++i) {
      image[i] = std::sin(static_cast<double>(i));
      slopes[i] = std::cos(static_cast<double>(3 * i));
    }
    choir_var_t* x = Leaf({2, 3, 4, 1}, image);
    choir_var_t* norm[] = {choir_var_square(scope_, x), Leaf({3}, {1, -2, 3}),
                           Leaf({3}, {.1, .2, -.3})};
    const choir_batch_norm_attrs_t attrs = {1e-5};
    choir_var_t* y =
        choir_scope_op(scope_, CHOIR_OP_BATCH_NORM, norm, 3, &attrs, nullptr);
    if (again) choir_scope_recompute(scope_, nullptr, y);
    choir_scope_backward(
        scope_, Dot(choir_var_relu(scope_, y), {2, 3, 4, 1}, slopes), nullptr);
    gradients[again] = {Grad(x), Grad(norm[1]), Grad(norm[2])};
    EXPECT_OK(choir_scope_end(scope_));
  }
  EXPECT_EQ(gradients[1], gradients[0]);
}

TEST_P(RecomputeTest, ATupleStays) {
  choir_var_t* x = Leaf({2}, {1, 2});
  choir_var_t* inner = choir_var_exp(scope_, x);
  choir_var_t* const both[] = {choir_var_square(scope_, inner),
                               choir_var_exp(scope_, inner)};
  choir_scope_recompute(scope_, nullptr, choir_scope_tuple(scope_, {both, 2}));
  EXPECT_EQ(choir_var_tensor(inner), nullptr);
  choir_var_t* sum = choir_var_add(scope_, Dot(both[0], {2}, {1, 0}),
                                   Dot(both[1], {2}, {0, 1}));
  choir_scope_backward(scope_, sum, nullptr);
  const Doubles grad = Grad(x);
  // (e^2x)' = 2 e^2x and (e^e^x)' = e^(x + e^x)
  EXPECT_NEAR(grad[0], 2 * std::exp(2), 1e-9);
  EXPECT_NEAR(grad[1] / std::exp(2 + std::exp(2)), 1, 1e-9);
  EXPECT_OK(choir_scope_end(scope_));
}

// y = x0 x1, whose gradient it computes from the tensors that it was given.
struct Product {
  choir_scope_t* scope = nullptr;
  choir_tensor_t* srcs[2] = {};
  static choir_status_t Backward(void* self, choir_tensor_t* dy,
                                 choir_tensor_t** out_grads) {
    Product* product = static_cast<Product*>(self);
    for (int i = 0; i < 2; ++i) {
      choir_tensor_t* factors[] = {dy, product->srcs[1 - i]};
      CHOIR_TRY(choir_op_run(choir_scope_stream(product->scope), CHOIR_OP_MUL,
                             factors, 2, nullptr, false, &out_grads[i]));
    }
    return nullptr;
  }
};

TEST_P(RecomputeTest, WhatACustomOpTakesAndGivesStays) {
  choir_var_t* x = Leaf({2}, {1, 2});
  choir_var_t* square = choir_var_square(scope_, x);
  choir_var_t* cube =
      choir_var_mul(scope_, square, choir_var_exp(scope_, Input({2}, {0, 0})));
  choir_var_t* const srcs[] = {choir_var_neg(scope_, cube), square};
  Product product = {scope_,
                     {choir_var_tensor(srcs[0]), choir_var_tensor(srcs[1])}};
  const choir_custom_op_t op = {"product", Product::Backward, &product};
  choir_var_t* y = choir_scope_record_custom(scope_, &op, srcs, 2,
                                             Tensor({2}, {-1, -16}).get());
  choir_var_t* z = choir_var_exp(scope_, y);
  choir_scope_recompute(scope_, nullptr, z);
  EXPECT_EQ(choir_var_tensor(srcs[0]), product.srcs[0]);
  EXPECT_EQ(choir_var_tensor(srcs[1]), product.srcs[1]);
  EXPECT_NE(choir_var_tensor(y), nullptr);
  EXPECT_EQ(choir_var_tensor(cube), nullptr);
  choir_scope_backward(scope_, Dot(z, {2}, {1, std::exp(16)}), nullptr);
  // -x^4 by way of two squares: (e^-x^4)' = -4 x^3 e^-x^4
  const Doubles grad = Grad(x);
  EXPECT_NEAR(grad[0], -4 * std::exp(-1), 1e-9);
  EXPECT_NEAR(grad[1], -32, 1e-6);
  EXPECT_OK(choir_scope_end(scope_));
}

TEST_P(RecomputeTest, OnlyTheResultCanBeUsedOutside) {
  choir_var_t* x = Leaf({1}, {2});
  choir_var_t* inner = choir_var_exp(scope_, x);
  choir_var_t* y = choir_var_square(scope_, inner);
  choir_scope_recompute(scope_, nullptr, y);
  EXPECT_NE(choir_var_tensor(choir_var_add(scope_, y, x)), nullptr);
  EXPECT_EQ(choir_var_tensor(choir_var_add(scope_, y, inner)), nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT, "add: source 1 was made where activations",
                choir_scope_end(scope_));
  choir_scope_begin(scope_, &kTraining);
  x = Leaf({1}, {2});
  inner = choir_var_exp(scope_, x);
  y = choir_var_square(scope_, inner);
  choir_scope_recompute(scope_, nullptr, y);
  choir_scope_backward(scope_, inner, nullptr);
  EXPECT_STATUS(INVALID_ARGUMENT, "the loss was made where activations",
                choir_scope_end(scope_));
}

TEST_P(RecomputeTest, APartBeginsOnTheTapeOfItsStep) {
  choir_var_t* y = choir_var_exp(scope_, Leaf({1}, {2}));
  const choir_tape_entry_t other = {};
  choir_scope_recompute(scope_, &other, y);
  EXPECT_STATUS(INVALID_ARGUMENT, "not on the tape", choir_scope_end(scope_));
}

TEST_P(RecomputeTest, InferenceAndFailuresDropNothing) {
  choir_scope_begin(scope_, nullptr);
  choir_var_t* inner = choir_var_exp(scope_, Input({1}, {2}));
  choir_var_t* y = choir_var_square(scope_, inner);
  choir_scope_recompute(scope_, nullptr, y);
  EXPECT_NE(choir_var_tensor(inner), nullptr);
  EXPECT_OK(choir_scope_end(scope_));
  choir_scope_begin(scope_, &kTraining);
  inner = choir_var_exp(scope_, Leaf({1}, {2}));
  y = choir_var_add(scope_, inner, Input({2}, {1, 2}));
  choir_scope_fail(scope_, CHOIR_ERROR(INTERNAL, "on purpose"));
  choir_scope_recompute(scope_, nullptr, y);
  EXPECT_NE(choir_var_tensor(inner), nullptr);
  EXPECT_STATUS(INTERNAL, "on purpose", choir_scope_end(scope_));
}

TEST(RecomputeMemoryTest, SurvivesEveryFailedAllocation) {
  const int64_t failed =
      FailEveryAllocationOnCpu([](choir_device_t* device) -> choir_status_t {
        choir_scope_t* scope = nullptr;
        choir_tensor_t* x = nullptr;
        const int64_t shape[] = {40, 50};
        choir_status_t status = choir_scope_create(device, &scope);
        const std::vector<float> half(2000, 0.5f);
        if (!status)
          status = choir_tensor_from_data(device, CHOIR_DTYPE_F32, 2, shape,
                                          half.data(), &x);
        if (!status) {
          choir_scope_begin(scope, &kTraining);
          choir_var_t* y = choir_scope_leaf(scope, x);
          for (int i = 0; i < 3; ++i) {
            const choir_tape_entry_t* since = choir_scope_tape(scope);
            y = choir_var_sigmoid(scope, choir_var_exp(scope, y));
            choir_scope_recompute(scope, since, y);
          }
          choir_scope_backward(scope, choir_var_mean(scope, y, nullptr),
                               nullptr);
          status = choir_scope_end(scope);
        }
        choir_tensor_release(x);
        choir_scope_destroy(scope);
        return status;
      });
  EXPECT_GT(failed, 10);
}

}  // namespace
