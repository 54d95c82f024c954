// SPDX-License-Identifier: Apache-2.0
// An optimizer's step on a GPU: few launches for all parameters, in eager steps
// and in graphs, with the CPU's bits.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "opt/optimizer.h"
#include "tests/opt/param_testing.h"
#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

using Symbols = std::vector<std::string>;

// More than one launch takes.
constexpr size_t kParams = 100;

// Parameters of many sizes with an optimizer whose rate falls at each step.
class Stepper {
 public:
  Stepper(const DevicePtr& device, const choir_optimizer_def_t* def)
      : device_(device.get()), params_(device_) {
    const choir_struct_def_t* fields = choir_optimizer_def_config(def);
    std::vector<unsigned char> config(fields->bytes);
    choir_struct_init(fields, config.data());
    EXPECT_OK(choir_struct_set(fields, config.data(), "weight_decay", "0.01"));
    if (choir_struct_find(fields, "momentum")) {
      EXPECT_OK(choir_struct_set(fields, config.data(), "momentum", "0.9"));
    }
    EXPECT_OK(choir_optimizer_create(def, config.data(), &optimizer_));
    choir_schedule_config_t schedule;
    choir_struct_init(&choir_schedule_config_def, &schedule);
    schedule.kind = CHOIR_SCHEDULE_STEP;
    schedule.period = 1;
    schedule.factor = 0.5;
    EXPECT_OK(choir_optimizer_set_schedule(optimizer_, &schedule));
    const int64_t counts[] = {1, 3, 17, 4097, 64};
    for (uint32_t i = 0; i < kParams; ++i) {
      const int64_t count = i == 7 ? 30000 : counts[i % 5];
      params_.Add("w" + std::to_string(i), {count}, Floats(count, i));
    }
    EXPECT_OK(choir_optimizer_attach(optimizer_, device_, params_.list()));
  }
  ~Stepper() { choir_optimizer_release(optimizer_); }
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  void SetGrads(int64_t step) {
    for (size_t i = 0; i < params_.size(); ++i)
      params_.SetGrad(i, Floats(choir_tensor_count(params_[i]->grad),
                                static_cast<uint32_t>(1000 + 200 * step) +
                                    static_cast<uint32_t>(i)));
  }
  choir_status_t Update(int64_t step) {
    return choir_optimizer_update(optimizer_, choir_device_stream(device_),
                                  step);
  }
  // Of a replay of the step.
  choir_step_values_t ValuesOf(int64_t step) const {
    choir_optimizer_begin_step(optimizer_, step);
    choir_step_values_t values = {};
    values.step = step;
    return values;
  }
  std::vector<std::vector<float>> All() {
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < params_.size(); ++i) all.push_back(params_.value(i));
    return all;
  }
  ParamSet<float>& params() { return params_; }

 private:
  choir_device_t* device_;
  ParamSet<float> params_;
  choir_optimizer_t* optimizer_ = nullptr;
};

class OptimizerGpu : public CudaKernelsTest {};

// The other parameters' calls still wait, so the update may be repeated.
TEST_F(OptimizerGpu, AnUpdateThatFailsBeforeItsLaunchChangesNothing) {
  Stepper gpu(gpu_, &choir_optimizer_def_sgd);
  Stepper cpu(cpu_, &choir_optimizer_def_sgd);
  gpu.SetGrads(0);
  cpu.SetGrads(0);
  TensorPtr wrong = Make<float>(gpu_.get(), {2}, {1, 2});
  choir_tensor_t* right = gpu.params()[3]->grad;
  gpu.params()[3]->grad = wrong.get();
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: w3: sgd_update: ", gpu.Update(0));
  EXPECT_EQ(gpu.All(), cpu.All());
  gpu.params()[3]->grad = right;
  ASSERT_OK(gpu.Update(0));
  ASSERT_OK(cpu.Update(0));
  EXPECT_EQ(gpu.All(), cpu.All());
}

TEST_F(OptimizerGpu, StepsTakeFewLaunches) {
  for (int32_t i = 0; choir_optimizer_def_get(i); ++i) {
    const choir_optimizer_def_t* def = choir_optimizer_def_get(i);
    Stepper gpu(gpu_, def);
    Stepper cpu(cpu_, def);
    for (int64_t step = 0; step < 3; ++step) {
      gpu.SetGrads(step);
      cpu.SetGrads(step);
      (void)Launched();
      ASSERT_OK(gpu.Update(step));
      const Symbols launched = Launched();
      ASSERT_EQ(launched.size(), 2u);
      EXPECT_NE(launched[0].find("_update_many"), std::string::npos);
      EXPECT_EQ(launched[1], launched[0]);
      ASSERT_OK(cpu.Update(step));
      EXPECT_EQ(gpu.All(), cpu.All());
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// The rate and the number of the step are those of each replay.
TEST_F(OptimizerGpu, GraphsFollowTheStep) {
  for (int32_t i = 0; choir_optimizer_def_get(i); ++i) {
    const choir_optimizer_def_t* def = choir_optimizer_def_get(i);
    Stepper gpu(gpu_, def);
    Stepper cpu(cpu_, def);
    choir_workspace_t* workspace = nullptr;
    ASSERT_OK(choir_workspace_create(gpu_.get(), &workspace));
    choir_graph_t* graph = nullptr;
    ASSERT_OK(choir_graph_create(workspace, &graph));
    choir_stream_t* stream = choir_device_stream(gpu_.get());
    for (int64_t step = 1; step < 7; ++step) {
      gpu.SetGrads(step);
      cpu.SetGrads(step);
      const choir_step_values_t values = gpu.ValuesOf(step);
      if (step == 1) {
        ASSERT_OK(choir_graph_begin(graph, &stream, 1, &values));
        ASSERT_OK(gpu.Update(step));
        ASSERT_OK(choir_graph_end(graph));
        const choir_graph_options_t options = {};
        ASSERT_OK(choir_graph_plan(graph, &options));
      }
      (void)Launched();
      ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
      EXPECT_EQ(Launched().size(), step == 1 ? 2u : step == 2 ? 3u : 1u);
      ASSERT_OK(cpu.Update(step));
      EXPECT_EQ(gpu.All(), cpu.All()) << "step " << step;
    }
    const choir_graph_stats_t stats = choir_graph_stats(graph);
    EXPECT_EQ(stats.records, 2);
    EXPECT_EQ(stats.launches, 1);
    EXPECT_EQ(stats.launched_records, 2);
    EXPECT_EQ(stats.refused_launches, 0);
    choir_graph_destroy(graph);
    choir_workspace_destroy(workspace);
  }
}

// Those of one group go together, in whatever order the model has them.
TEST_F(OptimizerGpu, EachGroupTakesItsLaunches) {
  std::vector<std::vector<float>> results;
  for (const DevicePtr* device : {&cpu_, &gpu_}) {
    choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
    choir_optimizer_t* sgd = nullptr;
    ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
    choir_param_group_t group = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_PARAM_GROUP_FIELDS)};
    group.match = "*.b";
    group.lr_factor = 2;
    ASSERT_OK(choir_optimizer_add_param_group(sgd, &group));
    ParamSet<float> params(device->get());
    for (uint32_t i = 0; i < 20; ++i) {
      params.Add("l" + std::to_string(i / 2) + (i % 2 ? ".b" : ".W"), {40},
                 Floats(40, i));
      params.SetGrad(i, Floats(40, 100 + i));
    }
    ASSERT_OK(choir_optimizer_attach(sgd, device->get(), params.list()));
    (void)Launched();
    ASSERT_OK(
        choir_optimizer_update(sgd, choir_device_stream(device->get()), 0));
    if (device == &gpu_) {
      EXPECT_EQ(Launched(), Symbols(2, "choir_sgd_update_many"));
    }
    results.emplace_back();
    for (size_t i = 0; i < params.size(); ++i)
      for (float element : params.value(i)) results.back().push_back(element);
    choir_optimizer_release(sgd);
  }
  EXPECT_EQ(results[1], results[0]);
}

TEST_F(OptimizerGpu, ClipsWithoutTheHost) {
  choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  choir_gradient_clip_t clip = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_GRADIENT_CLIP_FIELDS)};
  clip.value = 12;
  clip.norm = 3.25;
  ASSERT_OK(choir_optimizer_set_clip(sgd, &clip));
  ParamSet<float> params(gpu_.get());
  params.Add("a", {3}, {1, 2, 3});
  params.Add("b", {1}, {4});
  ASSERT_OK(choir_optimizer_attach(sgd, gpu_.get(), params.list()));
  params.SetGrad(0, {3, 0, -4});
  params.SetGrad(1, {100});
  choir_op_stats_reset();
  ASSERT_OK(choir_optimizer_update(sgd, choir_device_stream(gpu_.get()), 0));
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
  EXPECT_EQ(params.grad(0), (std::vector<float>{0.75f, 0, -1}));
  EXPECT_EQ(params.grad(1), (std::vector<float>{3}));
  choir_optimizer_release(sgd);
}

TEST_F(OptimizerGpu, FrozenOnesAreLeftOut) {
  Stepper gpu(gpu_, &choir_optimizer_def_adam);
  Stepper cpu(cpu_, &choir_optimizer_def_adam);
  for (Stepper* stepper : {&gpu, &cpu}) {
    for (size_t i = 0; i < kParams; i += 3)
      stepper->params()[i]->trainable = false;
    stepper->SetGrads(0);
  }
  const std::vector<float> before = gpu.params().value(3);
  (void)Launched();
  ASSERT_OK(gpu.Update(0));
  EXPECT_EQ(Launched(), Symbols{"choir_adam_update_many"});
  ASSERT_OK(cpu.Update(0));
  EXPECT_EQ(gpu.All(), cpu.All());
  EXPECT_EQ(gpu.params().value(3), before);
}

// Parameters that are views of one memory are updated one after the other.
TEST_F(OptimizerGpu, WhatIsSharedTakesTwoSteps) {
  const choir_optimizer_def_t* def = &choir_optimizer_def_adagrad;
  const choir_struct_def_t* fields = choir_optimizer_def_config(def);
  std::vector<unsigned char> config(fields->bytes);
  choir_struct_init(fields, config.data());
  std::vector<std::vector<float>> results;
  for (const DevicePtr* device : {&cpu_, &gpu_}) {
    choir_optimizer_t* optimizer = nullptr;
    ASSERT_OK(choir_optimizer_create(def, config.data(), &optimizer));
    ParamSet<float> params(device->get());
    for (const char* name : {"a", "b"}) params.Add(name, {3, 4}, Floats(12, 1));
    choir_view_t view = *choir_tensor_view(params[0]->value);
    view.ndim = 2;
    view.shape[0] = 2;  // the first two rows of a
    choir_tensor_t* part = nullptr;
    ASSERT_OK(choir_tensor_from_view(&view, &part));
    TensorPtr grad = Make<float>(device->get(), {2, 4}, Floats(8, 9));
    ASSERT_OK(choir_param_set_add(params.list(), "c", part, true, nullptr));
    choir_param_use_grad(params[2], grad.get());
    params.SetGrad(0, Floats(12, 5));
    params.SetGrad(1, Floats(12, 6));
    ASSERT_OK(choir_optimizer_attach(optimizer, device->get(), params.list()));
    (void)Launched();
    ASSERT_OK(choir_optimizer_update(optimizer,
                                     choir_device_stream(device->get()), 0));
    EXPECT_EQ(Launched(), device == &gpu_
                              ? Symbols(3, "choir_adagrad_update_many")
                              : Symbols());
    results.push_back(params.value(0));
    results.push_back(params.value(1));
    choir_tensor_release(part);
    choir_optimizer_release(optimizer);
  }
  EXPECT_EQ(results[2], results[0]);
  EXPECT_EQ(results[3], results[1]);
  EXPECT_NE(results[0], results[1]);
}

}  // namespace
