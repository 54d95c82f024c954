// SPDX-License-Identifier: Apache-2.0
// What several operators have in common: attributes of windows, rounding to
// small floats. ONNX's own cases are run by onnx_cases_test.py.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/onnx/onnx_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::File;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::OnnxPtr;
using choir::testing::Read;
using choir::testing::RunOnce;
using choir::testing::TensorPtr;

class OnnxOperators : public ::testing::Test {
 protected:
  // Runs node `op` of x and of what else the file has.
  choir_status_t Run(File* file, const char* op, const char* inputs,
                     const bytes_t& attrs, const TensorPtr& x,
                     std::vector<TensorPtr>* out_results) {
    file->Node(op, inputs, "y", &attrs).Output("y");
    const OnnxPtr onnx = file->Open();
    return RunOnce(onnx.get(), device_.get(), {x.get()}, out_results);
  }
  DevicePtr device_ = MakeDevice("cpu");
};

// Three numbers for images of two dimensions.
TEST_F(OnnxOperators, NumbersAreAsManyAsDimensions) {
  const int64_t three[] = {1, 1, 1}, two[] = {2, 2};
  const std::vector<float> values(16, 1);
  for (const char* op : {"Conv", "ConvTranspose", "MaxPool", "Col2Im"}) {
    for (const char* name : {"strides", "dilations", "pads"}) {
      const bool is_pool = op[0] == 'M', is_col2im = op[3] == '2';
      bytes_t attrs = {0, {0}};
      attr_ints(&attrs, name, 3, three);
      if (is_pool) attr_ints(&attrs, "kernel_shape", 2, two);
      File file;
      if (is_col2im) {
        file.Input("x", 1, {1, 4, 4}).Ints("w", {3, 3}).Ints("k", {2, 2});
      } else {
        file.Input("x", 1, {1, 1, 4, 4}).Floats("w", {1, 1, 1, 1}, {1});
      }
      const TensorPtr x =
          is_col2im ? Make<float>(device_.get(), {1, 4, 4}, values)
                    : Make<float>(device_.get(), {1, 1, 4, 4}, values);
      std::vector<TensorPtr> none;
      EXPECT_STATUS(INVALID_ARGUMENT, "has 3 numbers",
                    Run(&file, op,
                        is_pool     ? "x"
                        : is_col2im ? "x w k"
                                    : "x w",
                        attrs, x, &none))
          << op << " " << name;
    }
  }
}

// SAME_UPPER puts the odd one behind, SAME_LOWER in front.
TEST_F(OnnxOperators, ConvolutionsOfWholeNumbersPadAlike) {
  const uint8_t numbers[] = {1, 2, 3}, ones[] = {1, 1};
  const int64_t x_shape[] = {1, 1, 3}, w_shape[] = {1, 1, 2};
  for (const char* mode : {"SAME_UPPER", "SAME_LOWER"}) {
    bytes_t attrs = {0, {0}};
    attr_string(&attrs, "auto_pad", mode);
    File file;
    file.Input("x", 2, {1, 1, 3});
    onnx_tensor(&file.graph, "w", 2, 3, w_shape, ones, 2);
    file.Node("ConvInteger", "x w", "y", &attrs).Output("y", 6);
    const OnnxPtr onnx = file.Open();
    choir_tensor_t* x = nullptr;
    ASSERT_OK(choir_tensor_from_data(device_.get(), CHOIR_DTYPE_U8, 3, x_shape,
                                     numbers, &x));
    const TensorPtr owner(x);
    std::vector<TensorPtr> results;
    ASSERT_OK(RunOnce(onnx.get(), device_.get(), {x}, &results));
    EXPECT_EQ(Read<int32_t>(results[0]), mode[5] == 'U'
                                             ? (std::vector<int32_t>{3, 5, 3})
                                             : (std::vector<int32_t>{1, 3, 5}));
  }
}

// output_shape may begin with n and c, which are not looked at.
TEST_F(OnnxOperators, OutputShapeOfATransposedConvolution) {
  const int64_t sizes[] = {-1, -1, 3}, none_left[] = {-1};
  const TensorPtr x = Make<float>(device_.get(), {1, 1, 2}, {1, 2});
  for (int count : {3, 1}) {
    bytes_t attrs = {0, {0}};
    attr_ints(&attrs, "output_shape", count, count == 3 ? sizes : none_left);
    File file;
    file.Input("x", 1, {1, 1, 2}).Floats("w", {1, 1, 2}, {1, 10});
    std::vector<TensorPtr> results;
    if (count == 1) {
      EXPECT_STATUS(INVALID_ARGUMENT, "the result would have size -1",
                    Run(&file, "ConvTranspose", "x w", attrs, x, &results));
    } else {
      ASSERT_OK(Run(&file, "ConvTranspose", "x w", attrs, x, &results));
      EXPECT_EQ(Read<float>(results[0]), (std::vector<float>{1, 12, 20}));
    }
  }
}

// float4e2m1 has no NaN: of one it makes -0, be it cast or quantized.
TEST_F(OnnxOperators, NanInATypeWithoutOne) {
  const TensorPtr x = Make<float>(device_.get(), {2}, {NAN, 2.4f});
  for (const bool is_cast : {true, false}) {
    bytes_t attrs = {0, {0}};
    attr_int(&attrs, is_cast ? "to" : "output_dtype", 23);
    File file;
    file.Input("x", 1, {2}).Floats("one", {}, {1});
    file.Node(is_cast ? "Cast" : "QuantizeLinear", is_cast ? "x" : "x one", "y",
              &attrs);
    file.Output("y", 23);
    const OnnxPtr onnx = file.Open();
    std::vector<TensorPtr> results;
    ASSERT_OK(RunOnce(onnx.get(), device_.get(), {x.get()}, &results));
    const std::vector<float> y = Read<float>(results[0]);
    EXPECT_EQ(y, (std::vector<float>{0, 2}));
    EXPECT_TRUE(std::signbit(y[0]));
  }
}

}  // namespace
