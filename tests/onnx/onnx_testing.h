// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_ONNX_ONNX_TESTING_H_
#define CHOIR_TESTS_ONNX_ONNX_TESTING_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "onnx/onnx.h"
#include "tests/onnx/onnx_files.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/status_matchers.h"

namespace choir::testing {

struct OnnxRelease {
  void operator()(choir_onnx_t* onnx) const { choir_onnx_release(onnx); }
};
using OnnxPtr = std::unique_ptr<choir_onnx_t, OnnxRelease>;

// A graph under construction, and the file of it.
class File {
 public:
  File& Input(const char* name, int type, const Shape& shape) {
    onnx_value(&graph, ONNX_INPUT, name, type, static_cast<int>(shape.size()),
               shape.data());
    return *this;
  }
  File& Output(const char* name, int type = 1) {
    onnx_value(&graph, ONNX_OUTPUT, name, type, -1, nullptr);
    return *this;
  }
  File& Floats(const char* name, const Shape& shape,
               const std::vector<float>& values) {
    onnx_tensor(&graph, name, 1, static_cast<int>(shape.size()), shape.data(),
                values.data(), values.size() * sizeof(float));
    return *this;
  }
  File& Ints(const char* name, const std::vector<int64_t>& values) {
    onnx_ints(&graph, name, static_cast<int64_t>(values.size()), values.data());
    return *this;
  }
  File& Node(const char* op, const char* inputs, const char* outputs,
             const bytes_t* attrs = nullptr) {
    onnx_node(&graph, op, inputs, outputs, attrs);
    return *this;
  }

  // The file's bytes.
  bytes_t Bytes(int64_t version = 18) {
    bytes_t model = functions;
    onnx_model(&model, &graph, version);
    return model;
  }
  choir_status_t Parse(OnnxPtr* out_onnx, int64_t version = 18,
                       const char* folder = nullptr) {
    const bytes_t bytes = Bytes(version);
    choir_onnx_t* onnx = nullptr;
    choir_status_t status =
        choir_onnx_parse(bytes.data, bytes.size, folder, &onnx);
    out_onnx->reset(onnx);
    return status;
  }
  // For what is said of it.
  choir_status_t Fail(int64_t version = 18, const char* folder = nullptr) {
    OnnxPtr onnx;
    return Parse(&onnx, version, folder);
  }
  OnnxPtr Open() {
    OnnxPtr onnx;
    EXPECT_OK(Parse(&onnx));
    return onnx;
  }

  bytes_t graph = {0, {0}};
  bytes_t functions = {0, {0}};
};

// One forward outside of a model.
inline choir_status_t RunOnce(choir_onnx_t* onnx, choir_device_t* device,
                              const std::vector<choir_tensor_t*>& inputs,
                              std::vector<TensorPtr>* out_results) {
  CHOIR_TRY(choir_onnx_place(onnx, device));
  choir_scope_t* scope = nullptr;
  CHOIR_TRY(choir_scope_create(device, &scope));
  choir_scope_begin(scope, nullptr);
  std::vector<choir_var_t*> vars;
  for (choir_tensor_t* input : inputs)
    vars.push_back(choir_scope_input(scope, input));
  choir_var_t* y = choir_onnx_forward(
      scope, onnx, {vars.data(), static_cast<int32_t>(vars.size())});
  for (int32_t i = 0;
       choir_scope_is_ok(scope) && i < choir_onnx_result_count(onnx); ++i) {
    choir_tensor_t* tensor = choir_var_tensor(choir_scope_result(scope, y, i));
    choir_tensor_retain(tensor);
    out_results->emplace_back(tensor);
  }
  choir_status_t status = choir_scope_end(scope);
  choir_scope_destroy(scope);
  return status;
}

}  // namespace choir::testing

#endif  // CHOIR_TESTS_ONNX_ONNX_TESTING_H_
