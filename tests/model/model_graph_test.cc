// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: the same bits as without, over many steps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "core/random.h"
#include "model/model.h"
#include "opt/optimizer.h"
#include "tensor/gpu_parts.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Shape;
using choir::testing::TensorPtr;

// A CNN with everything that follows the step: dropout, batch norm's averages.
struct Cnn {
  choir_layer_t* conv;
  choir_layer_t* norm;
  choir_layer_t* pool;
  choir_layer_t* flat;
  choir_layer_t* drop;
  choir_layer_t* hidden;
  choir_layer_t* out;
  int forwards = 0;
  bool doubles = false;
  std::function<void(choir_scope_t*)> in_forward;
};

void Define(choir_model_t* model, void* self) {
  Cnn* net = static_cast<Cnn*>(self);
  choir_conv2d_config_t conv = {CHOIR_CONFIG_DEFAULTS(CHOIR_CONV2D_FIELDS)};
  conv.out_channels = 6;
  conv.kernel_size = 3;
  conv.activation = CHOIR_ACTIVATION_RELU;
  net->conv = choir_layer_create(model, "conv", &choir_layer_def_conv2d, &conv);
  choir_batch_norm2d_config_t norm = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_BATCH_NORM2D_FIELDS)};
  net->norm =
      choir_layer_create(model, "norm", &choir_layer_def_batch_norm2d, &norm);
  choir_max_pool2d_config_t pool = {CHOIR_CONFIG_DEFAULTS(CHOIR_POOL2D_FIELDS)};
  pool.kernel_size = 2;
  net->pool =
      choir_layer_create(model, "pool", &choir_layer_def_max_pool2d, &pool);
  choir_flatten_config_t none = {CHOIR_CONFIG_DEFAULTS(CHOIR_NO_FIELDS)};
  net->flat =
      choir_layer_create(model, "flat", &choir_layer_def_flatten, &none);
  choir_dropout_config_t drop = {CHOIR_CONFIG_DEFAULTS(CHOIR_DROPOUT_FIELDS)};
  drop.ratio = 0.25;
  net->drop =
      choir_layer_create(model, "drop", &choir_layer_def_dropout, &drop);
  choir_linear_config_t linear = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
  linear.out_features = 12;
  linear.activation = CHOIR_ACTIVATION_RELU;
  net->hidden =
      choir_layer_create(model, "hidden", &choir_layer_def_linear, &linear);
  linear.out_features = 5;
  linear.activation = CHOIR_ACTIVATION_NONE;
  net->out = choir_layer_create(model, "out", &choir_layer_def_linear, &linear);
}

choir_var_t* Forward(choir_scope_t* scope, void* self, choir_vars_t inputs) {
  choir_var_t* x = inputs.at[0];
  Cnn* net = static_cast<Cnn*>(self);
  ++net->forwards;
  if (net->in_forward) net->in_forward(scope);
  for (choir_layer_t* layer : {net->conv, net->norm, net->pool, net->flat,
                               net->drop, net->hidden, net->out})
    x = choir_layer_forward(scope, layer, x);
  return net->doubles ? choir_var_add(scope, x, x) : x;
}

constexpr choir_model_def_t kCnnDef = {"cnn", Define, Forward, nullptr};

struct Batch {
  TensorPtr x;
  TensorPtr y;
  void Set(const std::vector<float>& pixels) {
    ASSERT_OK(choir_tensor_write(x.get(), pixels.data(),
                                 pixels.size() * sizeof(float)));
  }
  choir_model_batch_t get() const {
    const int64_t n = choir_tensor_shape(x.get())[0];
    return {{x.get()}, {y.get()}, 0, n, n};
  }
};

Batch MakeBatch(choir_device_t* device, int64_t samples, uint32_t seed) {
  std::vector<float> pixels(static_cast<size_t>(samples * 64));
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = std::sin(0.37f * static_cast<float>(i + 13 * seed) +
                         0.01f * static_cast<float>(i % 7));
  std::vector<int32_t> labels(static_cast<size_t>(samples));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int32_t>((i * 3 + seed) % 5);
  Batch batch;
  batch.x = Make(device, Shape{samples, 1, 8, 8}, pixels);
  batch.y = Make(device, Shape{samples}, labels);
  return batch;
}

class Training {
 public:
  Training(const std::string& device, bool use_graph, bool sequential,
           const std::string& optimizer = "sgd",
           const choir_device_options_t* options = nullptr,
           const std::function<void(choir_optimizer_t*)>& prepare = nullptr)
      : device_(MakeDevice(device.c_str(), options)) {
    EXPECT_OK(choir_model_create(device_.get(), &kCnnDef, &net, 7, &model_));
    const int64_t shape[] = {1, 1, 8, 8};
    choir_view_t x;
    EXPECT_OK(choir_view_make(CHOIR_DTYPE_F32, 4, shape, &x));
    EXPECT_OK(choir_model_compile(model_, &x, 1));
    const choir_optimizer_def_t* def =
        choir_optimizer_def_find(optimizer.c_str());
    const choir_struct_def_t* fields = choir_optimizer_def_config(def);
    alignas(8) unsigned char config[128];
    EXPECT_LE(fields->bytes, sizeof config);
    choir_struct_init(fields, config);
    EXPECT_OK(choir_struct_set(fields, config, "lr",
                               optimizer == "sgd" ? "0.05" : "0.001"));
    if (optimizer == "sgd") {
      EXPECT_OK(choir_struct_set(fields, config, "momentum", "0.9"));
    }
    choir_optimizer_t* made = nullptr;
    EXPECT_OK(choir_optimizer_create(def, config, &made));
    choir_schedule_config_t schedule;
    choir_struct_init(&choir_schedule_config_def, &schedule);
    EXPECT_OK(choir_struct_set(&choir_schedule_config_def, &schedule, "kind",
                               "cosine"));
    EXPECT_OK(choir_struct_set(&choir_schedule_config_def, &schedule, "period",
                               "30"));
    EXPECT_OK(choir_struct_set(&choir_schedule_config_def, &schedule, "factor",
                               "0.1"));
    EXPECT_OK(choir_optimizer_set_schedule(made, &schedule));
    if (prepare) prepare(made);
    EXPECT_OK(choir_model_set_updater(model_, choir_optimizer_updater(made)));
    optimizer_ = made;
    choir_model_set_graph(model_, use_graph, sequential);
  }
  ~Training() {
    choir_model_release(model_);
    choir_optimizer_release(optimizer_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  choir_status_t Step(int64_t samples, uint32_t seed, int64_t variant = 0) {
    const Batch batch = MakeBatch(device_.get(), samples, seed);
    choir_model_batch_t one = batch.get();
    one.variant = variant;
    return choir_model_train_one_batch(model_, &one);
  }
  choir_status_t Evaluate(int64_t samples, uint32_t seed) {
    const Batch batch = MakeBatch(device_.get(), samples, seed);
    const choir_model_batch_t one = batch.get();
    return choir_model_evaluate(model_, &one);
  }
  uint64_t Digest() {
    uint64_t digest = 0;
    EXPECT_OK(choir_model_digest(model_, &digest));
    return digest;
  }
  choir_metrics_t Metrics() {
    choir_metrics_t metrics;
    EXPECT_OK(choir_model_take_metrics(model_, &metrics));
    return metrics;
  }
  std::string Graphs() {
    char* text = nullptr;
    EXPECT_OK(choir_model_print_graphs(model_, &text));
    std::string graphs = text ? text : "";
    free(text);
    return graphs;
  }
  // What is not trained.
  void CopyAverages(Training* from) {
    const choir_param_set_t* set = choir_model_params(model_);
    for (size_t i = 0; i < set->count; ++i) {
      if (set->params[i]->trainable) continue;
      const std::vector<float> values =
          Read<float>(choir_model_params(from->model_)->params[i]->value);
      ASSERT_OK(choir_tensor_write(set->params[i]->value, values.data(),
                                   values.size() * sizeof(float)));
    }
  }
  choir_model_t* get() { return model_; }
  choir_optimizer_t* optimizer() { return optimizer_; }
  choir_device_t* device() { return device_.get(); }
  Cnn net;

 private:
  DevicePtr device_;
  choir_model_t* model_ = nullptr;
  choir_optimizer_t* optimizer_ = nullptr;
};

class ModelGraphTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    choir_device_t* device = nullptr;
    choir_status_t status = choir_device_create(GetParam(), nullptr, &device);
    const std::string why = choir_status_message(status);
    const bool is_missing =
        choir_status_code(status) == CHOIR_STATUS_UNAVAILABLE;
    choir_status_free(status);
    choir_device_release(device);
    if (is_missing) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ModelGraphTest,
                         ::testing::Values("cpu", "cpu_async", "null", "cuda"),
                         [](const auto& info) { return info.param; });

void ExpectEqual(const choir_metrics_t& a, const choir_metrics_t& b) {
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.batches, b.batches);
  EXPECT_EQ(a.correct, b.correct);
  EXPECT_EQ(a.samples, b.samples);
}

TEST_P(ModelGraphTest, GivesTheBitsOfEagerSteps) {
#define NAME(T, ENUM, name, states, doc) #name,
  for (const char* optimizer : {CHOIR_OPTIMIZER_LIST(NAME, )}) {
#undef NAME
    SCOPED_TRACE(optimizer);
    Training eager(GetParam(), false, false, optimizer);
    Training graph(GetParam(), true, true, optimizer);
    for (uint32_t i = 0; i < 12; ++i) {
      // The last batch of an epoch is smaller.
      const int64_t samples = i % 4 == 3 ? 5 : 9;
      ASSERT_OK(eager.Step(samples, i));
      ASSERT_OK(graph.Step(samples, i));
      ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
    }
    ExpectEqual(eager.Metrics(), graph.Metrics());
    // Compile, the first step, and one recording for each batch size.
    EXPECT_EQ(eager.net.forwards, 13);
    EXPECT_EQ(graph.net.forwards, 4);
  }
}

// Where the device takes many records as one launch (a CUDA graph), a step is
// few such launches; that they change no bit is what the other tests see.
TEST_P(ModelGraphTest, LaunchesRecordsTogetherWhereTheDeviceDoes) {
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_OK(graph.Step(9, i));
  const choir_graph_stats_t stats = choir_model_graph_stats(graph.get());
  const std::string text = graph.Graphs();
  if (std::string(GetParam()) != "cuda") {
    EXPECT_EQ(stats.launches, 0);
    EXPECT_EQ(text.find("launches:"), std::string::npos) << text;
    return;
  }
  // A build without the kernels' code runs most ops on the host.
  choir_gpu_part_t kernels;
  choir_status_t status = choir_gpu_part(0, &kernels);
  const bool is_missing = status != nullptr;
  choir_status_free(status);
  if (is_missing) GTEST_SKIP() << "this build has no code for GPUs";
  // Before the update and in it.
  EXPECT_GE(stats.launches, 2) << text;
  EXPECT_LE(stats.launches, 8) << text;
  EXPECT_GE(stats.launched_records, stats.records / 2) << text;
  EXPECT_EQ(stats.refused_launches, 0) << text;
  EXPECT_NE(text.find("launch 0: nodes "), std::string::npos) << text;
  EXPECT_NE(text.find(": a call of the host\n"), std::string::npos) << text;
}

// Of models without graphs too; nothing runs.
TEST_P(ModelGraphTest, MemoryIsPlannedBeforeItIsTaken) {
  for (bool use_graph : {false, true}) {
    Training run(GetParam(), use_graph, false);
    const Batch batch = MakeBatch(run.device(), 6, 0);
    const choir_model_batch_t one = batch.get();
    const uint64_t before = run.Digest();
    choir_model_memory_t memory;
    ASSERT_OK(choir_model_plan_memory(run.get(), true, &one, &memory));
    choir_model_memory_t evaluation;
    ASSERT_OK(choir_model_plan_memory(run.get(), false, &one, &evaluation));
    // conv, norm, hidden, out; and two averages of six channels.
    const uint64_t learnt = (6 * 9 + 6) + 12 + (54 * 12 + 12) + (12 * 5 + 5);
    EXPECT_EQ(memory.parameters, 4 * (learnt + 12));
    EXPECT_EQ(memory.gradients, 4 * learnt);
    EXPECT_EQ(memory.states, 4 * learnt);
    EXPECT_GT(memory.activations, evaluation.activations);
    EXPECT_GT(evaluation.activations, 0u);
    EXPECT_EQ(run.Digest(), before);
    EXPECT_EQ(choir_model_step(run.get()), 0);
    EXPECT_EQ(run.Metrics().samples, 0);
    for (uint32_t i = 0; i < 3; ++i) ASSERT_OK(run.Step(6, i));
    EXPECT_EQ(choir_model_graph_stats(run.get()).arena_bytes,
              use_graph ? memory.activations : 0u);
  }
}

TEST_P(ModelGraphTest, WhatCannotBeRecordedHasNoPlan) {
  Training run(GetParam(), true, false);
  const Batch batch = MakeBatch(run.device(), 6, 0);
  const choir_model_batch_t one = batch.get();
  const uint64_t before = run.Digest();
  choir_model_memory_t memory;
  for (bool tells : {true, false}) {
    run.net.in_forward = [&](choir_scope_t* scope) {
      choir_status_t status =
          choir_stream_synchronize(choir_scope_stream(scope));
      EXPECT_NE(status, nullptr);
      if (tells)
        choir_scope_fail(scope, status);
      else
        choir_status_free(status);
    };
    EXPECT_STATUS(FAILED_PRECONDITION, "in the middle of the step",
                  choir_model_plan_memory(run.get(), true, &one, &memory));
  }
  run.net.in_forward = nullptr;
  EXPECT_EQ(run.Digest(), before);
  EXPECT_EQ(choir_model_step(run.get()), 0);
  ASSERT_OK(choir_model_set_updater(run.get(), nullptr));
  EXPECT_STATUS(FAILED_PRECONDITION, "updater",
                choir_model_plan_memory(run.get(), true, &one, &memory));
}

choir_param_group_t Group(const char* match) {
  choir_param_group_t group = {CHOIR_CONFIG_DEFAULTS(CHOIR_PARAM_GROUP_FIELDS)};
  group.match = match;
  return group;
}

// Two rates that follow a schedule, and a frozen layer.
TEST_P(ModelGraphTest, GroupsGiveTheBitsOfEagerSteps) {
  const auto add_groups = [](choir_optimizer_t* optimizer) {
    choir_param_group_t group = Group("*.b");
    group.lr_factor = 0.25;
    group.weight_decay = 0.125;
    EXPECT_OK(choir_optimizer_add_param_group(optimizer, &group));
    group = Group("hidden.*");
    group.trainable = false;
    EXPECT_OK(choir_optimizer_add_param_group(optimizer, &group));
  };
  Training eager(GetParam(), false, false, "sgd", nullptr, add_groups);
  Training graph(GetParam(), true, true, "sgd", nullptr, add_groups);
  Training plain(GetParam(), true, true, "sgd");
  for (uint32_t i = 0; i < 12; ++i) {
    if (i == 8) {
      for (Training* training : {&eager, &graph})
        ASSERT_OK(choir_optimizer_set_group_lr(training->optimizer(), 0, 0.5));
    }
    ASSERT_OK(eager.Step(4, i));
    ASSERT_OK(graph.Step(4, i));
    ASSERT_OK(plain.Step(4, i));
    ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
    EXPECT_NE(plain.Digest(), graph.Digest());
  }
  EXPECT_LT(graph.net.forwards, 4);
}

TEST_P(ModelGraphTest, ClippingGivesTheBitsOfEagerSteps) {
  for (double norm : {0.25, 1e6}) {
    const auto set_clip = [norm](choir_optimizer_t* optimizer) {
      choir_gradient_clip_t clip = {
          CHOIR_CONFIG_DEFAULTS(CHOIR_GRADIENT_CLIP_FIELDS)};
      clip.value = norm / 2;
      clip.norm = norm;
      EXPECT_OK(choir_optimizer_set_clip(optimizer, &clip));
    };
    Training eager(GetParam(), false, false, "sgd", nullptr, set_clip);
    Training sequential(GetParam(), true, true, "sgd", nullptr, set_clip);
    Training fused(GetParam(), true, false, "sgd", nullptr, set_clip);
    Training plain(GetParam(), false, false, "sgd");
    for (uint32_t i = 0; i < 8; ++i) {
      for (Training* training : {&eager, &sequential, &fused, &plain})
        ASSERT_OK(training->Step(4, i));
      ASSERT_EQ(eager.Digest(), sequential.Digest()) << "step " << i;
      ASSERT_EQ(eager.Digest(), fused.Digest()) << "step " << i;
    }
    // A limit that no norm reaches changes no bit.
    EXPECT_EQ(plain.Digest() == eager.Digest(), norm > 1);
  }
}

TEST_P(ModelGraphTest, AGroupThatMatchesNothingIsRefused) {
  Training training(GetParam(), false, false);
  choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  const choir_param_group_t group = Group("conv2.*");
  ASSERT_OK(choir_optimizer_add_param_group(sgd, &group));
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "sgd: group 0, \"conv2.*\", matches no parameter of the model",
      choir_model_set_updater(training.get(), choir_optimizer_updater(sgd)));
  choir_optimizer_release(sgd);
}

// Learning rates that the program works out itself, one a step.
TEST_P(ModelGraphTest, TakesAnotherLearningRateAtEachStep) {
#define NAME(T, ENUM, name, states, doc) #name,
  for (const char* optimizer : {CHOIR_OPTIMIZER_LIST(NAME, )}) {
#undef NAME
    SCOPED_TRACE(optimizer);
    Training eager(GetParam(), false, false, optimizer);
    Training graph(GetParam(), true, true, optimizer);
    for (uint32_t i = 0; i < 8; ++i) {
      for (Training* training : {&eager, &graph}) {
        ASSERT_OK(choir_optimizer_set_lr(training->optimizer(),
                                         0.01 / (1 + i) + 0.001 * (i % 3)));
        ASSERT_OK(training->Step(9, i));
      }
      ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
    }
    EXPECT_EQ(graph.net.forwards, 3);  // the others were replayed
    // A replay with another rate than the eager step's is seen.
    ASSERT_OK(choir_optimizer_set_lr(graph.optimizer(), 0.02));
    ASSERT_OK(eager.Step(9, 8));
    ASSERT_OK(graph.Step(9, 8));
    EXPECT_NE(eager.Digest(), graph.Digest());
    EXPECT_EQ(graph.net.forwards, 3);
  }
}

TEST_P(ModelGraphTest, FusedStepsGiveTheBitsOfEagerSteps) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, false);
  for (uint32_t i = 0; i < 8; ++i) {
    // Enough for the kernels that take whole blocks of samples.
    const int64_t samples = i % 4 == 3 ? 19 : 32;
    ASSERT_OK(eager.Step(samples, i));
    ASSERT_OK(graph.Step(samples, i));
    ASSERT_OK(eager.Evaluate(samples, i));
    ASSERT_OK(graph.Evaluate(samples, i));
    ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
  }
  ExpectEqual(eager.Metrics(), graph.Metrics());
}

TEST_P(ModelGraphTest, MixedPrecisionGivesTheBitsOfEagerSteps) {
  for (choir_dtype_t precision : {CHOIR_DTYPE_BF16, CHOIR_DTYPE_F16}) {
    const std::string name = choir_dtype_name(precision);
    SCOPED_TRACE(name);
    Training wide(GetParam(), true, false);
    Training eager(GetParam(), false, false);
    Training graph(GetParam(), true, false);
    ASSERT_OK(choir_model_set_precision(eager.get(), precision));
    ASSERT_OK(choir_model_set_precision(graph.get(), precision));
    for (uint32_t i = 0; i < 6; ++i) {
      for (Training* training : {&wide, &eager, &graph}) {
        ASSERT_OK(training->Step(9, i));
        ASSERT_OK(training->Evaluate(9, i));
      }
      ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
      ASSERT_NE(wide.Digest(), graph.Digest()) << "step " << i;
    }
    const choir_metrics_t mixed = graph.Metrics();
    ExpectEqual(eager.Metrics(), mixed);
    EXPECT_NEAR(mixed.loss_sum, wide.Metrics().loss_sum, 0.3);
    EXPECT_NE(graph.Graphs().find(" " + name), std::string::npos);
    // Back: another recording.
    const int forwards = graph.net.forwards;
    ASSERT_OK(choir_model_set_precision(graph.get(), CHOIR_DTYPE_F32));
    ASSERT_OK(graph.Step(9, 6));
    EXPECT_EQ(graph.net.forwards, forwards + 1);
    EXPECT_EQ(graph.Graphs().find(" " + name), std::string::npos);
  }
}

// Averages of batch norm, momentum, dropout's numbers, metrics: all would show.
TEST_P(ModelGraphTest, ARehearsalLeavesNothingBehind) {
  for (bool use_graph : {false, true}) {
    SCOPED_TRACE(use_graph);
    Training plain(GetParam(), use_graph, false);
    Training rehearsing(GetParam(), use_graph, false);
    const Batch batch = MakeBatch(rehearsing.device(), 7, 99);
    const choir_model_batch_t one = batch.get();
    for (uint32_t i = 0; i < 8; ++i) {
      const int64_t samples = i % 4 == 3 ? 5 : 9;
      ASSERT_OK(plain.Step(samples, i));
      if (i % 3 == 0) {
        const int forwards = rehearsing.net.forwards;
        double seconds = 0;
        ASSERT_OK(choir_model_rehearse(rehearsing.get(), &one, 3, &seconds));
        EXPECT_GT(seconds, 0);
        // Two to warm up and three; replays do not call forward.
        EXPECT_EQ(rehearsing.net.forwards - forwards, use_graph ? 1 : 5);
      }
      ASSERT_OK(rehearsing.Step(samples, i));
      ASSERT_EQ(plain.Digest(), rehearsing.Digest()) << "step " << i;
      EXPECT_EQ(choir_model_step(rehearsing.get()), i + 1);
    }
    ExpectEqual(plain.Metrics(), rehearsing.Metrics());
  }
}

TEST_P(ModelGraphTest, AChoiceOfPrecisionIsNoStep) {
  Training run(GetParam(), true, false);
  for (choir_dtype_t precision : {CHOIR_DTYPE_F32, CHOIR_DTYPE_F16}) {
    ASSERT_OK(choir_model_set_precision(run.get(), precision));
    const Batch batch = MakeBatch(run.device(), 6, 0);
    const choir_model_batch_t one = batch.get();
    const uint64_t before = run.Digest();
    choir_precision_choice_t choice;
    ASSERT_OK(choir_model_choose_precision(run.get(), &one, &choice));
    EXPECT_GT(choice.f32_seconds, 0);
    EXPECT_GT(choice.bf16_seconds, 0);
    EXPECT_EQ(choice.dtype == CHOIR_DTYPE_BF16,
              choice.bf16_seconds < 0.95 * choice.f32_seconds);
    EXPECT_EQ(choir_model_precision(run.get()), precision);
    EXPECT_EQ(choir_model_step(run.get()), 0);
    EXPECT_EQ(run.Digest(), before);
    EXPECT_EQ(run.Graphs(), "");
    const choir_model_batch_t empty = {};
    ASSERT_OK(choir_model_choose_precision(run.get(), &empty, &choice));
    EXPECT_EQ(choice.dtype, CHOIR_DTYPE_F32);
    EXPECT_EQ(choice.bf16_seconds, 0);
  }
}

TEST_P(ModelGraphTest, EvaluatesAndTrainsInTurns) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_OK(eager.Step(9, i));
    ASSERT_OK(graph.Step(9, i));
    for (int64_t samples : {11, 11, 3}) {
      ASSERT_OK(eager.Evaluate(samples, 100 + i));
      ASSERT_OK(graph.Evaluate(samples, 100 + i));
    }
    ExpectEqual(eager.Metrics(), graph.Metrics());
    ASSERT_EQ(eager.Digest(), graph.Digest());
  }
}

TEST_P(ModelGraphTest, PredictionsAreTheCallersOwn) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  std::vector<TensorPtr> kept;
  std::vector<std::vector<float>> expected;
  for (uint32_t i = 0; i < 4; ++i) {
    for (Training* training : {&eager, &graph}) {
      const Batch batch = MakeBatch(training->device(), 6, i);
      choir_tensor_t* y = nullptr;
      choir_tensor_t* const inputs[] = {batch.x.get()};
      ASSERT_OK(choir_model_predict(training->get(), inputs, 1, &y));
      if (training == &eager)
        expected.push_back(Read<float>(y));
      else
        kept.emplace_back(y);
      if (training == &eager) choir_tensor_release(y);
    }
  }
  EXPECT_EQ(graph.net.forwards, 2);
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(Read<float>(kept[i].get()), expected[i]) << i;
}

TEST_P(ModelGraphTest, MoreKindsThanFitAreRecordedAnew) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 30; ++i) {
    const int64_t samples = 1 + i % 11;
    ASSERT_OK(eager.Step(samples, i));
    ASSERT_OK(graph.Step(samples, i));
  }
  EXPECT_EQ(eager.Digest(), graph.Digest());
}

TEST_P(ModelGraphTest, FreezingAParameterIsSeen) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 9; ++i) {
    for (Training* training : {&eager, &graph}) {
      choir_model_params(training->get())->params[0]->trainable = i / 3 != 1;
      ASSERT_OK(training->Step(9, i));
    }
    ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
  }
}

// Callbacks that do different things for different variants.
TEST_P(ModelGraphTest, VariantsAreGraphsOfTheirOwn) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 8; ++i) {
    for (Training* training : {&eager, &graph}) {
      training->net.doubles = i % 2 == 1;
      ASSERT_OK(training->Step(9, i, i % 2));
    }
    ASSERT_EQ(eager.Digest(), graph.Digest()) << "step " << i;
  }
  // Compile, the first step, and one recording for each variant.
  EXPECT_EQ(eager.net.forwards, 9);
  EXPECT_EQ(graph.net.forwards, 4);
}

TEST_P(ModelGraphTest, AFreshStepCountIsFollowed) {
  Training eager(GetParam(), false, false);
  Training graph(GetParam(), true, true);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_OK(eager.Step(9, i));
    ASSERT_OK(graph.Step(9, i));
  }
  choir_model_set_step(eager.get(), 20);
  choir_model_set_step(graph.get(), 20);
  ASSERT_OK(eager.Step(9, 5));
  ASSERT_OK(graph.Step(9, 5));
  EXPECT_EQ(eager.Digest(), graph.Digest());
}

TEST(ModelGraphErrors, AHostReadInTheMiddleIsRefused) {
  Training graph("cpu", true, false);
  ASSERT_OK(graph.Step(9, 0));
  graph.net.in_forward = [&graph](choir_scope_t*) {
    const choir_param_t* param = choir_model_params(graph.get())->params[0];
    std::vector<float> values(
        static_cast<size_t>(choir_tensor_count(param->value)));
    EXPECT_OK(choir_tensor_read(param->value, values.data(),
                                values.size() * sizeof(float)));
  };
  EXPECT_STATUS(FAILED_PRECONDITION, "reads or writes a tensor in the middle",
                graph.Step(9, 1));
}

TEST(ModelGraphErrors, RandomNumbersThatDoNotFollowTheStepAreRefused) {
  Training graph("cpu", true, false);
  const Batch batch = MakeBatch(graph.device(), 2, 0);
  graph.net.in_forward = [&batch](choir_scope_t* scope) {
    choir_random_attrs_t attrs = {};
    attrs.high = 1;
    choir_op_t op;
    EXPECT_OK(choir_op_find("random_uniform", &op));
    choir_var_t* x = choir_scope_input(scope, batch.x.get());
    choir_scope_op(scope, op, &x, 1, &attrs, nullptr);
  };
  ASSERT_OK(graph.Step(9, 0));
  EXPECT_STATUS(FAILED_PRECONDITION, "are not those of the step",
                graph.Step(9, 1));
}

TEST(ModelGraph, ReplaysAskForNoMemory) {
  choir::testing::FailingAllocator counter;
  {
    choir_device_options_t options = {};
    options.allocator = counter.get();
    Training graph("cpu", true, false, "sgd", &options);
    const Batch batch = MakeBatch(graph.device(), 32, 0);
    const choir_model_batch_t one = batch.get();
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(choir_model_train_one_batch(graph.get(), &one));
      ASSERT_OK(choir_model_evaluate(graph.get(), &one));
    }
    const uint64_t before = counter.allocations();
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(choir_model_train_one_batch(graph.get(), &one));
      ASSERT_OK(choir_model_evaluate(graph.get(), &one));
    }
    EXPECT_EQ(counter.allocations(), before);
  }
  EXPECT_EQ(counter.live_blocks(), 0u);
}

TEST(ModelGraph, AStepThatFailsLeavesNoGraph) {
  Training graph("cpu", true, false);
  ASSERT_OK(graph.Step(9, 0));
  graph.net.in_forward = [](choir_scope_t* scope) {
    choir_scope_fail(scope, CHOIR_ERROR(INTERNAL, "on purpose"));
  };
  EXPECT_STATUS(INTERNAL, "on purpose", graph.Step(9, 1));
  EXPECT_EQ(graph.Graphs(), "");
  graph.net.in_forward = nullptr;
  ASSERT_OK(graph.Step(9, 2));
  EXPECT_NE(graph.Graphs(), "");
}

TEST(ModelGraph, ARehearsalThatFailsLeavesNothingBehind) {
  Training run("cpu", true, false);
  ASSERT_OK(run.Step(9, 0));
  const Batch batch = MakeBatch(run.device(), 7, 99);
  const choir_model_batch_t one = batch.get();
  const uint64_t before = run.Digest();
  int forwards = 0;
  // The second call is of bf16: averages were changed meanwhile.
  run.net.in_forward = [&](choir_scope_t* scope) {
    if (++forwards == 2)
      choir_scope_fail(scope, CHOIR_ERROR(INTERNAL, "on purpose"));
  };
  choir_precision_choice_t choice;
  EXPECT_STATUS(INTERNAL, "model cnn: rehearse: training step 1: on purpose",
                choir_model_choose_precision(run.get(), &one, &choice));
  EXPECT_EQ(choir_model_precision(run.get()), CHOIR_DTYPE_F32);
  EXPECT_EQ(run.Digest(), before);
  EXPECT_EQ(choir_model_step(run.get()), 1);
  double seconds;
  EXPECT_STATUS(INVALID_ARGUMENT, "rehearse: 0 steps; at least 1 is needed",
                choir_model_rehearse(run.get(), &one, 0, &seconds));
  ASSERT_OK(choir_model_set_updater(run.get(), nullptr));
  EXPECT_STATUS(FAILED_PRECONDITION,
                "rehearse without an updater; call choir_model_set_updater",
                choir_model_rehearse(run.get(), &one, 1, &seconds));
}

// Parameters, their momentum and the step are those before; the next step is
// made as if the one that failed had not been there.
TEST_P(ModelGraphTest, ALossThatIsNotFiniteUpdatesNothing) {
  for (bool use_graph : {false, true}) {
    SCOPED_TRACE(use_graph);
    Training sound(GetParam(), use_graph, false);
    Training run(GetParam(), use_graph, false);
    ASSERT_OK(choir_model_set_loss_check(run.get(), true));
    if (!choir_device_is_host(run.device())) return;
    Batch batch = MakeBatch(run.device(), 9, 99);
    const choir_model_batch_t one = batch.get();
    const std::vector<float> pixels = Read<float>(batch.x.get());
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_OK(sound.Step(9, i));
      ASSERT_OK(run.Step(9, i));
      ASSERT_EQ(sound.Digest(), run.Digest());
      std::vector<float> large = pixels;
      for (float& pixel : large) pixel *= 3e38f;
      std::vector<float> ill = pixels;
      ill[100] = NAN;
      const std::string step =
          "training step " + std::to_string(i + 1) +
          ": the loss is nan, and nothing was updated; values were first not "
          "finite in ";
      for (const auto& [values, where] :
           {std::pair(&large, "what op conv2d made in layer conv"),
            std::pair(&ill, "input 0 of the batch")}) {
        batch.Set(*values);
        EXPECT_STATUS(FAILED_PRECONDITION, step + where,
                      choir_model_train_one_batch(run.get(), &one));
        EXPECT_EQ(choir_model_step(run.get()), i + 1);
      }
      // All but averages of batch norm, which forward changed.
      run.CopyAverages(&sound);
      ASSERT_EQ(sound.Digest(), run.Digest());
    }
    choir_param_t* param = choir_model_params(run.get())->params[0];
    std::vector<float> weights = Read<float>(param->value);
    weights[3] = INFINITY;
    ASSERT_OK(choir_tensor_write(param->value, weights.data(),
                                 weights.size() * sizeof(float)));
    EXPECT_STATUS(FAILED_PRECONDITION, "not finite in parameter conv.W",
                  run.Step(9, 5));
  }
}

TEST(ModelGraph, ShowsRecordsLifetimesAndBytes) {
  Training graph("cpu", true, true);
  ASSERT_OK(graph.Step(9, 0));
  EXPECT_EQ(graph.Graphs(), "");
  ASSERT_OK(graph.Step(9, 1));
  const std::string text = graph.Graphs();
  for (const char* part : {"conv2d/", "[conv]", "sgd_update/", "input 0",
                           "input 1", "workspace + ", "kept", "bytes, 0.."})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const choir_graph_stats_t stats = choir_model_graph_stats(graph.get());
  EXPECT_GT(stats.records, 20);
  EXPECT_GT(stats.live_bytes, 0u);
  EXPECT_GE(stats.arena_bytes, stats.live_bytes);
  EXPECT_LT(stats.arena_bytes, stats.temporary_bytes);
  choir_model_set_graph(graph.get(), false, false);
  EXPECT_EQ(graph.Graphs(), "");
}

// x and y may be one tensor (an autoencoder), where y has no place of its own.
choir_var_t* TrainOnItself(choir_model_t* model, choir_scope_t* scope,
                           void* self, choir_vars_t inputs,
                           choir_vars_t targets, choir_var_t** out_loss) {
  choir_var_t* out = choir_layer_forward(
      scope, *static_cast<choir_layer_t**>(self), inputs.at[0]);
  *out_loss = choir_var_mse_loss(scope, out, targets.at[0]);
  choir_model_backward_and_update(model, scope, *out_loss);
  return out;
}

TEST(ModelGraph, InputAndTargetMayBeOneTensor) {
  choir_model_def_t def = {};
  def.name = "auto";
  def.define = [](choir_model_t* model, void* self) {
    choir_linear_config_t linear = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
    linear.out_features = 6;
    *static_cast<choir_layer_t**>(self) =
        choir_layer_create(model, "fc", &choir_layer_def_linear, &linear);
  };
  def.forward = [](choir_scope_t* scope, void* self, choir_vars_t inputs) {
    return choir_layer_forward(scope, *static_cast<choir_layer_t**>(self),
                               inputs.at[0]);
  };
  def.train_one_batch = TrainOnItself;
  uint64_t digests[2];
  for (int use_graph = 0; use_graph < 2; ++use_graph) {
    DevicePtr device = MakeDevice("cpu");
    choir_layer_t* layer = nullptr;
    choir_model_t* model = nullptr;
    ASSERT_OK(choir_model_create(device.get(), &def, &layer, 1, &model));
    const int64_t shape[] = {1, 6};
    choir_view_t like;
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &like));
    ASSERT_OK(choir_model_compile(model, &like, 1));
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    choir_optimizer_t* sgd = nullptr;
    ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    ASSERT_OK(choir_model_set_updater(model, choir_optimizer_updater(sgd)));
    choir_optimizer_release(sgd);
    choir_model_set_graph(model, use_graph == 1, false);
    for (int i = 0; i < 5; ++i) {
      std::vector<float> values(24);
      for (size_t k = 0; k < values.size(); ++k)
        values[k] = std::cos(static_cast<float>(k) + static_cast<float>(i));
      TensorPtr x = Make(device.get(), Shape{4, 6}, values);
      const choir_model_batch_t batch = {{x.get()}, {x.get()}, 0, 4, 4};
      ASSERT_OK(choir_model_train_one_batch(model, &batch));
    }
    ASSERT_OK(choir_model_digest(model, &digests[use_graph]));
    choir_model_release(model);
  }
  EXPECT_EQ(digests[0], digests[1]);
}

}  // namespace
