// SPDX-License-Identifier: Apache-2.0
// A model with a loss of its own, linear_cross_entropy over a table that is its
// embedding too, beside the same model with scores.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "model/model.h"
#include "opt/optimizer.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::TensorPtr;

constexpr int64_t kSamples = 5, kLength = 3, kWords = 400, kWidth = 8;

struct Text {
  choir_param_t* table = nullptr;
  choir_layer_t* norm = nullptr;
  TensorPtr start;
};

void Define(choir_model_t* model, void* self) {
  Text* text = static_cast<Text*>(self);
  text->table = choir_model_add_param(model, "table", text->start.get(), true);
  choir_layer_norm_config_t norm = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_LAYER_NORM_FIELDS)};
  text->norm =
      choir_layer_create(model, "norm", &choir_layer_def_layer_norm, &norm);
}

choir_var_t* Features(choir_scope_t* scope, void* self, choir_vars_t inputs) {
  Text* text = static_cast<Text*>(self);
  choir_gather_attrs_t rows = {};
  choir_var_t* x = choir_var_gather(
      scope, choir_scope_param(scope, text->table), inputs.at[0], &rows);
  return choir_layer_forward(scope, text->norm, x);
}

choir_var_t* Forward(choir_scope_t* scope, void* self, choir_vars_t inputs) {
  choir_matmul_attrs_t attrs = {};
  attrs.transpose_b = true;
  return choir_var_matmul(
      scope, Features(scope, self, inputs),
      choir_scope_param(scope, static_cast<Text*>(self)->table), &attrs);
}

choir_var_t* Loss(choir_scope_t* scope, void* self, choir_vars_t inputs,
                  choir_vars_t targets) {
  choir_linear_cross_entropy_attrs_t attrs = {};
  attrs.transpose = true;
  return choir_var_linear_cross_entropy(
      scope, Features(scope, self, inputs), targets.at[0],
      choir_scope_param(scope, static_cast<Text*>(self)->table), &attrs);
}

constexpr choir_model_def_t kWithScores = {"scores", Define, Forward};
constexpr choir_model_def_t kWithLoss = {"loss", Define, Forward, nullptr,
                                         Loss};

class Trained {
 public:
  explicit Trained(const choir_model_def_t& def, bool use_graph = false) {
    text_.start =
        Make(device_.get(), {kWords, kWidth}, Floats(kWords * kWidth, 3));
    EXPECT_OK(choir_model_create(device_.get(), &def, &text_, 1, &model_));
    const int64_t shape[] = {1, kLength};
    choir_view_t tokens;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_I64, 2, shape, &tokens));
    EXPECT_OK(choir_model_compile(model_, &tokens, 1));
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    config.lr = 0.5;
    choir_optimizer_t* sgd = nullptr;
    EXPECT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    EXPECT_OK(choir_model_set_updater(model_, choir_optimizer_updater(sgd)));
    choir_optimizer_release(sgd);
    choir_model_set_graph(model_, use_graph, false);
  }
  ~Trained() { choir_model_release(model_); }

  // Trains and evaluates; the digest after each step.
  std::vector<uint64_t> Run(int64_t steps) {
    std::vector<uint64_t> digests(static_cast<size_t>(steps));
    for (int64_t step = 0; step < steps; ++step) {
      MakeData(step);
      const choir_model_batch_t batch = {
          {tokens_.get()}, {labels_.get()}, 0, kSamples, kSamples};
      EXPECT_OK(choir_model_train_one_batch(model_, &batch));
      EXPECT_OK(choir_model_evaluate(model_, &batch));
      EXPECT_OK(
          choir_model_digest(model_, &digests[static_cast<size_t>(step)]));
    }
    return digests;
  }
  choir_metrics_t Metrics() {
    choir_metrics_t metrics = {};
    EXPECT_OK(choir_model_take_metrics(model_, &metrics));
    return metrics;
  }
  std::vector<float> Table() { return Read<float>(text_.table->value); }
  std::vector<float> Predict() {
    choir_tensor_t* const inputs[] = {tokens_.get()};
    choir_tensor_t* y = nullptr;
    EXPECT_OK(choir_model_predict(model_, inputs, 1, &y));
    const TensorPtr kept(y);
    return Read<float>(y);
  }

 private:
  void MakeData(int64_t step) {
    std::vector<int64_t> tokens, labels;
    for (int64_t i = 0; i < kSamples * kLength; ++i) {
      tokens.push_back((i * 37 + step * 11) % kWords);
      labels.push_back((i * 53 + step + 399) % kWords);
    }
    tokens_ = Make(device_.get(), {kSamples, kLength}, tokens);
    labels_ = Make(device_.get(), {kSamples, kLength}, labels);
  }

  DevicePtr device_ = MakeDevice("cpu");
  Text text_;
  choir_model_t* model_ = nullptr;
  TensorPtr tokens_, labels_;
};

std::vector<double> Wide(const std::vector<float>& values) {
  return std::vector<double>(values.begin(), values.end());
}

TEST(ModelLoss, TrainsAsTheLossOfScores) {
  Trained scores(kWithScores), loss(kWithLoss);
  scores.Run(6);
  loss.Run(6);
  ExpectNear(loss.Table(), Wide(scores.Table()), 1e-5);
  ExpectNear(loss.Predict(), Wide(scores.Predict()), 1e-4);
  const choir_metrics_t want = scores.Metrics(), got = loss.Metrics();
  EXPECT_EQ(got.batches, 6);
  // Training and evaluation.
  EXPECT_EQ(got.samples, 2 * 6 * kSamples * kLength);
  EXPECT_EQ(got.samples, want.samples);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-4);
  EXPECT_NEAR(got.evaluation_loss_sum, want.evaluation_loss_sum, 1e-3);
  EXPECT_LT(got.evaluation_loss_sum / (6 * kSamples * kLength),
            got.loss_sum / 6);  // it learns
  EXPECT_EQ(got.correct, 0);
}

TEST(ModelLoss, GraphsGiveTheBitsOfEagerSteps) {
  Trained eager(kWithLoss), graph(kWithLoss, true);
  EXPECT_EQ(graph.Run(6), eager.Run(6));
  const choir_metrics_t want = eager.Metrics(), got = graph.Metrics();
  EXPECT_EQ(got.loss_sum, want.loss_sum);
  EXPECT_EQ(got.evaluation_loss_sum, want.evaluation_loss_sum);
  EXPECT_EQ(got.samples, want.samples);
}

}  // namespace
