// SPDX-License-Identifier: Apache-2.0
// Operator Gradient, and what nodes draw that run again for it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::File;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::OnnxPtr;
using choir::testing::Read;
using choir::testing::RunOnce;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;
using Numbers = std::vector<float>;

// A node Gradient of a file's graph.
void Gradient(File* file, const char* inputs, const char* outputs,
              const char* xs, const char* y, const char* zs = "") {
  put_gradient(&file->graph, 1, inputs, outputs, xs, zs, y);
}

class OnnxGradient : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(choir_scope_create(device_.get(), &scope_));
  }
  void TearDown() override { choir_scope_destroy(scope_); }

  TensorPtr Tensor(const Numbers& values) {
    return Make(device_.get(), {static_cast<int64_t>(values.size())}, values);
  }
  // Of inputs with one dimension.
  std::vector<Numbers> Run(File* file, const std::vector<Numbers>& inputs) {
    const OnnxPtr onnx = file->Open();
    std::vector<TensorPtr> tensors, results;
    std::vector<choir_tensor_t*> lent;
    for (const Numbers& input : inputs) {
      tensors.push_back(Tensor(input));
      lent.push_back(tensors.back().get());
    }
    if (!onnx) return {};
    EXPECT_OK(RunOnce(onnx.get(), device_.get(), lent, &results));
    std::vector<Numbers> values;
    for (const TensorPtr& result : results)
      values.push_back(Read<float>(result));
    return values;
  }
  // Begins a training step and runs the file in it on leaves.
  choir_var_t* Train(const OnnxPtr& onnx, const std::vector<Numbers>& inputs,
                     std::vector<choir_var_t*>* out_leaves,
                     int64_t step_number = 0) {
    choir_step_t step = {true, 1, step_number, 0, 1, 1};
    EXPECT_OK(choir_onnx_place(onnx.get(), device_.get()));
    for (int32_t i = 0; i < choir_onnx_param_count(onnx.get()); ++i) {
      choir_param_t* param = choir_onnx_param(onnx.get(), i);  // the file's
      const choir_view_t* view = choir_tensor_view(param->value);
      EXPECT_OK(choir_tensor_create(device_.get(), view->dtype, view->ndim,
                                    view->shape, &param->grad));
    }
    choir_scope_begin(scope_, &step);
    out_leaves->clear();
    for (const Numbers& input : inputs)
      out_leaves->push_back(choir_scope_leaf(scope_, Tensor(input).get()));
    return choir_onnx_forward(
        scope_, onnx.get(),
        {out_leaves->data(), static_cast<int32_t>(out_leaves->size())});
  }
  Numbers Value(choir_var_t* tuple, int32_t i) {
    return ReadVar(choir_scope_result(scope_, tuple, i));
  }
  static Numbers ReadVar(choir_var_t* var) {
    choir_tensor_t* tensor = choir_var_tensor(var);
    return tensor ? Read<float>(tensor) : Numbers();
  }

  DevicePtr device_ = MakeDevice(GetParam());
  choir_scope_t* scope_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Devices, OnnxGradient,
                         ::testing::Values("cpu", "cpu_async"));

// y = (a b + c)^2 of several elements counts as their sum; nothing of y depends
// on u, and `s` is a scalar of the file, which the host knows.
TEST_P(OnnxGradient, OfSeveralValues) {
  File file;
  for (const char* name : {"a", "b", "c", "u"}) file.Input(name, 1, {3});
  const float two = 2;
  onnx_tensor(&file.graph, "s", 1, 0, nullptr, &two, sizeof two);
  file.Node("Mul", "a b", "p").Node("Add", "p c", "q");
  file.Node("Mul", "q q", "r").Node("Mul", "r s", "y");
  Gradient(&file, "a b u s c", "da db du ds", "a b u s", "y", "c");
  file.Output("da").Output("db").Output("du").Output("ds").Output("y");
  const Numbers a = {1, 2, -3}, b = {0.5f, -1, 2}, c = {1, 0, 4};
  const auto results = Run(&file, {a, b, c, {7, 8, 9}});
  ASSERT_EQ(results.size(), 5u);
  float ds = 0;
  for (size_t i = 0; i < 3; ++i) {
    const float q = a[i] * b[i] + c[i];
    EXPECT_EQ(results[0][i], 4 * q * b[i]) << i;
    EXPECT_EQ(results[1][i], 4 * q * a[i]) << i;
    EXPECT_EQ(results[2][i], 0) << i;
    EXPECT_EQ(results[4][i], 2 * q * q) << i;
    ds += q * q;
  }
  EXPECT_EQ(results[3], (Numbers{ds}));
}

// With respect to what a node gives, at its value and at another one; a result
// that is not named; y itself.
TEST_P(OnnxGradient, AtOtherValues) {
  File file;
  file.Input("x", 1, {2}).Input("other", 1, {2}).Input("k", 1, {2});
  file.Node("Mul", "x x", "h").Node("Mul", "h h", "g").Node("Mul", "g x", "y");
  Gradient(&file, "h", "dh", "h", "y");
  Gradient(&file, "other k", "dh_there -", "h x", "y");
  Gradient(&file, "h k", "dh_x", "h", "y", "x");
  Gradient(&file, "y h", "dy unreached", "y h", "y");
  file.Output("dh").Output("dh_there").Output("dh_x").Output("dy");
  file.Output("unreached");
  const auto results = Run(&file, {{3, -2}, {5, 1}, {10, 100}});
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0], (Numbers{2 * 9 * 3, 2 * 4 * -2}));
  EXPECT_EQ(results[1], (Numbers{2 * 5 * 10, 2 * 1 * 100}));
  EXPECT_EQ(results[2], (Numbers{2 * 9 * 10, 2 * 4 * 100}));
  EXPECT_EQ(results[3], (Numbers{1, 1}));
  EXPECT_EQ(results[4], (Numbers{0, 0}));
}

// One of two results of a node is given; the other still follows from x.
TEST_P(OnnxGradient, ANodeGivesMoreThanIsGiven) {
  File file;
  file.Input("x", 1, {4});
  file.Node("Split", "x", "h q").Node("Mul", "h q", "y");
  Gradient(&file, "q x", "dh dx", "h x", "y");
  file.Output("dh").Output("dx");
  const auto results = Run(&file, {{1, 2, 3, 4}});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0], (Numbers{3, 4}));        // q
  EXPECT_EQ(results[1], (Numbers{0, 0, 3, 4}));  // what h is given: q
}

// y by bodies, functions and sequences.
TEST_P(OnnxGradient, ThroughBodiesAndFunctions) {
  bytes_t then_body = {0, {0}}, attrs = {0, {0}}, nodes = {0, {0}};
  onnx_node(&then_body, "Mul", "a a", "t", nullptr);
  onnx_value(&then_body, ONNX_OUTPUT, "t", 1, -1, nullptr);
  attr_part(&attrs, "then_branch", 5, &then_body);
  attr_part(&attrs, "else_branch", 5, &then_body);
  put_node(&nodes, 7, "", "If", "yes", "square", &attrs);
  put_node(&nodes, 7, "", "SequenceConstruct", "a square", "list", nullptr);
  put_node(&nodes, 7, "", "SequenceAt", "list one", "s", nullptr);
  put_node(&nodes, 7, "", "Mul", "s a", "cube", nullptr);
  put_gradient(&nodes, 7, "a", "slope", "a", "", "cube");
  File file;
  onnx_function(&file.functions, "cube", "a yes one", "cube slope", &nodes);
  const uint8_t yes = 1;
  const int64_t one = 1;
  onnx_tensor(&file.graph, "yes", 9, 0, nullptr, &yes, 1);
  onnx_tensor(&file.graph, "one", 7, 0, nullptr, &one, sizeof one);
  file.Input("x", 1, {2});
  put_node(&file.graph, 1, "local", "cube", "x yes one", "c dc", nullptr);
  put_node(&file.graph, 1, "local", "cube", "c yes one", "cc dcc", nullptr);
  Gradient(&file, "x", "dx", "x", "cc");
  file.Output("dc").Output("dcc").Output("dx");
  const auto results = Run(&file, {{2, -1}});
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0], (Numbers{12, 3}));       // 3 x^2
  EXPECT_EQ(results[1], (Numbers{3 * 64, 3}));   // 3 c^2
  EXPECT_EQ(results[2], (Numbers{9 * 256, 9}));  // 9 x^8
}

// In a body; what hides behind values of the graph around it is refused.
TEST_P(OnnxGradient, InABody) {
  for (const char* y : {"right", "wrong"}) {
    bytes_t body = {0, {0}}, attrs = {0, {0}};
    onnx_node(&body, "Mul", "x x", "right", nullptr);
    onnx_node(&body, "Mul", "x h", "wrong", nullptr);
    put_gradient(&body, 1, "x", "d", "x", "", y);
    onnx_value(&body, ONNX_OUTPUT, "d", 1, -1, nullptr);
    attr_part(&attrs, "then_branch", 5, &body);
    attr_part(&attrs, "else_branch", 5, &body);
    File file;
    const uint8_t yes = 1;
    onnx_tensor(&file.graph, "yes", 9, 0, nullptr, &yes, 1);
    file.Input("x", 1, {2}).Node("Exp", "x", "h");
    file.Node("If", "yes", "d", &attrs).Output("d");
    if (y[0] == 'r')
      EXPECT_EQ(Run(&file, {{2, -1}}), (std::vector<Numbers>{{4, -2}}));
    else
      EXPECT_STATUS(UNIMPLEMENTED, "'wrong' depends on 'h' of the graph around",
                    file.Fail());
  }
}

// Nodes that only Gradient needs run when its results alone are chosen.
TEST_P(OnnxGradient, AloneAsAResult) {
  File file;
  file.Input("x", 1, {2}).Node("Exp", "x", "e").Node("Mul", "x e", "y");
  Gradient(&file, "e", "de", "e", "y");
  file.Output("y");
  const OnnxPtr onnx = file.Open();
  const char* more[] = {"de"};
  ASSERT_OK(choir_onnx_select(onnx.get(), 0, more, 1));
  std::vector<TensorPtr> results;
  const TensorPtr x = Tensor({3, 4});
  ASSERT_OK(RunOnce(onnx.get(), device_.get(), {x.get()}, &results));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(Read<float>(results[0]), (Numbers{3, 4}));
}

TEST_P(OnnxGradient, IsReplayed) {
  File file;
  file.Input("x", 1, {-1, 2}).Floats("w", {2, 2}, {1, 2, 3, 4});
  file.Node("MatMul", "x w", "p").Node("Mul", "p p", "y");
  Gradient(&file, "x w", "dx dw", "x w", "y");
  file.Node("MatMul", "dx dw", "z").Output("z");
  const OnnxPtr onnx = file.Open();
  ASSERT_TRUE(onnx);
  std::vector<Numbers> values[2];
  for (bool use_graph : {false, true}) {
    choir_model_t* model = nullptr;
    ASSERT_OK(choir_model_create(device_.get(), &choir_onnx_model_def,
                                 onnx.get(), 0, &model));
    TensorPtr x = Make(device_.get(), {3, 2}, Floats(6, 1));
    const choir_view_t view = *choir_tensor_view(x.get());
    ASSERT_OK(choir_model_compile(model, &view, 1));
    choir_model_set_graph(model, use_graph, false);
    for (int i = 0; i < 6; ++i) {
      const int64_t n = i % 3 == 2 ? 2 : 3;
      x = Make(device_.get(), {n, 2}, Floats(2 * n, static_cast<uint32_t>(i)));
      choir_tensor_t* in = x.get();
      choir_tensor_t* z = nullptr;
      ASSERT_OK(choir_model_predict(model, &in, 1, &z));
      const TensorPtr result(z);
      values[use_graph].push_back(Read<float>(z));
      // dx = 2 x w w', dw = 2 x' x w.
      const Numbers a = Read<float>(x), w = {1, 2, 3, 4};
      Numbers p(a.size()), dx(a.size()), dw(4), right(a.size());
      for (size_t r = 0; r < a.size(); r += 2)
        for (size_t k = 0; k < 2; ++k)
          p[r + k] = a[r] * w[k] + a[r + 1] * w[2 + k];
      for (size_t r = 0; r < a.size(); r += 2)
        for (size_t k = 0; k < 2; ++k) {
          dx[r + k] = 2 * (p[r] * w[2 * k] + p[r + 1] * w[2 * k + 1]);
          for (size_t j = 0; j < 2; ++j)
            dw[2 * k + j] += 2 * a[r + k] * p[r + j];
        }
      for (size_t r = 0; r < a.size(); r += 2)
        for (size_t k = 0; k < 2; ++k) {
          right[r + k] = dx[r] * dw[k] + dx[r + 1] * dw[2 + k];
          EXPECT_NEAR(values[use_graph].back()[r + k], right[r + k],
                      1e-4f * (1 + std::fabs(right[r + k])));
        }
    }
    choir_model_release(model);
  }
  EXPECT_EQ(values[0], values[1]);
}

// In a training step of any precision backward gives what Gradient gives. It
// does not go through Gradient, and says so where it would have to.
TEST_P(OnnxGradient, BesideBackward) {
  File file;
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "keepdims", 0);
  file.Input("x", 1, {3}).Floats("w", {3, 2}, {1.001f, 2, -3, 4.01f, 5, 6});
  file.Node("Sigmoid", "x", "s").Node("MatMul", "s w", "q");
  file.Node("Exp", "q", "p").Node("ReduceSum", "p", "loss", &attrs);
  Gradient(&file, "x w", "dx dw", "x w", "loss");
  file.Node("ReduceSum", "dx", "penalty", &attrs);
  file.Output("loss").Output("dx").Output("penalty").Output("dw");
  const OnnxPtr onnx = file.Open();
  std::vector<Numbers> all;
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16, CHOIR_DTYPE_F16}) {
    choir_scope_set_precision(scope_, dtype);
    std::vector<choir_var_t*> leaves;
    choir_var_t* y = Train(onnx, {{1, -2, 0.5f}}, &leaves);
    EXPECT_EQ(choir_scope_precision(scope_), dtype);
    choir_scope_backward(scope_, y, nullptr);
    ASSERT_OK(choir_scope_take_failure(scope_));
    EXPECT_EQ(Read<float>(choir_var_grad(leaves[0])), Value(y, 1));
    EXPECT_EQ(Read<float>(choir_onnx_param(onnx.get(), 0)->grad), Value(y, 3));
    all.push_back(Value(y, 1));
    ASSERT_OK(choir_scope_end(scope_));
    y = Train(onnx, {{1, -2, 0.5f}}, &leaves);
    choir_scope_backward(scope_, choir_scope_result(scope_, y, 2), nullptr);
    EXPECT_STATUS(UNIMPLEMENTED, "no second derivatives",
                  choir_scope_end(scope_));
  }
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[0], all[2]);
}

// So does a Gradient of a Gradient, and one through a loop of the host's.
TEST_P(OnnxGradient, WhatHasNoGradient) {
  File second;
  second.Input("x", 1, {2}).Node("Mul", "x x", "y");
  Gradient(&second, "x", "dx", "x", "y");
  Gradient(&second, "x", "ddx", "x", "dx");
  second.Output("ddx");
  const TensorPtr x = Tensor({1, 2});
  std::vector<TensorPtr> none;
  OnnxPtr onnx = second.Open();
  EXPECT_STATUS(UNIMPLEMENTED, "no second derivatives",
                RunOnce(onnx.get(), device_.get(), {x.get()}, &none));
  File loop;
  loop.Input("x", 1, {2, 2}).Node("Det", "x", "y");
  Gradient(&loop, "x", "dx", "x", "y");
  loop.Output("dx");
  onnx = loop.Open();
  const TensorPtr matrix = Make<float>(device_.get(), {2, 2}, {1, 2, 3, 4});
  EXPECT_STATUS(UNIMPLEMENTED, "a loop that has no gradient",
                RunOnce(onnx.get(), device_.get(), {matrix.get()}, &none));
  // What does not depend on x may be anything.
  File beside;
  beside.Input("x", 1, {2, 2}).Node("Det", "x", "d").Node("Mul", "d x", "y");
  Gradient(&beside, "d", "dd", "d", "y");
  beside.Output("dd");
  onnx = beside.Open();
  std::vector<TensorPtr> results;
  ASSERT_OK(RunOnce(onnx.get(), device_.get(), {matrix.get()}, &results));
  EXPECT_EQ(Read<float>(results[0]), (Numbers{10}));
}

// y / x is the mask with its scale, as is dy/dx, when the nodes that run again
// draw what they drew; one of them lies in a body.
TEST_P(OnnxGradient, DropsTheSame) {
  bytes_t body = {0, {0}}, attrs = {0, {0}};
  onnx_node(&body, "Dropout", "d", "t", nullptr);
  onnx_value(&body, ONNX_OUTPUT, "t", 1, -1, nullptr);
  attr_part(&attrs, "then_branch", 5, &body);
  attr_part(&attrs, "else_branch", 5, &body);
  const uint8_t yes = 1;
  File file;
  onnx_tensor(&file.graph, "yes", 9, 0, nullptr, &yes, 1);
  file.Input("x", 1, {64}).Node("RandomNormalLike", "x", "n");
  file.Node("Dropout", "n", "m").Node("Dropout", "x", "d");
  file.Node("If", "yes", "e", &attrs).Node("Dropout", "e", "y");
  Gradient(&file, "x", "dx", "x", "y");
  file.Node("Dropout", "x", "z");
  file.Output("y").Output("dx").Output("z");
  const OnnxPtr onnx = file.Open();
  const Numbers ones(64, 1);
  std::vector<choir_var_t*> leaves;
  std::vector<Numbers> masks;
  for (int64_t step : {0, 1}) {
    choir_var_t* y = Train(onnx, {ones}, &leaves, step);
    ASSERT_TRUE(choir_scope_is_ok(scope_));
    const Numbers values = Value(y, 0), slopes = Value(y, 1), z = Value(y, 2);
    EXPECT_EQ(values, slopes);
    int kept = 0;
    for (float value : values) {
      EXPECT_TRUE(value == 0 || value == 8) << value;
      kept += value != 0;
    }
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, 32);
    masks.push_back(values);
    masks.push_back(z);
    ASSERT_OK(choir_scope_end(scope_));
  }
  EXPECT_NE(masks[0], masks[2]);
  EXPECT_NE(masks[1], masks[3]);
  EXPECT_NE(masks[0], masks[1]);
}

// With a seed all forwards drop the same; NumPy's
// RandomState(7).uniform(0, 1, 8) >= 0.5 is 0 1 0 1 1 1 1 0.
TEST_P(OnnxGradient, DropsByTheSeed) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "seed", 7);
  File file;
  file.Input("x", 1, {8}).Node("Dropout", "x", "y mask", &attrs);
  file.Node("Cast", "mask", "m", [] {
    static bytes_t to;
    to = {0, {0}};
    attr_int(&to, "to", 1);
    return &to;
  }());
  Gradient(&file, "x", "dx", "x", "y");
  file.Output("y").Output("m").Output("dx");
  const OnnxPtr onnx = file.Open();
  std::vector<choir_var_t*> leaves;
  for (int64_t step : {0, 5}) {
    choir_var_t* y = Train(onnx, {{1, 2, 3, 4, 5, 6, 7, 8}}, &leaves, step);
    EXPECT_EQ(Value(y, 0), (Numbers{0, 4, 0, 8, 10, 12, 14, 0}));
    EXPECT_EQ(Value(y, 1), (Numbers{0, 1, 0, 1, 1, 1, 1, 0}));
    EXPECT_EQ(Value(y, 2), (Numbers{0, 2, 0, 2, 2, 2, 2, 0}));
    ASSERT_OK(choir_scope_end(scope_));
  }
  // Not in training.
  std::vector<TensorPtr> results;
  const TensorPtr x = Tensor({1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_OK(RunOnce(onnx.get(), device_.get(), {x.get()}, &results));
  EXPECT_EQ(Read<float>(results[0]), Read<float>(x));
  EXPECT_EQ(Read<float>(results[2]), Numbers(8, 1));
}

// A batch counts once for the averages; outside of training the nodes that run
// again normalise by these.
TEST_P(OnnxGradient, OfBatchNorm) {
  std::vector<Numbers> averages;
  for (bool has_gradient : {false, true}) {
    File file;
    file.Input("x", 1, {4}).Ints("rows", {4, 1});
    file.Floats("scale", {1}, {2}).Floats("bias", {1}, {0});
    file.Floats("mean", {1}, {3}).Floats("var", {1}, {4});
    file.Node("Reshape", "x rows", "r");
    bytes_t attrs = {0, {0}};
    attr_float(&attrs, "epsilon", 0);
    file.Node("BatchNormalization", "r scale bias mean var", "n", &attrs);
    if (has_gradient) {
      file.Node("Mul", "n n", "y");
      Gradient(&file, "x", "dx", "x", "y");
      file.Output("dx");
    } else {
      file.Output("n");
    }
    const OnnxPtr onnx = file.Open();
    if (has_gradient) {
      std::vector<TensorPtr> results;
      const TensorPtr x = Tensor({5, 3, 1, 3});
      ASSERT_OK(RunOnce(onnx.get(), device_.get(), {x.get()}, &results));
      // n = x - 3.
      EXPECT_EQ(Read<float>(results[0]), (Numbers{4, 0, -4, 0}));
    }
    std::vector<choir_var_t*> leaves;
    (void)Train(onnx, {{1, 2, 3, 6}}, &leaves);
    ASSERT_OK(choir_scope_end(scope_));
    for (int32_t i = 0; i < choir_onnx_param_count(onnx.get()); ++i) {
      const choir_param_t* param = choir_onnx_param(onnx.get(), i);
      if (!param->trainable) averages.push_back(Read<float>(param->value));
    }
  }
  ASSERT_EQ(averages.size(), 4u);
  EXPECT_EQ(averages[0], averages[2]);
  EXPECT_EQ(averages[1], averages[3]);
  EXPECT_NE(averages[0], (Numbers{3}));
}

TEST_P(OnnxGradient, IsNotWritten) {
  File file;
  file.Input("x", 1, {-1, 2}).Node("Mul", "x x", "y");
  Gradient(&file, "x", "dx", "x", "y");
  file.Output("dx");
  const OnnxPtr onnx = file.Open();
  choir_model_t* model = nullptr;
  ASSERT_OK(choir_model_create(device_.get(), &choir_onnx_model_def, onnx.get(),
                               0, &model));
  const TensorPtr x = Make<float>(device_.get(), {1, 2}, {1, 2});
  const choir_view_t view = *choir_tensor_view(x.get());
  ASSERT_OK(choir_model_compile(model, &view, 1));
  const std::string path = ::testing::TempDir() + "gradient.onnx";
  EXPECT_STATUS(UNIMPLEMENTED, "op Gradient: it has no form in ONNX files",
                choir_onnx_save(model, &view, 1, path.c_str(), nullptr));
  choir_model_release(model);
}

TEST_P(OnnxGradient, Mistakes) {
  const struct {
    const char *inputs, *xs, *zs, *y, *sentence;
  } all[] = {
      {"x x", "x x", "", "y", "names 'x' twice"},
      {"x x", "x", "x", "y", "names 'x' twice"},
      {"x", "x k", "", "y", "1 inputs, 2 xs, 0 zs and a y"},
      {"x", "-", "x", "y", "1 inputs, 1 xs, 1 zs"},
      {"x", "q", "", "y", "names 'q', which nothing before"},
      {"x", "x", "", "later", "names 'later', which nothing before"},
      {"k", "k", "", "y", "input 0, for 'k' of xs, is i64; needs floats"},
      {"-", "x", "", "y", "input 0, for 'x' of xs, is no tensor; needs floats"},
      {"x", "x", "", "n", "y, 'n', is i64; needs floats"},
      {"x", "x", "", "list", "y, 'list', is no tensor; needs floats"},
  };
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "to", 7);
  for (const auto& one : all) {
    File file;
    file.Input("x", 1, {2}).Ints("k", {1, 2}).Node("Mul", "x x", "y");
    file.Node("Cast", "y", "n", &attrs).Node("SequenceConstruct", "y", "list");
    Gradient(&file, one.inputs, "d", one.xs, one.y, one.zs);
    file.Node("Relu", "x", "later").Output("d");
    OnnxPtr onnx;
    choir_status_t status = file.Parse(&onnx);
    const TensorPtr x = Tensor({1, 2});
    std::vector<TensorPtr> none;
    if (!status) status = RunOnce(onnx.get(), device_.get(), {x.get()}, &none);
    EXPECT_STATUS(INVALID_ARGUMENT, one.sentence, std::move(status));
  }
}

}  // namespace
