// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "model/model.h"
#include "tests/model/model_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

// One parameter w and the loss w^2, whose gradient is 2 w.
struct Square {
  choir_device_t* device = nullptr;
  TensorPtr value;
  choir_param_t* w = nullptr;
  bool leaves_define = false;
  bool leaves_before = false;  // the update
  bool leaves_after = false;

  choir_model_callbacks_t callbacks() {
    return {{Define, this}, {TrainOneBatch, this}};
  }
  static void Define(void* self, void* const* arguments,
                     choir_status_t* out_status) {
    auto* square = static_cast<Square*>(self);
    square->value = Make<float>(square->device, {1}, {3});
    square->w = choir_model_add_param(static_cast<choir_model_t*>(arguments[0]),
                                      "w", square->value.get(), true);
    if (!square->leaves_define) *out_status = nullptr;
  }
  static void TrainOneBatch(void* self, void* const* arguments,
                            choir_status_t* out_status) {
    auto* square = static_cast<Square*>(self);
    auto* scope = static_cast<choir_scope_t*>(arguments[1]);
    if (square->leaves_before) return;
    choir_var_t* loss =
        choir_var_square(scope, choir_scope_param(scope, square->w));
    choir_model_backward_and_update(static_cast<choir_model_t*>(arguments[0]),
                                    scope, loss);
    if (square->leaves_after) return;
    *static_cast<choir_var_t**>(arguments[4]) = loss;
    *out_status = nullptr;
  }
};

class ModelCallbacksTest : public ::testing::Test {
 protected:
  ModelCallbacksTest() : device_(MakeDevice("cpu")) {
    square_.device = device_.get();
    callbacks_ = square_.callbacks();
    def_ = choir_model_def_callbacks;
    def_.name = "square";
  }
  ~ModelCallbacksTest() override {
    choir_model_release(model_);
    choir_optimizer_release(sgd_);
  }
  choir_status_t Create() {
    const int64_t one = 1;
    CHOIR_TRY(
        choir_model_create(device_.get(), &def_, &callbacks_, 0, &model_));
    choir_view_t x;
    CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 1, &one, &x));
    CHOIR_TRY(choir_model_compile(model_, &x, 1));
    CHOIR_TRY(MakeSgd());
    return choir_model_set_updater(model_, choir_optimizer_updater(sgd_));
  }
  choir_status_t MakeSgd() {
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = 0.25;
    return choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd_);
  }
  choir_status_t Train() {
    TensorPtr x = Make<float>(device_.get(), {1}, {1});
    choir_model_batch_t batch = {};
    batch.inputs[0] = batch.targets[0] = x.get();
    batch.sample_count = batch.global_count = 1;
    return choir_model_train_one_batch(model_, &batch);
  }
  float Value() { return Read<float>(square_.value.get())[0]; }

  DevicePtr device_;
  Square square_;
  choir_model_callbacks_t callbacks_;
  choir_model_def_t def_;
  choir_model_t* model_ = nullptr;
  choir_optimizer_t* sgd_ = nullptr;
};

TEST_F(ModelCallbacksTest, Trains) {
  ASSERT_OK(Create());
  ASSERT_OK(Train());
  EXPECT_EQ(Value(), 1.5f);
  choir_metrics_t metrics;
  ASSERT_OK(choir_model_take_metrics(model_, &metrics));
  EXPECT_EQ(metrics.loss_sum, 9);
  EXPECT_EQ(choir_model_step(model_), 1);
}

TEST_F(ModelCallbacksTest, HasNoForward) {
  ASSERT_OK(Create());
  TensorPtr x = Make<float>(device_.get(), {1}, {1});
  choir_tensor_t* const inputs[] = {x.get()};
  choir_tensor_t* y = nullptr;
  EXPECT_STATUS(FAILED_PRECONDITION,
                "model square: predict: its definition has no forward",
                choir_model_predict(model_, inputs, 1, &y));
  choir_model_batch_t batch = {};
  batch.inputs[0] = x.get();
  batch.sample_count = batch.global_count = 1;
  EXPECT_STATUS(FAILED_PRECONDITION,
                "model square: evaluate: its definition has no forward",
                choir_model_evaluate(model_, &batch));
}

TEST_F(ModelCallbacksTest, CallbacksThatAreNone) {
  callbacks_.train_one_batch.run = nullptr;
  ASSERT_OK(Create());
  EXPECT_STATUS(INVALID_ARGUMENT, "callback: run is NULL", Train());
  choir_model_t* model = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "callback: self is NULL",
                choir_model_create(device_.get(), &def_, nullptr, 0, &model));
  callbacks_.define.run = nullptr;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "callback: run is NULL",
      choir_model_create(device_.get(), &def_, &callbacks_, 0, &model));
}

TEST_F(ModelCallbacksTest, DefineThatIsLeft) {
  square_.leaves_define = true;
  EXPECT_STATUS(INTERNAL, "left before its end", Create());
}

TEST_F(ModelCallbacksTest, StepThatIsLeft) {
  ASSERT_OK(Create());
  for (bool use_graph : {false, true}) {
    choir_model_set_graph(model_, use_graph, false);
    square_.leaves_before = true;
    const float before = Value();
    const int64_t step = choir_model_step(model_);
    EXPECT_STATUS(INTERNAL, "left before its end", Train());
    EXPECT_EQ(Value(), before);
    EXPECT_EQ(choir_model_step(model_), step);
    square_.leaves_before = false;
    square_.leaves_after = true;
    EXPECT_STATUS(INTERNAL, "left before its end", Train());
    EXPECT_EQ(Value(), before / 2);
    EXPECT_EQ(choir_model_step(model_), step + 1);
    square_.leaves_after = false;
    ASSERT_OK(Train());
    EXPECT_EQ(Value(), before / 4);
  }
}

}  // namespace
