// SPDX-License-Identifier: Apache-2.0
// Groups of parameters: which settings a parameter has, and steps with two
// learning rates against the formula in double, eagerly and in a graph whose
// rates follow a schedule.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/graph.h"
#include "opt/optimizer.h"
#include "tests/opt/optimizer_testing.h"
#include "tests/opt/param_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Create;
using choir::testing::DevicePtr;
using choir::testing::MakeDevice;
using choir::testing::OptimizerPtr;
using choir::testing::ParamSet;

OptimizerPtr Sgd(double lr, double momentum = 0, double weight_decay = 0) {
  choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  config.lr = lr;
  config.momentum = momentum;
  config.weight_decay = weight_decay;
  return Create(config);
}

choir_param_group_t Group(const char* match) {
  choir_param_group_t group = {CHOIR_CONFIG_DEFAULTS(CHOIR_PARAM_GROUP_FIELDS)};
  group.match = match;
  return group;
}

choir_status_t Add(const OptimizerPtr& optimizer,
                   const choir_param_group_t& group) {
  return choir_optimizer_add_param_group(optimizer.get(), &group);
}

// Which of two groups a name is of, by their rates; 0: of none.
int GroupOf(const char* first, const char* second, const char* name) {
  OptimizerPtr sgd = Sgd(4);
  choir_param_group_t group = Group(first);
  group.lr = 1;
  EXPECT_OK(Add(sgd, group));
  group.match = second;
  group.lr = 2;
  EXPECT_OK(Add(sgd, group));
  const double lr = choir_optimizer_param_lr(sgd.get(), name, 0);
  return lr == 4 ? 0 : static_cast<int>(lr);
}

TEST(ParamGroupsTest, FirstPatternThatIsTheWholeNameCounts) {
  EXPECT_EQ(GroupOf("fc.W", "fc.b", "fc.b"), 2);
  EXPECT_EQ(GroupOf("fc.W", "fc.b", "fc.bias"), 0);
  EXPECT_EQ(GroupOf("fc.W", "fc.b", "a.fc.b"), 0);
  EXPECT_EQ(GroupOf("*.b", "fc.*", "fc.b"), 1);
  EXPECT_EQ(GroupOf("*.b", "fc.*", "fc.W"), 2);
  EXPECT_EQ(GroupOf("*.b", "fc.*", "conv.W"), 0);
  EXPECT_EQ(GroupOf("a,fc.W,b", "*", "fc.W"), 1);
  EXPECT_EQ(GroupOf("a,fc.W,b", "*", "b"), 1);
  EXPECT_EQ(GroupOf("a,fc.W,b", "*", "a,b"), 2);
  EXPECT_EQ(GroupOf("block*.norm.*", "*a*b*", "block12.norm.W"), 1);
  EXPECT_EQ(GroupOf("block*.norm.*", "*a*b*", "xaxxbb"), 2);
  EXPECT_EQ(GroupOf("block*.norm.*", "*a*b*", "xbxa"), 0);
  EXPECT_EQ(GroupOf("", "**", ""), 2);
}

TEST(ParamGroupsTest, RateIsTheGroupsOrTheOptimizersTimesItsFactor) {
  OptimizerPtr sgd = Sgd(0.5);
  choir_param_group_t group = Group("a");
  group.lr_factor = 4;
  ASSERT_OK(Add(sgd, group));
  group = Group("b");
  group.lr = 0.125;
  ASSERT_OK(Add(sgd, group));
  choir_schedule_config_t schedule = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
  schedule.kind = CHOIR_SCHEDULE_STEP;
  schedule.factor = 0.5;
  ASSERT_OK(choir_optimizer_set_schedule(sgd.get(), &schedule));
  EXPECT_EQ(choir_optimizer_param_lr(sgd.get(), "a", 0), 2);
  EXPECT_EQ(choir_optimizer_param_lr(sgd.get(), "b", 1), 0.0625);
  EXPECT_EQ(choir_optimizer_param_lr(sgd.get(), "c", 2), 0.125);
  EXPECT_EQ(choir_optimizer_lr(sgd.get(), 2), 0.125);
  ASSERT_OK(choir_optimizer_set_lr(sgd.get(), 1));
  ASSERT_OK(choir_optimizer_set_group_lr(sgd.get(), 1, 8));
  EXPECT_EQ(choir_optimizer_param_lr(sgd.get(), "a", 0), 4);
  EXPECT_EQ(choir_optimizer_param_lr(sgd.get(), "b", 0), 8);
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: group 2 of 2",
                choir_optimizer_set_group_lr(sgd.get(), 2, 8));
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: lr of group 0 is -1; needs",
                choir_optimizer_set_group_lr(sgd.get(), 0, -1));
}

TEST(ParamGroupsTest, RefusesWrongGroups) {
  OptimizerPtr sgd = Sgd(1);
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: the group has no `match`",
                Add(sgd, Group(nullptr)));
  choir_param_group_t group = Group("a");
  group.lr = -0.5;
  EXPECT_STATUS(INVALID_ARGUMENT, "group: lr is -0.5; needs -1",
                Add(sgd, group));
  group = Group("a");
  group.weight_decay = -0.25;
  EXPECT_STATUS(INVALID_ARGUMENT, "group: weight_decay is -0.25; needs -1",
                Add(sgd, group));
  group = Group("a");
  group.lr_factor = -2;
  EXPECT_STATUS(INVALID_ARGUMENT, "group: lr_factor is -2; needs",
                Add(sgd, group));
  DevicePtr device = MakeDevice("cpu");
  ParamSet<float> params(device.get());
  params.Add("a", {1}, {1});
  ASSERT_OK(choir_optimizer_attach(sgd.get(), device.get(), params.list()));
  EXPECT_STATUS(FAILED_PRECONDITION, "sgd: a group was added after",
                Add(sgd, Group("a")));
}

TEST(ParamGroupsTest, HashAndPrintTellThem) {
  OptimizerPtr plain = Sgd(1);
  OptimizerPtr one = Sgd(1);
  OptimizerPtr same = Sgd(1);
  OptimizerPtr other = Sgd(1);
  choir_param_group_t group = Group("*.b");
  group.weight_decay = 0.5;
  ASSERT_OK(Add(one, group));
  ASSERT_OK(Add(same, group));
  group.match = "*.c";
  ASSERT_OK(Add(other, group));
  EXPECT_NE(choir_optimizer_hash(one.get()), choir_optimizer_hash(plain.get()));
  EXPECT_NE(choir_optimizer_hash(one.get()), choir_optimizer_hash(other.get()));
  EXPECT_EQ(choir_optimizer_hash(one.get()), choir_optimizer_hash(same.get()));
  char text[400];
  EXPECT_STREQ(choir_optimizer_print(one.get(), text, sizeof text),
               "sgd lr=1 momentum=0 dampening=0 weight_decay=0 nesterov=false; "
               "group match=*.b lr=-1 lr_factor=1 weight_decay=0.5 "
               "trainable=true");
  EXPECT_STREQ(choir_optimizer_print(one.get(), text, 70),
               "sgd lr=1 momentum=0 dampening=0 weight_decay=0 nesterov=false; "
               "group ");
}

// ---- Steps ----

// SGD with momentum in double: one parameter element.
struct Element {
  double p;
  double v = 0;
  void Step(double g, double lr, double momentum, double weight_decay) {
    g += weight_decay * p;
    v = momentum * v + g;
    p -= lr * v;
  }
};

constexpr double kLr = 0.25, kMomentum = 0.5, kDecay = 0.125;

// Three parameters: of no group, of one with a quarter of the rate and no
// weight decay, and of one with a rate of its own.
class Groups {
 public:
  explicit Groups(const char* device)
      : device_(MakeDevice(device)),
        params_(device_.get()),
        sgd_(Sgd(kLr, kMomentum, kDecay)) {
    choir_param_group_t group = Group("*.b");
    group.lr_factor = 0.25;
    group.weight_decay = 0;
    EXPECT_OK(Add(sgd_, group));
    group = Group("head.*");
    group.lr = 0.0625;
    EXPECT_OK(Add(sgd_, group));
    choir_schedule_config_t schedule = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
    schedule.kind = CHOIR_SCHEDULE_STEP;
    schedule.period = 2;
    schedule.factor = 0.5;
    EXPECT_OK(choir_optimizer_set_schedule(sgd_.get(), &schedule));
    for (const char* name : {"body.W", "body.b", "head.W"})
      params_.Add(name, {2}, {1, -2});
    for (auto& pair : expected_) pair = {Element{1}, Element{-2}};
    EXPECT_OK(
        choir_optimizer_attach(sgd_.get(), device_.get(), params_.list()));
  }

  void SetGrads(int64_t step) {
    for (size_t i = 0; i < 3; ++i) {
      const float g =
          0.5f * static_cast<float>(step + 1) - static_cast<float>(i);
      params_.SetGrad(i, {g, -g});
      const double rates[] = {kLr, 0.25 * kLr, 0.0625};
      const double lr = rates[i] * std::pow(0.5, std::floor(step / 2.0));
      expected_[i][0].Step(g, lr, kMomentum, i == 1 ? 0 : kDecay);
      expected_[i][1].Step(-g, lr, kMomentum, i == 1 ? 0 : kDecay);
    }
  }
  void ExpectValues(int64_t step) {
    for (size_t i = 0; i < 3; ++i)
      for (size_t k = 0; k < 2; ++k)
        EXPECT_NEAR(params_.value(i)[k], expected_[i][k].p, 1e-6)
            << "step " << step << ", parameter " << i;
  }
  choir_status_t Update(int64_t step) {
    return choir_optimizer_update(sgd_.get(), stream(), step);
  }
  choir_device_t* device() { return device_.get(); }
  choir_stream_t* stream() { return choir_device_stream(device_.get()); }
  choir_optimizer_t* sgd() { return sgd_.get(); }

 private:
  DevicePtr device_;
  ParamSet<float> params_;
  OptimizerPtr sgd_;
  std::vector<Element> expected_[3];
};

class GroupSteps : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GroupSteps,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(GroupSteps, FollowTheFormula) {
  Groups groups(GetParam());
  for (int64_t step = 0; step < 8; ++step) {
    groups.SetGrads(step);
    ASSERT_OK(groups.Update(step));
    groups.ExpectValues(step);
  }
}

// Each record of a graph follows the rate of its own group.
TEST_P(GroupSteps, FollowTheFormulaInAGraph) {
  Groups groups(GetParam());
  choir_workspace_t* workspace = nullptr;
  choir_graph_t* graph = nullptr;
  ASSERT_OK(choir_workspace_create(groups.device(), &workspace));
  ASSERT_OK(choir_graph_create(workspace, &graph));
  choir_stream_t* stream = groups.stream();
  for (int64_t step = 0; step < 8; ++step) {
    groups.SetGrads(step);
    choir_step_values_t values = {};
    values.step = step;
    if (step == 0) {
      ASSERT_OK(choir_graph_begin(graph, &stream, 1, &values));
      ASSERT_OK(groups.Update(step));
      ASSERT_OK(choir_graph_end(graph));
      const choir_graph_options_t options = {};
      ASSERT_OK(choir_graph_plan(graph, &options));
      ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
    } else {
      choir_optimizer_begin_step(groups.sgd(), step);
      ASSERT_OK(choir_graph_replay(graph, &values, nullptr));
    }
    groups.ExpectValues(step);
  }
  EXPECT_EQ(choir_graph_stats(graph).records, 3);
  choir_graph_destroy(graph);
  choir_workspace_destroy(workspace);
}

TEST(ParamGroupsTest, FrozenOnesStayAndHaveNoStates) {
  DevicePtr device = MakeDevice("cpu");
  OptimizerPtr sgd = Sgd(1, 0.5);
  choir_param_group_t group = Group("body.*");
  group.trainable = false;
  ASSERT_OK(Add(sgd, group));
  ParamSet<float> params(device.get());
  params.Add("body.W", {1}, {1});
  params.Add("head.W", {1}, {1});
  ASSERT_OK(choir_optimizer_attach(sgd.get(), device.get(), params.list()));
  EXPECT_FALSE(params[0]->trainable);
  EXPECT_TRUE(params[1]->trainable);
  EXPECT_EQ(choir_optimizer_states(sgd.get(), nullptr), 1u);
  params.SetGrad(0, {1});
  params.SetGrad(1, {1});
  ASSERT_OK(
      choir_optimizer_update(sgd.get(), choir_device_stream(device.get()), 0));
  EXPECT_EQ(params.value(0), (std::vector<float>{1}));
  EXPECT_EQ(params.value(1), (std::vector<float>{0}));
}

}  // namespace
