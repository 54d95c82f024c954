// SPDX-License-Identifier: Apache-2.0
// What models, their makers and their callers do wrong, and odd lives.
#include <gtest/gtest.h>

#include <vector>

#include "tests/model/model_testing.h"
#include "tests/testing/failing_allocator.h"

namespace {

using choir::testing::Chain;
using choir::testing::DevicePtr;
using choir::testing::FailingAllocator;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::ModelTest;
using choir::testing::Net;
using choir::testing::Perceptron;
using choir::testing::TensorPtr;

INSTANTIATE_TEST_SUITE_P(All, ModelTest,
                         ::testing::Values("cpu", "cpu_async", "null"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(ModelTest, NeedsDefineAndForward) {
  choir_model_t* model = nullptr;
  choir_model_def_t def = {"half", nullptr, nullptr, nullptr};
  EXPECT_STATUS(INVALID_ARGUMENT, "model half: define is NULL",
                choir_model_create(device_.get(), &def, nullptr, 1, &model));
  def.define = [](choir_model_t*, void*) {};
  EXPECT_STATUS(INVALID_ARGUMENT, "model half: forward is NULL",
                choir_model_create(device_.get(), &def, nullptr, 1, &model));
  EXPECT_EQ(model, nullptr);
}

TEST_P(ModelTest, PrecisionsThatThereAreNot) {
  Net net([](Net* self) { self->Linear("fc", 2); }, Chain);
  ASSERT_OK(net.Create(device_.get()));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "precision is f64; f32, bf16 or f16 is needed",
                choir_model_set_precision(net.get(), CHOIR_DTYPE_F64));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "precision is i32; f32, bf16 or f16 is needed",
                choir_model_set_precision(net.get(), CHOIR_DTYPE_I32));
}

TEST_P(ModelTest, LayerNamesDiffer) {
  Net net(
      [](Net* self) {
        self->Linear("fc", 2);
        self->Dropout("drop", 0.5);
        self->Linear("fc", 3);
      },
      Chain);
  EXPECT_STATUS(ALREADY_EXISTS,
                "model net: two layers are called fc; names must differ",
                net.Create(device_.get()));
  EXPECT_EQ(net.get(), nullptr);
}

TEST_P(ModelTest, TellsTheFirstErrorOfDefine) {
  Net net(
      [](Net* self) {
        self->Linear("a", 2);
        self->Linear("b", -2);
        self->Linear("a", 2);
      },
      Chain);
  EXPECT_STATUS(INVALID_ARGUMENT, "layer b: linear: out_features is -2",
                net.Create(device_.get()));
}

TEST_P(ModelTest, NothingWorksBeforeCompile) {
  MakeData(3);
  auto net = Perceptron();
  ASSERT_OK(net->Create(device_.get()));
  choir_model_batch_t batch = Batch();
  choir_tensor_t* y = nullptr;
  uint64_t digest = 0;
  const char* sentence = "before choir_model_compile";
  EXPECT_STATUS(FAILED_PRECONDITION, sentence, net->UseSgd(1));
  EXPECT_STATUS(FAILED_PRECONDITION, sentence, Train(net.get()));
  EXPECT_STATUS(FAILED_PRECONDITION, sentence,
                choir_model_evaluate(net->get(), &batch));
  EXPECT_STATUS(FAILED_PRECONDITION, sentence, net->Predict(x_.get(), &y));
  EXPECT_STATUS(FAILED_PRECONDITION, sentence,
                choir_model_digest(net->get(), &digest));
  EXPECT_EQ(choir_model_params(net->get())->count, 0u);
  EXPECT_EQ(choir_model_states(net->get(), nullptr), 0u);
}

TEST_P(ModelTest, CompilesOnce) {
  auto net = Ready(Perceptron());
  uint64_t digest = net->Digest();
  EXPECT_STATUS(FAILED_PRECONDITION, "model net: compiled twice",
                net->Compile({1, 2}));
  EXPECT_EQ(net->Digest(), digest);
}

// What was built stays, with the values that it would have had.
TEST_P(ModelTest, CompilesAfterAFailure) {
  bool fails = true;
  const auto define = [](Net* self) {
    self->Linear("fc1", 3);
    self->Linear("fc2", 2);
  };
  Net net(define, [&](Net* self, choir_scope_t* scope, choir_var_t* x) {
    x = choir_layer_forward(scope, self->layers[0], x);
    if (fails) choir_scope_fail(scope, CHOIR_ERROR(INTERNAL, "on purpose"));
    return choir_layer_forward(scope, self->layers[1], x);
  });
  ASSERT_OK(net.Create(device_.get()));
  EXPECT_STATUS(INTERNAL, "on purpose", net.Compile({1, 2}));
  fails = false;
  ASSERT_OK(net.Compile({1, 2}));
  Net other(define, Chain);
  ASSERT_OK(other.Create(device_.get()));
  ASSERT_OK(other.Compile({1, 2}));
  EXPECT_EQ(net.Digest(), other.Digest());
}

TEST_P(ModelTest, ParametersThatGotNoMemoryStayWithout) {
  FailingAllocator memory;
  choir_device_options_t options = {};
  options.allocator = memory.get();
  DevicePtr device = MakeDevice(GetParam(), &options);
  Net net([](Net* self) { self->Linear("fc", 1 << 16); }, Chain);
  ASSERT_OK(net.Create(device.get()));
  memory.FailLarge(1 << 18);
  EXPECT_STATUS(OUT_OF_MEMORY, "compile", net.Compile({1, 4}));
  memory.FailLarge(SIZE_MAX);
  EXPECT_STATUS(FAILED_PRECONDITION, "make the model anew",
                net.Compile({1, 4}));
  for (size_t i = 0; i < choir_model_params(net.get())->count; ++i)
    if (choir_tensor_count(net.param(i)->value) > 1 << 16) {
      std::vector<float> host(
          static_cast<size_t>(choir_tensor_count(net.param(i)->value)));
      EXPECT_STATUS(FAILED_PRECONDITION, "it has no memory",
                    choir_tensor_read(net.param(i)->value, host.data(),
                                      host.size() * sizeof(float)));
    }
  net.Release();
}

TEST_P(ModelTest, CompileNamesWhatIsWrong) {
  {
    auto net = Perceptron();
    ASSERT_OK(net->Create(device_.get()));
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "model net: compile: fc1 (linear): the input is f32 (2); 2 "
                  "or more dimensions",
                  net->Compile({2}));
    choir_view_t x;
    const int64_t shape[] = {1, 2};
    ASSERT_OK(choir_view_make(CHOIR_DTYPE_F32, 2, shape, &x));
    x.shape[0] = -1;
    EXPECT_STATUS(OUT_OF_RANGE, "model net: compile: input 0: tensor: ",
                  choir_model_compile(net->get(), &x, 1));
  }
  {
    Net net(
        [](Net* self) {
          self->Linear("fc", 2);
          self->Linear("idle", 2);
        },
        [](Net* self, choir_scope_t* scope, choir_var_t* x) {
          return choir_layer_forward(scope, self->layers[0], x);
        });
    ASSERT_OK(net.Create(device_.get()));
    EXPECT_STATUS(FAILED_PRECONDITION,
                  "model net: forward does not use layer idle",
                  net.Compile({1, 2}));
  }
  {
    Net net([](Net*) {},
            [](Net*, choir_scope_t* scope, choir_var_t* x) {
              return choir_layer_forward(scope, nullptr, x);
            });
    ASSERT_OK(net.Create(device_.get()));
    EXPECT_STATUS(INVALID_ARGUMENT, "layer_forward: the layer is NULL",
                  net.Compile({1, 2}));
  }
}

TEST_P(ModelTest, ForwardMustReturnSomething) {
  Net net([](Net* self) { self->Linear("fc", 3); },
          [](Net* self, choir_scope_t* scope, choir_var_t* x) {
            Chain(self, scope, x);
            return static_cast<choir_var_t*>(nullptr);
          });
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 2}));
  ASSERT_OK(net.UseSgd(1));
  MakeData(3);
  choir_tensor_t* y = nullptr;
  EXPECT_STATUS(FAILED_PRECONDITION, "model net: forward returned no variable",
                net.Predict(x_.get(), &y));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "softmax_cross_entropy: source 0 is not a variable",
                Train(&net));
}

TEST_P(ModelTest, SetUpdaterNeedsSomethingToTrain) {
  Net net([](Net* self) { self->Dropout("drop", 0.5); }, Chain);
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 2}));
  EXPECT_STATUS(FAILED_PRECONDITION, "no trainable parameter", net.UseSgd(1));
  MakeData(3);
  EXPECT_STATUS(FAILED_PRECONDITION, "model net: training without an updater",
                Train(&net));
}

TEST_P(ModelTest, ASecondUpdaterTakesOver) {
  MakeData(6);
  auto net = Ready(Perceptron());
  ASSERT_OK(net->UseSgd(0));
  EXPECT_EQ(choir_model_states(net->get(), nullptr), 4u);  // no velocity
  uint64_t digest = net->Digest();
  ASSERT_OK(Train(net.get()));
  EXPECT_EQ(net->Digest(), digest);  // a rate of 0
}

TEST_P(ModelTest, RefusesBatchesThatDoNotFit) {
  MakeData(6);
  auto net = Ready(Perceptron());
  uint64_t digest = net->Digest();
  choir_model_batch_t batch = Batch();
  batch.sample_count = 5;
  EXPECT_STATUS(INVALID_ARGUMENT, "model net: the batch has 5 samples",
                choir_model_train_one_batch(net->get(), &batch));
  EXPECT_STATUS(INVALID_ARGUMENT, "model net: the batch has 5 samples",
                choir_model_evaluate(net->get(), &batch));
  batch = Batch();
  batch.inputs[0] = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "model net: 0 inputs; it was compiled for 1",
                choir_model_train_one_batch(net->get(), &batch));
  batch = Batch();
  batch.targets[0] = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "softmax_cross_entropy: source 1 is not a variable",
                choir_model_train_one_batch(net->get(), &batch));
  TensorPtr few = Make<int64_t>(device_.get(), {2}, {0, 1});
  batch.targets[0] = few.get();
  EXPECT_STATUS(INVALID_ARGUMENT, "training step 0: softmax_cross_entropy: ",
                choir_model_train_one_batch(net->get(), &batch));
  TensorPtr wide = Make(device_.get(), {6, 3}, Floats(18, 1));
  batch = Batch();
  batch.inputs[0] = wide.get();
  EXPECT_STATUS(INVALID_ARGUMENT, "training step 0: fc1: linear: ",
                choir_model_train_one_batch(net->get(), &batch));
  EXPECT_STATUS(INVALID_ARGUMENT,
                "fc1: linear: ", choir_model_evaluate(net->get(), &batch));
  EXPECT_EQ(choir_model_step(net->get()), 0);
  EXPECT_EQ(net->Digest(), digest);
  ASSERT_OK(Train(net.get()));  // and it still works
}

// Before and after a graph of the step was recorded.
TEST_P(ModelTest, RefusesWhatIsNull) {
  MakeData(6);
  for (bool use_graph : {false, true}) {
    auto net = Ready(Perceptron());
    choir_model_set_graph(net->get(), use_graph, false);
    for (int round = 0; round < 3; ++round) {
      choir_tensor_t* y = nullptr;
      EXPECT_STATUS(INVALID_ARGUMENT,
                    "model net: 0 inputs; it was compiled for 1",
                    choir_model_predict(net->get(), nullptr, 0, &y));
      EXPECT_STATUS(INVALID_ARGUMENT, "0 inputs; it was compiled for 1",
                    choir_model_predict(net->get(), nullptr, 1, &y));
      EXPECT_EQ(y, nullptr);
      choir_model_batch_t batch = Batch();
      batch.inputs[0] = nullptr;
      EXPECT_STATUS(INVALID_ARGUMENT, "model net: 0 inputs",
                    choir_model_train_one_batch(net->get(), &batch));
      EXPECT_STATUS(INVALID_ARGUMENT, "model net: 0 inputs",
                    choir_model_evaluate(net->get(), &batch));
      batch = Batch();
      batch.targets[0] = nullptr;
      EXPECT_STATUS(INVALID_ARGUMENT,
                    "softmax_cross_entropy: source 1 is not a variable",
                    choir_model_train_one_batch(net->get(), &batch));
      ASSERT_OK(choir_model_evaluate(net->get(), &batch));  // counts no hits
      batch.sample_count = 0;
      batch.inputs[0] = nullptr;
      ASSERT_OK(choir_model_evaluate(net->get(), &batch));
      ASSERT_OK(choir_model_train_one_batch(net->get(), &batch));
      // What graphs are recorded of.
      ASSERT_OK(Train(net.get()));
      batch = Batch();
      ASSERT_OK(choir_model_evaluate(net->get(), &batch));
      EXPECT_EQ(net->Predict(x_.get()).size(), 18u);
    }
  }
}

TEST_P(ModelTest, TellsOfALabelOutOfRange) {
  MakeData(6);
  auto net = Ready(Perceptron());
  y_ = Make<int64_t>(device_.get(), {6}, {0, 1, 2, 3, 0, 1});
  choir_status_t status = Train(net.get());
  // An asynchronous device may tell it a call later.
  if (!status)
    status = choir_stream_synchronize(choir_device_stream(device_.get()));
  EXPECT_STATUS(OUT_OF_RANGE, "3", status);
}

// A layer may be used more than once and then shares its parameters, but not
// for the first time after compile.
TEST_P(ModelTest, LayersMayBeUsedTwice) {
  Net net([](Net* self) { self->Linear("fc", 2); },
          [](Net* self, choir_scope_t* scope, choir_var_t* x) {
            return Chain(self, scope, Chain(self, scope, x));
          });
  ASSERT_OK(net.Create(device_.get()));
  ASSERT_OK(net.Compile({1, 2}));
  EXPECT_EQ(choir_model_params(net.get())->count, 2u);
  net.SetValue(0, {2, 0, 0, 3});
  net.SetValue(1, {1, 1});
  TensorPtr x = Make<float>(device_.get(), {1, 2}, {10, 20});
  EXPECT_EQ(net.Predict(x.get()), (std::vector<float>{43, 184}));
}

TEST_P(ModelTest, KeepsItsDeviceAndIsShared) {
  auto net = Ready(Perceptron());
  choir_device_t* device = device_.get();
  EXPECT_EQ(choir_model_device(net->get()), device);
  choir_model_retain(net->get());
  choir_model_release(net->get());
  MakeData(3);
  x_.reset();
  y_.reset();
  device_.reset();
  net->Digest();
  net->Release();
  choir_model_retain(nullptr);
  choir_model_release(nullptr);
}

TEST_P(ModelTest, AnUpdaterMayOutliveItsModel) {
  MakeData(3);
  choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
  config.momentum = 0.5;
  choir_optimizer_t* sgd = nullptr;
  ASSERT_OK(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  for (int round = 0; round < 2; ++round) {
    auto net = Perceptron();
    ASSERT_OK(net->Create(device_.get()));
    ASSERT_OK(net->Compile({1, 2}));
    ASSERT_OK(
        choir_model_set_updater(net->get(), choir_optimizer_updater(sgd)));
    ASSERT_OK(Train(net.get()));
  }
  EXPECT_EQ(choir_optimizer_states(sgd, nullptr), 4u);
  choir_optimizer_release(sgd);
}

}  // namespace
