// SPDX-License-Identifier: Apache-2.0
// Recorded predictions between changes of the weights, of which kernels keep
// forms of their own (core/packed_backend.h).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/model.h"
#include "opt/optimizer.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

struct Net {
  choir_layer_t* layers[4];
};

// So many channels, and samples, that kernels take the weights in an order of
// their own.
void Define(choir_model_t* model, void* self) {
  choir_layer_t** layers = static_cast<Net*>(self)->layers;
  choir_conv2d_config_t conv = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
  conv.out_channels = 32;
  conv.kernel_size = 3;
  conv.activation = CHOIR_ACTIVATION_RELU;
  layers[0] =
      choir_layer_create(model, "conv1", &choir_layer_def_conv2d, &conv);
  layers[1] =
      choir_layer_create(model, "conv2", &choir_layer_def_conv2d, &conv);
  choir_flatten_config_t none = {CHOIR_CONFIG_DEFAULTS(CHOIR_NO_FIELDS)};
  layers[2] =
      choir_layer_create(model, "flat", &choir_layer_def_flatten, &none);
  choir_linear_config_t linear = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
  linear.out_features = 5;
  layers[3] =
      choir_layer_create(model, "out", &choir_layer_def_linear, &linear);
}

choir_var_t* Forward(choir_scope_t* scope, void* self, choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  for (choir_layer_t* layer : static_cast<Net*>(self)->layers)
    x = choir_layer_forward(scope, layer, x);
  return x;
}

constexpr choir_model_def_t kNetDef = {"net", Define, Forward, nullptr};

class Model {
 public:
  Model(choir_device_t* device, bool use_graph) {
    EXPECT_OK(choir_model_create(device, &kNetDef, &net_, 7, &model_));
    const int64_t shape[] = {1, 32, 8, 8};
    choir_view_t x;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &x));
    EXPECT_OK(choir_model_compile(model_, &x, 1));
    const choir_optimizer_def_t* def = choir_optimizer_def_find("sgd");
    alignas(8) unsigned char config[128];
    choir_struct_init(choir_optimizer_def_config(def), config);
    EXPECT_OK(choir_struct_set(choir_optimizer_def_config(def), config, "lr",
                               "0.05"));
    EXPECT_OK(choir_optimizer_create(def, config, &optimizer_));
    EXPECT_OK(
        choir_model_set_updater(model_, choir_optimizer_updater(optimizer_)));
    choir_model_set_graph(model_, use_graph, false);
  }
  ~Model() {
    choir_model_release(model_);
    choir_optimizer_release(optimizer_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<float> Predict(const TensorPtr& x) {
    choir_tensor_t* y = nullptr;
    choir_tensor_t* const inputs[] = {x.get()};
    EXPECT_OK(choir_model_predict(model_, inputs, 1, &y));
    const TensorPtr held(y);
    return y ? Read<float>(y) : std::vector<float>();
  }
  void Train(const TensorPtr& x, const TensorPtr& y) {
    const int64_t n = choir_tensor_shape(x.get())[0];
    const choir_model_batch_t batch = {{x.get()}, {y.get()}, 0, n, n};
    EXPECT_OK(choir_model_train_one_batch(model_, &batch));
  }
  choir_tensor_t* param(size_t i) {
    return choir_model_params(model_)->params[i]->value;
  }
  size_t count() { return choir_model_params(model_)->count; }

 private:
  Net net_ = {};
  choir_model_t* model_ = nullptr;
  choir_optimizer_t* optimizer_ = nullptr;
};

class KeptWeightsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = MakeDevice(GetParam());
    constexpr int64_t kSamples = 17;
    std::vector<float> pixels(kSamples * 32 * 64);
    for (size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = static_cast<float>(i * 37 % 101) / 101 - 0.5f;
    x_ = Make(device_.get(), Shape{kSamples, 32, 8, 8}, pixels);
    std::vector<int32_t> labels(kSamples);
    for (size_t i = 0; i < labels.size(); ++i)
      labels[i] = static_cast<int32_t>(i * 3 % 5);
    y_ = Make(device_.get(), Shape{kSamples}, labels);
  }
  // Several times what eager predictions of a model are that never predicted
  // before and has the same parameters.
  void ExpectAsFresh(Model* model, const char* what) {
    SCOPED_TRACE(what);
    Model fresh(device_.get(), false);
    for (size_t i = 0; i < model->count(); ++i) {
      const std::vector<float> values = Read<float>(model->param(i));
      ASSERT_OK(choir_tensor_write(fresh.param(i), values.data(),
                                   values.size() * sizeof(float)));
    }
    const std::vector<float> expected = fresh.Predict(x_);
    EXPECT_FALSE(expected == last_);
    last_ = expected;
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(model->Predict(x_) == expected) << i;
  }

  DevicePtr device_;
  TensorPtr x_, y_;
  std::vector<float> last_;
};
INSTANTIATE_TEST_SUITE_P(Devices, KeptWeightsTest,
                         testing::Values("cpu", "cpu_async"));

TEST_P(KeptWeightsTest, FollowTraining) {
  Model model(device_.get(), true);
  ExpectAsFresh(&model, "as made");
  for (int step = 0; step < 4; ++step) {
    model.Train(x_, y_);
    ExpectAsFresh(&model, "trained");
  }
}

TEST_P(KeptWeightsTest, FollowWrites) {
  Model model(device_.get(), true);
  ExpectAsFresh(&model, "as made");
  choir_tensor_t* w = model.param(0);
  std::vector<float> values = Read<float>(w);
  for (int i = 0; i < 3; ++i) {
    values[static_cast<size_t>(100 * i)] += 3;
    ASSERT_OK(
        choir_tensor_write(w, values.data(), values.size() * sizeof(float)));
    ExpectAsFresh(&model, "choir_tensor_write");
  }
  choir_tensor_t* to = model.param(2);
  choir_stream_t* stream = choir_device_stream(device_.get());
  const TensorPtr other = Make(device_.get(), choir::testing::ShapeOf(to),
                               std::vector<float>(32 * 32 * 9, 0.01f));
  choir_tensor_t* from = other.get();
  ASSERT_OK(choir_op_run(stream, CHOIR_OP_COPY, &from, 1, nullptr, true, &to));
  ExpectAsFresh(&model, "an op");
  float* data =
      static_cast<float*>(choir_buffer_data(choir_tensor_view(w)->buffer));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(choir_stream_synchronize(stream));
    data[7] += 1;
    ExpectAsFresh(&model, "the host, by an address that it took before");
  }
}

}  // namespace
