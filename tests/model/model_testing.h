// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_MODEL_MODEL_TESTING_H_
#define CHOIR_TESTS_MODEL_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "opt/optimizer.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

// A model whose callbacks are given as functions.
class Net {
 public:
  using Define = std::function<void(Net*)>;
  using Forward =
      std::function<choir_var_t*(Net*, choir_scope_t*, choir_var_t*)>;
  using Train = std::function<choir_var_t*(Net*, choir_scope_t*, choir_var_t*,
                                           choir_var_t*, choir_var_t**)>;

  Net(Define define, Forward forward, Train train = nullptr)
      : define_(std::move(define)),
        forward_(std::move(forward)),
        train_(std::move(train)) {
    if (train_) def_.train_one_batch = CallTrain;
  }
  ~Net() { Release(); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  // Before Create.
  void SetName(const char* name) { def_.name = name; }
  choir_status_t Create(choir_device_t* device, int64_t seed = 1) {
    return choir_model_create(device, &def_, this, seed, &model_);
  }
  choir_status_t Compile(const Shape& shape) {
    choir_view_t x;
    choir_status_t status = choir_view_make(
        CHOIR_DTYPE_F32, static_cast<int32_t>(shape.size()), shape.data(), &x);
    return status ? status : choir_model_compile(model_, &x, 1);
  }
  choir_status_t UseSgd(double lr, double momentum = 0) {
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = lr;
    config.momentum = momentum;
    choir_optimizer_t* sgd = nullptr;
    CHOIR_TRY(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    choir_status_t status =
        choir_model_set_updater(model_, choir_optimizer_updater(sgd));
    choir_optimizer_release(sgd);  // the model keeps it
    return status;
  }
  void Release() {
    choir_model_release(model_);
    model_ = nullptr;
  }

  choir_model_t* get() { return model_; }
  choir_param_t* param(size_t i) {
    return choir_model_params(model_)->params[i];
  }
  std::vector<float> value(size_t i) { return Read<float>(param(i)->value); }
  void SetValue(size_t i, const std::vector<float>& values) {
    ASSERT_OK(choir_tensor_write(param(i)->value, values.data(),
                                 values.size() * sizeof(float)));
  }
  uint64_t Digest() {
    uint64_t digest = 0;
    EXPECT_OK(choir_model_digest(model_, &digest));
    return digest;
  }
  choir_status_t Predict(choir_tensor_t* x, choir_tensor_t** out_y) {
    return choir_model_predict(model_, &x, 1, out_y);
  }
  std::vector<float> Predict(choir_tensor_t* x) {
    choir_tensor_t* y = nullptr;
    EXPECT_OK(Predict(x, &y));
    TensorPtr kept(y);
    return y ? Read<float>(y) : std::vector<float>();
  }
  choir_var_t* RunForward(choir_scope_t* scope, choir_var_t* x) {
    return forward_(this, scope, x);
  }
  choir_metrics_t Metrics() {
    choir_metrics_t metrics;
    EXPECT_OK(choir_model_take_metrics(model_, &metrics));
    return metrics;
  }

  // In define.
  template <typename Config>
  choir_layer_t* Add(const char* name, const choir_layer_def_t* def,
                     const Config& config) {
    layers.push_back(choir_layer_create(defining, name, def, &config));
    return layers.back();
  }
  void Linear(const char* name, int64_t out, bool relu = false) {
    choir_linear_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
    config.out_features = out;
    config.activation = relu ? CHOIR_ACTIVATION_RELU : CHOIR_ACTIVATION_NONE;
    Add(name, &choir_layer_def_linear, config);
  }
  void Dropout(const char* name, double ratio) {
    choir_dropout_config_t config = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_DROPOUT_FIELDS)};
    config.ratio = ratio;
    Add(name, &choir_layer_def_dropout, config);
  }

  choir_model_t* defining = nullptr;
  std::vector<choir_layer_t*> layers;
  std::vector<float> seen;  // what a Train function wants to keep

 private:
  static void CallDefine(choir_model_t* model, void* self) {
    static_cast<Net*>(self)->defining = model;
    static_cast<Net*>(self)->define_(static_cast<Net*>(self));
  }
  static choir_var_t* CallForward(choir_scope_t* scope, void* self,
                                  choir_vars_t inputs) {
    return static_cast<Net*>(self)->forward_(static_cast<Net*>(self), scope,
                                             inputs.at[0]);
  }
  static choir_var_t* CallTrain(choir_model_t*, choir_scope_t* scope,
                                void* self, choir_vars_t inputs,
                                choir_vars_t targets, choir_var_t** out_loss) {
    return static_cast<Net*>(self)->train_(
        static_cast<Net*>(self), scope, inputs.at[0], targets.at[0], out_loss);
  }
  choir_model_def_t def_ = {"net", CallDefine, CallForward, nullptr};
  Define define_;
  Forward forward_;
  Train train_;
  choir_model_t* model_ = nullptr;
};

// All layers one after the other.
inline choir_var_t* Chain(Net* net, choir_scope_t* scope, choir_var_t* x) {
  for (choir_layer_t* layer : net->layers)
    x = choir_layer_forward(scope, layer, x);
  return x;
}

inline std::unique_ptr<Net> Perceptron(double dropout = 0) {
  return std::make_unique<Net>(
      [dropout](Net* net) {
        net->Linear("fc1", 8, true);
        if (dropout > 0) net->Dropout("drop", dropout);
        net->Linear("fc2", 3);
      },
      Chain);
}

class ModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Work that still runs when the process ends would call into oneDNN while
  // exit takes it apart (see choir_stream_synchronize).
  void TearDown() override {
    if (device_)
      choir_status_free(
          choir_stream_synchronize(choir_device_stream(device_.get())));
  }
  // Points of three classes around three corners.
  void MakeData(int64_t count) {
    std::vector<float> x = Floats(2 * count, 5);
    std::vector<int64_t> y;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      y.push_back(static_cast<int64_t>(i % 3));
      x[2 * i] = 0.4f * x[2 * i] + (y[i] == 1 ? 1.0f : -1.0f);
      x[2 * i + 1] = 0.4f * x[2 * i + 1] + (y[i] == 2 ? 1.0f : -1.0f);
    }
    points_ = x;
    labels_ = y;
    x_ = Make(device_.get(), {count, 2}, x);
    y_ = Make(device_.get(), {count}, y);
  }
  choir_model_batch_t Batch() const {
    int64_t count = choir_tensor_shape(x_.get())[0];
    return {{x_.get()}, {y_.get()}, 0, count, count};
  }
  choir_status_t Train(Net* net) {
    choir_model_batch_t batch = Batch();
    return choir_model_train_one_batch(net->get(), &batch);
  }
  std::unique_ptr<Net> Ready(std::unique_ptr<Net> net, int64_t seed = 1) {
    EXPECT_OK(net->Create(device_.get(), seed));
    EXPECT_OK(net->Compile({1, 2}));
    EXPECT_OK(net->UseSgd(0.5, 0.5));
    return net;
  }

  DevicePtr device_ = MakeDevice(GetParam());
  std::vector<float> points_;
  std::vector<int64_t> labels_;
  TensorPtr x_;
  TensorPtr y_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_MODEL_MODEL_TESTING_H_
