// SPDX-License-Identifier: Apache-2.0
// Models as files: they keep their scores, names and sizes, for other sizes of
// the batch too; what cannot be written is said, and leaves no file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/model_testing.h"
#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::Chain;
using choir::testing::Floats;
using choir::testing::Make;
using choir::testing::ModelTest;
using choir::testing::Net;
using choir::testing::OnnxPtr;
using choir::testing::Perceptron;
using choir::testing::Read;
using choir::testing::RunOnce;
using choir::testing::Shape;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;

std::string PathOf(const char* name) {
  return ::testing::TempDir() + "/" + name;
}

bool Exists(const std::string& path) { return std::ifstream(path).good(); }

OnnxPtr Open(const std::string& path) {
  choir_onnx_t* onnx = nullptr;
  EXPECT_OK(choir_onnx_open(path.c_str(), &onnx));
  return OnnxPtr(onnx);
}

class OnnxWrite : public ModelTest {
 protected:
  void SetUp() override { MakeData(12); }

  choir_status_t Save(Net* net, const std::string& path,
                      choir_onnx_write_options_t options = {}) {
    choir_view_t x = *choir_tensor_view(x_.get());
    return choir_onnx_save(net->get(), &x, 1, path.c_str(), &options);
  }

  // The file gives what the model predicts, of all points and of seven.
  void ExpectSame(Net* net, choir_onnx_t* onnx,
                  const std::vector<int64_t>& counts) {
    for (int64_t count : counts) {
      SCOPED_TRACE(count);
      const TensorPtr x = Make(device_.get(), {count, 2}, Floats(2 * count, 9));
      std::vector<TensorPtr> results;
      ASSERT_OK(RunOnce(onnx, device_.get(), {x.get()}, &results));
      const std::vector<float> expected = net->Predict(x.get());
      const std::vector<float> found = Read<float>(results[0]);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
    }
  }
};

TEST_P(OnnxWrite, ATrainedModelKeepsNamesAndScores) {
  std::unique_ptr<Net> net = Ready(Perceptron(0.3));
  for (int i = 0; i < 3; ++i) ASSERT_OK(Train(net.get()));
  const std::string path = PathOf("net.onnx");
  ASSERT_OK(Save(net.get(), path));
  EXPECT_FALSE(Exists(path + ".data"));
  OnnxPtr onnx = Open(path);
  ASSERT_TRUE(onnx);
  const choir_onnx_value_info_t in = choir_onnx_input(onnx.get(), 0);
  EXPECT_STREQ(in.name, "input");
  EXPECT_EQ(in.type, CHOIR_ONNX_FLOAT);
  EXPECT_EQ(in.ndim, 2);
  EXPECT_STREQ(in.symbols[0], "batch");
  EXPECT_EQ(in.shape[1], 2);
  const choir_onnx_value_info_t out = choir_onnx_output(onnx.get(), 0);
  EXPECT_STREQ(out.symbols[0], "batch");
  EXPECT_EQ(out.shape[1], 3);
  ASSERT_OK(choir_onnx_place(onnx.get(), device_.get()));
  ASSERT_EQ(choir_onnx_param_count(onnx.get()), 4);
  for (int32_t i = 0; i < 4; ++i) {
    const choir_param_t* param = choir_onnx_param(onnx.get(), i);
    EXPECT_STREQ(param->name, net->param(static_cast<size_t>(i))->name);
    EXPECT_EQ(Read<float>(param->value), net->value(static_cast<size_t>(i)));
  }
  ExpectSame(net.get(), onnx.get(), {12, 1, 7});
}

TEST_P(OnnxWrite, ParametersMayLieInAFileBesideIt) {
  std::unique_ptr<Net> net = Ready(Perceptron());
  const std::string path = PathOf("beside.onnx");
  choir_onnx_write_options_t options = {};
  options.data_beside = true;
  ASSERT_OK(Save(net.get(), path, options));
  EXPECT_TRUE(Exists(path + ".data"));
  OnnxPtr onnx = Open(path);
  ASSERT_TRUE(onnx);
  ExpectSame(net.get(), onnx.get(), {12, 7});
  // Without it there is nothing to read.
  ASSERT_EQ(std::remove((path + ".data").c_str()), 0);
  choir_onnx_t* none = nullptr;
  EXPECT_STATUS(NOT_FOUND, "beside.onnx.data",
                choir_onnx_open(path.c_str(), &none));
}

// A file that was read and is written again.
TEST_P(OnnxWrite, AFileIsWrittenAgain) {
  std::unique_ptr<Net> net = Ready(Perceptron());
  const std::string first = PathOf("first.onnx"),
                    second = PathOf("second.onnx");
  ASSERT_OK(Save(net.get(), first));
  choir_onnx_t* opened = nullptr;
  choir_model_t* model = nullptr;
  ASSERT_OK(choir_onnx_load(device_.get(), first.c_str(), 0, &opened, &model));
  OnnxPtr read(opened);
  choir_view_t x = *choir_tensor_view(x_.get());
  ASSERT_OK(choir_model_compile(model, &x, 1));
  EXPECT_OK(choir_onnx_save(model, &x, 1, second.c_str(), nullptr));
  OnnxPtr onnx = Open(second);
  ASSERT_TRUE(onnx);
  ExpectSame(net.get(), onnx.get(), {12, 7});
  choir_model_release(model);
}

TEST_P(OnnxWrite, WhatCannotBeWrittenLeavesTheFileThatWasThere) {
  std::unique_ptr<Net> net = Ready(Perceptron());
  const std::string path = PathOf("kept.onnx");
  ASSERT_OK(Save(net.get(), path));
  // Random numbers are drawn anew in each forward.
  std::unique_ptr<Net> other = Ready(std::make_unique<Net>(
      [](Net* n) { n->Linear("fc", 3); },
      [](Net* n, choir_scope_t* scope, choir_var_t* x) {
        choir_random_uniform_attrs_t attrs = {};
        attrs.high = 1;
        choir_var_t* y = Chain(n, scope, x);
        return choir_var_add(scope, y,
                             choir_var_random_uniform(scope, y, &attrs));
      }));
  EXPECT_STATUS(UNIMPLEMENTED, "random_uniform", Save(other.get(), path));
  OnnxPtr onnx = Open(path);
  ASSERT_TRUE(onnx);
  ExpectSame(net.get(), onnx.get(), {12});
  EXPECT_STATUS(NOT_FOUND, "folder/net.onnx': there is no such folder",
                Save(net.get(), PathOf("no/such/folder/net.onnx")));
  const std::string folder = PathOf("folder.onnx");
  ASSERT_TRUE(mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST);
  EXPECT_STATUS(FAILED_PRECONDITION, "cannot write", Save(net.get(), folder));
  EXPECT_STATUS(INVALID_ARGUMENT, "path", Save(net.get(), ""));
}

// Sizes that are numbers of this batch alone.
TEST_P(OnnxWrite, AForwardOfOneBatchSizeIsAFileOfIt) {
  choir_device_t* device = device_.get();
  const TensorPtr rows = Make(device, {12, 3}, Floats(36, 3));
  std::unique_ptr<Net> net = std::make_unique<Net>(
      [](Net* n) { n->Linear("fc", 3); },
      [&rows](Net* n, choir_scope_t* scope, choir_var_t* x) {
        return choir_var_add(scope, Chain(n, scope, x),
                             choir_scope_input(scope, rows.get()));
      });
  ASSERT_OK(net->Create(device));
  EXPECT_STATUS(FAILED_PRECONDITION, "compile", Save(net.get(), "none.onnx"));
  ASSERT_OK(net->Compile({12, 2}));
  const choir_view_t two[] = {*choir_tensor_view(x_.get()),
                              *choir_tensor_view(x_.get())};
  EXPECT_STATUS(INVALID_ARGUMENT, "compiled for 1",
                choir_onnx_save(net->get(), two, 2, "none.onnx", nullptr));
  const std::string path =
      PathOf((GetParam() + std::string("_fixed.onnx")).c_str());
  EXPECT_STATUS(INVALID_ARGUMENT, "add", Save(net.get(), path));
  EXPECT_FALSE(Exists(path));
  choir_onnx_write_options_t options = {};
  options.fixed_batch = true;
  ASSERT_OK(Save(net.get(), path, options));
  OnnxPtr onnx = Open(path);
  ASSERT_TRUE(onnx);
  EXPECT_EQ(choir_onnx_input(onnx.get(), 0).shape[0], 12);
  ExpectSame(net.get(), onnx.get(), {12});
}

// Sizes in attributes that follow the batch: (n, 2) as (n 2), (2, n) and back,
// a row for each sample, all samples but the first.
TEST_P(OnnxWrite, SizesFollowTheBatch) {
  const TensorPtr row = Make(device_.get(), {1, 3}, Floats(3, 3));
  std::unique_ptr<Net> net = Ready(std::make_unique<Net>(
      [](Net* n) { n->Linear("fc", 3); },
      [&row](Net* n, choir_scope_t* scope, choir_var_t* x) {
        choir_var_t* y = Chain(n, scope, x);
        const int64_t count = choir_var_view(y)->shape[0];
        const choir_transpose_attrs_t turn = {{1, 0}};
        const choir_reshape_attrs_t flat = {1, {3 * count}};
        const choir_reshape_attrs_t back = {2, {3, count}};
        const choir_broadcast_to_attrs_t all = {2, {count, 3}};
        y = choir_var_transpose(scope, y, &turn);
        y = choir_var_reshape(scope, y, &flat);
        y = choir_var_square(scope, y);
        y = choir_var_reshape(scope, y, &back);
        y = choir_var_transpose(scope, y, &turn);
        choir_var_t* rows = choir_var_broadcast_to(
            scope, choir_scope_input(scope, row.get()), &all);
        const choir_concat_attrs_t columns = {1};
        choir_var_t* const both[] = {y, rows};
        y = choir_var_concat(scope, both, 2, &columns);
        const choir_slice_attrs_t rest = {0, 1, count, 1};
        return choir_var_slice(scope, y, &rest);
      }));
  const std::string path = PathOf("sizes.onnx");
  ASSERT_OK(Save(net.get(), path));
  OnnxPtr onnx = Open(path);
  ASSERT_TRUE(onnx);
  ExpectSame(net.get(), onnx.get(), {12, 2, 7});
}

// A step's scope can be used after it was written.
TEST_P(OnnxWrite, AStepGoesOnAfterIt) {
  choir_scope_t* scope = nullptr;
  ASSERT_OK(choir_scope_create(device_.get(), &scope));
  choir_step_t step = {};
  step.keeps_all = true;
  choir_scope_begin(scope, &step);
  choir_var_t* x = choir_scope_input(scope, x_.get());
  choir_var_t* y = choir_var_relu(scope, x);
  const choir_onnx_name_t in = {"a", x};
  const choir_onnx_name_t results[] = {{"b", y}, {"c", y}, {"d", x}};
  choir_onnx_trace_t trace = {};
  trace.inputs = &in;
  trace.input_count = 1;
  trace.results = results;
  trace.result_count = 3;
  void* bytes = nullptr;
  size_t size = 0;
  ASSERT_OK(choir_onnx_pack(scope, &trace, nullptr, &bytes, &size));
  choir_onnx_t* onnx = nullptr;
  ASSERT_OK(choir_onnx_parse(bytes, size, nullptr, &onnx));
  std::free(bytes);
  OnnxPtr file(onnx);
  std::vector<TensorPtr> found;
  ASSERT_OK(RunOnce(onnx, device_.get(), {x_.get()}, &found));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(Read<float>(found[0]), Read<float>(choir_var_tensor(y)));
  EXPECT_EQ(Read<float>(found[1]), Read<float>(choir_var_tensor(y)));
  EXPECT_EQ(Read<float>(found[2]), points_);
  // Two values of one name, and a backward, are refused; the step is not over.
  const choir_onnx_name_t twice[] = {{"b", y}, {"b", x}};
  trace.results = twice;
  trace.result_count = 2;
  EXPECT_STATUS(INVALID_ARGUMENT, "'b'",
                choir_onnx_pack(scope, &trace, nullptr, &bytes, &size));
  EXPECT_NE(choir_var_tensor(choir_var_relu(scope, y)), nullptr);
  choir_scope_backward(scope, y, nullptr);
  EXPECT_STATUS(FAILED_PRECONDITION, "backward", choir_scope_end(scope));
  // Another step does not have what it needs.
  choir_scope_begin(scope, nullptr);
  const choir_onnx_name_t input = {"a", choir_scope_input(scope, x_.get())};
  trace.inputs = &input;
  trace.results = &input;
  trace.result_count = 1;
  EXPECT_STATUS(FAILED_PRECONDITION, "keeps_all",
                choir_onnx_pack(scope, &trace, nullptr, &bytes, &size));
  EXPECT_OK(choir_scope_end(scope));
  choir_scope_destroy(scope);
}

INSTANTIATE_TEST_SUITE_P(Devices, OnnxWrite,
                         ::testing::Values("cpu", "cpu_async"));

}  // namespace
