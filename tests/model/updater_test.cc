// SPDX-License-Identifier: Apache-2.0
// Which model an updater serves, from set_updater to its end.
#include "model/updater.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/model_testing.h"

namespace {

using choir::testing::ModelTest;
using choir::testing::Net;
using choir::testing::Perceptron;

struct OptimizerRelease {
  void operator()(choir_optimizer_t* optimizer) const {
    choir_optimizer_release(optimizer);
  }
};
using OptimizerPtr = std::unique_ptr<choir_optimizer_t, OptimizerRelease>;

// One of each kind, with the settings of the list but for states to keep.
std::vector<OptimizerPtr> AllOptimizers() {
  std::vector<OptimizerPtr> all;
  for (int32_t i = 0; choir_optimizer_def_get(i); ++i) {
    const choir_optimizer_def_t* def = choir_optimizer_def_get(i);
    const choir_struct_def_t* fields = choir_optimizer_def_config(def);
    std::vector<int64_t> config(fields->bytes / sizeof(int64_t) + 1);
    choir_struct_init(fields, config.data());
    if (choir_struct_find(fields, "momentum")) {
      EXPECT_OK(choir_struct_set(fields, config.data(), "momentum", "0.9"));
    }
    choir_optimizer_t* optimizer = nullptr;
    EXPECT_OK(choir_optimizer_create(def, config.data(), &optimizer));
    all.emplace_back(optimizer);
  }
  return all;
}

class UpdaterTest : public ModelTest {
 protected:
  // A model with parameters of its own.
  std::unique_ptr<Net> Compiled(const char* name, int64_t seed) {
    std::unique_ptr<Net> net = Perceptron();
    net->SetName(name);
    EXPECT_OK(net->Create(device_.get(), seed));
    EXPECT_OK(net->Compile({1, 2}));
    return net;
  }
  static choir_status_t Set(Net* net, const OptimizerPtr& optimizer) {
    return choir_model_set_updater(net->get(),
                                   choir_optimizer_updater(optimizer.get()));
  }
  choir_stream_t* stream() { return choir_device_stream(device_.get()); }
};

INSTANTIATE_TEST_SUITE_P(All, UpdaterTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(UpdaterTest, ServesOneModelAtATime) {
  MakeData(6);
  std::vector<OptimizerPtr> same = AllOptimizers();
  std::vector<OptimizerPtr> shared = AllOptimizers();
  for (size_t i = 0; i < shared.size(); ++i) {
    std::unique_ptr<Net> expected = Compiled("expected", 1);
    ASSERT_OK(Set(expected.get(), same[i]));
    std::unique_ptr<Net> first = Compiled("first", 1);
    ASSERT_OK(Set(first.get(), shared[i]));
    std::unique_ptr<Net> second = Compiled("second", 2);
    ASSERT_OK(second->UseSgd(0.5));
    ASSERT_OK(Train(expected.get()));
    ASSERT_OK(Train(first.get()));
    EXPECT_STATUS(FAILED_PRECONDITION,
                  "model second: the updater is that of model first",
                  Set(second.get(), shared[i]));
    // Each goes on with its own.
    const uint64_t second_start = second->Digest();
    ASSERT_OK(Train(expected.get()));
    ASSERT_OK(Train(first.get()));
    EXPECT_EQ(first->Digest(), expected->Digest());
    EXPECT_EQ(second->Digest(), second_start);
    ASSERT_OK(Train(second.get()));
    EXPECT_NE(second->Digest(), second_start);
    second->Release();
    ASSERT_OK(Train(expected.get()));
    ASSERT_OK(Train(first.get()));
    EXPECT_EQ(first->Digest(), expected->Digest());
  }
}

TEST_P(UpdaterTest, GoesOnWithAnotherModelWhenTheFirstLetsGo) {
  MakeData(6);
  const std::vector<std::function<void(Net*)>> ways = {
      [](Net* net) { net->Release(); },
      [](Net* net) { ASSERT_OK(net->UseSgd(0.1)); },
      [](Net* net) { ASSERT_OK(choir_model_set_updater(net->get(), nullptr)); },
  };
  std::vector<OptimizerPtr> fresh = AllOptimizers();
  std::vector<OptimizerPtr> used = AllOptimizers();
  for (size_t i = 0; i < used.size(); ++i) {
    std::unique_ptr<Net> expected = Compiled("expected", 2);
    ASSERT_OK(Set(expected.get(), fresh[i]));
    ASSERT_OK(Train(expected.get()));
    for (const auto& let_go : ways) {
      std::unique_ptr<Net> first = Compiled("first", 1);
      ASSERT_OK(Set(first.get(), used[i]));
      ASSERT_OK(Train(first.get()));
      let_go(first.get());
      std::unique_ptr<Net> second = Compiled("second", 2);
      ASSERT_OK(Set(second.get(), used[i]));
      // What the first model releases later is its own.
      first.reset();
      ASSERT_OK(Train(second.get()));
      EXPECT_EQ(second->Digest(), expected->Digest());
    }
  }
}

TEST_P(UpdaterTest, ReachesNoModelThatIsGone) {
  MakeData(3);
  for (const OptimizerPtr& optimizer : AllOptimizers()) {
    std::unique_ptr<Net> net = Compiled("net", 1);
    ASSERT_OK(Set(net.get(), optimizer));
    ASSERT_OK(Train(net.get()));
    const size_t states = choir_optimizer_states(optimizer.get(), nullptr);
    net.reset();
    EXPECT_STATUS(FAILED_PRECONDITION, ": update without a model",
                  choir_optimizer_update(optimizer.get(), stream(), 1));
    EXPECT_OK(choir_updater_consolidate(
        choir_optimizer_updater(optimizer.get())));  // never does anything
    // Its states are its own.
    std::vector<choir_named_tensor_t> kept(states);
    ASSERT_EQ(choir_optimizer_states(optimizer.get(), kept.data()), states);
    uint64_t digest = 0;
    EXPECT_OK(choir_tensor_digest(kept.data(), kept.size(), &digest));
  }
}

// As at the first time: its states start as zeros.
TEST_P(UpdaterTest, MayBeGivenToItsModelAgain) {
  MakeData(6);
  for (const OptimizerPtr& optimizer : AllOptimizers()) {
    std::unique_ptr<Net> net = Compiled("net", 1);
    for (int round = 0; round < 2; ++round) {
      ASSERT_OK(Set(net.get(), optimizer));
      std::vector<choir_named_tensor_t> states(
          choir_optimizer_states(optimizer.get(), nullptr));
      choir_optimizer_states(optimizer.get(), states.data());
      for (const choir_named_tensor_t& state : states) {
        const std::vector<float> elements =
            choir::testing::Read<float>(state.tensor);
        EXPECT_EQ(elements, std::vector<float>(elements.size())) << state.name;
      }
      ASSERT_OK(Train(net.get()));
    }
  }
}

// A model keeps no updater that could not be attached to it.
TEST_P(UpdaterTest, IsNoModelsWhereItCannotBeAttached) {
  MakeData(6);
  std::unique_ptr<Net> net = Compiled("net", 1);
  std::unique_ptr<Net> other = Compiled("other", 2);
  const OptimizerPtr optimizer = std::move(AllOptimizers()[0]);
  ASSERT_OK(Set(net.get(), optimizer));
  ASSERT_OK(Train(net.get()));
  for (size_t i = 0; i < 4; ++i) net->param(i)->trainable = false;
  EXPECT_STATUS(FAILED_PRECONDITION, "no trainable parameter",
                Set(net.get(), optimizer));
  EXPECT_STATUS(FAILED_PRECONDITION, "model net: training without an updater",
                Train(net.get()));
  ASSERT_OK(Set(other.get(), optimizer));
  net.reset();
  ASSERT_OK(Train(other.get()));
}

// An optimizer that a model has is not attached by itself, nor the other way.
TEST_P(UpdaterTest, IsNotAttachedBesideAModel) {
  MakeData(6);
  std::vector<OptimizerPtr> same = AllOptimizers();
  std::vector<OptimizerPtr> taken = AllOptimizers();
  for (size_t i = 0; i < taken.size(); ++i) {
    std::unique_ptr<Net> expected = Compiled("net", 1);
    ASSERT_OK(Set(expected.get(), same[i]));
    std::unique_ptr<Net> net = Compiled("net", 1);
    std::unique_ptr<Net> other = Compiled("other", 2);
    ASSERT_OK(Set(net.get(), taken[i]));
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK(Train(expected.get()));
      ASSERT_OK(Train(net.get()));
      EXPECT_EQ(net->Digest(), expected->Digest());
      for (Net* whose : {net.get(), other.get()})
        EXPECT_STATUS(FAILED_PRECONDITION, "the updater is that of model net",
                      choir_optimizer_attach(taken[i].get(), device_.get(),
                                             choir_model_params(whose->get())));
    }
    OptimizerPtr alone = std::move(AllOptimizers()[i]);
    ASSERT_OK(choir_optimizer_attach(alone.get(), device_.get(),
                                     choir_model_params(other->get())));
    EXPECT_STATUS(FAILED_PRECONDITION,
                  "model net: the updater is that of model (no name)",
                  Set(net.get(), alone));
    ASSERT_OK(Train(net.get()));
  }
}

TEST_P(UpdaterTest, SeesEveryParameter) {
  std::unique_ptr<Net> net = Compiled("net", 1);
  ASSERT_OK(net->UseSgd(0.5));
  EXPECT_EQ(
      choir_model_add_param(net->get(), "late", net->param(0)->value, true),
      nullptr);
  EXPECT_EQ(choir_model_params(net->get())->count, 4u);
  MakeData(6);
  EXPECT_STATUS(FAILED_PRECONDITION,
                "model net: parameter late after choir_model_compile",
                Train(net.get()));
  // It was told, and changed nothing.
  ASSERT_OK(Train(net.get()));
}

TEST_P(UpdaterTest, ModelsThatHaveNone) {
  MakeData(6);
  std::unique_ptr<Net> net = Compiled("net", 1);
  ASSERT_OK(choir_model_set_updater(net->get(), nullptr));
  ASSERT_OK(net->UseSgd(0.5, 0.5));
  ASSERT_OK(Train(net.get()));
  ASSERT_OK(choir_model_set_updater(net->get(), nullptr));
  EXPECT_EQ(choir_model_states(net->get(), nullptr), 4u);
  const choir_update_options_t options = {nullptr, 0, nullptr};
  EXPECT_STATUS(FAILED_PRECONDITION,
                "model net: set_update_options without an updater",
                choir_model_set_update_options(net->get(), &options));
  EXPECT_STATUS(FAILED_PRECONDITION, "model net: training without an updater",
                Train(net.get()));
}

}  // namespace
