// SPDX-License-Identifier: Apache-2.0
// Every line of the layer list and of the optimizer list has its macro, and the
// macro makes what it is named after, with the defaults of the field table.
#include "tests/conformance/list_macros.h"

#include <gtest/gtest.h>

#include <string>

#include "model/model.h"
#include "tests/testing/status_matchers.h"

namespace {

const layer_macro_t* tried = nullptr;
choir_layer_t* made = nullptr;

void Define(choir_model_t* model, void*) { made = tried->make(model); }
choir_var_t* Forward(choir_scope_t*, void*, choir_vars_t inputs) {
  return inputs.at[0];
}

TEST(ListMacros, MakeEveryLayer) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_model_def_t def = {};
  def.name = "lists";
  def.define = Define;
  def.forward = Forward;
  for (tried = layer_macros; tried->name; ++tried) {
    SCOPED_TRACE(tried->name);
    made = nullptr;
    EXPECT_NE(choir_layer_def_find(tried->name), nullptr);
    choir_model_t* model = nullptr;
    choir_status_t status =
        choir_model_create(device, &def, nullptr, 1, &model);
    ASSERT_NE(made, nullptr);
    // Some layers have required fields, and say which one was left out.
    if (status) {
      EXPECT_STATUS(INVALID_ARGUMENT, tried->name, status);
    } else {
      EXPECT_STREQ(choir_layer_name(made), tried->name);
    }
    choir_model_release(model);
  }
  EXPECT_GT(tried - layer_macros, 0);
  choir_device_release(device);
}

TEST(ListMacros, AddAGroup) {
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(optimizer_macros[0].make(&sgd));
  ASSERT_OK(add_group_by_macro(sgd));
  const double lr = choir_optimizer_lr(sgd, 0);
  EXPECT_EQ(choir_optimizer_param_lr(sgd, "fc.W", 0), lr);
  EXPECT_EQ(choir_optimizer_param_lr(sgd, "fc.b", 0), 2 * lr);
  choir_optimizer_release(sgd);
}

TEST(ListMacros, MakeEveryOptimizer) {
  int count = 0;
  for (const optimizer_macro_t* one = optimizer_macros; one->name; ++one) {
    SCOPED_TRACE(one->name);
    EXPECT_NE(choir_optimizer_def_find(one->name), nullptr);
    choir_optimizer_t* optimizer = nullptr;
    ASSERT_OK(one->make(&optimizer));
    EXPECT_GT(choir_optimizer_lr(optimizer, 0), 0);
    choir_optimizer_release(optimizer);
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
