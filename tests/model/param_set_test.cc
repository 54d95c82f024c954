// SPDX-License-Identifier: Apache-2.0
#include "model/param_set.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "opt/optimizer.h"
#include "tests/model/model_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Perceptron;
using choir::testing::Read;
using choir::testing::TensorPtr;

class ParamSetTest : public ::testing::Test {
 protected:
  ParamSetTest() : device_(MakeDevice("cpu")) {
    EXPECT_OK(choir_param_set_create(device_.get(), &set_));
  }
  ~ParamSetTest() override { choir_param_set_release(set_); }

  DevicePtr device_;
  choir_param_set_t* set_ = nullptr;
};

TEST_F(ParamSetTest, OwnsWhatWasAdded) {
  EXPECT_EQ(set_->count, 0u);
  std::string name = "w0";
  for (int i = 0; i < 40; ++i) {
    name = "w" + std::to_string(i);
    const TensorPtr value = Make<float>(device_.get(), {2}, {1.0f * i, 2});
    choir_param_t* param = nullptr;
    ASSERT_OK(choir_param_set_add(set_, name.c_str(), value.get(), i % 2 == 0,
                                  &param));
    EXPECT_EQ(param, set_->params[i]);
  }
  ASSERT_EQ(set_->count, 40u);
  EXPECT_STREQ(set_->params[7]->name, "w7");
  EXPECT_EQ(Read<float>(set_->params[7]->value), (std::vector<float>{7, 2}));
  EXPECT_EQ(set_->params[7]->grad, nullptr);
  EXPECT_NE(set_->params[8]->grad, nullptr);
  EXPECT_EQ(choir_param_set_find(set_, "w39"), set_->params[39]);
  EXPECT_EQ(choir_param_set_find(set_, "w40"), nullptr);
}

TEST_F(ParamSetTest, Refuses) {
  const TensorPtr value = Make<float>(device_.get(), {2}, {1, 2});
  const TensorPtr whole = Make<int32_t>(device_.get(), {2}, {1, 2});
  const DevicePtr other = MakeDevice("cpu");
  const TensorPtr far = Make<float>(other.get(), {2}, {1, 2});
  ASSERT_OK(choir_param_set_add(set_, "w", value.get(), true, nullptr));
  EXPECT_STATUS(ALREADY_EXISTS, "two parameters are called w; names must",
                choir_param_set_add(set_, "w", value.get(), true, nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "parameter i is of dtype i32; a trained one",
                choir_param_set_add(set_, "i", whole.get(), true, nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "parameter f lies on another device",
                choir_param_set_add(set_, "f", far.get(), true, nullptr));
  EXPECT_EQ(set_->count, 1u);
  ASSERT_OK(choir_param_set_add(set_, "i", whole.get(), false, nullptr));
}

TEST_F(ParamSetTest, ANewGradientIsKept) {
  const TensorPtr value = Make<float>(device_.get(), {2}, {1, 2});
  choir_param_t* param = nullptr;
  ASSERT_OK(choir_param_set_add(set_, "w", value.get(), true, &param));
  TensorPtr grad = Make<float>(device_.get(), {2}, {3, 4});
  choir_param_use_grad(param, grad.get());
  choir_param_use_grad(param, grad.get());
  grad.reset();
  EXPECT_EQ(Read<float>(param->grad), (std::vector<float>{3, 4}));
}

// The optimizer keeps what it updates.
TEST_F(ParamSetTest, OutlivesWhoMadeIt) {
  const TensorPtr value = Make<float>(device_.get(), {2}, {1, 2});
  const TensorPtr grad = Make<float>(device_.get(), {2}, {2, 4});
  choir_param_t* param = nullptr;
  ASSERT_OK(choir_param_set_add(set_, "w", value.get(), true, &param));
  choir_param_use_grad(param, grad.get());
  choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  config.lr = 0.5;
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  ASSERT_OK(choir_optimizer_attach(sgd, device_.get(), set_));
  choir_param_set_release(set_);
  set_ = nullptr;
  ASSERT_OK(choir_optimizer_update(sgd, choir_device_stream(device_.get()), 0));
  EXPECT_EQ(Read<float>(value.get()), (std::vector<float>{0, 0}));
  choir_optimizer_release(sgd);
}

TEST_F(ParamSetTest, OutlivesItsModel) {
  auto net = Perceptron();
  ASSERT_OK(net->Create(device_.get()));
  ASSERT_OK(net->Compile({1, 2}));
  ASSERT_OK(net->UseSgd(0.5));
  choir_param_set_t* kept = choir_model_params(net->get());
  choir_param_set_retain(kept);
  const std::vector<float> before = net->value(0);
  net->Release();
  ASSERT_EQ(kept->count, 4u);
  EXPECT_STREQ(kept->params[0]->name, "fc1.W");
  EXPECT_EQ(Read<float>(kept->params[0]->value), before);
  choir_param_set_release(kept);
}

}  // namespace
