// SPDX-License-Identifier: Apache-2.0
// Every layer of the list, on every line of core/device/devices.def: shapes,
// parameters, results, gradients, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "tests/conformance/layer_cases.h"
#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/testing/config_text.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::ConfigFromText;
using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::kChannelsLast;
using choir::testing::kContiguous;
using choir::testing::kDevices;
using choir::testing::kGaps;
using choir::testing::LayerExpected;
using choir::testing::LayersExpected;
using choir::testing::Layout;
using choir::testing::ParseAttrs;
using choir::testing::Placed;
using choir::testing::Shape;
using choir::testing::Values;

// Distinct numbers, none near 0: no kink within a step of differences.
Values MakeInput(choir_dtype_t dtype, const Shape& shape, uint64_t seed) {
  Values values{dtype, shape,
                std::vector<double>(static_cast<size_t>(CountOf(shape)))};
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < values.elements.size(); ++i) {
    values.elements[i] =
        0.125 +
        static_cast<double>(i) / static_cast<double>(values.elements.size());
    if (random() % 2) values.elements[i] *= -1;
  }
  std::shuffle(values.elements.begin(), values.elements.end(), random);
  if (dtype == CHOIR_DTYPE_F32)
    for (double& element : values.elements)
      element = static_cast<double>(static_cast<float>(element));
  return values;
}

Values MakeIds(int64_t ids, const Shape& shape) {
  Values values{CHOIR_DTYPE_I64, shape,
                std::vector<double>(static_cast<size_t>(CountOf(shape)))};
  for (size_t i = 0; i < values.elements.size(); ++i)
    values.elements[i] =
        static_cast<double>((7 * static_cast<int64_t>(i) + 3) % ids);
  return values;
}

// A model of one layer called "it".
class OneLayer {
 public:
  ~OneLayer() {
    choir_scope_destroy(scope_);
    choir_model_release(model_);
  }
  OneLayer() = default;
  OneLayer(const OneLayer&) = delete;
  OneLayer& operator=(const OneLayer&) = delete;

  choir_status_t Create(choir_device_t* device, const std::string& type,
                        const std::string& config) {
    def_ = choir_layer_def_find(type.c_str());
    inputs_ = LayersExpected().at(type).inputs;
    config_ = ConfigFromText(choir_layer_def_config(def_), config);
    device_ = device;
    CHOIR_TRY(choir_scope_create(device, &scope_));
    return choir_model_create(device, &model_def_, this, 3, &model_);
  }
  choir_status_t Compile(const Shape& shape,
                         choir_dtype_t dtype = CHOIR_DTYPE_F32) {
    choir_view_t x;
    CHOIR_TRY(choir_view_make(dtype, static_cast<int32_t>(shape.size()),
                              shape.data(), &x));
    return choir_model_compile(model_, &x, 1);
  }
  choir_status_t Predict(choir_tensor_t* x, choir_tensor_t** out_y) {
    return choir_model_predict(model_, &x, 1, out_y);
  }
  choir_model_t* model() { return model_; }
  choir_scope_t* scope() { return scope_; }
  choir_layer_t* layer() { return layer_; }
  const choir_param_set_t* params() { return choir_model_params(model_); }

  void Begin(bool training) {
    const choir_step_t step = {training, 5, 2, 8, 4, 16};
    choir_scope_begin(scope_, &step);
  }

  choir_var_t* Call(choir_scope_t* scope, choir_var_t* x) {
    const std::vector<choir_var_t*> all(inputs_, x);
    return choir_layer_forward_list(
        scope, layer_, {all.data(), static_cast<int32_t>(inputs_)});
  }
  // All elements of the layer's result on x.
  std::vector<double> Run(choir_tensor_t* x, bool training) {
    Begin(training);
    choir_var_t* y = Call(scope_, choir_scope_input(scope_, x));
    std::vector<double> elements = ReadAll(choir_var_tensor(y));
    EXPECT_OK(choir_scope_end(scope_));
    return elements;
  }

  // Numbers in the place of the initial values; variances are positive.
  void FillParams() {
    for (size_t i = 0; i < params()->count; ++i) {
      choir_param_t* param = params()->params[i];
      std::string name = param->name;
      if (!param->trainable && name.substr(name.size() - 2) == ".b")
        continue;  // of no bias
      Values values = MakeInput(choir_tensor_dtype(param->value),
                                ShapeOf(param->value), 70 + i);
      for (double& element : values.elements)
        if (name.find("var") != std::string::npos) element = std::fabs(element);
      WriteAll(param->value, values.elements);
    }
  }

  static Shape ShapeOf(const choir_tensor_t* tensor) {
    const int64_t* shape = choir_tensor_shape(tensor);
    return Shape(shape, shape + choir_tensor_ndim(tensor));
  }
  static std::vector<double> ReadAll(choir_tensor_t* tensor) {
    if (!tensor) return {};
    size_t count = static_cast<size_t>(choir_tensor_count(tensor));
    std::vector<double> elements(count);
    if (choir_tensor_dtype(tensor) == CHOIR_DTYPE_F64) {
      EXPECT_OK(
          choir_tensor_read(tensor, elements.data(), count * sizeof(double)));
      return elements;
    }
    std::vector<float> floats(count);
    EXPECT_OK(choir_tensor_read(tensor, floats.data(), count * sizeof(float)));
    return std::vector<double>(floats.begin(), floats.end());
  }
  static void WriteAll(choir_tensor_t* tensor,
                       const std::vector<double>& elements) {
    if (choir_tensor_dtype(tensor) == CHOIR_DTYPE_F64) {
      ASSERT_OK(choir_tensor_write(tensor, elements.data(),
                                   elements.size() * sizeof(double)));
      return;
    }
    std::vector<float> floats(elements.begin(), elements.end());
    ASSERT_OK(choir_tensor_write(tensor, floats.data(),
                                 floats.size() * sizeof(float)));
  }

 private:
  static void Define(choir_model_t* model, void* self) {
    OneLayer* one = static_cast<OneLayer*>(self);
    one->layer_ =
        choir_layer_create(model, "it", one->def_, one->config_.data());
  }
  static choir_var_t* Forward(choir_scope_t* scope, void* self,
                              choir_vars_t inputs) {
    return static_cast<OneLayer*>(self)->Call(scope, inputs.at[0]);
  }

  const choir_model_def_t model_def_ = {"one", Define, Forward, nullptr};
  const choir_layer_def_t* def_ = nullptr;
  std::vector<unsigned char> config_;
  choir_device_t* device_ = nullptr;
  choir_model_t* model_ = nullptr;
  choir_layer_t* layer_ = nullptr;
  size_t inputs_ = 1;
  choir_scope_t* scope_ = nullptr;
};

using Line = std::pair<std::string, std::string>;  // device, layer

class LayerSuite : public ::testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    std::string why;
    device_ = Device(GetParam().first, &why);
    if (!why.empty()) GTEST_SKIP() << why;
    type_ = GetParam().second;
    ASSERT_EQ(LayersExpected().count(type_), 1u)
        << "layer " << type_ << " has no entry in this suite";
    expected_ = &LayersExpected().at(type_);
    ASSERT_GE(expected_->cases.size(), 2u);
  }
  Values Input(choir_dtype_t dtype, const Shape& shape) const {
    return expected_->ids ? MakeIds(expected_->ids, shape)
                          : MakeInput(dtype, shape, 1);
  }
  choir_status_t Compile(OneLayer* it, const Shape& shape) const {
    return it->Compile(shape,
                       expected_->ids ? CHOIR_DTYPE_I64 : CHOIR_DTYPE_F32);
  }
  choir_device_t* device_ = nullptr;
  std::string type_;
  const LayerExpected* expected_ = nullptr;
};

TEST_P(LayerSuite, HasItsShapesAndParameters) {
  for (const auto& one : expected_->cases) {
    SCOPED_TRACE(one.config);
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, one.config));
    EXPECT_STREQ(choir_layer_name(it.layer()), "it");
    ASSERT_OK(Compile(&it, one.input));
    ASSERT_EQ(it.params()->count, one.params.size());
    for (size_t i = 0; i < one.params.size(); ++i) {
      const choir_param_t* param = it.params()->params[i];
      EXPECT_EQ(param->name, one.params[i].name);
      EXPECT_EQ(OneLayer::ShapeOf(param->value), one.params[i].shape);
      EXPECT_EQ(choir_tensor_dtype(param->value), CHOIR_DTYPE_F32);
      EXPECT_EQ(param->trainable, one.params[i].trainable);
      ASSERT_EQ(param->grad != nullptr, param->trainable);
      if (!param->grad) continue;
      const int64_t* strides = choir_tensor_strides(param->value);
      const int64_t* others = choir_tensor_strides(param->grad);
      for (size_t k = 0; k < one.params[i].shape.size(); ++k)
        EXPECT_EQ(strides[k], others[k]);
    }
    // Any batch size may follow.
    for (int64_t batch : {one.input[0], INT64_C(1), one.input[0] + 3}) {
      Shape input = one.input;
      Shape output = one.output;
      input[0] = batch;
      output[0] = batch;
      Placed x(device_, Input(CHOIR_DTYPE_F32, input), kContiguous);
      choir_tensor_t* y = nullptr;
      ASSERT_OK(it.Predict(x.tensor(), &y));
      EXPECT_EQ(OneLayer::ShapeOf(y), output);
      EXPECT_EQ(choir_tensor_dtype(y), CHOIR_DTYPE_F32);
      choir_tensor_release(y);
    }
  }
}

TEST_P(LayerSuite, ComputesItsOp) {
  for (const auto& one : expected_->cases) {
    SCOPED_TRACE(one.config);
    if (one.op == CHOIR_OP_COUNT) continue;
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, one.config));
    ASSERT_OK(Compile(&it, one.input));
    it.FillParams();
    for (Layout layout : {kContiguous, kChannelsLast, kGaps}) {
      if (layout == kChannelsLast && one.input.size() != 4) continue;
      Placed x(device_, MakeInput(CHOIR_DTYPE_F32, one.input, 1), layout);
      std::vector<choir_tensor_t*> srcs(expected_->inputs, x.tensor());
      for (size_t i = 0; i < it.params()->count; ++i)
        srcs.push_back(it.params()->params[i]->value);
      std::vector<unsigned char> attrs = ParseAttrs(one.op, one.attrs);
      choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {};
      ASSERT_OK(choir_op_run(choir_device_stream(device_), one.op, srcs.data(),
                             static_cast<int32_t>(srcs.size()),
                             attrs.empty() ? nullptr : attrs.data(), false,
                             dsts));
      std::vector<double> expected = OneLayer::ReadAll(dsts[0]);
      for (choir_tensor_t* dst : dsts) choir_tensor_release(dst);
      for (double& element : expected)
        if (one.relu) element = std::fmax(element, 0);
      EXPECT_EQ(it.Run(x.tensor(), false), expected);
      if (expected_->trains_differently) {
        EXPECT_NE(it.Run(x.tensor(), true), expected);
        // Running averages have moved; the next layout starts anew.
        it.FillParams();
      } else {
        EXPECT_EQ(it.Run(x.tensor(), true), expected);
      }
      x.ExpectUnchanged();
    }
  }
}

TEST_P(LayerSuite, GivesTheSameOnEveryDevice) {
  for (const auto& one : expected_->cases) {
    for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64}) {
      SCOPED_TRACE(std::string(one.config) + ", " + choir_dtype_name(dtype));
      std::vector<double> results[2][2];  // by device, in training
      choir_device_t* devices[] = {Device("cpu"), device_};
      for (size_t d = 0; d < 2; ++d) {
        OneLayer it;
        ASSERT_OK(it.Create(devices[d], type_, one.config));
        Placed x(devices[d], Input(dtype, one.input), kContiguous);
        it.Run(x.tensor(), false);  // makes the parameters
        it.FillParams();
        results[d][0] = it.Run(x.tensor(), false);
        results[d][1] = it.Run(x.tensor(), true);
        // Running averages as training left them.
        for (size_t i = 0; i < it.params()->count; ++i)
          for (double element :
               OneLayer::ReadAll(it.params()->params[i]->value))
            results[d][1].push_back(element);
      }
      bool same_kernels = std::string(choir_device_kernels(device_)) == "cpu";
      double tolerance = dtype == CHOIR_DTYPE_F64 ? 1e-12 : 1e-5;
      for (size_t mode = 0; mode < 2; ++mode) {
        if (same_kernels) {
          EXPECT_EQ(results[1][mode], results[0][mode]);
          continue;
        }
        ASSERT_EQ(results[1][mode].size(), results[0][mode].size());
        for (size_t i = 0; i < results[0][mode].size(); ++i)
          ASSERT_NEAR(results[1][mode][i], results[0][mode][i],
                      tolerance * (1 + std::fabs(results[0][mode][i])))
              << "element " << i;
      }
    }
  }
}

// sum(w * y) of the layer in training.
class Loss {
 public:
  Loss(OneLayer* it, choir_device_t* device, const Shape& output)
      : it_(it),
        weights_(MakeInput(CHOIR_DTYPE_F64, output, 9)),
        placed_(device, weights_, kContiguous) {}
  double operator()(choir_tensor_t* x) {
    std::vector<double> y = it_->Run(x, true);
    EXPECT_EQ(y.size(), weights_.elements.size());
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights_.elements[i];
    return sum;
  }
  choir_var_t* Var(choir_var_t* y) {
    choir_scope_t* scope = it_->scope();
    return choir_var_sum(
        scope,
        choir_var_mul(scope, y, choir_scope_input(scope, placed_.tensor())),
        nullptr);
  }

 private:
  OneLayer* it_;
  Values weights_;
  Placed placed_;
};

TEST_P(LayerSuite, GradientsAgreeWithFiniteDifferences) {
  if (expected_->ids) return;  // its own: tests/model/row_layers_test.cc
  constexpr double kStep = 1e-5;
  for (const auto& one : expected_->cases) {
    for (Layout layout : {kContiguous, kChannelsLast, kGaps}) {
      if (layout == kChannelsLast && one.input.size() != 4) continue;
      SCOPED_TRACE(one.config);
      OneLayer it;
      ASSERT_OK(it.Create(device_, type_, one.config));
      Placed x(device_, MakeInput(CHOIR_DTYPE_F64, one.input, 1), layout);
      it.Run(x.tensor(), false);
      it.FillParams();
      Loss loss(&it, device_, one.output);
      it.Begin(true);
      choir_var_t* input = choir_scope_leaf(it.scope(), x.tensor());
      choir_var_t* y = it.Call(it.scope(), input);
      std::vector<choir_param_t*> params;
      std::vector<choir_tensor_t*> tensors = {x.tensor()};
      for (size_t i = 0; i < it.params()->count; ++i) {
        if (!it.params()->params[i]->trainable) continue;
        params.push_back(it.params()->params[i]);
        tensors.push_back(params.back()->value);
      }
      const choir_backward_options_t options = {params.data(), params.size(),
                                                nullptr, nullptr};
      choir_scope_backward(it.scope(), loss.Var(y), &options);
      std::vector<std::vector<double>> grads;
      ASSERT_TRUE(choir_scope_is_ok(it.scope()))
          << choir_status_message(choir_scope_end(it.scope()));
      grads.push_back(OneLayer::ReadAll(choir_var_grad(input)));
      ASSERT_OK(choir_scope_end(it.scope()));
      for (choir_param_t* param : params)
        grads.push_back(OneLayer::ReadAll(param->grad));

      std::mt19937_64 random(4);
      for (size_t t = 0; t < tensors.size(); ++t) {
        const std::vector<double> start = OneLayer::ReadAll(tensors[t]);
        ASSERT_EQ(grads[t].size(), start.size());
        for (size_t probe = 0; probe < 8; ++probe) {
          size_t i = random() % start.size();
          std::vector<double> moved = start;
          moved[i] = start[i] + kStep;
          OneLayer::WriteAll(tensors[t], moved);
          double above = loss(x.tensor());
          moved[i] = start[i] - kStep;
          OneLayer::WriteAll(tensors[t], moved);
          double slope = (above - loss(x.tensor())) / (2 * kStep);
          ASSERT_NEAR(grads[t][i], slope, 1e-6 * std::fmax(1, std::fabs(slope)))
              << (t ? params[t - 1]->name : "x") << ", element " << i;
        }
        OneLayer::WriteAll(tensors[t], start);
      }
    }
  }
}

// ---- Refusals ----

TEST_P(LayerSuite, RefusesWrongSettings) {
  for (const auto& refusal : expected_->config) {
    SCOPED_TRACE(refusal.config);
    OneLayer it;
    EXPECT_STATUS(INVALID_ARGUMENT,
                  "layer it: " + type_ + ": " + refusal.sentence,
                  it.Create(device_, type_, refusal.config));
    EXPECT_EQ(it.model(), nullptr);
  }
}

TEST_P(LayerSuite, RefusesEveryNumberOutOfRange) {
  const choir_struct_def_t* def =
      choir_layer_def_config(choir_layer_def_find(type_.c_str()));
  EXPECT_EQ(def->name, type_);
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t& field = def->fields[i];
    EXPECT_FALSE(std::string(field.doc).empty()) << field.name;
    if (field.kind != CHOIR_FIELD_KIND_INT &&
        field.kind != CHOIR_FIELD_KIND_FLOAT)
      continue;
    for (const char* value : {"-9", "9000000000000"}) {
      if (std::stod(value) >= field.minimum && value[0] == '-') continue;
      OneLayer it;
      std::string config = expected_->cases[0].config;
      config += (config.empty() ? "" : " ") + std::string(field.name) + "=";
      config += value;
      EXPECT_STATUS(INVALID_ARGUMENT,
                    "layer it: " + type_ + ": " + field.name + " is ",
                    it.Create(device_, type_, config));
    }
  }
}

TEST_P(LayerSuite, RefusesWrongInputs) {
  for (const auto& refusal : expected_->at_build) {
    SCOPED_TRACE(refusal.sentence);
    OneLayer it;
    ASSERT_OK(it.Create(device_, type_, refusal.config));
    choir_status_t status = it.Compile(refusal.input);
    EXPECT_EQ(std::string(choir_status_message(status))
                  .find("model one: compile: it"),
              0u)
        << choir_status_message(status);
    EXPECT_STATUS(INVALID_ARGUMENT, refusal.sentence, status);
  }
}

// An input of another width than that which it was built for.
TEST_P(LayerSuite, RefusesOtherWidthsThanItLearnt) {
  const auto& one = expected_->cases[0];
  if (one.params.empty() || expected_->ids) return;
  OneLayer it;
  ASSERT_OK(it.Create(device_, type_, one.config));
  ASSERT_OK(it.Compile(one.input));
  Shape wider = one.input;
  wider[wider.size() == 3 ? 2 : 1] += 1;  // of sequences the last
  Placed x(device_, MakeInput(CHOIR_DTYPE_F32, wider, 1), kContiguous);
  choir_tensor_t* y = nullptr;
  const std::string param = one.params[0].name;
  EXPECT_STATUS(INVALID_ARGUMENT, param.substr(0, param.rfind('.')) + ": ",
                it.Predict(x.tensor(), &y));
  EXPECT_EQ(y, nullptr);
}

std::vector<Line> AllLines() {
  std::vector<Line> lines;
  for (const char* device : kDevices) {
#define LINE(name, FIELDS) lines.emplace_back(device, #name);
    CHOIR_LAYER_LIST(LINE)
#undef LINE
  }
  return lines;
}

INSTANTIATE_TEST_SUITE_P(All, LayerSuite, ::testing::ValuesIn(AllLines()),
                         [](const ::testing::TestParamInfo<Line>& info) {
                           return info.param.first + "_" + info.param.second;
                         });

}  // namespace
