// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_AUTOGRAD_SCOPE_TESTING_H_
#define CHOIR_TESTS_AUTOGRAD_SCOPE_TESTING_H_

// A step of training on each device, for tests of scopes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/functions.h"
#include "autograd/scope.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace choir::testing {

constexpr choir_step_t kTraining = {true, 1, 0, 0, 1, 1};

// A parameter with its tensors.
class Param {
 public:
  Param(choir_device_t* device, const char* name, const Shape& shape,
        const std::vector<double>& values)
      : value_(Make(device, shape, values)),
        grad_(Make(device, shape, std::vector<double>(values.size(), -77.0))) {
    param_ = {};
    param_.name = name;
    param_.value = value_.get();
    param_.grad = grad_.get();
    param_.trainable = true;
  }
  choir_param_t* get() { return &param_; }
  std::vector<double> grad() const { return Read<double>(grad_); }

 private:
  TensorPtr value_;
  TensorPtr grad_;
  choir_param_t param_;
};

using Doubles = std::vector<double>;

class ScopeTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_scope_create(device_.get(), &scope_));
    choir_scope_begin(scope_, &kTraining);
  }
  void TearDown() override { choir_scope_destroy(scope_); }

  TensorPtr Tensor(const Shape& shape, const Doubles& values) {
    return Make(device_.get(), shape, values);
  }
  choir_var_t* Input(const Shape& shape, const Doubles& values) {
    return choir_scope_input(scope_, Tensor(shape, values).get());
  }
  choir_var_t* Leaf(const Shape& shape, const Doubles& values) {
    return choir_scope_leaf(scope_, Tensor(shape, values).get());
  }
  choir_var_t* Use(Param* param) {
    return choir_scope_param(scope_, param->get());
  }
  // sum(x * weights)
  choir_var_t* Dot(choir_var_t* x, const Shape& shape, const Doubles& weights) {
    return choir_var_sum(
        scope_, choir_var_mul(scope_, x, Input(shape, weights)), nullptr);
  }
  static Doubles Grad(const choir_var_t* var) {
    choir_tensor_t* grad = choir_var_grad(var);
    EXPECT_NE(grad, nullptr);
    return grad ? Read<double>(grad) : Doubles();
  }

  DevicePtr device_ = MakeDevice(GetParam());
  choir_scope_t* scope_ = nullptr;
};

}  // namespace choir::testing

#endif  // CHOIR_TESTS_AUTOGRAD_SCOPE_TESTING_H_
