// SPDX-License-Identifier: Apache-2.0
// Shards of parameters (opt/optimizer_def.h), and optimizers that keep the
// states of a shard alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/stage.h"
#include "opt/optimizer_def.h"
#include "tests/opt/optimizer_testing.h"
#include "tests/opt/param_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Create;
using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::OptimizerPtr;
using choir::testing::ParamSet;
using choir::testing::Sgd;
using choir::testing::TensorPtr;

using Doubles = std::vector<double>;

struct ShardDestroy {
  void operator()(choir__param_shard_t* shard) const {
    choir__param_shard_destroy(shard);
  }
};
using ShardPtr = std::unique_ptr<choir__param_shard_t, ShardDestroy>;

// Elements [begin, end) of its parameter have states; all: they are whole.
class Shards {
 public:
  Shards(OptimizerPtr optimizer, choir_device_t* device, int64_t begin = 0,
         int64_t end = kElements)
      : optimizer_(std::move(optimizer)),
        device_(device),
        params_(device),
        begin_(begin),
        end_(end) {
    params_.Add("w", {2, 3, 4, 5}, Start(), true);
    if (end - begin < kElements)
      choir__optimizer_set_sharding(optimizer_.get(), &sharding_);
    EXPECT_OK(
        choir_optimizer_attach(optimizer_.get(), device_, params_.list()));
  }
  static constexpr int64_t kElements = 120;
  static std::vector<float> Start() {
    Doubles numbers = Numbers(kElements, 3);
    return {numbers.begin(), numbers.end()};
  }
  choir_optimizer_t* optimizer() const { return optimizer_.get(); }
  ParamSet<float>* params() { return &params_; }
  choir_stream_t* stream() const { return choir_device_stream(device_); }

  std::vector<choir_named_tensor_t> States() {
    std::vector<choir_named_tensor_t> states(
        choir_optimizer_states(optimizer_.get(), nullptr));
    choir_optimizer_states(optimizer_.get(), states.data());
    return states;
  }

  choir_status_t Make(int64_t start, int64_t count, choir_tensor_t* grad,
                      ShardPtr* out) {
    choir__param_shard_t* shard = nullptr;
    choir_status_t status = choir__param_shard_create(
        optimizer_.get(), params_[0], start, count, grad, &shard);
    out->reset(shard);
    return status;
  }

 private:
  static void PartOf(void* self, const choir_param_t* param, int64_t* out_start,
                     int64_t* out_count) {
    EXPECT_STREQ(param->name, "w");
    *out_start = static_cast<Shards*>(self)->begin_;
    *out_count = static_cast<Shards*>(self)->end_ - *out_start;
  }
  static choir_status_t Place(void* self, const choir_param_t* param,
                              int32_t number, choir_tensor_t** out_state) {
    const Shards* shards = static_cast<const Shards*>(self);
    EXPECT_STREQ(param->name, "w");
    EXPECT_LT(number, choir__optimizer_state_count(shards->optimizer()));
    const int64_t count = shards->end_ - shards->begin_;
    return choir_tensor_create(shards->device_, CHOIR_DTYPE_F32, 1, &count,
                               out_state);
  }

  const choir__sharding_t sharding_ = {PartOf, Place, this};
  OptimizerPtr optimizer_;
  choir_device_t* device_;
  ParamSet<float> params_;
  int64_t begin_;
  int64_t end_;
};

// The elements in the order of memory.
std::vector<float> InMemory(const choir_tensor_t* tensor) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const float* data =
      static_cast<const float*>(choir_buffer_data(view->buffer)) + view->offset;
  return {data, data + choir_view_count(view)};
}

// Updating all shards is updating the parameter, bit for bit; elements are
// those of memory, which is not in the order of the shape here. Some states are
// with one optimizer and some with another, as with two ranks.
template <typename Config>
void UpdatesByShards(const Config& config) {
  DevicePtr device = MakeDevice("cpu");
  Shards whole(Create(config), device.get());
  Shards first(Create(config), device.get(), 0, 64);
  Shards second(Create(config), device.get(), 64, 120);
  EXPECT_TRUE(choir__optimizer_is_elementwise(first.optimizer()));
  const int64_t ends[] = {0, 1, 17, 64, 120};
  std::vector<ShardPtr> shards(4);
  std::vector<TensorPtr> grads;
  for (size_t i = 0; i < 4; ++i) {
    const int64_t count = ends[i + 1] - ends[i];
    grads.push_back(
        Make<float>(device.get(), {count}, std::vector<float>(count)));
    ASSERT_OK((i < 3 ? first : second)
                  .Make(ends[i], count, grads[i].get(), &shards[i]));
  }
  for (uint32_t t = 0; t < 3; ++t) {
    Doubles numbers = Numbers(120, 50 + t);
    whole.params()->SetGrad(0, {numbers.begin(), numbers.end()});
    const std::vector<float> grad = InMemory((*whole.params())[0]->grad);
    for (size_t i = 0; i < 4; ++i) {
      const size_t count = static_cast<size_t>(ends[i + 1] - ends[i]);
      ASSERT_OK(choir_tensor_write(grads[i].get(), grad.data() + ends[i],
                                   count * sizeof(float)));
      ASSERT_OK(choir__param_shard_update(shards[i].get(), first.stream(), t));
    }
    ASSERT_OK(choir_optimizer_update(whole.optimizer(), whole.stream(), t));
    const std::vector<float> all = InMemory((*whole.params())[0]->value);
    std::vector<float> parts = InMemory((*first.params())[0]->value);
    const std::vector<float> others = InMemory((*second.params())[0]->value);
    std::copy(others.begin() + 64, others.end(), parts.begin() + 64);
    EXPECT_EQ(parts, all) << t;
  }
  EXPECT_NE(whole.params()->value(0), Shards::Start());
  const auto states = whole.States();
  const auto firsts = first.States();
  const auto seconds = second.States();
  ASSERT_EQ(firsts.size(), states.size());
  ASSERT_EQ(seconds.size(), states.size());
  for (size_t k = 0; k < states.size(); ++k) {
    EXPECT_STREQ(firsts[k].name, states[k].name);
    EXPECT_EQ(states[k].shard, nullptr);
    ASSERT_NE(seconds[k].shard, nullptr);
    EXPECT_EQ(firsts[k].shard->start, 0);
    EXPECT_EQ(seconds[k].shard->start, 64);
    EXPECT_EQ(choir_view_count(&seconds[k].shard->whole), 120);
    std::vector<float> parts = InMemory(firsts[k].tensor);
    for (float value : InMemory(seconds[k].tensor)) parts.push_back(value);
    EXPECT_EQ(parts, InMemory(states[k].tensor)) << k;
    int32_t number = -1;
    EXPECT_EQ(choir__optimizer_find_state(second.optimizer(), seconds[k].tensor,
                                          &number),
              (*second.params())[0]);
    EXPECT_EQ(number, static_cast<int32_t>(k));
    EXPECT_EQ(choir__optimizer_find_state(second.optimizer(), firsts[k].tensor,
                                          &number),
              nullptr);
  }
  if (states.empty()) return;
  EXPECT_STATUS(FAILED_PRECONDITION, "this rank keeps a part of the states",
                choir_optimizer_update(first.optimizer(), first.stream(), 3));
  choir_tensor_t* gathered = nullptr;
  EXPECT_STATUS(FAILED_PRECONDITION, "is a shard, and this updater has one",
                choir_updater_gather(choir_optimizer_updater(first.optimizer()),
                                     &firsts[0], -1, &gathered));
  uint64_t digest = 0;
  EXPECT_STATUS(FAILED_PRECONDITION, "is a shard",
                choir_tensor_digest(firsts.data(), firsts.size(), &digest));
  // A shard takes its part of a whole.
  ASSERT_OK(choir_named_tensor_make_whole(&seconds[0], &gathered));
  EXPECT_EQ(choir_tensor_ndim(gathered), 4);
  std::vector<float> row(120);
  for (size_t i = 0; i < 120; ++i) row[i] = static_cast<float>(i);
  ASSERT_OK(choir_tensor_write(gathered, row.data(), 120 * sizeof(float)));
  ASSERT_OK(choir_named_tensor_take(&seconds[0], gathered));
  const std::vector<float> memory = InMemory(gathered);
  EXPECT_NE(memory, row);
  EXPECT_EQ(InMemory(seconds[0].tensor),
            std::vector<float>(memory.begin() + 64, memory.end()));
  choir_tensor_release(gathered);
}

TEST(ParamShardTest, UpdatesLikeTheWholeWithEveryOptimizer) {
#define UPDATES(T, NAME, name, states, doc) \
  UpdatesByShards(                          \
      choir_##name##_config_t{CHOIR_CONFIG_DEFAULTS(CHOIR_##NAME##_FIELDS)});
  CHOIR_OPTIMIZER_LIST(UPDATES, )
#undef UPDATES
  choir_sgd_config_t sgd = Sgd();
  sgd.momentum = 0.9;
  sgd.nesterov = true;
  sgd.weight_decay = 0.01;
  UpdatesByShards(sgd);
}

// Notes the labels of records; refuses those of an update.
struct LabelStage {
  choir_stage_t stage = {};  // first
  std::vector<std::string> labels;

  LabelStage() {
    stage.submit = [](choir_stage_t* self, choir_stream_t* stream,
                      const choir_record_t* record) -> choir_status_t {
      auto* own = reinterpret_cast<LabelStage*>(self);
      own->labels.push_back(record->label ? record->label : "(none)");
      if (std::string(choir_record_name(record)).find("update") !=
          std::string::npos)
        return CHOIR_ERROR(INTERNAL, "on purpose");
      return choir_stage_forward(self, stream, record);
    };
  }
};

// The parameter's name may be gone with the parameter.
TEST(ParamShardTest, AFailureLeavesNoLabelBehind) {
  DevicePtr device = MakeDevice("cpu");
  Shards parts(Create(Sgd()), device.get());
  TensorPtr grad = Make<float>(device.get(), {20}, std::vector<float>(20));
  ShardPtr shard;
  ASSERT_OK(parts.Make(0, 20, grad.get(), &shard));
  LabelStage noted;
  choir_stream_push_stage(parts.stream(), &noted.stage);
  choir_fill_attrs_t zero = {0};
  choir_tensor_t* dst = grad.get();
  EXPECT_STATUS(INTERNAL, "on purpose",
                choir__param_shard_update(shard.get(), parts.stream(), 0));
  ASSERT_OK(
      choir_op_run(parts.stream(), CHOIR_OP_FILL, &dst, 1, &zero, false, &dst));
  EXPECT_STATUS(INTERNAL, "on purpose",
                choir_optimizer_update(parts.optimizer(), parts.stream(), 0));
  ASSERT_OK(
      choir_op_run(parts.stream(), CHOIR_OP_FILL, &dst, 1, &zero, false, &dst));
  choir_stream_pop_stage(parts.stream(), &noted.stage);
  EXPECT_EQ(noted.labels,
            (std::vector<std::string>{"w", "(none)", "w", "(none)"}));
}

TEST(ParamShardTest, WhatIsNoShardIsRefused) {
  DevicePtr device = MakeDevice("cpu");
  choir_sgd_config_t config = Sgd();
  config.momentum = 0.9;
  Shards parts(Create(config), device.get());
  TensorPtr grad = Make<float>(device.get(), {20}, std::vector<float>(20));
  ShardPtr shard;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sgd: a shard of 20 elements from 101 of parameter w, of which "
                "120 from 0 are here",
                parts.Make(101, 20, grad.get(), &shard));
  EXPECT_STATUS(INVALID_ARGUMENT, "a shard of 20 elements from -1",
                parts.Make(-1, 20, grad.get(), &shard));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "a shard of 19 elements of parameter w with a gradient of 20",
                parts.Make(0, 19, grad.get(), &shard));
  Shards second(Create(config), device.get(), 64, 120);
  EXPECT_STATUS(INVALID_ARGUMENT,
                "sgd: a shard of 20 elements from 50 of parameter w, of which "
                "56 from 64 are here",
                second.Make(50, 20, grad.get(), &shard));
  EXPECT_STATUS(INVALID_ARGUMENT, "of which 56 from 64 are here",
                second.Make(101, 20, grad.get(), &shard));
  EXPECT_EQ(shard, nullptr);
  ASSERT_OK(parts.Make(100, 20, grad.get(), &shard));
  // Frozen since: nothing happens.
  (*parts.params())[0]->trainable = false;
  ASSERT_OK(choir_tensor_write(grad.get(), std::vector<float>(20, 1).data(),
                               20 * sizeof(float)));
  ASSERT_OK(choir__param_shard_update(shard.get(), parts.stream(), 0));
  EXPECT_EQ(parts.params()->value(0), Shards::Start());
  ParamSet<float> other(device.get());
  choir_param_t* unknown = other.Add("other", {20}, std::vector<float>(20));
  choir__param_shard_t* none = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: parameter other has no states",
                choir__param_shard_create(parts.optimizer(), unknown, 0, 20,
                                          grad.get(), &none));
}

}  // namespace
