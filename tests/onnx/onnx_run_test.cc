// SPDX-License-Identifier: Apache-2.0
// A forward: what is known before it runs, what it gives, bodies and functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/profile.h"
#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::File;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::OnnxPtr;
using choir::testing::Read;
using choir::testing::RunOnce;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

// On cpu_async work runs later than it was called for.
class OnnxRun : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<TensorPtr> Results(choir_onnx_t* onnx, const TensorPtr& x) {
    std::vector<TensorPtr> results;
    EXPECT_OK(RunOnce(onnx, device_.get(), {x.get()}, &results));
    return results;
  }
  DevicePtr device_ = MakeDevice(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Devices, OnnxRun,
                         ::testing::Values("cpu", "cpu_async"));

TEST_P(OnnxRun, ShapesFollowTheBatch) {
  bytes_t attrs = {0, {0}};
  attr_int(&attrs, "end", 1);
  File file;
  file.Input("x", 1, {-1, 2, 3}).Ints("rest", {-1});
  file.Node("Shape", "x", "n", &attrs).Node("Shape", "x", "s");
  attrs = {0, {0}};
  attr_int(&attrs, "axis", 0);
  file.Node("Concat", "n rest", "to", &attrs).Node("Reshape", "x to", "y");
  file.Output("y").Output("s", 7).Output("n", 7);
  const OnnxPtr onnx = file.Open();
  // What was known of a batch is taken again for the next of its size alone.
  for (int64_t n : {2, 5, 5, 1, 2}) {
    const std::vector<float> values = choir::testing::Floats(6 * n, 3);
    const auto results =
        Results(onnx.get(), Make(device_.get(), {n, 2, 3}, values));
    ASSERT_EQ(results.size(), 3u);
    EXPECT_EQ(ShapeOf(results[0].get()), (Shape{n, 6}));
    EXPECT_EQ(Read<float>(results[0]), values);
    EXPECT_EQ(Read<int64_t>(results[1]), (std::vector<int64_t>{n, 2, 3}));
    EXPECT_EQ(Read<int64_t>(results[2]), (std::vector<int64_t>{n}));
  }
}

// Results that no node computes.
TEST_P(OnnxRun, InputsAndInitializersMayBeResults) {
  File file;
  file.Input("x", 1, {2}).Floats("w", {3}, {1, 2, 3}).Ints("k", {4, 5});
  file.Output("x").Output("w").Output("k", 7);
  const OnnxPtr onnx = file.Open();
  const auto results =
      Results(onnx.get(), Make<float>(device_.get(), {2}, {7, 8}));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(Read<float>(results[0]), (std::vector<float>{7, 8}));
  EXPECT_EQ(Read<float>(results[1]), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(Read<int64_t>(results[2]), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(choir_onnx_result_type(onnx.get(), 0), CHOIR_ONNX_FLOAT);
  EXPECT_EQ(choir_onnx_result_type(onnx.get(), 2), CHOIR_ONNX_INT64);
  EXPECT_EQ(choir_onnx_result_type(onnx.get(), 3), CHOIR_ONNX_UNDEFINED);
  EXPECT_EQ(choir_onnx_param_count(onnx.get()), 1);
}

// int8 lies in I32; the result is still an int8.
TEST_P(OnnxRun, TypesAreTheFiles) {
  const int8_t small[3] = {-1, 0, 127};
  const int64_t three = 3;
  File file;
  file.Input("x", 10, {3});
  onnx_tensor(&file.graph, "k", 3, 1, &three, small, 3);
  file.Node("Identity", "k", "y").Node("Relu", "x", "z");
  file.Output("y", 3).Output("z", 10);
  const OnnxPtr onnx = file.Open();
  choir_tensor_t* x = nullptr;
  const uint16_t halves[3] = {0xbc00, 0x3c00, 0};
  ASSERT_OK(choir_tensor_from_data(device_.get(), CHOIR_DTYPE_F16, 1, &three,
                                   halves, &x));
  const auto results = Results(onnx.get(), TensorPtr(x));
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(Read<int32_t>(results[0]), (std::vector<int32_t>{-1, 0, 127}));
  EXPECT_EQ(choir_onnx_result_type(onnx.get(), 0), CHOIR_ONNX_INT8);
  EXPECT_EQ(choir_onnx_result_type(onnx.get(), 1), CHOIR_ONNX_FLOAT16);
  std::vector<TensorPtr> none;
  const TensorPtr wrong = Make<float>(device_.get(), {3}, {1, 2, 3});
  EXPECT_STATUS(INVALID_ARGUMENT, "the model takes f16 of 1 dimensions",
                RunOnce(onnx.get(), device_.get(), {wrong.get()}, &none));
  EXPECT_STATUS(INVALID_ARGUMENT, "0 inputs were given; the model takes 1",
                RunOnce(onnx.get(), device_.get(), {}, &none));
}

// The body of an If in a function that is called twice: it has a constant, and
// takes a value of the graph around it, and an attribute of the call.
TEST_P(OnnxRun, FunctionsWithBodies) {
  const int64_t one = 1;
  const float half = 0.5f;
  bytes_t then_body = {0, {0}}, else_body = {0, {0}}, attrs = {0, {0}},
          nodes = {0, {0}}, leaky = {0, {0}};
  onnx_tensor(&then_body, "half", 1, 1, &one, &half, sizeof(half));
  onnx_node(&then_body, "Add", "a half", "t", nullptr);
  onnx_value(&then_body, ONNX_OUTPUT, "t", 1, -1, nullptr);
  attr_of_call(&leaky, "alpha", "slope", 1);
  onnx_node(&else_body, "LeakyRelu", "a", "e", &leaky);
  onnx_value(&else_body, ONNX_OUTPUT, "e", 1, -1, nullptr);
  attr_part(&attrs, "then_branch", 5, &then_body);
  attr_part(&attrs, "else_branch", 5, &else_body);
  put_node(&nodes, 7, "", "If", "c", "r", &attrs);
  File file;
  onnx_function(&file.functions, "choose", "a c", "r", &nodes);
  file.Input("x", 1, {2});
  const uint8_t bits[2] = {1, 0};
  onnx_tensor(&file.graph, "yes", 9, 0, nullptr, bits, 1);
  onnx_tensor(&file.graph, "no", 9, 0, nullptr, bits + 1, 1);
  bytes_t call = {0, {0}};
  attr_float(&call, "slope", 0.25f);
  put_node(&file.graph, 1, "local", "choose", "x yes", "u", &call);
  put_node(&file.graph, 1, "local", "choose", "u no", "v", &call);
  put_node(&file.graph, 1, "local", "choose", "v yes", "w", &call);
  file.Output("u").Output("v").Output("w");
  const OnnxPtr onnx = file.Open();
  ASSERT_TRUE(onnx);
  for (int i = 0; i < 2; ++i) {
    const auto results =
        Results(onnx.get(), Make<float>(device_.get(), {2}, {-4.5f, 1}));
    ASSERT_EQ(results.size(), 3u);
    EXPECT_EQ(Read<float>(results[0]), (std::vector<float>{-4, 1.5f}));
    EXPECT_EQ(Read<float>(results[1]), (std::vector<float>{-1, 1.5f}));
    EXPECT_EQ(Read<float>(results[2]), (std::vector<float>{-0.5f, 2}));
  }
}

// A body of no nodes whose count is 2^62.
TEST(OnnxLoop, Ends) {
  const DevicePtr device = MakeDevice("cpu");
  bytes_t body = {0, {0}}, attrs = {0, {0}};
  onnx_value(&body, ONNX_INPUT, "i", 7, 0, nullptr);
  onnx_value(&body, ONNX_INPUT, "go", 9, 0, nullptr);
  onnx_value(&body, ONNX_INPUT, "v", 1, -1, nullptr);
  onnx_value(&body, ONNX_OUTPUT, "go", 9, 0, nullptr);
  onnx_value(&body, ONNX_OUTPUT, "v", 1, -1, nullptr);
  attr_part(&attrs, "body", 5, &body);
  File file;
  file.Input("x", 1, {1}).Ints("many", {int64_t{1} << 62});
  file.Node("Loop", "many - x", "y", &attrs).Output("y");
  const OnnxPtr onnx = file.Open();
  const TensorPtr x = Make<float>(device.get(), {1}, {1});
  std::vector<TensorPtr> none;
  EXPECT_STATUS(FAILED_PRECONDITION, "a loop that does not end?",
                RunOnce(onnx.get(), device.get(), {x.get()}, &none));
}

TEST_P(OnnxRun, OtherResultsOnDemand) {
  File file;
  file.Input("x", 1, {2}).Node("Relu", "x", "a").Node("Identity", "a", "y");
  file.Output("y");
  const OnnxPtr onnx = file.Open();
  const char* more[] = {"x"};
  ASSERT_OK(choir_onnx_select(onnx.get(), 1, more, 1));
  const auto results =
      Results(onnx.get(), Make<float>(device_.get(), {2}, {-1, 2}));
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(Read<float>(results[0]), (std::vector<float>{0, 2}));
  EXPECT_EQ(Read<float>(results[1]), (std::vector<float>{-1, 2}));
  more[0] = "nothing";
  EXPECT_STATUS(NOT_FOUND, "'nothing'",
                choir_onnx_select(onnx.get(), 1, more, 1));
}

bool Runs(const char* name, const std::function<void()>& work) {
  choir_profile_t* profile = nullptr;
  EXPECT_OK(choir_profile_create(nullptr, &profile));
  EXPECT_OK(choir_profile_start(profile));
  work();
  choir_profile_stop(profile);
  std::vector<choir_profile_row_t> rows(choir_profile_rows(profile, nullptr));
  choir_profile_rows(profile, rows.data());
  choir_profile_destroy(profile);
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
    return std::string(row.name).rfind(name, 0) == 0;
  });
}

// y = x w + b and z = |y|; p = x w is there for who asks.
TEST_P(OnnxRun, AProductAndAVectorAreOneOp) {
  const std::vector<float> x = {1, 2, 3, -4, 5, 0.5f};
  const std::vector<float> p = {-5, 14, 9.5f, 6.5f};
  const std::vector<float> z = {4.5f, 13, 10, 5.5f};
  const auto input = Make(device_.get(), {2, 1, 3}, x);
  for (const bool is_read_twice : {false, true}) {
    File file;
    file.Input("x", 1, {-1, 1, 3}).Floats("w", {3, 2}, {2, -1, 4, 0, -5, 5});
    file.Floats("b", {2}, {0.5f, -1}).Node("MatMul", "x w", "p");
    file.Node("Add", "b p", "y").Node("Abs", "y", "z");
    if (is_read_twice) file.Node("Neg", "p", "n").Output("n");
    file.Output("z");
    const OnnxPtr onnx = file.Open();
    std::vector<TensorPtr> results;
    const auto run = [&] {
      results = Results(onnx.get(), input);
      for (const auto& result : results) Read<float>(result);
    };
    EXPECT_EQ(Runs("linear", run), !is_read_twice);
    EXPECT_EQ(Runs("matmul", run), is_read_twice);
    EXPECT_EQ(Read<float>(results.back()), z);
    const char* const more = "p";
    ASSERT_OK(choir_onnx_select(onnx.get(), 100, &more, 1));
    EXPECT_TRUE(Runs("matmul", run));
    EXPECT_EQ(Read<float>(results[results.size() - 2]), z);
    EXPECT_EQ(Read<float>(results.back()), p);
    EXPECT_EQ(ShapeOf(results.back().get()), (Shape{2, 1, 2}));
  }
}

TEST(OnnxPrint, IsForReaders) {
  File file;
  file.Input("x", 1, {-1, 2}).Floats("w", {2}, {1, 2}).Ints("k", {0, -1});
  file.Node("Relu", "x", "a").Node("Reshape", "a k", "y").Output("y");
  const OnnxPtr onnx = file.Open();
  char* text = nullptr;
  ASSERT_OK(choir_onnx_print(onnx.get(), &text));
  EXPECT_EQ(std::string(text),
            "format 8, made by unknown \n"
            "operators of ai.onnx 18\n"
            "input x: float (n, 2)\n"
            "result y: float, any shape\n"
            "parameter w: f32 (2)\n"
            "2 nodes\n"
            "  Relu (x) -> a\n"
            "  Reshape (a, k) -> y\n");
  std::free(text);
}

}  // namespace
