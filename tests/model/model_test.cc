// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "core/log.h"
#include "tests/model/model_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::Chain;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::FailEveryAllocationOnCpu;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::ModelTest;
using choir::testing::Net;
using choir::testing::Perceptron;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

INSTANTIATE_TEST_SUITE_P(All, ModelTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// ---- Training ----

TEST_P(ModelTest, Learns) {
  MakeData(30);
  auto net = Ready(Perceptron());
  ASSERT_OK(Train(net.get()));
  choir_metrics_t first = net->Metrics();
  for (int step = 0; step < 40; ++step) ASSERT_OK(Train(net.get()));
  net->Metrics();
  ASSERT_OK(Train(net.get()));
  choir_metrics_t last = net->Metrics();
  EXPECT_EQ(first.batches, 1);
  EXPECT_GT(first.loss_sum, 0.7);
  EXPECT_LT(last.loss_sum, 0.1);
  EXPECT_EQ(last.correct, 30);
  EXPECT_EQ(choir_model_step(net->get()), 42);
}

TEST_P(ModelTest, OneStepByHand) {
  Net net([](Net* self) { self->Linear("fc", 2); }, Chain);
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 2}));
  ASSERT_OK(net.UseSgd(0.5));
  net.SetValue(0, {0.1f, 0.2f, 0.3f, -0.4f});
  net.SetValue(1, {0.5f, 0.25f});
  const double x[2][2] = {{1, 2}, {-1, 3}};
  x_ = Make<float>(device_.get(), {2, 2}, {1, 2, -1, 3});
  y_ = Make<int64_t>(device_.get(), {2}, {0, 1});
  double w[4] = {0.1f, 0.2f, 0.3f, -0.4f};
  double b[2] = {0.5, 0.25};
  double new_w[4] = {w[0], w[1], w[2], w[3]};
  double new_b[2] = {b[0], b[1]};
  double loss = 0;
  int64_t correct = 0;
  for (int i = 0; i < 2; ++i) {
    double z[2];
    for (int k = 0; k < 2; ++k)
      z[k] = x[i][0] * w[k] + x[i][1] * w[2 + k] + b[k];
    double sum = std::exp(z[0]) + std::exp(z[1]);
    loss -= (z[i] - std::log(sum)) / 2;
    correct += (z[1] > z[0]) == (i == 1);
    for (int k = 0; k < 2; ++k) {
      double slope = (std::exp(z[k]) / sum - (k == i)) / 2;
      new_b[k] -= 0.5 * slope;
      for (int j = 0; j < 2; ++j) new_w[2 * j + k] -= 0.5 * slope * x[i][j];
    }
  }
  ASSERT_OK(Train(&net));
  ExpectNear(net.value(0), {new_w, new_w + 4}, 1e-6);
  ExpectNear(net.value(1), {new_b, new_b + 2}, 1e-6);
  choir_metrics_t metrics = net.Metrics();
  EXPECT_NEAR(metrics.loss_sum, loss, 1e-6);
  EXPECT_EQ(metrics.correct, correct);
  EXPECT_EQ(metrics.samples, 2);
  EXPECT_EQ(metrics.batches, 1);
  // Taken is gone.
  metrics = net.Metrics();
  EXPECT_EQ(metrics.loss_sum, 0);
  EXPECT_EQ(metrics.correct, 0);
  EXPECT_EQ(metrics.samples, 0);
  EXPECT_EQ(metrics.batches, 0);
}

TEST_P(ModelTest, EvaluateAndPredictChangeNothing) {
  MakeData(9);
  auto net = Ready(Perceptron(0.5));
  ASSERT_OK(Train(net.get()));
  net->Metrics();
  uint64_t digest = net->Digest();
  choir_model_batch_t batch = Batch();
  ASSERT_OK(choir_model_evaluate(net->get(), &batch));
  ASSERT_OK(choir_model_evaluate(net->get(), &batch));
  std::vector<float> out = net->Predict(x_.get());
  int64_t correct = 0;
  for (size_t i = 0; i < 9; ++i) {
    size_t best = 0;
    for (size_t k = 1; k < 3; ++k)
      if (out[3 * i + k] > out[3 * i + best]) best = k;
    correct += static_cast<int64_t>(best) == labels_[i];
  }
  choir_metrics_t metrics = net->Metrics();
  EXPECT_EQ(metrics.correct, 2 * correct);
  EXPECT_EQ(metrics.samples, 18);
  EXPECT_EQ(metrics.batches, 0);
  EXPECT_EQ(metrics.loss_sum, 0);
  EXPECT_EQ(net->Digest(), digest);
  EXPECT_EQ(choir_model_step(net->get()), 1);
  EXPECT_EQ(net->Predict(x_.get()), out);
}

// A label for each place of each sample: as if the places were samples, but for
// the order in which a batch is counted.
TEST_P(ModelTest, LabelsOfPlaces) {
  const std::vector<float> x = Floats(6 * 5, 2);
  const std::vector<int32_t> labels = {0, 2, 1, 1, 0, 2};
  std::vector<float> values[2];
  choir_metrics_t trained[2], evaluated[2];
  for (int places = 0; places < 2; ++places) {
    Net net([](Net* self) { self->Linear("fc", 3); }, Chain);
    ASSERT_OK(net.Create(device_.get()));
    ASSERT_OK(net.Compile(places ? Shape{1, 3, 5} : Shape{1, 5}));
    ASSERT_OK(net.UseSgd(0.5));
    x_ = Make<float>(device_.get(), places ? Shape{2, 3, 5} : Shape{6, 5}, x);
    y_ = Make<int32_t>(device_.get(), places ? Shape{2, 3} : Shape{6}, labels);
    choir_model_batch_t batch = Batch();
    ASSERT_OK(choir_model_evaluate(net.get(), &batch));
    ASSERT_OK(choir_model_evaluate(net.get(), &batch));
    evaluated[places] = net.Metrics();
    ASSERT_OK(choir_model_train_one_batch(net.get(), &batch));
    trained[places] = net.Metrics();
    values[places] = net.value(0);
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_GT(trained[0].loss_sum, 0.1);
  EXPECT_EQ(trained[0].evaluation_loss_sum, 0);
  for (int places = 0; places < 2; ++places) {
    EXPECT_EQ(trained[places].loss_sum, trained[0].loss_sum);
    EXPECT_EQ(trained[places].correct, trained[0].correct);
    EXPECT_EQ(trained[places].samples, 6);
    EXPECT_EQ(evaluated[places].samples, 12);
    EXPECT_EQ(evaluated[places].loss_sum, 0);
    EXPECT_EQ(evaluated[places].correct, 2 * trained[0].correct);
    // The parameters of the step are those of the evaluation.
    EXPECT_NEAR(evaluated[places].evaluation_loss_sum, 12 * trained[0].loss_sum,
                1e-5);
  }
}

TEST_P(ModelTest, PredictComputesForward) {
  auto net = Ready(Perceptron());
  net->SetValue(0, std::vector<float>{1, -1, 0, 0, 0, 0, 0, 0,  //
                                      0, 0, 2, 0, 0, 0, 0, 0});
  net->SetValue(1, {0, 0, 0.5, 0, 0, 0, 0, 0});
  std::vector<float> w2(24);
  w2[0] = 1;    // fc2 0: relu(x0)
  w2[4] = 10;   // fc2 1: 10 relu(-x0)
  w2[8] = 100;  // fc2 2: 100 relu(2 x1 + 0.5)
  net->SetValue(2, w2);
  net->SetValue(3, {1, 2, 3});
  TensorPtr x = Make<float>(device_.get(), {2, 2}, {3, 1, -2, -1});
  EXPECT_EQ(net->Predict(x.get()), (std::vector<float>{4, 2, 253, 1, 22, 3}));
}

// A loss of the model's own, of any shape with one element; labels may be
// anything that it understands.
TEST_P(ModelTest, TakesItsOwnTrainingStep) {
  for (int kind = 0; kind < 3; ++kind) {
    Net net([](Net* self) { self->Linear("fc", 1); }, Chain,
            [kind](Net* self, choir_scope_t* scope, choir_var_t* x,
                   choir_var_t* y, choir_var_t** out_loss) {
              choir_var_t* out = Chain(self, scope, x);
              choir_reshape_attrs_t column = {2, {-1, 1}};
              choir_var_t* target = choir_var_reshape(scope, y, &column);
              choir_mean_attrs_t all = {-1, kind == 2};
              choir_var_t* loss =
                  kind == 0 ? choir_var_mse_loss(scope, out, target)
                            : choir_var_mean(
                                  scope,
                                  choir_var_square(
                                      scope, choir_var_sub(scope, out, target)),
                                  &all);
              choir_model_backward_and_update(self->get(), scope, loss);
              *out_loss = loss;
              return out;
            });
    ASSERT_OK(net.Create(device_.get()));
    ASSERT_OK(net.Compile({1, 1}));
    ASSERT_OK(net.UseSgd(0.25));
    net.SetValue(0, {1});
    x_ = Make<float>(device_.get(), {2, 1}, {1, 2});
    y_ = Make<float>(device_.get(), {2}, {3, 5});
    ASSERT_OK(Train(&net));
    // Errors are -2 and -3: the loss 6.5, slopes of w and b -8 and -5.
    EXPECT_EQ(net.value(0), (std::vector<float>{3}));
    EXPECT_EQ(net.value(1), (std::vector<float>{1.25}));
    choir_metrics_t metrics = net.Metrics();
    EXPECT_EQ(metrics.loss_sum, 6.5);
    EXPECT_EQ(metrics.batches, 1);
    EXPECT_EQ(metrics.samples, 0);  // no classes, no hits
  }
}

// train_one_batch with an update in steps of `updates` alone.
std::unique_ptr<Net> MayUpdate(const bool* updates) {
  return std::make_unique<Net>(
      [](Net* self) { self->Linear("fc", 3); }, Chain,
      [updates](Net* self, choir_scope_t* scope, choir_var_t* x, choir_var_t*,
                choir_var_t** out_loss) {
        choir_var_t* out = Chain(self, scope, x);
        *out_loss = choir_var_mean(scope, out, nullptr);
        if (*updates)
          choir_model_backward_and_update(self->get(), scope, *out_loss);
        return out;
      });
}

TEST_P(ModelTest, AStepWithoutUpdateIsLoggedOnceAndNotCounted) {
  MakeData(3);
  for (bool use_graph : {false, true}) {
    SCOPED_TRACE(use_graph);
    bool updates = true;
    auto net = Ready(MayUpdate(&updates));
    choir_model_set_graph(net->get(), use_graph, false);
    std::vector<std::string> lines;
    choir_log_set_sink(
        [](void* self, choir_log_level_t level, const char* subsystem,
           const char* message) {
          static_cast<std::vector<std::string>*>(self)->push_back(
              std::to_string(level) + " " + subsystem + ": " + message);
        },
        &lines, CHOIR_LOG_WARNING);
    for (int i = 0; i < 3; ++i) ASSERT_OK(Train(net.get()));
    net->Metrics();
    EXPECT_TRUE(lines.empty());
    const uint64_t digest = net->Digest();
    updates = false;
    choir_model_batch_t batch = Batch();
    batch.variant = 1;  // train_one_batch goes another way
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(choir_model_train_one_batch(net->get(), &batch));
      EXPECT_EQ(choir_model_last_graph(net->get()) != 0, use_graph);
    }
    choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0],
              "1 model: model net: train_one_batch did not call "
              "choir_model_backward_and_update; such steps change no parameter "
              "and are not counted");
    EXPECT_EQ(net->Digest(), digest);
    EXPECT_EQ(choir_model_step(net->get()), 3);
    // What the steps gave is counted.
    const std::vector<float> out = net->Predict(x_.get());
    const choir_metrics_t metrics = net->Metrics();
    EXPECT_EQ(metrics.batches, 3);
    double sum = 0;
    for (float y : out) sum += y;
    EXPECT_NEAR(metrics.loss_sum, 3 * sum / 9, 1e-5);
    updates = true;
    ASSERT_OK(Train(net.get()));
    EXPECT_NE(net->Digest(), digest);
    EXPECT_EQ(choir_model_step(net->get()), 4);
  }
}

TEST_P(ModelTest, ABatchWithoutSamplesIsAStep) {
  MakeData(6);
  auto net = Ready(Perceptron());
  ASSERT_OK(Train(net.get()));
  net->Metrics();
  uint64_t digest = net->Digest();
  choir_model_batch_t none = {{nullptr}, {nullptr}, 6, 0, 6};
  ASSERT_OK(choir_model_train_one_batch(net->get(), &none));
  ASSERT_OK(choir_model_evaluate(net->get(), &none));
  EXPECT_EQ(choir_model_step(net->get()), 2);
  EXPECT_EQ(net->Digest(), digest);
  choir_metrics_t metrics = net->Metrics();
  EXPECT_EQ(metrics.batches, 0);
  EXPECT_EQ(metrics.samples, 0);
}

// ---- Parameters without a layer ----

// y = scale * x + shift, with a state that training leaves alone.
struct Affine {
  explicit Affine(choir_device_t* device)
      : scale(Make<float>(device, {2}, {2, 3})),
        shift(Make<float>(device, {2}, {1, -1})),
        state(Make<int32_t>(device, {2}, {7, 8})) {}
  std::unique_ptr<Net> net() {
    return std::make_unique<Net>(
        [this](Net* self) {
          params[0] =
              choir_model_add_param(self->defining, "scale", scale.get(), true);
          params[1] =
              choir_model_add_param(self->defining, "shift", shift.get(), true);
          params[2] = choir_model_add_param(self->defining, "state",
                                            state.get(), false);
        },
        [this](Net*, choir_scope_t* scope, choir_var_t* x) {
          choir_var_t* y =
              choir_var_mul(scope, x, choir_scope_param(scope, params[0]));
          return choir_var_add(scope, y, choir_scope_param(scope, params[1]));
        },
        [](Net* self, choir_scope_t* scope, choir_var_t* x, choir_var_t* y,
           choir_var_t** out_loss) {
          choir_var_t* out = self->RunForward(scope, x);
          *out_loss = choir_var_mse_loss(scope, out, y);
          choir_model_backward_and_update(self->get(), scope, *out_loss);
          return out;
        });
  }
  TensorPtr scale;
  TensorPtr shift;
  TensorPtr state;
  choir_param_t* params[3] = {};
};

TEST_P(ModelTest, TrainsParametersWithoutALayer) {
  Affine affine(device_.get());
  auto net = affine.net();
  ASSERT_OK(net->Create(device_.get()));
  ASSERT_OK(net->Compile({1, 2}));
  ASSERT_OK(net->UseSgd(0.5));
  const choir_param_set_t* list = choir_model_params(net->get());
  ASSERT_EQ(list->count, 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(list->params[i], affine.params[i]);
  EXPECT_STREQ(list->params[1]->name, "shift");
  EXPECT_EQ(list->params[0]->value, affine.scale.get());
  EXPECT_NE(list->params[0]->grad, nullptr);
  EXPECT_FALSE(list->params[2]->trainable);
  EXPECT_EQ(list->params[2]->grad, nullptr);
  x_ = Make<float>(device_.get(), {1, 2}, {1, 2});
  y_ = Make<float>(device_.get(), {1, 2}, {2, 4});
  EXPECT_EQ(net->Predict(x_.get()), (std::vector<float>{3, 5}));
  ASSERT_OK(Train(net.get()));
  // The errors are 1 and 1, the mean is over two elements: slopes of the
  // shifts 1 and 1, of the scales 1 and 2.
  EXPECT_EQ(net->value(0), (std::vector<float>{1.5, 2}));
  EXPECT_EQ(net->value(1), (std::vector<float>{0.5, -1.5}));
  EXPECT_EQ(Read<int32_t>(affine.state), (std::vector<int32_t>{7, 8}));
  // The model trains the caller's own tensor.
  EXPECT_EQ(Read<float>(affine.scale), net->value(0));
}

TEST_P(ModelTest, KeepsParametersThatTheCallerLetsGo) {
  auto affine = std::make_unique<Affine>(device_.get());
  auto net = affine->net();
  ASSERT_OK(net->Create(device_.get()));
  affine->scale.reset();
  affine->shift.reset();
  ASSERT_OK(net->Compile({1, 2}));
  x_ = Make<float>(device_.get(), {1, 2}, {1, 2});
  EXPECT_EQ(net->Predict(x_.get()), (std::vector<float>{3, 5}));
}

TEST_P(ModelTest, RefusesParametersThatItCannotUse) {
  TensorPtr floats = Make<float>(device_.get(), {2}, {1, 2});
  TensorPtr whole = Make<int32_t>(device_.get(), {2}, {1, 2});
  auto create = [this](const Net::Define& define) {
    Net net(define, Chain);
    return net.Create(device_.get());
  };
  EXPECT_STATUS(
      ALREADY_EXISTS, "two parameters are called w; names must differ",
      create([&](Net* self) {
        EXPECT_NE(
            choir_model_add_param(self->defining, "w", floats.get(), true),
            nullptr);
        EXPECT_EQ(
            choir_model_add_param(self->defining, "w", floats.get(), false),
            nullptr);
      }));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "parameter w is of dtype i32; a trained one needs",
      create([&](Net* self) {
        EXPECT_EQ(choir_model_add_param(self->defining, "w", whole.get(), true),
                  nullptr);
      }));
  DevicePtr other = MakeDevice("cpu");
  TensorPtr foreign = Make<float>(other.get(), {2}, {1, 2});
  EXPECT_STATUS(INVALID_ARGUMENT, "parameter w lies on another device",
                create([&](Net* self) {
                  choir_model_add_param(self->defining, "w", foreign.get(),
                                        true);
                }));
}

TEST(LayerListTest, GivesDefinitionsInTheOrderOfTheList) {
  const choir_layer_def_t* defs[] = {
#define LAYER(name, ...) &choir_layer_def_##name,
      CHOIR_LAYER_LIST(LAYER)
#undef LAYER
  };
  int32_t count = 0;
  for (const choir_layer_def_t* def : defs)
    EXPECT_EQ(choir_layer_def_get(count++), def);
  EXPECT_EQ(choir_layer_def_get(count), nullptr);
  EXPECT_EQ(choir_layer_def_get(-1), nullptr);
}

// ---- Seeds, steps and samples ----

TEST_P(ModelTest, TheSeedDecidesEveryBit) {
  MakeData(12);
  uint64_t digests[3];
  const int64_t seeds[] = {7, 7, -8};
  for (int run = 0; run < 3; ++run) {
    auto net = Ready(Perceptron(0.3), seeds[run]);
    for (int step = 0; step < 5; ++step) {
      ASSERT_OK(Train(net.get()));
      choir_model_batch_t batch = Batch();
      // Looking on changes nothing.
      if (run == 1) {
        ASSERT_OK(choir_model_evaluate(net->get(), &batch));
      }
    }
    digests[run] = net->Digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

TEST_P(ModelTest, ParametersOfOneShapeDiffer) {
  Net net(
      [](Net* self) {
        self->Linear("a", 4);
        self->Linear("b", 4);
      },
      Chain);
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 4}));
  EXPECT_STREQ(net.param(0)->name, "a.W");
  EXPECT_STREQ(net.param(2)->name, "b.W");
  EXPECT_NE(net.value(0), net.value(2));
  EXPECT_EQ(net.value(1), (std::vector<float>(4)));
}

// The result of a training step, as a rank sees its part of the batch.
std::unique_ptr<Net> Watched() {
  return std::make_unique<Net>(
      [](Net* net) {
        net->Dropout("drop1", 0.5);
        net->Linear("fc", 3);
        net->Dropout("drop2", 0.25);
      },
      Chain,
      [](Net* net, choir_scope_t* scope, choir_var_t* x, choir_var_t* y,
         choir_var_t** out_loss) {
        choir_var_t* out = Chain(net, scope, x);
        if (choir_scope_is_ok(scope))
          net->seen = Read<float>(choir_var_tensor(out));
        *out_loss = choir_var_softmax_cross_entropy(scope, out, y);
        choir_model_backward_and_update(net->get(), scope, *out_loss);
        return out;
      });
}

TEST_P(ModelTest, DropoutGoesByStepAndSample) {
  auto run = [&](int64_t step, int64_t first, int64_t count) {
    std::unique_ptr<Net> net = Watched();
    EXPECT_OK(net->Create(device_.get(), 5));
    EXPECT_OK(net->Compile({1, 4}));
    EXPECT_OK(net->UseSgd(0.1));
    choir_model_set_step(net->get(), step);
    std::vector<float> x = Floats(32, 3);
    std::vector<int64_t> y = {0, 1, 2, 0, 1, 2, 0, 1};
    TensorPtr x_part =
        Make(device_.get(), {count, 4},
             std::vector<float>(x.begin() + 4 * first,
                                x.begin() + 4 * (first + count)));
    TensorPtr y_part = Make(
        device_.get(), {count},
        std::vector<int64_t>(y.begin() + first, y.begin() + first + count));
    choir_model_batch_t batch = {
        {x_part.get()}, {y_part.get()}, first, count, 8};
    EXPECT_OK(choir_model_train_one_batch(net->get(), &batch));
    return net->seen;
  };
  std::vector<float> whole = run(3, 0, 8);
  EXPECT_GT(std::count(whole.begin(), whole.end(), 0.0f), 0);
  EXPECT_LT(std::count(whole.begin(), whole.end(), 0.0f), 18);
  for (int64_t split : {1, 3, 4}) {
    std::vector<float> parts = run(3, 0, split);
    std::vector<float> rest = run(3, split, 8 - split);
    parts.insert(parts.end(), rest.begin(), rest.end());
    ExpectNear(parts, {whole.begin(), whole.end()}, 1e-6);
    for (size_t i = 0; i < parts.size(); ++i)
      EXPECT_EQ(parts[i] == 0, whole[i] == 0) << i;
  }
  EXPECT_EQ(run(3, 0, 8), whole);
  EXPECT_NE(run(4, 0, 8), whole);
}

// ---- Batch normalisation ----

TEST_P(ModelTest, RunningAveragesGiveTheNewBatchItsWeight) {
  constexpr double kMomentum = 0.25;
  constexpr double kEpsilon = 0.01;
  Net net(
      [](Net* self) {
        choir_batch_norm2d_config_t config = {
            CHOIR_CONFIG_DEFAULTS(CHOIR_BATCH_NORM2D_FIELDS)};
        config.momentum = kMomentum;
        config.epsilon = kEpsilon;
        self->Add("bn", &choir_layer_def_batch_norm2d, config);
        choir_flatten_config_t flat = {CHOIR_CONFIG_DEFAULTS(CHOIR_NO_FIELDS)};
        self->Add("flat", &choir_layer_def_flatten, flat);
      },
      Chain);
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 2, 2, 2}));
  ASSERT_OK(net.UseSgd(0));
  EXPECT_STREQ(net.param(2)->name, "bn.running_mean");
  EXPECT_STREQ(net.param(3)->name, "bn.running_var");
  EXPECT_EQ(net.value(2), (std::vector<float>{0, 0}));
  EXPECT_EQ(net.value(3), (std::vector<float>{1, 1}));
  std::vector<double> mean = {0, 0};
  std::vector<double> var = {1, 1};
  for (uint32_t step = 0; step < 3; ++step) {
    std::vector<float> x = Floats(24, 10 + step);  // (3, 2, 2, 2)
    for (size_t c = 0; c < 2; ++c) {
      std::vector<double> values;
      for (size_t i = 0; i < x.size(); ++i)
        if (i / 4 % 2 == c) values.push_back(static_cast<double>(x[i]));
      double m = 0;
      for (double value : values) m += value / 12;
      double v = 0;
      for (double value : values) v += (value - m) * (value - m) / 11;
      mean[c] = (1 - kMomentum) * mean[c] + kMomentum * m;
      var[c] = (1 - kMomentum) * var[c] + kMomentum * v;
    }
    TensorPtr image = Make(device_.get(), {3, 2, 2, 2}, x);
    TensorPtr labels = Make<int64_t>(device_.get(), {3}, {0, 7, 3});
    choir_model_batch_t batch = {{image.get()}, {labels.get()}, 0, 3, 3};
    ASSERT_OK(choir_model_train_one_batch(net.get(), &batch));
    ExpectNear(net.value(2), mean, 1e-6);
    ExpectNear(net.value(3), var, 1e-6);
    ASSERT_OK(choir_model_evaluate(net.get(), &batch));
    std::vector<float> y = net.Predict(image.get());
    std::vector<double> expected;
    for (size_t i = 0; i < x.size(); ++i) {
      size_t c = i / 4 % 2;
      expected.push_back((static_cast<double>(x[i]) - mean[c]) /
                         std::sqrt(var[c] + kEpsilon));
    }
    ExpectNear(y, expected, 1e-5);
    ExpectNear(net.value(2), mean, 1e-6);
  }
}

// ---- Digest and states ----

TEST_P(ModelTest, TheDigestIsOfValuesNotOfLayouts) {
  auto make = [](Net* net) {
    choir_conv2d_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
    config.out_channels = 3;
    config.kernel_size = 2;
    net->Add("conv", &choir_layer_def_conv2d, config);
  };
  Net net(make, Chain);
  ASSERT_OK(net.Create(device_.get(), 4));
  ASSERT_OK(net.Compile({1, 2, 5, 5}));
  uint64_t digest = net.Digest();
  EXPECT_EQ(net.Digest(), digest);
  // The same values in row-major copies.
  TensorPtr w = Make(device_.get(), {3, 2, 2, 2}, net.value(0));
  TensorPtr b = Make(device_.get(), {3}, net.value(1));
  choir_named_tensor_t copies[] = {{"conv.W", w.get()}, {"conv.b", b.get()}};
  uint64_t other = 0;
  ASSERT_OK(choir_tensor_digest(copies, 2, &other));
  EXPECT_EQ(other, digest);
  EXPECT_NE(choir_tensor_strides(net.param(0)->value)[1],
            choir_tensor_strides(w.get())[1]);
  // One bit of one value.
  std::vector<float> values = net.value(0);
  values[5] = std::nextafter(values[5], 2.0f);
  net.SetValue(0, values);
  EXPECT_NE(net.Digest(), digest);
}

TEST_P(ModelTest, ListsItsStatesWithTheUpdaters) {
  auto net = Ready(Perceptron());
  std::vector<choir_named_tensor_t> states(
      choir_model_states(net->get(), nullptr));
  ASSERT_EQ(choir_model_states(net->get(), states.data()), states.size());
  std::vector<std::string> names;
  for (const choir_named_tensor_t& state : states) names.push_back(state.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "fc1.W", "fc1.b", "fc2.W", "fc2.b", "fc1.W/velocity",
                       "fc1.b/velocity", "fc2.W/velocity", "fc2.b/velocity"}));
  EXPECT_EQ(states[0].tensor, net->param(0)->value);
  // The digest is of the model's own.
  uint64_t digest = net->Digest();
  std::vector<float> ones(16, 1.0f);
  ASSERT_OK(
      choir_tensor_write(states[4].tensor, ones.data(), 16 * sizeof(float)));
  EXPECT_EQ(net->Digest(), digest);
}

// What was saved and put back goes on with the same bits.
TEST_P(ModelTest, GoesOnFromItsStates) {
  MakeData(12);
  auto straight = Ready(Perceptron(0.3), 9);
  for (int step = 0; step < 3; ++step) ASSERT_OK(Train(straight.get()));
  auto second = Ready(Perceptron(0.3), 9);
  std::vector<choir_named_tensor_t> from(
      choir_model_states(straight->get(), nullptr));
  std::vector<choir_named_tensor_t> to(from.size());
  choir_model_states(straight->get(), from.data());
  choir_model_states(second->get(), to.data());
  for (size_t i = 0; i < from.size(); ++i) {
    std::vector<float> values = Read<float>(from[i].tensor);
    ASSERT_OK(choir_tensor_write(to[i].tensor, values.data(),
                                 values.size() * sizeof(float)));
  }
  choir_model_set_step(second->get(), 3);
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK(Train(straight.get()));
    ASSERT_OK(Train(second.get()));
  }
  EXPECT_EQ(second->Digest(), straight->Digest());
}

// ---- Numbers that have diverged ----

// Layers with an activation, or without and ReLUs behind them.
std::unique_ptr<Net> Cnn(bool has_activations) {
  const auto relu = [=](choir_scope_t* scope, choir_var_t* x) {
    return has_activations ? x : choir_var_relu(scope, x);
  };
  return std::make_unique<Net>(
      [=](Net* net) {
        choir_conv2d_config_t conv = {
            CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
        conv.kernel_size = 3;
        if (has_activations) conv.activation = CHOIR_ACTIVATION_RELU;
        conv.out_channels = 5;
        net->Add("conv1", &choir_layer_def_conv2d, conv);
        // Few products: not one of the CPU's own kernels, but the library's.
        conv.kernel_size = 1;
        conv.out_channels = 6;
        net->Add("conv2", &choir_layer_def_conv2d, conv);
        net->Linear("fc1", 8, has_activations);
        net->Linear("fc2", 3);
        choir_max_pool2d_config_t pool = {
            CHOIR_CONFIG_DEFAULTS(CHOIR_POOL2D_FIELDS)};
        pool.kernel_size = 2;
        net->Add("pool", &choir_layer_def_max_pool2d, pool);
        choir_batch_norm2d_config_t norm = {
            CHOIR_CONFIG_DEFAULTS(CHOIR_BATCH_NORM2D_FIELDS)};
        net->Add("norm", &choir_layer_def_batch_norm2d, norm);
      },
      [=](Net* net, choir_scope_t* scope, choir_var_t* x) {
        enum { kConv1, kConv2, kFc1, kFc2, kPool, kNorm };
        const auto run = [&](int layer) {
          x = choir_layer_forward(scope, net->layers[layer], x);
        };
        run(kConv1);
        x = relu(scope, x);
        run(kPool);
        run(kNorm);
        x = choir_var_relu(scope, x);
        run(kConv2);
        x = relu(scope, x);
        x = choir_var_flatten(scope, x, nullptr);
        run(kFc1);
        x = relu(scope, x);
        run(kFc2);
        return x;
      });
}

// NaN and infinities are where they are in `want`, the rest is near to it.
int ExpectSamePlaces(const std::vector<float>& got,
                     const std::vector<float>& want, double tolerance) {
  EXPECT_EQ(got.size(), want.size());
  int special = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool alike = std::isnan(want[i]) ? std::isnan(got[i])
                       : std::isinf(want[i])
                           ? got[i] == want[i]
                           : std::fabs(got[i] - want[i]) <=
                                 tolerance * (1 + std::fabs(want[i]));
    EXPECT_TRUE(alike) << "element " << i << " is " << got[i] << "; needs "
                       << want[i];
    if (!alike) break;
    special += !std::isfinite(want[i]);
  }
  return special;
}

// A network that got NaN or an infinity shows it, however its layers and steps
// are put together: as one op after the other, without a graph, shows it.
TEST_P(ModelTest, ActivationsOfLayersKeepNaNAsReluDoes) {
  struct Way {
    bool has_activations, use_graph, sequential;
  };
  constexpr int64_t kSamples = 16;
  const std::vector<float> pixels = Floats(kSamples * 3 * 10 * 9, 4);
  for (choir_dtype_t precision : {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16}) {
    for (float value : {NAN, HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> hit = pixels;
      hit[2 * 270 + 100] = value;  // of the third sample
      std::vector<std::vector<float>> wanted;
      for (const Way& way : {Way{false, false, false}, Way{true, false, false},
                             Way{false, true, false}, Way{true, true, false},
                             Way{true, true, true}}) {
        SCOPED_TRACE(std::string(choir_dtype_name(precision)) + ", " +
                     std::to_string(value) +
                     (way.has_activations ? ", activations" : "") +
                     (way.use_graph ? ", graph" : "") +
                     (way.sequential ? ", sequential" : ""));
        const auto image = [&](const std::vector<float>& values) {
          return Make(device_.get(), {kSamples, 3, 10, 9}, values);
        };
        TensorPtr healthy = image(pixels), ill = image(hit);
        std::vector<int64_t> labels;
        for (int64_t i = 0; i < kSamples; ++i) labels.push_back(i % 3);
        TensorPtr y = Make(device_.get(), {kSamples}, labels);
        auto net = Cnn(way.has_activations);
        ASSERT_OK(net->Create(device_.get(), 3));
        ASSERT_OK(net->Compile({1, 3, 10, 9}));
        ASSERT_OK(net->UseSgd(0.01));
        choir_model_set_graph(net->get(), way.use_graph, way.sequential);
        ASSERT_OK(choir_model_set_precision(net->get(), precision));
        const auto train = [&](const TensorPtr& x) {
          choir_model_batch_t batch = {
              {x.get()}, {y.get()}, 0, kSamples, kSamples};
          ASSERT_OK(choir_model_train_one_batch(net->get(), &batch));
        };
        for (int step = 0; step < 3; ++step) train(healthy);
        // The second one is a replay.
        std::vector<std::vector<float>> found = {net->Predict(healthy.get()),
                                                 net->Predict(ill.get())};
        train(ill);
        for (size_t i = 0; i < choir_model_params(net->get())->count; ++i)
          found.push_back(net->value(i));
        if (wanted.empty()) wanted = found;
        ASSERT_EQ(found.size(), wanted.size());
        const double tolerance = precision == CHOIR_DTYPE_F32 ? 1e-4 : 0.05;
        int learnt = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          SCOPED_TRACE(i < 2 ? "prediction" : "parameter");
          const int special = ExpectSamePlaces(found[i], wanted[i], tolerance);
          if (i < 2) {
            EXPECT_EQ(special, i == 0 ? 0 : 3) << "of a sample's logits";
          } else {
            learnt += special;
          }
          if (HasFailure()) return;
        }
        EXPECT_GT(learnt, 0);
      }
    }
  }
}

// ---- Memory ----

TEST_P(ModelTest, ASteadyLoopAllocatesNothing) {
  MakeData(12);
  auto net = Ready(Perceptron(0.2));
  // How much of a step is under way at once differs from step to step where
  // the stream is a thread.
  const int rounds = std::string(GetParam()) == "cpu_async" ? 200 : 6;
  uint64_t count = 0;
  int quiet = 0;  // steps without an allocation, one after the other
  for (int round = 0; round < rounds && quiet < 3; ++round) {
    ASSERT_OK(Train(net.get()));
    choir_model_batch_t batch = Batch();
    ASSERT_OK(choir_model_evaluate(net->get(), &batch));
    ASSERT_OK(choir_stream_synchronize(choir_device_stream(device_.get())));
    const uint64_t now = choir_device_memory(device_.get()).base_allocations;
    quiet = now == count ? quiet + 1 : 0;
    count = now;
  }
  EXPECT_EQ(quiet, 3);
}

TEST(ModelMemoryTest, SurvivesEveryFailedAllocation) {
  int64_t failed =
      FailEveryAllocationOnCpu([](choir_device_t* device) -> choir_status_t {
        std::string names;
        Net net(
            [&](Net* self) {
              self->Linear("fc1", 5, true);
              // More than a list holds at first.
              for (int i = 0; i < 17; ++i)
                self->Dropout(("drop" + std::to_string(i)).c_str(), 0.1);
              self->Linear("fc2", 3);
              for (choir_layer_t* layer : self->layers) {
                const char* name = layer ? choir_layer_name(layer) : nullptr;
                if (name) names += name;
              }
            },
            Chain);
        choir_tensor_t* x = nullptr;
        choir_tensor_t* y = nullptr;
        const int64_t shape[] = {2, 4};
        const std::vector<float> values = Floats(8, 2);
        const int64_t labels[] = {2, 0};
        choir_status_t status = net.Create(device);
        if (!status) status = net.Compile({1, 4});
        if (!status) status = net.UseSgd(0.1, 0.9);
        if (!status)
          status = choir_tensor_from_data(device, CHOIR_DTYPE_F32, 2, shape,
                                          values.data(), &x);
        if (!status)
          status = choir_tensor_from_data(device, CHOIR_DTYPE_I64, 1, shape,
                                          labels, &y);
        if (!status) {
          choir_model_batch_t batch = {{x}, {y}, 0, 2, 2};
          status = choir_model_train_one_batch(net.get(), &batch);
        }
        uint64_t digest = 0;
        if (!status) status = choir_model_digest(net.get(), &digest);
        choir_tensor_release(x);
        choir_tensor_release(y);
        net.Release();
        return status;
      });
  EXPECT_GT(failed, 30);
}

TEST(ModelMemoryTest, OwnParametersSurviveEveryFailedAllocation) {
  int64_t failed =
      FailEveryAllocationOnCpu([](choir_device_t* device) -> choir_status_t {
        choir_tensor_t* value = nullptr;
        const int64_t shape[] = {2};
        const float values[] = {1, 2};
        choir_status_t status = choir_tensor_from_data(
            device, CHOIR_DTYPE_F32, 1, shape, values, &value);
        Net net(
            [&](Net* self) {
              // More than a list holds at first. The model has those that it
              // gave, and no other.
              std::vector<choir_param_t*> given;
              for (int i = 0; i < 20; ++i) {
                choir_param_t* param = choir_model_add_param(
                    self->defining, ("p" + std::to_string(i)).c_str(), value,
                    i % 2 == 0);
                if (param) given.push_back(param);
              }
              const choir_param_set_t* list =
                  choir_model_params(self->defining);
              EXPECT_EQ(std::vector<choir_param_t*>(list->params,
                                                    list->params + list->count),
                        given);
            },
            Chain);
        if (!status) status = net.Create(device);
        if (!status) status = net.Compile({1, 4});
        if (!status) status = net.UseSgd(0.1, 0.9);
        uint64_t digest = 0;
        if (!status) status = choir_model_digest(net.get(), &digest);
        choir_tensor_release(value);
        net.Release();
        return status;
      });
  EXPECT_GT(failed, 30);
}

}  // namespace
