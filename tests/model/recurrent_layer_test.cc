// SPDX-License-Identifier: Apache-2.0
// Recurrent layers in numbers: states and lengths as inputs, several results.
// Other cells, layers and directions: tests/python/recurrent_test.py.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/model.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

constexpr size_t kBatch = 3, kSteps = 4, kIn = 2, kHidden = 3;

// Hands out one result of a layer of some of the inputs.
struct Recurrent {
  std::vector<size_t> used = {0, 1, 2, 3};
  choir_layer_t* layer = nullptr;
  choir_model_t* model = nullptr;
  int32_t result = 0;

  static void Define(choir_model_t* model, void* self) {
    choir_lstm_config_t config = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_RECURRENT_FIELDS)};
    config.hidden_size = kHidden;
    config.batch_first = true;
    static_cast<Recurrent*>(self)->layer =
        choir_layer_create(model, "it", &choir_layer_def_lstm, &config);
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    auto* it = static_cast<Recurrent*>(self);
    std::vector<choir_var_t*> vars;
    for (size_t i : it->used) vars.push_back(inputs.at[i]);
    choir_var_t* y = choir_layer_forward_list(
        scope, it->layer, {vars.data(), static_cast<int32_t>(vars.size())});
    return choir_scope_result(scope, y, it->result);
  }
  ~Recurrent() { choir_model_release(model); }
};

const choir_model_def_t kDef = {"net", Recurrent::Define, Recurrent::Forward,
                                nullptr};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class RecurrentLayerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_model_create(device_.get(), &kDef, &it_, 1, &it_.model));
    std::vector<choir_view_t> views;
    for (choir_tensor_t* x : inputs_) views.push_back(*choir_tensor_view(x));
    ASSERT_OK(choir_model_compile(it_.model, views.data(),
                                  static_cast<int32_t>(views.size())));
    const choir_param_set_t* params = choir_model_params(it_.model);
    ASSERT_EQ(params->count, 3u);
    for (size_t i = 0; i < 3; ++i) {
      choir_tensor_t* p = params->params[i]->value;
      w_[i] = Floats(static_cast<size_t>(choir_tensor_count(p)), 20 + i);
      ASSERT_OK(
          choir_tensor_write(p, w_[i].data(), w_[i].size() * sizeof(float)));
    }
  }

  choir_status_t Predict(const std::vector<choir_tensor_t*>& inputs,
                         int32_t result, std::vector<float>* out) {
    it_.result = result;
    choir_tensor_t* y = nullptr;
    CHOIR_TRY(choir_model_predict(it_.model, inputs.data(),
                                  static_cast<int32_t>(inputs.size()), &y));
    *out = Read<float>(y);
    choir_tensor_release(y);
    return nullptr;
  }

  // y, h and c by the formula, one number after the other.
  std::vector<double> Expected(int result) const {
    std::vector<double> y(kBatch * kSteps * kHidden), h, c;
    for (float value : Read<float>(h_)) h.push_back(value);
    for (float value : Read<float>(c_)) c.push_back(value);
    for (size_t n = 0; n < kBatch; ++n) {
      for (size_t t = 0; t < static_cast<size_t>(kLengths[n]); ++t) {
        std::vector<double> sums(4 * kHidden);
        for (size_t j = 0; j < sums.size(); ++j) {
          sums[j] = w_[2][j];
          for (size_t k = 0; k < kIn; ++k)
            sums[j] += x_values_[(n * kSteps + t) * kIn + k] *
                       w_[0][k * sums.size() + j];
          for (size_t k = 0; k < kHidden; ++k)
            sums[j] += h[n * kHidden + k] * w_[1][k * sums.size() + j];
        }
        for (size_t j = 0; j < kHidden; ++j) {
          double& cell = c[n * kHidden + j];
          cell = Sigmoid(sums[kHidden + j]) * cell +
                 Sigmoid(sums[j]) * std::tanh(sums[2 * kHidden + j]);
          h[n * kHidden + j] = y[(n * kSteps + t) * kHidden + j] =
              Sigmoid(sums[3 * kHidden + j]) * std::tanh(cell);
        }
      }
    }
    return result == 0 ? y : result == 1 ? h : c;
  }

  static constexpr int32_t kLengths[] = {2, 4, 0};
  const std::vector<float> x_values_ = Floats(kBatch * kSteps * kIn, 3);
  const DevicePtr device_ = MakeDevice("cpu");
  const TensorPtr x_ = Make(device_.get(), {kBatch, kSteps, kIn}, x_values_);
  const TensorPtr h_ =
      Make(device_.get(), {1, kBatch, kHidden}, Floats(kBatch* kHidden, 4));
  const TensorPtr c_ =
      Make(device_.get(), {1, kBatch, kHidden}, Floats(kBatch* kHidden, 5));
  const TensorPtr lengths_ =
      Make(device_.get(), {kBatch}, std::vector<int32_t>{2, 4, 0});
  const std::vector<choir_tensor_t*> inputs_ = {x_.get(), h_.get(), c_.get(),
                                                lengths_.get()};
  Recurrent it_;
  std::vector<float> w_[3];  // Wx, Wh, b
};

TEST_F(RecurrentLayerTest, GivesStepsAndLastStates) {
  for (int result = 0; result < 3; ++result) {
    std::vector<float> got;
    ASSERT_OK(Predict(inputs_, result, &got));
    const std::vector<double> want = Expected(result);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-5) << result << " " << i;
  }
  std::vector<float> got;
  EXPECT_STATUS(OUT_OF_RANGE, "result 3; needs 0 .. 2",
                Predict(inputs_, 3, &got));
}

TEST_F(RecurrentLayerTest, RefusesOtherInputs) {
  std::vector<float> got;
  const TensorPtr longer =
      Make(device_.get(), {kBatch}, std::vector<int32_t>{2, 5, 0});
  EXPECT_STATUS(OUT_OF_RANGE, "length 5 of sample 1; needs 0 .. 4",
                Predict({x_.get(), h_.get(), c_.get(), longer.get()}, 0, &got));
  it_.used = {0, 1};
  EXPECT_STATUS(INVALID_ARGUMENT, "it (lstm): needs x, then no state or all",
                Predict(inputs_, 0, &got));
  it_.used = {0, 1, 0};
  EXPECT_STATUS(INVALID_ARGUMENT, "it: concat: source 1 is f32 (",
                Predict(inputs_, 0, &got));
}

}  // namespace
