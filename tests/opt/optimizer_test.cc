// SPDX-License-Identifier: Apache-2.0
#include "opt/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/stage.h"
#include "model/model.h"
#include "tests/opt/optimizer_testing.h"
#include "tests/opt/param_testing.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::Adadelta;
using choir::testing::Adagrad;
using choir::testing::Adam;
using choir::testing::Adamw;
using choir::testing::Create;
using choir::testing::DevicePtr;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::OptimizerPtr;
using choir::testing::ParamSet;
using choir::testing::Read;
using choir::testing::Rmsprop;
using choir::testing::Sgd;
using choir::testing::TensorPtr;

using Doubles = std::vector<double>;

// ---- Formulas, in double ----

// One parameter element with what an optimizer remembers of it.
struct Element {
  double p;
  double a = 0;  // velocity or mean
  double b = 0;  // square
};

void SgdStep(const choir_sgd_config_t& config, double g, Element* e) {
  g += config.weight_decay * e->p;
  if (config.momentum > 0) {
    e->a = config.momentum * e->a + (1 - config.dampening) * g;
    g = config.nesterov ? g + config.momentum * e->a : e->a;
  }
  e->p -= config.lr * g;
}

void AdamStep(const choir_adam_config_t& config, double g, int step,
              Element* e) {
  g += config.weight_decay * e->p;
  e->a = config.beta1 * e->a + (1 - config.beta1) * g;
  e->b = config.beta2 * e->b + (1 - config.beta2) * g * g;
  double mean = e->a / (1 - std::pow(config.beta1, step + 1));
  double square = e->b / (1 - std::pow(config.beta2, step + 1));
  e->p -= config.lr * mean / (std::sqrt(square) + config.epsilon);
}

void AdamwStep(const choir_adamw_config_t& config, double g, int step,
               Element* e) {
  e->a = config.beta1 * e->a + (1 - config.beta1) * g;
  e->b = config.beta2 * e->b + (1 - config.beta2) * g * g;
  double mean = e->a / (1 - std::pow(config.beta1, step + 1));
  double square = e->b / (1 - std::pow(config.beta2, step + 1));
  e->p -= config.lr * (mean / (std::sqrt(square) + config.epsilon) +
                       config.weight_decay * e->p);
}

void RmspropStep(const choir_rmsprop_config_t& config, double g, Element* e) {
  g += config.weight_decay * e->p;
  e->a = config.rho * e->a + (1 - config.rho) * g * g;
  e->p -= config.lr * g / std::sqrt(e->a + config.epsilon);
}

void AdagradStep(const choir_adagrad_config_t& config, double g, Element* e) {
  g += config.weight_decay * e->p;
  e->a += g * g;
  e->p -= config.lr * g / std::sqrt(e->a + config.epsilon);
}

void AdadeltaStep(const choir_adadelta_config_t& config, double g, Element* e) {
  g += config.weight_decay * e->p;
  e->a = config.rho * e->a + (1 - config.rho) * g * g;
  double x =
      std::sqrt(e->b + config.epsilon) / std::sqrt(e->a + config.epsilon) * g;
  e->b = config.rho * e->b + (1 - config.rho) * x * x;
  e->p -= config.lr * x;
}

template <typename T>
class Follows {
 public:
  explicit Follows(const char* device) : device_(MakeDevice(device)) {}

  // Eight steps on two parameters against `step`(gradient, step, element).
  void Run(choir_optimizer_t* optimizer, double tolerance,
           const std::function<void(double, int, Element*)>& step) {
    ParamSet<T> params(device_.get());
    std::vector<std::vector<Element>> elements(2);
    const int64_t counts[] = {35, 7};
    for (uint32_t i = 0; i < 2; ++i) {
      Doubles start = Numbers(counts[i], 3 + i);
      std::vector<T> values(start.begin(), start.end());
      for (T value : values)
        elements[i].push_back({static_cast<double>(value)});
      params.Add("w" + std::to_string(i), {counts[i] / 7, 7}, values);
    }
    ASSERT_OK(choir_optimizer_attach(optimizer, device_.get(), params.list()));
    for (int t = 0; t < 8; ++t) {
      for (uint32_t i = 0; i < 2; ++i) {
        Doubles numbers =
            Numbers(counts[i], 100 + 10 * static_cast<uint32_t>(t) + i);
        std::vector<T> grad(numbers.begin(), numbers.end());
        params.SetGrad(i, grad);
        for (size_t k = 0; k < grad.size(); ++k)
          step(static_cast<double>(grad[k]), t, &elements[i][k]);
      }
      ASSERT_OK(choir_optimizer_update(optimizer,
                                       choir_device_stream(device_.get()), t));
      for (size_t i = 0; i < 2; ++i) {
        std::vector<T> got = params.value(i);
        for (size_t k = 0; k < got.size(); ++k)
          ASSERT_NEAR(static_cast<double>(got[k]), elements[i][k].p, tolerance)
              << "step " << t << ", parameter " << i << ", element " << k;
      }
    }
  }

 private:
  DevicePtr device_;
};

class FormulaTest : public ::testing::TestWithParam<const char*> {
 protected:
  void Check(const choir_sgd_config_t& config) {
    auto step = [&](double g, int, Element* e) { SgdStep(config, g, e); };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-13, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 2e-6, step);
  }
  void Check(const choir_adam_config_t& config) {
    auto step = [&](double g, int t, Element* e) { AdamStep(config, g, t, e); };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-12, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 5e-6, step);
  }
  void Check(const choir_adamw_config_t& config) {
    auto step = [&](double g, int t, Element* e) {
      AdamwStep(config, g, t, e);
    };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-12, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 5e-6, step);
  }
  void Check(const choir_rmsprop_config_t& config) {
    auto step = [&](double g, int, Element* e) { RmspropStep(config, g, e); };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-12, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 5e-6, step);
  }
  void Check(const choir_adagrad_config_t& config) {
    auto step = [&](double g, int, Element* e) { AdagradStep(config, g, e); };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-12, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 5e-6, step);
  }
  void Check(const choir_adadelta_config_t& config) {
    auto step = [&](double g, int, Element* e) { AdadeltaStep(config, g, e); };
    Follows<double>(GetParam()).Run(Create(config).get(), 1e-12, step);
    Follows<float>(GetParam()).Run(Create(config).get(), 5e-6, step);
  }
};
INSTANTIATE_TEST_SUITE_P(All, FormulaTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(FormulaTest, SgdPlain) {
  choir_sgd_config_t config = Sgd();
  Check(config);
  config.lr = 0.03;
  Check(config);
}
TEST_P(FormulaTest, SgdWithWeightDecay) {
  choir_sgd_config_t config = Sgd();
  config.weight_decay = 0.2;
  Check(config);
}
TEST_P(FormulaTest, SgdWithMomentum) {
  choir_sgd_config_t config = Sgd();
  config.momentum = 0.9;
  Check(config);
  config.dampening = 0.3;
  config.weight_decay = 0.1;
  Check(config);
}
TEST_P(FormulaTest, SgdWithNesterov) {
  choir_sgd_config_t config = Sgd();
  config.momentum = 0.8;
  config.nesterov = true;
  Check(config);
  config.weight_decay = 0.1;
  Check(config);
}
TEST_P(FormulaTest, AdamPlain) { Check(Adam()); }
TEST_P(FormulaTest, AdamWithOtherSettings) {
  choir_adam_config_t config = Adam();
  config.lr = 0.05;
  config.beta1 = 0.6;
  config.beta2 = 0.7;
  config.epsilon = 0.01;
  config.weight_decay = 0.3;
  Check(config);
}
TEST_P(FormulaTest, AdamWithoutMemory) {
  choir_adam_config_t config = Adam();
  config.beta1 = 0;
  config.beta2 = 0;
  Check(config);
}

TEST_P(FormulaTest, Adamw) {
  choir_adamw_config_t config = Adamw();
  EXPECT_EQ(config.weight_decay, 0.01);
  Check(config);
  config.lr = 0.05;
  config.beta1 = 0.5;
  config.beta2 = 0.9;
  config.weight_decay = 0.5;
  Check(config);
}

// A decay that is too small for a factor of the parameter still counts, where
// the step is of its size.
TEST(OptimizerTest, AdamwKeepsSmallDecays) {
  DevicePtr device = MakeDevice("cpu");
  choir_adamw_config_t config = Adamw();
  config.lr = 1.05e-6;
  config.weight_decay = 0.028;  // 1 - lr weight_decay is 1 in float
  OptimizerPtr adamw = Create(config);
  ParamSet<float> params(device.get());
  params.Add("w", {1}, {0.5f});
  ASSERT_OK(choir_optimizer_attach(adamw.get(), device.get(), params.list()));
  params.SetGrad(0, {1});
  ASSERT_OK(choir_optimizer_update(adamw.get(),
                                   choir_device_stream(device.get()), 0));
  const float expected = static_cast<float>(0.5 - 1.05e-6 * (1 + 0.028 * 0.5));
  EXPECT_EQ(params.value(0)[0], expected);
  EXPECT_NE(expected, static_cast<float>(0.5 - 1.05e-6));
}

TEST_P(FormulaTest, Rmsprop) {
  choir_rmsprop_config_t config = Rmsprop();
  Check(config);
  config.lr = 0.01;
  config.rho = 0.5;
  config.epsilon = 0.1;
  config.weight_decay = 0.3;
  Check(config);
  config.rho = 0;
  Check(config);
}
TEST_P(FormulaTest, Adagrad) {
  choir_adagrad_config_t config = Adagrad();
  Check(config);
  config.lr = 0.5;
  config.epsilon = 0.1;
  config.weight_decay = 0.3;
  Check(config);
}
TEST_P(FormulaTest, Adadelta) {
  choir_adadelta_config_t config = Adadelta();
  Check(config);
  config.lr = 0.5;
  config.rho = 0.6;
  config.epsilon = 0.1;
  config.weight_decay = 0.3;
  Check(config);
  config.rho = 0;
  Check(config);
}

// ---- Creation ----

TEST(OptimizerTest, HasDefaults) {
  EXPECT_EQ(Sgd().lr, 0.1);
  EXPECT_EQ(Sgd().momentum, 0);
  EXPECT_FALSE(Sgd().nesterov);
  EXPECT_EQ(choir_optimizer_lr(Create(Sgd()).get(), 0), 0.1);
  EXPECT_EQ(Adam().beta1, 0.9);
  EXPECT_EQ(Adam().beta2, 0.999);
  EXPECT_EQ(Adam().epsilon, 1e-8);
  EXPECT_EQ(choir_optimizer_lr(Create(Adam()).get(), 1000), 0.001);
  EXPECT_EQ(Rmsprop().rho, 0.9);
  EXPECT_EQ(Rmsprop().epsilon, 1e-8);
  EXPECT_EQ(choir_optimizer_lr(Create(Rmsprop()).get(), 0), 0.1);
  EXPECT_EQ(Adagrad().epsilon, 1e-8);
  EXPECT_EQ(choir_optimizer_lr(Create(Adagrad()).get(), 0), 0.1);
  EXPECT_EQ(Adadelta().rho, 0.95);
  EXPECT_EQ(Adadelta().epsilon, 1e-6);
  EXPECT_EQ(choir_optimizer_lr(Create(Adadelta()).get(), 0), 1);
}

TEST(OptimizerTest, FindsDefinitionsByName) {
  EXPECT_EQ(choir_optimizer_def_find("sgd"), &choir_optimizer_def_sgd);
  EXPECT_EQ(choir_optimizer_def_find("adam"), &choir_optimizer_def_adam);
  EXPECT_EQ(choir_optimizer_def_find("Adam"), nullptr);
  EXPECT_STREQ(choir_optimizer_def_config(&choir_optimizer_def_sgd)->name,
               "sgd");
}

TEST(OptimizerTest, GivesDefinitionsInTheOrderOfTheList) {
  const choir_optimizer_def_t* defs[] = {
#define OPTIMIZER(T, NAME, name, states, doc) &choir_optimizer_def_##name,
      CHOIR_OPTIMIZER_LIST(OPTIMIZER, )
#undef OPTIMIZER
  };
  int32_t count = 0;
  for (const choir_optimizer_def_t* def : defs)
    EXPECT_EQ(choir_optimizer_def_get(count++), def);
  EXPECT_EQ(choir_optimizer_def_get(count), nullptr);
  EXPECT_EQ(choir_optimizer_def_get(-1), nullptr);
}

TEST(OptimizerTest, CopiesItsConfig) {
  choir_sgd_config_t config = Sgd();
  config.lr = 0.5;
  OptimizerPtr sgd = Create(config);
  config.lr = 7;
  EXPECT_EQ(choir_optimizer_lr(sgd.get(), 0), 0.5);
}

TEST(OptimizerTest, IsShared) {
  OptimizerPtr sgd = Create(Sgd());
  choir_optimizer_retain(sgd.get());
  choir_optimizer_release(sgd.get());
  choir_updater_retain(choir_optimizer_updater(sgd.get()));
  choir_updater_release(choir_optimizer_updater(sgd.get()));
  EXPECT_EQ(choir_optimizer_lr(sgd.get(), 0), 0.1);
  choir_optimizer_retain(nullptr);
  choir_optimizer_release(nullptr);
}

TEST(OptimizerTest, TheLearningRateFollowsTheSchedule) {
  OptimizerPtr sgd = Create(Sgd());
  choir_schedule_config_t schedule = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
  schedule.kind = CHOIR_SCHEDULE_STEP;
  schedule.period = 10;
  schedule.factor = 0.5;
  schedule.warmup = 3;
  ASSERT_OK(choir_optimizer_set_schedule(sgd.get(), &schedule));
  schedule.factor = 77;  // copied
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(sgd.get(), 0), 0.1 / 4);
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(sgd.get(), 9), 0.1);
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(sgd.get(), 25), 0.1 / 4);
  schedule.period = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "schedule: period is -1",
                choir_optimizer_set_schedule(sgd.get(), &schedule));
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(sgd.get(), 25), 0.1 / 4);
}

TEST(OptimizerTest, AnotherLearningRateKeepsTheSchedule) {
  OptimizerPtr adam = Create(Adam());
  choir_schedule_config_t schedule = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
  schedule.kind = CHOIR_SCHEDULE_STEP;
  schedule.period = 10;
  schedule.factor = 0.5;
  ASSERT_OK(choir_optimizer_set_schedule(adam.get(), &schedule));
  const uint64_t before = choir_optimizer_hash(adam.get());
  ASSERT_OK(choir_optimizer_set_lr(adam.get(), 0.25));
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(adam.get(), 0), 0.25);
  EXPECT_DOUBLE_EQ(choir_optimizer_lr(adam.get(), 20), 0.0625);
  EXPECT_NE(choir_optimizer_hash(adam.get()), before);
  for (double wrong : {-1.0, 1e300, std::nan("")}) {
    EXPECT_STATUS(INVALID_ARGUMENT, "adam: lr is ",
                  choir_optimizer_set_lr(adam.get(), wrong));
    EXPECT_DOUBLE_EQ(choir_optimizer_lr(adam.get(), 0), 0.25);
  }
  EXPECT_OK(choir_optimizer_set_lr(adam.get(), 0));
  EXPECT_EQ(choir_optimizer_lr(adam.get(), 0), 0);
}

// ---- Attaching ----

TEST(OptimizerTest, NeedsSomethingToTrain) {
  DevicePtr device = MakeDevice("cpu");
  OptimizerPtr sgd = Create(Sgd());
  ParamSet<float> params(device.get());
  params.Add("w", {1}, {1})->trainable = false;
  EXPECT_STATUS(FAILED_PRECONDITION,
                "sgd: the model has no trainable parameter",
                choir_optimizer_attach(sgd.get(), device.get(), params.list()));
  ParamSet<float> none(device.get());
  EXPECT_STATUS(FAILED_PRECONDITION, "no trainable parameter",
                choir_optimizer_attach(sgd.get(), device.get(), none.list()));
  EXPECT_STATUS(
      FAILED_PRECONDITION, "sgd: update without a model",
      choir_optimizer_update(sgd.get(), choir_device_stream(device.get()), 0));
  EXPECT_EQ(choir_optimizer_states(sgd.get(), nullptr), 0u);
}

TEST(OptimizerTest, AttachingAgainStartsAnew) {
  DevicePtr device = MakeDevice("cpu");
  choir_sgd_config_t config = Sgd();
  config.lr = 1;
  config.momentum = 0.5;
  OptimizerPtr sgd = Create(config);
  ParamSet<float> first(device.get());
  first.Add("a", {1}, {0});
  first.Add("b", {1}, {0});
  ParamSet<float> second(device.get());
  second.Add("c", {1}, {0});
  choir_stream_t* stream = choir_device_stream(device.get());
  ASSERT_OK(choir_optimizer_attach(sgd.get(), device.get(), first.list()));
  EXPECT_EQ(choir_optimizer_states(sgd.get(), nullptr), 2u);
  first.SetGrad(0, {1});
  ASSERT_OK(choir_optimizer_update(sgd.get(), stream, 0));
  EXPECT_STATUS(FAILED_PRECONDITION, "make one for each model",
                choir_optimizer_attach(sgd.get(), device.get(), second.list()));
  ASSERT_OK(choir_optimizer_attach(sgd.get(), device.get(), first.list()));
  choir_named_tensor_t states[2] = {};
  ASSERT_EQ(choir_optimizer_states(sgd.get(), states), 2u);
  EXPECT_STREQ(states[0].name, "a/velocity");
  EXPECT_EQ(Read<float>(states[0].tensor), (std::vector<float>{0}));
  ASSERT_OK(choir_optimizer_update(sgd.get(), stream, 0));
  EXPECT_EQ(first.value(0), (std::vector<float>{-2}));
  EXPECT_EQ(second.value(0), (std::vector<float>{0}));
}

TEST(OptimizerTest, NamesTheParameterThatItCannotUpdate) {
  DevicePtr device = MakeDevice("cpu");
  OptimizerPtr sgd = Create(Sgd());
  ParamSet<float> params(device.get());
  params.Add("good", {2}, {1, 2});
  params.Add("fc.W", {2}, {1, 2});
  ASSERT_OK(choir_optimizer_attach(sgd.get(), device.get(), params.list()));
  TensorPtr wrong = Make<float>(device.get(), {3}, {1, 2, 3});
  choir_param_use_grad(params[1], wrong.get());
  EXPECT_STATUS(
      INVALID_ARGUMENT, "sgd: fc.W: sgd_update: ",
      choir_optimizer_update(sgd.get(), choir_device_stream(device.get()), 0));
}

// Lets so many updates through and refuses the next one.
struct RefusingStage {
  choir_stage_t stage = {};  // first
  int left = 0;

  explicit RefusingStage(int updates) : left(updates) {
    stage.submit = [](choir_stage_t* self, choir_stream_t* stream,
                      const choir_record_t* record) -> choir_status_t {
      auto* own = reinterpret_cast<RefusingStage*>(self);
      if (std::string(choir_record_name(record)).find("update") !=
              std::string::npos &&
          own->left-- == 0)
        return CHOIR_ERROR(INTERNAL, "on purpose");
      return choir_stage_forward(self, stream, record);
    };
  }
};

// Where it failed before it submitted anything it may be repeated, else not.
TEST(OptimizerTest, NeedsADeviceAndParameters) {
  DevicePtr device = MakeDevice("cpu");
  OptimizerPtr optimizer = Create(Sgd());
  ParamSet<float> params(device.get());
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd: params is NULL; needs a device",
                choir_optimizer_attach(optimizer.get(), device.get(), nullptr));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "sgd: device is NULL; needs a device",
      choir_optimizer_attach(optimizer.get(), nullptr, params.list()));
}

TEST(OptimizerTest, AnUpdateThatIsHalfAppliedIsNotRepeated) {
  for (const char* name : {"cpu", "cpu_async", "null"}) {
    DevicePtr device = MakeDevice(name);
    choir_stream_t* stream = choir_device_stream(device.get());
    for (int updates = 0; updates < 3; ++updates) {
      SCOPED_TRACE(std::string(name) + " fails after " +
                   std::to_string(updates));
      choir_sgd_config_t config = Sgd();
      config.lr = 1;
      OptimizerPtr optimizer = Create(config);
      choir_optimizer_t* made = optimizer.get();
      ParamSet<float> params(device.get());
      for (const char* param : {"a", "b", "c"}) {
        params.Add(param, {2}, {3, 5});
        params.SetGrad(params.size() - 1, {1, 2});
      }
      ASSERT_OK(choir_optimizer_attach(made, device.get(), params.list()));
      RefusingStage stage(updates);
      choir_stream_push_stage(stream, &stage.stage);
      EXPECT_STATUS(INTERNAL, "on purpose",
                    choir_optimizer_update(made, stream, 0));
      choir_stream_pop_stage(stream, &stage.stage);
      if (updates > 0) {
        EXPECT_STATUS(FAILED_PRECONDITION,
                      "sgd: an earlier update failed and may have changed some "
                      "of the parameters",
                      choir_optimizer_update(made, stream, 0));
        // As after a checkpoint.
        ASSERT_OK(choir_optimizer_attach(made, device.get(), params.list()));
        for (size_t i = 0; i < params.size(); ++i) params.SetValue(i, {3, 5});
      }
      ASSERT_OK(choir_optimizer_update(made, stream, 0));
      for (size_t i = 0; i < params.size(); ++i)
        EXPECT_EQ(params.value(i), (std::vector<float>{2, 3}));
    }
  }
}

// ---- As a model's updater ----

// A model whose loss is the sum of the squares of its two weights.
class UpdaterTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void Define(choir_model_t* model, void* self) {
    choir_linear_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_LINEAR_FIELDS)};
    config.out_features = 1;
    config.bias = false;
    static_cast<UpdaterTest*>(self)->layer_ =
        choir_layer_create(model, "fc", &choir_layer_def_linear, &config);
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    return choir_layer_forward(scope, static_cast<UpdaterTest*>(self)->layer_,
                               inputs.at[0]);
  }
  static choir_var_t* TrainOneBatch(choir_model_t* model, choir_scope_t* scope,
                                    void* self, choir_vars_t inputs,
                                    choir_vars_t, choir_var_t** out_loss) {
    choir_var_t* y = Forward(scope, self, inputs);
    *out_loss = choir_var_sum(scope, choir_var_square(scope, y), nullptr);
    if (static_cast<UpdaterTest*>(self)->fails_)
      choir_scope_fail(scope, CHOIR_ERROR(INTERNAL, "no luck"));
    choir_model_backward_and_update(model, scope, *out_loss);
    return y;
  }

  void SetUp() override {
    ASSERT_OK(choir_model_create(device_.get(), &def_, this, 1, &model_));
    const int64_t shape[] = {2, 2};
    choir_view_t x;
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &x));
    ASSERT_OK(choir_model_compile(model_, &x, 1));
    const float start[] = {3, 4};
    ASSERT_OK(choir_tensor_write(weight()->value, start, sizeof start));
    choir_sgd_config_t config = Sgd();
    config.lr = 0.5;
    config.weight_decay = 0.125;
    sgd_ = Create(config);
    ASSERT_OK(
        choir_model_set_updater(model_, choir_optimizer_updater(sgd_.get())));
  }
  void TearDown() override { choir_model_release(model_); }

  choir_param_t* weight() { return choir_model_params(model_)->params[0]; }
  std::vector<float> values() { return Read<float>(weight()->value); }
  choir_status_t Train(int64_t samples) {
    choir_model_batch_t batch = {{samples ? x_.get() : nullptr},
                                 {samples ? y_.get() : nullptr},
                                 0,
                                 samples,
                                 2};
    return choir_model_train_one_batch(model_, &batch);
  }

  choir_model_def_t def_ = {"squares", Define, Forward, TrainOneBatch};
  DevicePtr device_ = MakeDevice(GetParam());
  TensorPtr x_ = Make<float>(device_.get(), {2, 2}, {1, 0, 0, 1});
  TensorPtr y_ = Make<int64_t>(device_.get(), {2}, {0, 0});
  choir_model_t* model_ = nullptr;
  choir_layer_t* layer_ = nullptr;
  OptimizerPtr sgd_;
  bool fails_ = false;
};
INSTANTIATE_TEST_SUITE_P(All, UpdaterTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(UpdaterTest, RunsBackwardThenTheStep) {
  ASSERT_OK(Train(2));
  // g = 2 p + p / 8
  EXPECT_EQ(values(), (std::vector<float>{3 - 3.1875f, 4 - 4.25f}));
}

TEST_P(UpdaterTest, UsesTheStepForTheSchedule) {
  choir_schedule_config_t schedule = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
  schedule.kind = CHOIR_SCHEDULE_STEP;
  schedule.period = 5;
  schedule.factor = 0;
  ASSERT_OK(choir_optimizer_set_schedule(sgd_.get(), &schedule));
  choir_model_set_step(model_, 5);
  ASSERT_OK(Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3, 4}));
  choir_model_set_step(model_, 4);
  ASSERT_OK(Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3 - 3.1875f, 4 - 4.25f}));
}

TEST_P(UpdaterTest, TakesAnotherLearningRateFromTheNextStepOn) {
  ASSERT_OK(choir_optimizer_set_lr(sgd_.get(), 0));
  ASSERT_OK(Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3, 4}));
  ASSERT_OK(choir_optimizer_set_lr(sgd_.get(), 0.25));
  ASSERT_OK(Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3 - 1.59375f, 4 - 2.125f}));
}

TEST_P(UpdaterTest, DoesNothingWithoutASample) {
  ASSERT_OK(Train(0));
  EXPECT_EQ(values(), (std::vector<float>{3, 4}));
}

TEST_P(UpdaterTest, DoesNothingAfterAFailure) {
  fails_ = true;
  EXPECT_STATUS(INTERNAL, "training step 0: no luck", Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3, 4}));
  fails_ = false;
  ASSERT_OK(Train(2));
  EXPECT_EQ(values(), (std::vector<float>{3 - 3.1875f, 4 - 4.25f}));
}

// Frozen while it runs: neither its gradient nor its decay counts.
TEST_P(UpdaterTest, LeavesAFrozenParameterAlone) {
  ASSERT_OK(Train(2));
  std::vector<float> before = values();
  weight()->trainable = false;
  EXPECT_STATUS(FAILED_PRECONDITION, "the loss depends on no parameter",
                Train(2));
  EXPECT_OK(choir_optimizer_update(sgd_.get(),
                                   choir_device_stream(device_.get()), 1));
  EXPECT_EQ(values(), before);
}

}  // namespace
