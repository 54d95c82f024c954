// SPDX-License-Identifier: Apache-2.0
// Models of several inputs and targets, of tokens and masks: trained, evaluated
// and predicted, eagerly and as graphs.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "opt/optimizer.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

constexpr int64_t kWords = 7;
constexpr int64_t kWidth = 4;
constexpr int64_t kLength = 3;

// tokens i64 (n, 3), mask f32 (n, 3, 1): the masked sum of the words' vectors,
// (n, 2). Learns two targets at once: the labels and their squared distance to
// `wish` f32 (n, 2).
struct Text {
  choir_param_t* table = nullptr;
  choir_layer_t* out = nullptr;
  TensorPtr start;
};

void Define(choir_model_t* model, void* self) {
  Text* text = static_cast<Text*>(self);
  text->table = choir_model_add_param(model, "table", text->start.get(), true);
  choir_linear_config_t linear = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
  linear.out_features = 2;
  text->out =
      choir_layer_create(model, "out", &choir_layer_def_linear, &linear);
}

choir_var_t* Forward(choir_scope_t* scope, void* self, choir_vars_t inputs) {
  Text* text = static_cast<Text*>(self);
  EXPECT_EQ(inputs.count, 2);
  choir_gather_attrs_t rows = {};
  choir_var_t* x = choir_var_gather(
      scope, choir_scope_param(scope, text->table), inputs.at[0], &rows);
  x = choir_var_mul(scope, x, inputs.at[1]);
  choir_sum_attrs_t words = {};
  words.axis = 1;
  return choir_layer_forward(scope, text->out, choir_var_sum(scope, x, &words));
}

choir_var_t* TrainOneBatch(choir_model_t* model, choir_scope_t* scope,
                           void* self, choir_vars_t inputs,
                           choir_vars_t targets, choir_var_t** out_loss) {
  EXPECT_EQ(targets.count, 2);
  choir_var_t* out = Forward(scope, self, inputs);
  *out_loss = choir_var_add(
      scope, choir_var_softmax_cross_entropy(scope, out, targets.at[0]),
      choir_var_mse_loss(scope, out, targets.at[1]));
  choir_model_backward_and_update(model, scope, *out_loss);
  return out;
}

constexpr choir_model_def_t kDef = {"text", Define, Forward, TrainOneBatch};

class ModelInputsTest : public ::testing::Test {
 protected:
  ModelInputsTest() : device_(MakeDevice("cpu")) {
    text_.start =
        Make(device_.get(), {kWords, kWidth}, Floats(kWords * kWidth, 3));
    EXPECT_OK(choir_model_create(device_.get(), &kDef, &text_, 1, &model_));
  }
  ~ModelInputsTest() override { choir_model_release(model_); }

  choir_status_t Compile() {
    choir_view_t views[2];
    const int64_t tokens[] = {1, kLength};
    const int64_t mask[] = {1, kLength, 1};
    CHOIR_TRY(choir_view_make(CHOIR_DTYPE_I64, 2, tokens, &views[0]));
    CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 3, mask, &views[1]));
    CHOIR_TRY(choir_model_compile(model_, views, 2));
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    choir_optimizer_t* sgd = nullptr;
    CHOIR_TRY(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    choir_status_t status =
        choir_model_set_updater(model_, choir_optimizer_updater(sgd));
    choir_optimizer_release(sgd);
    return status;
  }
  void MakeData(int64_t step) {
    const std::vector<int64_t> tokens = {
        0, step % kWords, 2, 6, 5, 4, 1, 1, 3, 2, 0, 6};
    const std::vector<float> mask = {1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1};
    const std::vector<int32_t> labels = {0, 1, 1, 0};
    tokens_ = Make(device_.get(), {4, kLength}, tokens);
    mask_ = Make(device_.get(), {4, kLength, 1}, mask);
    labels_ = Make(device_.get(), {4}, labels);
    wish_ =
        Make(device_.get(), {4, 2}, Floats(8, static_cast<uint32_t>(step) + 1));
  }
  choir_model_batch_t Batch() const {
    return {
        {tokens_.get(), mask_.get()}, {labels_.get(), wish_.get()}, 0, 4, 4};
  }
  uint64_t Digest() {
    uint64_t digest = 0;
    EXPECT_OK(choir_model_digest(model_, &digest));
    return digest;
  }
  std::vector<float> Predict() {
    choir_tensor_t* const inputs[] = {tokens_.get(), mask_.get()};
    choir_tensor_t* y = nullptr;
    EXPECT_OK(choir_model_predict(model_, inputs, 2, &y));
    const TensorPtr kept(y);
    return y ? Read<float>(y) : std::vector<float>();
  }

  DevicePtr device_;
  Text text_;
  choir_model_t* model_ = nullptr;
  TensorPtr tokens_, mask_, labels_, wish_;
};

TEST_F(ModelInputsTest, GraphsGiveTheBitsOfEagerSteps) {
  ASSERT_OK(Compile());
  Text other_text;
  other_text.start =
      Make(device_.get(), {kWords, kWidth}, Floats(kWords * kWidth, 3));
  std::vector<uint64_t> digests[2];
  std::vector<float> predictions[2];
  for (int use_graph = 0; use_graph < 2; ++use_graph) {
    if (use_graph == 1) {
      choir_model_release(model_);
      model_ = nullptr;
      text_ = std::move(other_text);
      ASSERT_OK(choir_model_create(device_.get(), &kDef, &text_, 1, &model_));
      ASSERT_OK(Compile());
      choir_model_set_graph(model_, true, false);
    }
    for (int64_t step = 0; step < 6; ++step) {
      MakeData(step);
      const choir_model_batch_t batch = Batch();
      ASSERT_OK(choir_model_train_one_batch(model_, &batch));
      ASSERT_OK(choir_model_evaluate(model_, &batch));
      digests[use_graph].push_back(Digest());
      for (float score : Predict()) predictions[use_graph].push_back(score);
    }
    choir_metrics_t metrics = {};
    ASSERT_OK(choir_model_take_metrics(model_, &metrics));
    EXPECT_EQ(metrics.samples, 48);
  }
  EXPECT_NE(choir_model_last_graph(model_), 0u);
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(predictions[0], predictions[1]);
  EXPECT_NE(digests[0][0], digests[0][5]);
}

TEST_F(ModelInputsTest, TheMaskCounts) {
  ASSERT_OK(Compile());
  MakeData(0);
  const std::vector<float> before = Predict();
  const std::vector<float> all(12, 1);
  mask_ = Make(device_.get(), {4, kLength, 1}, all);
  EXPECT_NE(Predict(), before);
}

TEST_F(ModelInputsTest, RefusesOtherLists) {
  EXPECT_STATUS(INVALID_ARGUMENT, "model text: compile: 0 inputs; 1 to 8",
                choir_model_compile(model_, nullptr, 0));
  ASSERT_OK(Compile());
  MakeData(0);
  choir_tensor_t* const inputs[] = {tokens_.get(), mask_.get(), mask_.get()};
  choir_tensor_t* y = nullptr;
  for (int32_t count : {0, 1, 3})
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "model text: " + std::to_string(count) +
                      " inputs; it was compiled for 2",
                  choir_model_predict(model_, inputs, count, &y));
  choir_model_batch_t batch = Batch();
  batch.inputs[1] = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "1 inputs; it was compiled for 2",
                choir_model_train_one_batch(model_, &batch));
  batch.inputs[3] = mask_.get();
  EXPECT_STATUS(INVALID_ARGUMENT, "a tensor of the batch stands behind a NULL",
                choir_model_evaluate(model_, &batch));
  batch = Batch();
  batch.targets[0] = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "a tensor of the batch stands behind a NULL",
                choir_model_train_one_batch(model_, &batch));
}

// Of tensors that lie in one buffer a graph learns the places beside each
// other; others are recorded anew.
TEST_F(ModelInputsTest, TensorsMayShareABuffer) {
  ASSERT_OK(Compile());
  choir_model_set_graph(model_, true, false);
  for (int step = 0; step < 5; ++step) {
    MakeData(step);
    std::vector<float> both = Floats(20, static_cast<uint32_t>(step));
    const TensorPtr whole = Make(device_.get(), {20}, both);
    choir_view_t part;
    const int64_t mask[] = {4, kLength, 1};
    const int64_t wish[] = {4, 2};
    choir_tensor_t* tensor = nullptr;
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 3, mask, &part));
    part.buffer = choir_tensor_view(whole.get())->buffer;
    part.offset = step == 4 ? 8 : 0;
    ASSERT_OK(choir_tensor_from_view(&part, &tensor));
    mask_ = TensorPtr(tensor);
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, wish, &part));
    part.buffer = choir_tensor_view(whole.get())->buffer;
    part.offset = step == 4 ? 0 : 12;
    ASSERT_OK(choir_tensor_from_view(&part, &tensor));
    wish_ = TensorPtr(tensor);
    const choir_model_batch_t batch = Batch();
    ASSERT_OK(choir_model_train_one_batch(model_, &batch));
    const std::vector<float> by_graph = Predict();
    // A copy of the mask in a buffer of its own gives the same.
    mask_ = Make(device_.get(), {4, kLength, 1}, Read<float>(mask_.get()));
    EXPECT_EQ(Predict(), by_graph);
  }
}

}  // namespace
