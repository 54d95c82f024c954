// SPDX-License-Identifier: Apache-2.0
// Files that are written: each op of the list, on each of its cases, gives the
// same when the file is read again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/op_inputs.h"
#include "tests/conformance/placed.h"
#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::CountOf;
using choir::testing::Device;
using choir::testing::kContiguous;
using choir::testing::MakeSources;
using choir::testing::OnnxPtr;
using choir::testing::ParseAttrs;
using choir::testing::ParseShapes;
using choir::testing::Placed;
using choir::testing::RunOnce;
using choir::testing::ShapeOf;
using choir::testing::TensorPtr;
using choir::testing::Values;

std::vector<double> Elements(choir_tensor_t* tensor) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const size_t width = choir_dtype_bytes(view->dtype);
  std::vector<char> bytes(static_cast<size_t>(choir_view_count(view)) * width);
  EXPECT_OK(choir_tensor_read(tensor, bytes.data(), bytes.size()));
  std::vector<double> elements;
  for (size_t i = 0; i < bytes.size(); i += width)
    elements.push_back(choir_element_load(&bytes[i], view->dtype));
  return elements;
}

void ExpectNear(choir_tensor_t* got, choir_tensor_t* expected,
                double tolerance) {
  ASSERT_EQ(ShapeOf(got), ShapeOf(expected));
  EXPECT_EQ(choir_tensor_dtype(got), choir_tensor_dtype(expected));
  const std::vector<double> x = Elements(got), y = Elements(expected);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_TRUE(std::fabs(x[i] - y[i]) <=
                    tolerance * std::max(1.0, std::fabs(y[i])) ||
                x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i])))
        << "element " << i << " is " << x[i] << "; needs " << y[i];
}

// What no file can have: numbers that each forward draws anew, and some ends of
// what ops can do.
bool HasForm(choir_op_t op, const choir_op_case_t& one, choir_dtype_t dtype) {
  const std::string shapes = one.shapes, attrs = one.attrs ? one.attrs : "";
  const auto starts = [&](const char* text) {
    return shapes.rfind(text, 0) == 0;
  };
  switch (static_cast<int>(op)) {
    case CHOIR_OP_RANDOM_UNIFORM:
    case CHOIR_OP_RANDOM_NORMAL:
      return false;
    case CHOIR_OP_PAD:  // mirrored more than once
      return attrs.find("reflect") == std::string::npos ||
             attrs.find("before=2 after=4") == 0;
    case CHOIR_OP_REPEAT:  // nothing
      return attrs.find("repeats=0") == std::string::npos && !starts("0");
    case CHOIR_OP_RECURRENT:  // no step
      return !starts("0,");
    case CHOIR_OP_NEG:
    case CHOIR_OP_SQUARE:
    case CHOIR_OP_ADD:
    case CHOIR_OP_SUB:
    case CHOIR_OP_MUL:
      return dtype != CHOIR_DTYPE_BOOL;
    default:
      return true;
  }
}

// Losses, which are 0 of no samples, and NaN in a file.
bool IsLoss(choir_op_t op) {
  return op == CHOIR_OP_SOFTMAX_CROSS_ENTROPY || op == CHOIR_OP_MSE_LOSS ||
         op == CHOIR_OP_LINEAR_CROSS_ENTROPY || op == CHOIR_OP_CROSS_ENTROPY ||
         op == CHOIR_OP_BINARY_CROSS_ENTROPY;
}

// Results beside the first that a file can have.
const std::set<std::pair<choir_op_t, int>> kMore = {
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY, 1},
    {CHOIR_OP_BATCH_NORM, 1},
    {CHOIR_OP_BATCH_NORM, 2},
    {CHOIR_OP_RECURRENT, 2}};

struct Problem {
  choir_op_t op;
  int number;  // of the case
};

std::vector<Problem> AllProblems() {
  std::vector<Problem> problems;
  for (int op = 0; op < CHOIR_OP_COUNT; ++op) {
    const choir_op_def_t* def = choir__op_def(static_cast<choir_op_t>(op));
    if (choir_op_info(def->op).gradient == CHOIR_OP_GRADIENT_INTERNAL) continue;
    for (int i = 0; def->cases[i].shapes; ++i) problems.push_back({def->op, i});
  }
  return problems;
}

class OnnxWriteOps : public ::testing::TestWithParam<Problem> {
 protected:
  // Runs the op on sources of these dtypes, writes it, reads it and runs that.
  void Run(choir_dtype_t dtype, choir_dtype_t second) {
    const choir_op_t op = GetParam().op;
    const choir_op_case_t& one = choir__op_def(op)->cases[GetParam().number];
    const auto attrs = ParseAttrs(op, one.attrs);
    // The file is for inference.
    if (op == CHOIR_OP_DROPOUT ||
        (op == CHOIR_OP_ATTENTION && one.attrs &&
         std::strstr(one.attrs, "dropout")) ||
        (IsLoss(op) && CountOf(ParseShapes(one.shapes)[0]) == 0))
      return;
    choir_device_t* device = Device("cpu");
    const std::vector<Values> values = MakeSources(
        op, ParseShapes(one.shapes), attrs, dtype, second, false, 7);
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<choir_tensor_t*> tensors;
    choir_scope_t* scope = nullptr;
    ASSERT_OK(choir_scope_create(device, &scope));
    choir_step_t step = {};
    step.keeps_all = true;
    choir_scope_begin(scope, &step);
    std::vector<choir_var_t*> vars;
    std::vector<choir_onnx_name_t> ins, outs;
    std::vector<std::string> names;
    names.reserve(values.size());
    for (const Values& value : values) {
      placed.push_back(std::make_unique<Placed>(device, value, kContiguous));
      tensors.push_back(placed.back()->tensor());
      vars.push_back(choir_scope_input(scope, tensors.back()));
      names.push_back("x" + std::to_string(ins.size()));
      ins.push_back({names.back().c_str(), vars.back()});
    }
    choir_var_t* more[CHOIR_OP_MAX_RESULTS] = {};
    choir_var_t* y = choir_scope_op(
        scope, op, vars.data(), static_cast<int32_t>(vars.size()),
        attrs.empty() ? nullptr : attrs.data(), more);
    outs.push_back({"y0", y});
    const char* const result_names[] = {"y0", "y1", "y2", "y3"};
    for (int k = 1; k < choir_op_result_count(op); ++k)
      if (kMore.count({op, k})) outs.push_back({result_names[k], more[k - 1]});
    choir_onnx_trace_t trace = {};
    trace.inputs = ins.data();
    trace.input_count = static_cast<int32_t>(ins.size());
    trace.results = outs.data();
    trace.result_count = static_cast<int32_t>(outs.size());
    choir_onnx_write_options_t options = {};
    options.fixed_batch = true;
    void* bytes = nullptr;
    size_t size = 0;
    choir_status_t status =
        choir_onnx_pack(scope, &trace, &options, &bytes, &size);
    if (!HasForm(op, one, dtype)) {
      EXPECT_STATUS(UNIMPLEMENTED, "ONNX", status);
    } else {
      ASSERT_OK(status);
      choir_onnx_t* onnx = nullptr;
      ASSERT_OK(choir_onnx_parse(bytes, size, nullptr, &onnx));
      OnnxPtr file(onnx);
      std::vector<TensorPtr> results;
      ASSERT_OK(RunOnce(onnx, device, tensors, &results));
      ASSERT_EQ(results.size(), outs.size());
      for (size_t i = 0; i < outs.size() && !HasFailure(); ++i)
        ExpectNear(results[i].get(), choir_var_tensor(outs[i].var), 1e-5);
    }
    std::free(bytes);
    EXPECT_OK(choir_scope_end(scope));
    choir_scope_destroy(scope);
  }
};

TEST_P(OnnxWriteOps, IsReadAgain) {
  const choir_op_def_t* def = choir__op_def(GetParam().op);
  const uint32_t seconds = def->second_dtypes;
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64, CHOIR_DTYPE_I32,
                              CHOIR_DTYPE_I64, CHOIR_DTYPE_BOOL}) {
    if (!(def->dtypes & (1u << dtype))) continue;
    for (choir_dtype_t second :
         {CHOIR_DTYPE_I64, CHOIR_DTYPE_I32, CHOIR_DTYPE_F32}) {
      if (!seconds) second = dtype;
      if (seconds && !(seconds & (1u << second))) continue;
      SCOPED_TRACE(std::string(choir_dtype_name(dtype)) + " " +
                   choir_dtype_name(second));
      Run(dtype, second);
      if (!seconds || HasFailure()) break;
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxWriteOps, ::testing::ValuesIn(AllProblems()),
                         [](const ::testing::TestParamInfo<Problem>& info) {
                           return choir_op_name(info.param.op) +
                                  ("_" + std::to_string(info.param.number));
                         });

}  // namespace
