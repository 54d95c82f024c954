// SPDX-License-Identifier: Apache-2.0
// Every optimizer of the list, on every line of core/device/devices.def: the
// same bits on all of them and in all layouts, steps worked out by hand,
// states, settings, frozen parameters, schedules.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "opt/optimizer.h"
#include "tests/conformance/placed.h"
#include "tests/opt/param_testing.h"
#include "tests/testing/config_text.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::ConfigFromText;
using choir::testing::Device;
using choir::testing::Floats;
using choir::testing::kDevices;
using choir::testing::ParamSet;
using choir::testing::Read;
using choir::testing::StridesOf;

// A line of the list needs its entry here.
struct Expected {
  struct Setting {
    const char* config;               // "lr=0.1 ...", beside the defaults
    std::vector<std::string> states;  // names of what is kept
  };
  struct Refusal {
    const char* config;
    const char* sentence;
  };
  // A parameter starts as 1, its gradients are 0.5, -0.25 and 0.75: what it is
  // after each step, by the formula in opt/optimizer.h on paper.
  struct Worked {
    const char* config;
    double values[3];
  };
  std::vector<Setting> settings;
  std::vector<Refusal> refusals;
  std::vector<Worked> worked;
};

const std::map<std::string, Expected>& AllExpected() {
  static const std::map<std::string, Expected> all = {
      {"sgd",
       {{{"", {}},
         {"lr=0.03 weight_decay=0.1", {}},
         {"lr=0.03 momentum=0.9", {"velocity"}},
         {"momentum=0.5 dampening=0.25 weight_decay=0.01", {"velocity"}},
         {"momentum=0.9 nesterov=true weight_decay=0.01", {"velocity"}}},
        {{"lr=-1", "sgd: lr is -1; needs a number from 0"},
         {"lr=nan", "sgd: lr is nan; needs a number from 0"},
         {"momentum=1.5", "sgd: momentum is 1.5; needs a number from 0 to 1"},
         {"dampening=-0.5", "sgd: dampening is -0.5; needs"},
         {"weight_decay=-3", "sgd: weight_decay is -3; needs"},
         {"nesterov=true", "sgd: nesterov needs momentum above 0"},
         {"nesterov=true momentum=0.5 dampening=0.5",
          "sgd: nesterov needs momentum above 0 and dampening 0"}},
        {{"lr=0.1 weight_decay=0.5", {0.9, 0.88, 0.761}},
         {"lr=0.1 momentum=0.5 dampening=0.5", {0.975, 0.975, 0.9375}},
         {"lr=0.1 momentum=0.5 nesterov=true", {0.925, 0.95, 0.8375}}}}},
      {"adam",
       {{{"", {"exp_avg", "exp_avg_sq"}},
         {"lr=0.01 beta1=0.8 beta2=0.99", {"exp_avg", "exp_avg_sq"}},
         {"epsilon=0.001 weight_decay=0.1", {"exp_avg", "exp_avg_sq"}},
         {"beta1=0 beta2=0", {"exp_avg", "exp_avg_sq"}}},
        {{"lr=-1", "adam: lr is -1; needs a number from 0"},
         {"beta1=1", "adam: beta1 is 1; needs a number from 0 to 0.999999999"},
         {"beta2=-0.1", "adam: beta2 is -0.1; needs"},
         {"epsilon=0", "adam: epsilon is 0; needs a number from 1e-30"},
         {"weight_decay=-3", "adam: weight_decay is -3; needs"}},
        {{"lr=0.1", {0.900000002, 0.8733662987, 0.8098342815}},
         {"lr=0.1 beta1=0.5 beta2=0.5 weight_decay=0.5",
          {0.900000001, 0.8222222245, 0.7324247571}}}}},
      {"adamw",
       {{{"", {"exp_avg", "exp_avg_sq"}},
         {"lr=0.01 beta1=0.8 beta2=0.99", {"exp_avg", "exp_avg_sq"}},
         {"epsilon=0.001 weight_decay=0.5", {"exp_avg", "exp_avg_sq"}},
         {"weight_decay=0", {"exp_avg", "exp_avg_sq"}}},
        {{"lr=-1", "adamw: lr is -1; needs a number from 0"},
         {"beta1=1", "adamw: beta1 is 1; needs a number from 0 to 0.999999999"},
         {"beta2=-0.1", "adamw: beta2 is -0.1; needs"},
         {"epsilon=0", "adamw: epsilon is 0; needs a number from 1e-30"},
         {"weight_decay=-3", "adamw: weight_decay is -3; needs"}},
        {{"lr=0.1", {0.899000002, 0.8714672987, 0.8070638142}},
         {"lr=0.1 beta1=0.5 beta2=0.5 weight_decay=0.5",
          {0.850000002, 0.8075000019, 0.6971395817}}}}},
      {"rmsprop",
       {{{"", {"square"}},
         {"lr=0.01 rho=0.5 weight_decay=0.1", {"square"}},
         {"lr=0.01 rho=0 epsilon=0.5", {"square"}}},
        {{"lr=-1", "rmsprop: lr is -1; needs a number from 0"},
         {"rho=1", "rmsprop: rho is 1; needs a number from 0 to 0.999999999"},
         {"epsilon=0", "rmsprop: epsilon is 0; needs a number from 1e-30"},
         {"weight_decay=-3", "rmsprop: weight_decay is -3; needs"}},
        {{"", {0.6837722972, 0.8312142277, 0.5695022824}},
         {"lr=0.2 rho=0.5 epsilon=0.25 weight_decay=0.5",
          {0.7690598923, 0.7313488007, 0.5084244024}}}}},
      {"adagrad",
       {{{"", {"square_sum"}},
         {"lr=0.01 weight_decay=0.1", {"square_sum"}},
         {"lr=0.01 epsilon=0.5", {"square_sum"}}},
        {{"lr=-1", "adagrad: lr is -1; needs a number from 0"},
         {"epsilon=0", "adagrad: epsilon is 0; needs a number from 1e-30"},
         {"weight_decay=-3", "adagrad: weight_decay is -3; needs"}},
        {{"", {0.9000000020, 0.9447213608, 0.8645429887}},
         {"lr=0.2 epsilon=0.25 weight_decay=0.5",
          {0.8211145618, 0.7926848579, 0.6502210413}}}}},
      {"adadelta",
       {{{"", {"square", "step_square"}},
         {"lr=0.5 rho=0.5 weight_decay=0.1", {"square", "step_square"}},
         {"lr=0.5 rho=0 epsilon=0.5", {"square", "step_square"}}},
        {{"lr=-1", "adadelta: lr is -1; needs a number from 0"},
         {"rho=1", "adadelta: rho is 1; needs a number from 0 to 0.999999999"},
         {"epsilon=0", "adadelta: epsilon is 0; needs a number from 1e-30"},
         {"weight_decay=-3", "adadelta: weight_decay is -3; needs"}},
        {{"", {0.9955280429, 0.9984146403, 0.9928098576}},
         {"lr=0.5 rho=0.5 epsilon=0.25 weight_decay=0.5",
          {0.7113248654, 0.6633637727, 0.3429469189}}}}},
  };
  return all;
}

struct OptimizerRelease {
  void operator()(choir_optimizer_t* optimizer) const {
    choir_optimizer_release(optimizer);
  }
};
using OptimizerPtr = std::unique_ptr<choir_optimizer_t, OptimizerRelease>;

choir_status_t Create(const std::string& name, const std::string& settings,
                      OptimizerPtr* out_optimizer) {
  const choir_optimizer_def_t* def = choir_optimizer_def_find(name.c_str());
  std::vector<unsigned char> config =
      ConfigFromText(choir_optimizer_def_config(def), settings);
  choir_optimizer_t* optimizer = nullptr;
  choir_status_t status =
      choir_optimizer_create(def, config.data(), &optimizer);
  out_optimizer->reset(optimizer);
  return status;
}

// Bits of some tensors, by name.
using Bits = std::map<std::string, std::vector<float>>;

void ExpectSameBits(const Bits& got, const Bits& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(got.count(name), 1u) << name;
    const std::vector<float>& other = got.at(name);
    ASSERT_EQ(other.size(), values.size());
    EXPECT_EQ(
        std::memcmp(other.data(), values.data(), values.size() * sizeof(float)),
        0)
        << name;
  }
}

// Parameters of several shapes with an optimizer on them. Gradients are a
// function of parameter, step and element.
class Training {
 public:
  Training(choir_device_t* device, const std::string& name,
           const std::string& settings, bool channels_last)
      : device_(device), params_(device) {
    EXPECT_OK(Create(name, settings, &optimizer_));
    params_.Add("conv.W", {4, 3, 3, 3}, Floats(108, 1), channels_last);
    params_.Add("conv.b", {4}, Floats(4, 2));
    params_.Add("fc.W", {33, 17}, Floats(561, 3));
    params_.Add("one", {}, Floats(1, 4));
    EXPECT_OK(choir_optimizer_attach(optimizer_.get(), device, params_.list()));
  }
  choir_optimizer_t* optimizer() { return optimizer_.get(); }
  ParamSet<float>* params() { return &params_; }

  void Steps(int64_t first, int64_t count) {
    for (int64_t step = first; step < first + count; ++step) {
      for (uint32_t i = 0; i < params_.size(); ++i) {
        int64_t elements = choir_tensor_count(params_[i]->value);
        std::vector<float> grad =
            Floats(elements, 1000 + 10 * static_cast<uint32_t>(step) + i);
        // Of many sizes; some are 0.
        for (size_t k = 0; k < grad.size(); ++k)
          grad[k] *= k % 7 == 0 ? 0.0f : k % 5 == 0 ? 1e-6f : 3.0f;
        params_.SetGrad(i, grad);
      }
      ASSERT_OK(choir_optimizer_update(optimizer_.get(),
                                       choir_device_stream(device_), step));
    }
  }

  std::vector<choir_named_tensor_t> States() {
    std::vector<choir_named_tensor_t> states(
        choir_optimizer_states(optimizer_.get(), nullptr));
    choir_optimizer_states(optimizer_.get(), states.data());
    return states;
  }
  Bits All() {
    Bits bits;
    for (size_t i = 0; i < params_.size(); ++i)
      bits[params_[i]->name] = params_.value(i);
    for (const choir_named_tensor_t& state : States())
      bits[state.name] = Read<float>(state.tensor);
    return bits;
  }
  void Restore(const Bits& bits) {
    for (size_t i = 0; i < params_.size(); ++i)
      params_.SetValue(i, bits.at(params_[i]->name));
    for (const choir_named_tensor_t& state : States()) {
      const std::vector<float>& values = bits.at(state.name);
      ASSERT_OK(choir_tensor_write(state.tensor, values.data(),
                                   values.size() * sizeof(float)));
    }
  }

 private:
  choir_device_t* device_;
  OptimizerPtr optimizer_;
  ParamSet<float> params_;
};

using Line = std::pair<std::string, std::string>;  // device, optimizer

class OptimizerSuite : public ::testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    std::string why;
    device_ = Device(GetParam().first, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    name_ = GetParam().second;
    ASSERT_EQ(AllExpected().count(name_), 1u)
        << "optimizer " << name_ << " has no entry in this suite";
    expected_ = &AllExpected().at(name_);
    ASSERT_GE(expected_->settings.size(), 2u);
  }
  choir_device_t* device_ = nullptr;
  std::string name_;
  const Expected* expected_ = nullptr;
};

TEST_P(OptimizerSuite, GivesTheSameBitsEverywhere) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    Training reference(Device("cpu"), name_, setting.config, false);
    reference.Steps(0, 5);
    for (bool channels_last : {false, true}) {
      Training here(device_, name_, setting.config, channels_last);
      here.Steps(0, 5);
      ExpectSameBits(here.All(), reference.All());
    }
    // It did something, to each of them.
    Training before(device_, name_, setting.config, false);
    for (size_t i = 0; i < before.params()->size(); ++i) {
      if (choir_tensor_count((*before.params())[i]->value) > 1) {
        EXPECT_NE(before.params()->value(i), reference.params()->value(i));
      }
    }
  }
}

// to = from, rounded where it has fewer bits.
void Cast(choir_device_t* device, choir_tensor_t* from, choir_tensor_t* to) {
  const choir_cast_attrs_t attrs = {.dtype = choir_tensor_dtype(to)};
  ASSERT_OK(choir_op_run(choir_device_stream(device), CHOIR_OP_CAST, &from, 1,
                         &attrs, false, &to));
}

// A step is the one in f32, with states in f32, rounded at its end.
TEST_P(OptimizerSuite, ParametersOfSixteenBits) {
  constexpr int64_t kCount = 67;
  choir_stream_t* stream = choir_device_stream(device_);
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    for (const Expected::Setting& setting : expected_->settings) {
      SCOPED_TRACE(std::string(choir_dtype_name(dtype)) + setting.config);
      OptimizerPtr optimizers[2];
      ParamSet<float> wide(device_), narrow(device_);
      for (OptimizerPtr& one : optimizers)
        ASSERT_OK(Create(name_, setting.config, &one));
      wide.Add("p", {kCount}, Floats(kCount, 1));
      choir_tensor_t* value = nullptr;
      ASSERT_OK(choir_tensor_create(device_, dtype, 1, &kCount, &value));
      Cast(device_, wide[0]->value, value);
      ASSERT_OK(choir_param_set_add(narrow.list(), "p", value, true, nullptr));
      choir_tensor_release(value);
      ASSERT_OK(
          choir_optimizer_attach(optimizers[0].get(), device_, wide.list()));
      ASSERT_OK(
          choir_optimizer_attach(optimizers[1].get(), device_, narrow.list()));
      for (int64_t step = 0; step < 4; ++step) {
        Cast(device_, narrow[0]->value, wide[0]->value);
        const std::vector<float> before = wide.value(0);
        wide.SetGrad(0, Floats(kCount, static_cast<uint32_t>(7 + step)));
        Cast(device_, wide[0]->grad, narrow[0]->grad);
        Cast(device_, narrow[0]->grad, wide[0]->grad);
        for (int i = 0; i < 2; ++i)
          ASSERT_OK(choir_optimizer_update(optimizers[i].get(), stream, step));
        choir_tensor_t* rounded = nullptr;
        ASSERT_OK(choir_tensor_create(device_, dtype, 1, &kCount, &rounded));
        Cast(device_, wide[0]->value, rounded);
        std::vector<uint16_t> bits[2];
        for (std::vector<uint16_t>& one : bits) one.resize(kCount);
        ASSERT_OK(choir_tensor_read(rounded, bits[0].data(), 2 * kCount));
        ASSERT_OK(
            choir_tensor_read(narrow[0]->value, bits[1].data(), 2 * kCount));
        choir_tensor_release(rounded);
        EXPECT_EQ(bits[0], bits[1]) << "step " << step;
        EXPECT_NE(before, wide.value(0));
      }
      choir_named_tensor_t states[2][2];
      const size_t count = choir_optimizer_states(optimizers[0].get(), nullptr);
      ASSERT_EQ(choir_optimizer_states(optimizers[1].get(), nullptr), count);
      ASSERT_LE(count, 2u);
      for (int i = 0; i < 2; ++i)
        choir_optimizer_states(optimizers[i].get(), states[i]);
      for (size_t k = 0; k < count; ++k) {
        ASSERT_EQ(choir_tensor_dtype(states[1][k].tensor), CHOIR_DTYPE_F32);
        EXPECT_EQ(Read<float>(states[0][k].tensor),
                  Read<float>(states[1][k].tensor));
      }
    }
  }
}

// A device may update many at once.
TEST_P(OptimizerSuite, ManyParametersHaveTheSameBits) {
  const int64_t counts[] = {1, 3, 17, 4097, 64};
  std::vector<Bits> all;
  for (choir_device_t* device : {Device("cpu"), device_}) {
    OptimizerPtr optimizer;
    ASSERT_OK(Create(name_, expected_->settings.back().config, &optimizer));
    ParamSet<float> params(device);
    for (uint32_t i = 0; i < 200; ++i) {
      const int64_t count = i == 150 ? 100000 : counts[i % 5];
      params.Add("w" + std::to_string(i), {count}, Floats(count, i));
    }
    ASSERT_OK(choir_optimizer_attach(optimizer.get(), device, params.list()));
    for (int64_t step = 0; step < 2; ++step) {
      for (uint32_t i = 0; i < params.size(); ++i)
        params.SetGrad(i, Floats(choir_tensor_count(params[i]->grad), 7 * i));
      ASSERT_OK(choir_optimizer_update(optimizer.get(),
                                       choir_device_stream(device), step));
    }
    all.emplace_back();
    for (size_t i = 0; i < params.size(); ++i)
      all.back()[params[i]->name] = params.value(i);
  }
  ExpectSameBits(all[1], all[0]);
}

TEST_P(OptimizerSuite, StepsAsWorkedOutByHand) {
  ASSERT_FALSE(expected_->worked.empty());
  const float grads[] = {0.5f, -0.25f, 0.75f};
  for (const Expected::Worked& worked : expected_->worked) {
    SCOPED_TRACE(worked.config);
    OptimizerPtr optimizer;
    ASSERT_OK(Create(name_, worked.config, &optimizer));
    ParamSet<float> params(device_);
    params.Add("p", {2}, {1.0f, 1.0f});
    ASSERT_OK(choir_optimizer_attach(optimizer.get(), device_, params.list()));
    for (int64_t step = 0; step < 3; ++step) {
      params.SetGrad(0, {grads[step], -grads[step]});
      ASSERT_OK(choir_optimizer_update(optimizer.get(),
                                       choir_device_stream(device_), step));
      EXPECT_NEAR(params.value(0)[0], worked.values[step], 2e-7) << step;
    }
  }
}

TEST_P(OptimizerSuite, NamesItsStates) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    Training training(device_, name_, setting.config, true);
    std::vector<choir_named_tensor_t> states = training.States();
    std::vector<std::string> names;
    for (const choir_named_tensor_t& state : states)
      names.push_back(state.name);
    std::vector<std::string> expected;
    ParamSet<float>& params = *training.params();
    for (size_t i = 0; i < params.size(); ++i)
      for (const std::string& state : setting.states)
        expected.push_back(std::string(params[i]->name) + "/" + state);
    ASSERT_EQ(names, expected);
    for (size_t i = 0; i < states.size(); ++i) {
      const choir_tensor_t* value = params[i / setting.states.size()]->value;
      EXPECT_TRUE(choir_view_same_shape(choir_tensor_view(states[i].tensor),
                                        choir_tensor_view(value)));
      EXPECT_EQ(StridesOf(states[i].tensor), StridesOf(value));
      for (float element : Read<float>(states[i].tensor))
        ASSERT_EQ(element, 0.0f) << states[i].name;
    }
  }
}

TEST_P(OptimizerSuite, GoesOnFromWhatWasSaved) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    Training straight(device_, name_, setting.config, false);
    straight.Steps(0, 7);
    Training first(device_, name_, setting.config, true);
    first.Steps(0, 4);
    Training second(device_, name_, setting.config, false);
    second.Restore(first.All());
    second.Steps(4, 3);
    ExpectSameBits(second.All(), straight.All());
  }
}

TEST_P(OptimizerSuite, RefusesWrongSettings) {
  ASSERT_FALSE(expected_->refusals.empty());
  for (const Expected::Refusal& refusal : expected_->refusals) {
    SCOPED_TRACE(refusal.config);
    OptimizerPtr optimizer;
    EXPECT_STATUS(INVALID_ARGUMENT, refusal.sentence,
                  Create(name_, refusal.config, &optimizer));
    EXPECT_EQ(optimizer, nullptr);
  }
}

// Each of its numbers has a limit on both sides.
TEST_P(OptimizerSuite, RefusesEveryNumberOutOfRange) {
  const choir_struct_def_t* def =
      choir_optimizer_def_config(choir_optimizer_def_find(name_.c_str()));
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t& field = def->fields[i];
    if (field.kind != CHOIR_FIELD_KIND_FLOAT) continue;
    EXPECT_FALSE(std::string(field.doc).empty()) << field.name;
    for (const char* value : {"-1", "1e300", "nan"}) {
      OptimizerPtr optimizer;
      EXPECT_STATUS(
          INVALID_ARGUMENT, name_ + ": " + field.name + " is ",
          Create(name_, std::string(field.name) + "=" + value, &optimizer));
    }
  }
}

TEST_P(OptimizerSuite, LeavesFrozenParametersAlone) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    Training all(device_, name_, setting.config, false);
    all.Steps(0, 3);
    // Frozen before: it has no state either.
    Training some(device_, name_, setting.config, false);
    std::vector<float> start = some.params()->value(2);
    (*some.params())[2]->trainable = false;
    ASSERT_OK(choir_optimizer_attach(some.optimizer(), device_,
                                     some.params()->list()));
    EXPECT_EQ(some.States().size(), 3 * setting.states.size());
    some.Steps(0, 3);
    EXPECT_EQ(some.params()->value(2), start);
    for (size_t i : {0, 1, 3})
      EXPECT_EQ(some.params()->value(i), all.params()->value(i));
    // Frozen on the way: what it has stays.
    Bits then = all.All();
    (*all.params())[0]->trainable = false;
    all.Steps(3, 2);
    Bits now = all.All();
    for (const auto& [name, values] : then) {
      if (name.find("conv.W") == 0) {
        EXPECT_EQ(now.at(name), values) << name;
      } else if (values.size() > 1) {
        EXPECT_NE(now.at(name), values) << name;
      }
    }
  }
}

TEST_P(OptimizerSuite, FollowsASchedule) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    const std::string config = setting.config;
    if (config.find("lr=") != std::string::npos) continue;
    choir_schedule_config_t schedule = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
    schedule.kind = CHOIR_SCHEDULE_STEP;
    schedule.period = 2;
    schedule.factor = 0.5;
    Training scheduled(device_, name_, config, false);
    ASSERT_OK(choir_optimizer_set_schedule(scheduled.optimizer(), &schedule));
    double lr = choir_optimizer_lr(scheduled.optimizer(), 0);
    EXPECT_GT(lr, 0);
    EXPECT_EQ(choir_optimizer_lr(scheduled.optimizer(), 5), lr / 4);
    // Steps 4 and 5 are those of an optimizer with a quarter of the rate.
    char text[200];
    std::snprintf(text, sizeof text, "%s%slr=%.17g", config.c_str(),
                  config.empty() ? "" : " ", lr / 4);
    Training quarter(device_, name_, text, false);
    scheduled.Steps(4, 2);
    quarter.Steps(4, 2);
    ExpectSameBits(scheduled.All(), quarter.All());
    Training plain(device_, name_, config, false);
    plain.Steps(4, 2);
    EXPECT_NE(plain.params()->value(2), scheduled.params()->value(2));
  }
}

// Parameters of a group step as those of an optimizer with its settings.
TEST_P(OptimizerSuite, GroupsHaveSettingsOfTheirOwn) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    const std::string config = setting.config;
    OptimizerPtr all;
    OptimizerPtr own;
    ASSERT_OK(Create(name_, config, &all));
    const double lr = choir_optimizer_lr(all.get(), 0);
    char text[200];
    std::snprintf(text, sizeof text, "%s%slr=%.17g weight_decay=0.25",
                  config.c_str(), config.empty() ? "" : " ", lr / 4);
    ASSERT_OK(Create(name_, text, &own));
    choir_param_group_t group = {
        CHOIR_CONFIG_DEFAULTS(CHOIR_PARAM_GROUP_FIELDS)};
    group.match = "b*";
    group.lr_factor = 0.25;
    group.weight_decay = 0.25;
    ASSERT_OK(choir_optimizer_add_param_group(all.get(), &group));
    ParamSet<float> grouped(device_);
    ParamSet<float> alone(device_);
    grouped.Add("a", {33}, Floats(33, 1));
    for (ParamSet<float>* params : {&grouped, &alone})
      params->Add("b.W", {3, 17}, Floats(51, 2));
    ASSERT_OK(choir_optimizer_attach(all.get(), device_, grouped.list()));
    ASSERT_OK(choir_optimizer_attach(own.get(), device_, alone.list()));
    choir_stream_t* stream = choir_device_stream(device_);
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<float> grad =
          Floats(51, 7 + static_cast<uint32_t>(step));
      grouped.SetGrad(0, Floats(33, 3));
      grouped.SetGrad(1, grad);
      alone.SetGrad(0, grad);
      ASSERT_OK(choir_optimizer_update(all.get(), stream, step));
      ASSERT_OK(choir_optimizer_update(own.get(), stream, step));
      EXPECT_EQ(grouped.value(1), alone.value(0)) << step;
    }
    EXPECT_NE(alone.value(0), Floats(51, 2));
  }
}

// Gradients are limited where they lie.
TEST_P(OptimizerSuite, ClipsGradients) {
  OptimizerPtr optimizer;
  ASSERT_OK(Create(name_, "", &optimizer));
  choir_gradient_clip_t clip = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_GRADIENT_CLIP_FIELDS)};
  clip.value = 12;
  clip.norm = 3.25;
  ASSERT_OK(choir_optimizer_set_clip(optimizer.get(), &clip));
  ParamSet<float> params(device_);
  params.Add("a", {3}, {1, 2, 3});
  params.Add("b", {}, {4});
  ASSERT_OK(choir_optimizer_attach(optimizer.get(), device_, params.list()));
  params.SetGrad(0, {3, 0, -4});
  params.SetGrad(1, {100});
  ASSERT_OK(
      choir_optimizer_update(optimizer.get(), choir_device_stream(device_), 0));
  EXPECT_EQ(params.grad(0), (std::vector<float>{0.75f, 0, -1}));
  EXPECT_EQ(params.grad(1), (std::vector<float>{3}));
}

TEST_P(OptimizerSuite, AsksTheBaseForNothingInASteadyLoop) {
  for (const Expected::Setting& setting : expected_->settings) {
    SCOPED_TRACE(setting.config);
    Training training(device_, name_, setting.config, false);
    // How much of a step is under way at once differs from step to step where
    // the stream is a thread.
    const int64_t rounds = GetParam().first == "cpu_async" ? 200 : 6;
    uint64_t count = 0;
    int quiet = 0;  // steps without an allocation, one after the other
    for (int64_t step = 0; step < rounds && quiet < 3; ++step) {
      training.Steps(step, 1);
      ASSERT_OK(choir_stream_synchronize(choir_device_stream(device_)));
      const uint64_t now = choir_device_memory(device_).base_allocations;
      quiet = now == count ? quiet + 1 : 0;
      count = now;
    }
    EXPECT_EQ(quiet, 3);
  }
}

std::vector<Line> AllLines() {
  std::vector<Line> lines;
  for (const char* device : kDevices) {
#define LINE(T, NAME, name, states, doc) lines.emplace_back(device, #name);
    CHOIR_OPTIMIZER_LIST(LINE, )
#undef LINE
  }
  return lines;
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerSuite, ::testing::ValuesIn(AllLines()),
                         [](const ::testing::TestParamInfo<Line>& info) {
                           return info.param.first + "_" + info.param.second;
                         });

}  // namespace
