// SPDX-License-Identifier: Apache-2.0
// ResNet-50 on small images: the paper's parameters, scores for images of any
// size, steps that learn, alone and as a planned graph.
#include "examples/resnet50.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

class Network {
 public:
  explicit Network(choir_device_t* device) : device_(device) {
    const int64_t shape[] = {1, 3, 32, 32};
    EXPECT_OK(choir_model_create(device, &resnet50_def, &layers_, 3, &model_));
    choir_view_t x;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &x));
    EXPECT_OK(choir_model_compile(model_, &x, 1));
    EXPECT_OK(resnet50_initialize(model_, 3));
  }
  ~Network() { choir_model_release(model_); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  void UseSgd() {
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = 0.01;
    config.momentum = 0.9;
    choir_optimizer_t* sgd = nullptr;
    ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    ASSERT_OK(choir_model_set_updater(model_, choir_optimizer_updater(sgd)));
    choir_optimizer_release(sgd);  // the model keeps it
  }
  // On the same few images each time.
  void Train() {
    const int64_t count = 4;
    const std::vector<int32_t> labels = {1, 20, 300, 999};
    const TensorPtr x =
        Make(device_, {count, 3, 32, 32}, Floats(count * 3 * 32 * 32, 5));
    const TensorPtr y = Make(device_, {count}, labels);
    const choir_model_batch_t batch = {{x.get()}, {y.get()}, 0, count, count};
    ASSERT_OK(choir_model_train_one_batch(model_, &batch));
  }
  // Of the step before.
  double Loss() {
    choir_metrics_t metrics = {};
    EXPECT_OK(choir_model_take_metrics(model_, &metrics));
    EXPECT_EQ(metrics.batches, 1);
    return metrics.loss_sum;
  }
  TensorPtr Predict(const Shape& shape) {
    const TensorPtr x =
        Make(device_, shape, Floats(choir::testing::Count(shape), 7));
    choir_tensor_t* const inputs[] = {x.get()};
    choir_tensor_t* scores = nullptr;
    EXPECT_OK(choir_model_predict(model_, inputs, 1, &scores));
    return TensorPtr(scores);
  }
  uint64_t Digest() {
    uint64_t digest = 0;
    EXPECT_OK(choir_model_digest(model_, &digest));
    return digest;
  }
  std::vector<choir_param_t*> Params() {
    const choir_param_set_t* list = choir_model_params(model_);
    return {list->params, list->params + list->count};
  }
  // Everything that a checkpoint would have.
  std::vector<choir_named_tensor_t> States() {
    std::vector<choir_named_tensor_t> states(
        choir_model_states(model_, nullptr));
    choir_model_states(model_, states.data());
    return states;
  }
  choir_param_t* Param(const std::string& name) {
    for (choir_param_t* param : Params())
      if (param->name == name) return param;
    ADD_FAILURE() << "no parameter " << name;
    return nullptr;
  }
  choir_model_t* get() { return model_; }

 private:
  choir_device_t* device_;
  resnet50_t layers_ = {};
  choir_model_t* model_ = nullptr;
};

double Deviation(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

bool AllFinite(const std::vector<float>& values) {
  for (float value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

// Whether a status says that this build or machine lacks something, and what.
// Frees it; what else went wrong is a failure.
bool IsMissing(choir_status_t status, std::string* out_why) {
  if (choir_status_code(status) != CHOIR_STATUS_UNAVAILABLE) {
    EXPECT_OK(status);
    return false;
  }
  *out_why = choir_status_message(status);
  choir_status_free(status);
  return true;
}

class Resnet50Test : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    choir_device_t* device = nullptr;
    if (IsMissing(choir_device_create(GetParam(), nullptr, &device), &why))
      GTEST_SKIP() << why;
    ASSERT_NE(device, nullptr);
    device_.reset(device);
    if (choir_device_is_host(device)) return;
    // What a part is missing for would run on the host.
    for (int32_t i = 0; i < choir_gpu_part_count(); ++i) {
      choir_gpu_part_t part;
      if (IsMissing(choir_gpu_part(i, &part), &why)) GTEST_SKIP() << why;
    }
  }
  DevicePtr device_;
};
INSTANTIATE_TEST_SUITE_P(Devices, Resnet50Test,
                         ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(Resnet50Test, HasThePapersParametersAndTakesImagesOfAnySize) {
  Network net(device_.get());
  int64_t count = 0;
  std::set<std::string> convolutions;
  for (const choir_param_t* param : net.Params()) {
    if (param->trainable) count += choir_tensor_count(param->value);
    if (choir_tensor_ndim(param->value) == 4) convolutions.insert(param->name);
  }
  EXPECT_EQ(count, 25557032);
  // 49 that lead to the 50th layer, the linear one, and a stage's projection.
  EXPECT_EQ(convolutions.size(), 49u + 4u);
  // v1.5: the 3x3 convolution takes all pixels of the larger image.
  EXPECT_EQ(ShapeOf(net.Param("stage2.block1.conv2.W")->value),
            (Shape{128, 128, 3, 3}));
  EXPECT_NEAR(Deviation(Read<float>(net.Param("conv.W")->value)),
              std::sqrt(2.0 / 147), 0.003);
  EXPECT_NEAR(Deviation(Read<float>(net.Param("stage4.block2.conv3.W")->value)),
              std::sqrt(2.0 / 512), 0.0003);
  for (const Shape& shape :
       {Shape{2, 3, 32, 32}, Shape{1, 3, 64, 64}, Shape{1, 3, 33, 70}}) {
    const TensorPtr scores = net.Predict(shape);
    ASSERT_EQ(ShapeOf(scores.get()), (Shape{shape[0], 1000}));
    EXPECT_TRUE(AllFinite(Read<float>(scores)));
  }
}

TEST_P(Resnet50Test, LearnsAndAGraphGivesTheBitsOfEagerSteps) {
  Network net(device_.get());
  net.UseSgd();
  net.Train();
  const double first_loss = net.Loss();
  // Of a guess among a thousand.
  EXPECT_NEAR(first_loss, std::log(1000), 2);
  std::vector<std::vector<float>> states;
  for (const choir_named_tensor_t& state : net.States())
    states.push_back(Read<float>(state.tensor));
  const int64_t first_step = choir_model_step(net.get());

  std::vector<double> losses;
  std::vector<uint64_t> digests;
  for (int step = 0; step < 3; ++step) {
    net.Train();
    losses.push_back(net.Loss());
    digests.push_back(net.Digest());
  }
  EXPECT_LT(losses.back(), 0.5 * first_loss);
  for (const choir_param_t* param : net.Params()) {
    if (!param->trainable) continue;
    const std::vector<float> grad = Read<float>(param->grad);
    EXPECT_TRUE(AllFinite(grad)) << param->name;
    EXPECT_GT(Deviation(grad), 0) << param->name;
  }

  // Back to the first step, and the same way once more.
  size_t i = 0;
  for (const choir_named_tensor_t& state : net.States()) {
    ASSERT_OK(choir_tensor_write(state.tensor, states[i].data(),
                                 states[i].size() * sizeof(float)));
    ++i;
  }
  choir_model_set_step(net.get(), first_step);
  choir_model_set_graph(net.get(), true, false);
  for (size_t step = 0; step < losses.size(); ++step) {
    choir_op_stats_reset();
    net.Train();
    const choir_op_stats_t stats = choir_op_stats();
    EXPECT_EQ(stats.reference_runs, 0u);
    EXPECT_EQ(stats.host_fallbacks, 0u);
    EXPECT_EQ(net.Loss(), losses[step]) << "step " << step;
    ASSERT_EQ(net.Digest(), digests[step]) << "step " << step;
  }
  EXPECT_NE(choir_model_last_graph(net.get()), 0u);
}

}  // namespace
