// SPDX-License-Identifier: Apache-2.0
// Chains of elementwise ops (tensor/fusions/chains.c) in the steps that scopes
// write: of a loss and of its gradients.
#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "tests/tensor/chain_testing.h"

namespace {

using choir::testing::ChainTest;
using choir::testing::Shape;

class ChainGradients : public ChainTest {
 protected:
  void SetUp() override {
    ChainTest::SetUp();
    ASSERT_OK(choir_scope_create(device().get(), &scope_));
  }
  void TearDown() override {
    choir_scope_destroy(scope_);
    ChainTest::TearDown();
  }

  choir_param_t Param(const char* name, const Shape& shape) {
    choir_param_t param = {};
    param.name = name;
    param.value = Keep(shape);
    param.grad = Keep(shape);
    param.trainable = true;
    return param;
  }
  choir_var_t* Use(choir_param_t* param) {
    return choir_scope_param(scope_, param);
  }
  // A step of training with this loss; returns how many records were fused
  // away.
  int32_t Train(const std::function<choir_var_t*()>& loss) {
    const choir_step_t training = {true, 1, 0, 0, 1, 1, false};
    choir_tensor_t* value = Keep(Shape{});
    return Fuse([&] {
      choir_scope_begin(scope_, &training);
      choir_var_t* var = loss();
      Run(CHOIR_OP_COPY, {choir_var_tensor(var)}, value);
      choir_scope_backward(scope_, var, nullptr);
      EXPECT_OK(choir_scope_end(scope_));
    });
  }

  choir_scope_t* scope_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Devices, ChainGradients,
                         ::testing::Values("cpu", "cuda"),
                         [](const auto& param) { return param.param; });

// mean of (tanh(a b + c) - t)^2
TEST_P(ChainGradients, OfALossWrittenByHand) {
  for (const Shape& shape : {Shape{1}, Shape{7, 3}, Shape{2049}, Shape{5000}}) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    choir_param_t a = Param("a", shape);
    choir_param_t b = Param("b", shape);
    choir_param_t c = Param("c", shape);
    choir_tensor_t* t = Keep(shape);
    const int32_t fused = Train([&] {
      choir_var_t* y = choir_var_tanh(
          scope_, choir_var_add(scope_, choir_var_mul(scope_, Use(&a), Use(&b)),
                                Use(&c)));
      choir_var_t* error =
          choir_var_sub(scope_, y, choir_scope_input(scope_, t));
      return choir_var_mean(scope_, choir_var_square(scope_, error), nullptr);
    });
    EXPECT_EQ(fused, 8) << text();
    EXPECT_NE(text().find("[mul+add+tanh+sub+square]"), std::string::npos)
        << text();
  }
}

// One step of an LSTM's cell: c' = f c + i g, h = o tanh(c'), all gates given.
TEST_P(ChainGradients, OfAGatedCell) {
  const Shape shape = {33, 17};
  choir_param_t gates[] = {Param("f", shape), Param("i", shape),
                           Param("g", shape), Param("o", shape)};
  choir_param_t c = Param("c", shape);
  const int32_t fused = Train([&] {
    choir_var_t* f = choir_var_sigmoid(scope_, Use(&gates[0]));
    choir_var_t* i = choir_var_sigmoid(scope_, Use(&gates[1]));
    choir_var_t* g = choir_var_tanh(scope_, Use(&gates[2]));
    choir_var_t* o = choir_var_sigmoid(scope_, Use(&gates[3]));
    choir_var_t* next = choir_var_add(scope_, choir_var_mul(scope_, f, Use(&c)),
                                      choir_var_mul(scope_, i, g));
    choir_var_t* h = choir_var_mul(scope_, o, choir_var_tanh(scope_, next));
    return choir_var_sum(scope_, h, nullptr);
  });
  EXPECT_EQ(fused, 16) << text();
}

}  // namespace
