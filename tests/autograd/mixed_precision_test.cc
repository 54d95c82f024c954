// SPDX-License-Identifier: Apache-2.0
// Steps whose products have factors of 16 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "autograd/scope.h"
#include "tests/autograd/scope_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::kTraining;
using choir::testing::Make;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::ScopeTest;
using choir::testing::Shape;
using choir::testing::TensorPtr;

class MixedPrecision : public ScopeTest {};

INSTANTIATE_TEST_SUITE_P(All, MixedPrecision,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

std::vector<float> Values(choir_tensor_t* tensor) {
  const choir_cast_attrs_t to_f32 = {CHOIR_DTYPE_F32};
  return Read<float>(Result(CHOIR_OP_CAST, {tensor}, &to_f32).get());
}

// bf16 has eight bits: 1 + 2^-9 becomes 1, forward in x and backward in dy.
TEST_P(MixedPrecision, RoundsTheFactorsOfProducts) {
  const auto make = [&](const Shape& shape, const std::vector<float>& values) {
    return Make(device_.get(), shape, values);
  };
  const float more = 1 + 0x1p-9f;
  TensorPtr x = make({1, 2}, {more, 3}), w = make({2, 1}, {2, 0.5f});
  TensorPtr b = make({1}, {0.25f}), weight = make({1, 1}, {more});
  TensorPtr grad = make({2, 1}, {-7, -7});
  choir_param_t param = {};
  param.name = "w";
  param.value = w.get();
  param.grad = grad.get();
  param.trainable = true;
  struct Step {
    choir_dtype_t precision;
    float y, loss;
    std::vector<float> dx, dw;
  };
  const Step steps[] = {// What comes behind the product is bf16 too.
                        {CHOIR_DTYPE_BF16, 3.75f, 3.75f, {2, 0.5f}, {1, 3}},
                        // Eleven bits.
                        {CHOIR_DTYPE_F16,
                         3.75f + 0x1p-8f,
                         (3.75f + 0x1p-8f) * more,
                         {2 * more, more / 2},
                         {1 + 0x1p-8f, 3 * more}},
                        {CHOIR_DTYPE_F32,
                         3.75f + 0x1p-8f,
                         (3.75f + 0x1p-8f) * more,
                         {2 * more, more / 2},
                         {more * more, 3 * more}}};
  for (const Step& step : steps) {
    SCOPED_TRACE(choir_dtype_name(step.precision));
    choir_scope_set_precision(scope_, step.precision);
    choir_scope_begin(scope_, &kTraining);
    choir_var_t* in = choir_scope_leaf(scope_, x.get());
    choir_var_t* y =
        choir_var_linear(scope_, in, choir_scope_param(scope_, &param),
                         choir_scope_input(scope_, b.get()));
    choir_var_t* loss = choir_var_sum(
        scope_,
        choir_var_mul(scope_, y, choir_scope_input(scope_, weight.get())),
        nullptr);
    choir_scope_backward(scope_, loss, nullptr);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    EXPECT_EQ(choir_tensor_dtype(choir_var_tensor(y)),
              step.precision == CHOIR_DTYPE_BF16 ? CHOIR_DTYPE_BF16
                                                 : CHOIR_DTYPE_F32);
    EXPECT_EQ(Values(choir_var_tensor(y)), std::vector<float>{step.y});
    EXPECT_EQ(Read<float>(choir_var_tensor(loss)),
              std::vector<float>{step.loss});
    EXPECT_EQ(Read<float>(choir_var_grad(in)), step.dx);
    EXPECT_EQ(Read<float>(grad), step.dw);
    ASSERT_OK(choir_scope_end(scope_));
  }
}

// Bits that bf16 has no room for, in sums of terms that it has.
TEST_P(MixedPrecision, GradientsOfWhatIsF32AreSummedInF32) {
  const auto make = [&](const Shape& shape, const std::vector<float>& values) {
    return Make(device_.get(), shape, values);
  };
  const float tiny = 0x1p-12f;
  choir_scope_set_precision(scope_, CHOIR_DTYPE_BF16);
  for (bool has_place : {true, false}) {
    SCOPED_TRACE(has_place ? "a parameter" : "a leaf");
    TensorPtr w = make({1, 1}, {2}), b = make({1}, {tiny});
    TensorPtr dw = make({1, 1}, {-7}), db = make({1}, {-7});
    choir_param_t params[2] = {};
    for (int i = 0; i < 2; ++i) {
      params[i].name = i ? "b" : "w";
      params[i].value = i ? b.get() : w.get();
      params[i].grad = i ? db.get() : dw.get();
      params[i].trainable = true;
    }
    choir_scope_begin(scope_, &kTraining);
    choir_var_t* w_var = has_place ? choir_scope_param(scope_, &params[0])
                                   : choir_scope_leaf(scope_, w.get());
    choir_var_t* b_var = has_place ? choir_scope_param(scope_, &params[1])
                                   : choir_scope_leaf(scope_, b.get());
    choir_var_t* row = choir_scope_leaf(scope_, make({1}, {3}).get());
    choir_var_t* x = choir_scope_input(scope_, make({2, 1}, {1, tiny}).get());
    // Two uses of w and b, in sums over two rows; then a row added to all.
    choir_var_t* y = choir_var_linear(scope_, x, w_var, b_var);
    choir_var_t* z = choir_var_linear(
        scope_, choir_scope_input(scope_, make({1, 1}, {0x1p-20f}).get()),
        w_var, b_var);
    choir_var_t* more = choir_var_add(scope_, y, row);
    choir_var_t* weighed = choir_var_mul(
        scope_, more, choir_scope_input(scope_, make({2, 1}, {1, tiny}).get()));
    choir_var_t* loss =
        choir_var_add(scope_, choir_var_sum(scope_, weighed, nullptr),
                      choir_var_sum(scope_, z, nullptr));
    EXPECT_EQ(choir_tensor_dtype(choir_var_tensor(more)), CHOIR_DTYPE_BF16);
    EXPECT_EQ(choir_tensor_dtype(choir_var_tensor(loss)), CHOIR_DTYPE_F32);
    choir_scope_backward(scope_, loss, nullptr);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    EXPECT_EQ(Read<float>(has_place ? dw.get() : choir_var_grad(w_var)),
              (std::vector<float>{1 + tiny * tiny + 0x1p-20f}));
    EXPECT_EQ(Read<float>(has_place ? db.get() : choir_var_grad(b_var)),
              (std::vector<float>{2 + tiny}));
    EXPECT_EQ(Read<float>(choir_var_grad(row)), (std::vector<float>{1 + tiny}));
    ASSERT_OK(choir_scope_end(scope_));
  }
}

// An op with several of them as its sources makes all their gradients at once.
TEST_P(MixedPrecision, CastsOfOneVariableAddUp) {
  std::vector<float> grads[2];
  for (bool is_one : {true, false}) {
    const std::vector<float> values = {0.5f, 2, -1, 0.25f};
    TensorPtr value = Make(device_.get(), {1, 1, 2, 2}, values);
    TensorPtr places[3];
    choir_param_t params[3] = {};
    for (int i = 0; i < 3; ++i) {
      places[i] = Make(device_.get(), {1, 1, 2, 2}, std::vector<float>(4, -7));
      params[i].name = "x";
      params[i].value = value.get();
      params[i].grad = places[i].get();
      params[i].trainable = true;
    }
    choir_scope_begin(scope_, &kTraining);
    const choir_cast_attrs_t to_bf16 = {CHOIR_DTYPE_BF16};
    choir_var_t* qkv[3];
    for (int i = 0; i < 3; ++i)
      qkv[i] = choir_var_cast(
          scope_, choir_scope_param(scope_, &params[is_one ? 0 : i]), &to_bf16);
    choir_scope_backward(
        scope_,
        choir_var_sum(scope_, choir_var_attention(scope_, qkv, 3, nullptr),
                      nullptr),
        nullptr);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    ASSERT_OK(choir_scope_end(scope_));
    grads[is_one].assign(4, 0);
    for (int i = 0; i < (is_one ? 1 : 3); ++i)
      for (int k = 0; k < 4; ++k) grads[is_one][k] += Read<float>(places[i])[k];
  }
  for (int k = 0; k < 4; ++k)
    EXPECT_NEAR(grads[1][k], grads[0][k], 0x1p-7 * std::fabs(grads[0][k]));
}

// A gradient of another dtype than its variable's is cast.
TEST_P(MixedPrecision, CustomOpsGiveGradientsInAnyDtype) {
  const auto make = [&](const Shape& shape, const std::vector<float>& values) {
    return Make(device_.get(), shape, values);
  };
  choir_scope_set_precision(scope_, CHOIR_DTYPE_BF16);
  choir_scope_begin(scope_, &kTraining);
  choir_var_t* w = choir_scope_leaf(scope_, make({1, 1}, {2}).get());
  choir_var_t* y = choir_var_matmul(
      scope_, choir_scope_input(scope_, make({1, 1}, {3}).get()), w, nullptr);
  TensorPtr result = make({1}, {1}), dy = make({1, 1}, {1 + 0x1p-9f});
  choir_custom_op_t op = {};
  op.name = "custom";
  op.self = dy.get();
  op.backward = [](void* self, choir_tensor_t*,
                   choir_tensor_t** out) -> choir_status_t {
    *out = static_cast<choir_tensor_t*>(self);
    choir_tensor_retain(*out);
    return nullptr;
  };
  choir_var_t* loss =
      choir_scope_record_custom(scope_, &op, &y, 1, result.get());
  choir_scope_backward(scope_, loss, nullptr);
  ASSERT_TRUE(choir_scope_is_ok(scope_));
  EXPECT_EQ(Read<float>(choir_var_grad(w)), (std::vector<float>{3}));
  EXPECT_OK(choir_scope_end(scope_));
}

// Without a scale f16 would make 0 of what is below 2^-25 and infinity of what
// is 65520 or more.
TEST_P(MixedPrecision, F16TakesGradientsOfAnySize) {
  const auto make = [&](const Shape& shape, const std::vector<float>& values) {
    return Make(device_.get(), shape, values);
  };
  choir_scope_set_precision(scope_, CHOIR_DTYPE_F16);
  for (float size :
       {0.0f, 0x1p-120f, 0x1p-40f, 0x1p-14f, 1.0f, 0x1p17f, 0x1p100f}) {
    SCOPED_TRACE(size);
    choir_scope_begin(scope_, &kTraining);
    choir_var_t* x = choir_scope_leaf(scope_, make({2, 2}, {1, 2, 3, 4}).get());
    choir_var_t* w = choir_scope_leaf(scope_, make({2, 2}, {5, 6, 7, 8}).get());
    // w has two uses, whose gradients differ in size.
    choir_var_t* y = choir_var_matmul(scope_, x, w, nullptr);
    choir_var_t* z = choir_var_matmul(
        scope_, choir_scope_input(scope_, make({1, 2}, {1, -1}).get()), w,
        nullptr);
    TensorPtr dy = make({2, 2}, {size, -2 * size, 0, 1.5f * size});
    TensorPtr dz = make({1, 2}, {1, 2});
    choir_var_t* loss = choir_var_add(
        scope_,
        choir_var_sum(
            scope_,
            choir_var_mul(scope_, y, choir_scope_input(scope_, dy.get())),
            nullptr),
        choir_var_sum(
            scope_,
            choir_var_mul(scope_, z, choir_scope_input(scope_, dz.get())),
            nullptr));
    choir_scope_backward(scope_, loss, nullptr);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    EXPECT_EQ(Read<float>(choir_var_grad(x)),
              (std::vector<float>{-7 * size, -9 * size, 9 * size, 12 * size}));
    EXPECT_EQ(Read<float>(choir_var_grad(w)),
              (std::vector<float>{size + 1, 2.5f * size + 2, 2 * size - 1,
                                  2 * size - 2}));
    ASSERT_OK(choir_scope_end(scope_));
  }
}

TEST_P(MixedPrecision, F16PassesInfinityOn) {
  choir_scope_set_precision(scope_, CHOIR_DTYPE_F16);
  choir_scope_begin(scope_, &kTraining);
  const std::vector<float> ones = {1, 1, 1, 1};
  TensorPtr x = Make(device_.get(), {2, 2}, ones);
  TensorPtr w = Make(device_.get(), {2, 2}, ones);
  TensorPtr dy =
      Make(device_.get(), {2, 2}, std::vector<float>{1, HUGE_VALF, 2, 3});
  choir_var_t* in = choir_scope_leaf(scope_, x.get());
  choir_var_t* y =
      choir_var_matmul(scope_, in, choir_scope_input(scope_, w.get()), nullptr);
  choir_scope_backward(
      scope_,
      choir_var_sum(
          scope_, choir_var_mul(scope_, y, choir_scope_input(scope_, dy.get())),
          nullptr),
      nullptr);
  EXPECT_EQ(Read<float>(choir_var_grad(in)),
            (std::vector<float>{HUGE_VALF, HUGE_VALF, 5, 5}));
  EXPECT_OK(choir_scope_end(scope_));
}

// A cast of the caller's own that two products share has no scale.
TEST_P(MixedPrecision, CastsOfTheCallersOwnKeepTheirGradients) {
  const auto make = [&](const Shape& shape, const std::vector<float>& values) {
    return Make(device_.get(), shape, values);
  };
  const choir_cast_attrs_t to_f16 = {CHOIR_DTYPE_F16};
  const choir_cast_attrs_t to_f32 = {CHOIR_DTYPE_F32};
  choir_var_t* x = choir_scope_leaf(scope_, make({1, 2}, {1, 2}).get());
  choir_var_t* narrow = choir_var_cast(scope_, x, &to_f16);
  choir_var_t* sum = nullptr;
  for (float size : {8.0f, 0.25f}) {
    TensorPtr w = make({2, 1}, {size, 3 * size});
    choir_var_t* y = choir_var_cast(
        scope_,
        choir_var_matmul(
            scope_, narrow,
            choir_var_cast(scope_, choir_scope_input(scope_, w.get()), &to_f16),
            nullptr),
        &to_f32);
    sum = sum ? choir_var_add(scope_, sum, y) : y;
  }
  TensorPtr dy = make({1, 1}, {4});
  choir_scope_backward(
      scope_,
      choir_var_sum(
          scope_,
          choir_var_mul(scope_, sum, choir_scope_input(scope_, dy.get())),
          nullptr),
      nullptr);
  EXPECT_EQ(Read<float>(choir_var_grad(x)), (std::vector<float>{33, 99}));
  EXPECT_OK(choir_scope_end(scope_));
}

}  // namespace
