// SPDX-License-Identifier: Apache-2.0
// A file as a model: it learns what the same net of layers learns, in recorded
// steps too.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/model/model_testing.h"
#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::File;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::ModelTest;
using choir::testing::Net;
using choir::testing::OnnxPtr;
using choir::testing::Perceptron;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

class OnnxModel : public ModelTest {
 protected:
  void SetUp() override {
    device_ = MakeDevice(GetParam());
    MakeData(12);
    layers_ = Ready(Perceptron());
  }
  void TearDown() override {
    choir_model_release(model_);
    ModelTest::TearDown();
  }

  // The perceptron's values as they are now. The rows of scores are cut out of
  // more columns by a shape that follows from the batch.
  void Write() {
    File file;
    file.Input("x", 1, {-1, 2});
    file.Floats("fc1.W", {2, 8}, layers_->value(0));
    file.Floats("fc1.b", {8}, layers_->value(1));
    file.Floats("fc2.W", {8, 3}, layers_->value(2));
    file.Floats("fc2.b", {3}, layers_->value(3));
    bytes_t first = {0, {0}}, joined = {0, {0}};
    attr_int(&first, "end", 1);
    attr_int(&joined, "axis", 0);
    file.Ints("three", {3});
    file.Node("Gemm", "x fc1.W fc1.b", "a").Node("Relu", "a", "h");
    file.Node("Gemm", "h fc2.W fc2.b", "s").Node("Shape", "x", "n", &first);
    file.Node("Concat", "n three", "to", &joined);
    file.Node("Reshape", "s to", "y").Output("y");
    onnx_ = file.Open();
    ASSERT_TRUE(onnx_);
    ASSERT_OK(choir_model_create(device_.get(), &choir_onnx_model_def,
                                 onnx_.get(), 0, &model_));
    choir_view_t x = *choir_tensor_view(x_.get());
    ASSERT_OK(choir_model_compile(model_, &x, 1));
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = 0.5;
    config.momentum = 0.5;
    choir_optimizer_t* sgd = nullptr;
    ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    ASSERT_OK(choir_model_set_updater(model_, choir_optimizer_updater(sgd)));
    choir_optimizer_release(sgd);
  }
  choir_status_t TrainFile() {
    const choir_model_batch_t batch = Batch();
    return choir_model_train_one_batch(model_, &batch);
  }
  std::vector<float> Value(int32_t i) {
    return Read<float>(choir_onnx_param(onnx_.get(), i)->value);
  }

  std::unique_ptr<Net> layers_;
  OnnxPtr onnx_;
  choir_model_t* model_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Devices, OnnxModel,
                         ::testing::Values("cpu", "cpu_async"));

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << i;
}

TEST_P(OnnxModel, LearnsWhatLayersLearn) {
  Write();
  ASSERT_EQ(choir_onnx_param_count(onnx_.get()), 4);
  EXPECT_STREQ(choir_onnx_param(onnx_.get(), 2)->name, "fc2.W");
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK(TrainFile());
    ASSERT_OK(Train(layers_.get()));
  }
  for (int32_t i = 0; i < 4; ++i)
    ExpectNear(Value(i), layers_->value(static_cast<size_t>(i)));
  choir_tensor_t* y = nullptr;
  choir_tensor_t* x = x_.get();
  ASSERT_OK(choir_model_predict(model_, &x, 1, &y));
  const TensorPtr scores(y);
  EXPECT_EQ(ShapeOf(y), (Shape{12, 3}));
  ExpectNear(Read<float>(y), layers_->Predict(x));
}

// Steps of two sizes of batch, each recorded once and replayed from then on,
// beside steps that are not.
TEST_P(OnnxModel, RecordedStepsHaveTheSameBits) {
  std::vector<std::vector<float>> values;
  for (bool use_graph : {false, true}) {
    Write();
    choir_model_set_graph(model_, use_graph, false);
    for (int i = 0; i < 9; ++i) {
      MakeData(i % 3 == 2 ? 6 : 12);
      ASSERT_OK(TrainFile());
    }
    EXPECT_EQ(choir_model_last_graph(model_) != 0, use_graph);
    for (int32_t i = 0; i < 4; ++i) values.push_back(Value(i));
    choir_model_release(model_);
    model_ = nullptr;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(values[i], values[i + 4]) << i;
}

TEST_P(OnnxModel, PredictionsAreReplayed) {
  Write();
  choir_model_set_graph(model_, true, false);
  for (int64_t n : {12, 12, 5, 12, 5}) {
    const TensorPtr x = Make(device_.get(), {n, 2}, Floats(2 * n, 5));
    choir_tensor_t* in = x.get();
    choir_tensor_t* y = nullptr;
    ASSERT_OK(choir_model_predict(model_, &in, 1, &y));
    const TensorPtr scores(y);
    EXPECT_EQ(ShapeOf(y), (Shape{n, 3}));
    ExpectNear(Read<float>(y), layers_->Predict(in));
  }
}

// A loop of the host's (CumSum of whole numbers, say) is a record as others.
TEST_P(OnnxModel, LoopsOfTheHostAreReplayed) {
  File file;
  bytes_t attrs = {0, {0}};
  attr_string(&attrs, "direction", "LEFT");
  const int64_t one = 1;
  const uint8_t two = 2;
  file.Input("x", 2, {-1}).Output("y", 2);
  onnx_tensor(&file.graph, "by", 2, 1, &one, &two, 1);
  file.Node("BitShift", "x by", "y", &attrs);
  onnx_ = file.Open();
  ASSERT_TRUE(onnx_);
  ASSERT_OK(choir_model_create(device_.get(), &choir_onnx_model_def,
                               onnx_.get(), 0, &model_));
  TensorPtr x = Make<uint8_t>(device_.get(), {3}, {1, 2, 3});
  choir_view_t view = *choir_tensor_view(x.get());
  ASSERT_OK(choir_model_compile(model_, &view, 1));
  choir_model_set_graph(model_, true, false);
  for (uint8_t k = 0; k < 4; ++k) {
    x = Make<uint8_t>(device_.get(), {3}, {k, 2, 3});
    choir_tensor_t* in = x.get();
    choir_tensor_t* y = nullptr;
    ASSERT_OK(choir_model_predict(model_, &in, 1, &y));
    const TensorPtr result(y);
    EXPECT_EQ(Read<uint8_t>(y),
              (std::vector<uint8_t>{static_cast<uint8_t>(4 * k), 8, 12}));
  }
}

// The file keeps the parameters of a model that is gone; a second model takes
// the file over.
TEST_P(OnnxModel, MayGoBeforeItsFile) {
  Write();
  ASSERT_OK(TrainFile());
  const std::vector<float> learnt = Value(0);
  choir_model_release(model_);
  model_ = nullptr;
  EXPECT_EQ(Value(0), learnt);
  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_scope_begin(scope, nullptr);
  choir_var_t* x = choir_scope_input(scope, x_.get());
  choir_var_t* y = choir_onnx_forward(scope, onnx_.get(), {&x, 1});
  EXPECT_TRUE(choir_scope_is_ok(scope));
  EXPECT_EQ(ShapeOf(choir_var_tensor(y)), (Shape{12, 3}));
  EXPECT_EQ(choir_onnx_find_result(onnx_.get(), "y"), y);
  EXPECT_OK(choir_scope_end(scope));
  choir_scope_destroy(scope);
  choir_onnx_retain(onnx_.get());
  choir_onnx_release(onnx_.get());
  ASSERT_OK(choir_model_create(device_.get(), &choir_onnx_model_def,
                               onnx_.get(), 0, &model_));
  EXPECT_EQ(Value(0), layers_->value(0));
}

TEST_P(OnnxModel, NeedsAPlaceBeforeForward) {
  File file;
  file.Input("x", 1, {-1, 2}).Node("Relu", "x", "y").Output("y");
  const OnnxPtr onnx = file.Open();
  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_scope_begin(scope, nullptr);
  choir_var_t* x = choir_scope_input(scope, x_.get());
  choir_onnx_forward(scope, onnx.get(), {&x, 1});
  EXPECT_STATUS(FAILED_PRECONDITION, "choir_onnx_place comes first",
                choir_scope_end(scope));
  choir_scope_destroy(scope);
  EXPECT_STATUS(INVALID_ARGUMENT, "device is NULL",
                choir_onnx_place(onnx.get(), nullptr));
}

}  // namespace
