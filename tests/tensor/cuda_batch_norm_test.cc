// SPDX-License-Identifier: Apache-2.0
// Batch norm on a GPU, against the CPU's reference in double.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

const Shape kShapes[] = {{1, 5},       {4, 3},        {33, 17},
                         {1000, 8},    {9000, 3},     {64, 100},
                         {2, 3, 5, 4}, {3, 16, 9, 9}, {2, 40, 30, 30}};

class CudaBatchNorm : public CudaKernelsTest {
 protected:
  // Sources by number, of x's shape or one for each channel, the same on both
  // devices but for their dtype.
  struct Sources {
    std::vector<TensorPtr> on_gpu;
    std::vector<TensorPtr> on_cpu;
    std::vector<choir_tensor_t*> gpu;
    std::vector<choir_tensor_t*> cpu;
  };
  template <typename T>
  static TensorPtr Image(const DevicePtr& device, const Shape& shape,
                         const std::vector<float>& values) {
    const std::vector<T> elements(values.begin(), values.end());
    return shape.size() == 4
               ? MakeChannelsLast<T>(device.get(), shape, elements)
               : Make<T>(device.get(), shape, elements);
  }
  void Add(Sources* sources, const Shape& shape,
           const std::vector<float>& values) {
    sources->on_gpu.push_back(Image<float>(gpu_, shape, values));
    sources->on_cpu.push_back(Image<double>(cpu_, shape, values));
    sources->gpu.push_back(sources->on_gpu.back().get());
    sources->cpu.push_back(sources->on_cpu.back().get());
  }
  // "x": an image far from 0; "v": a positive number each; "c": any; "g": an
  // image around 0.
  Sources Make4(const std::string& kinds, const Shape& shape) {
    Sources sources;
    uint32_t seed = 1;
    for (char kind : kinds) {
      const bool is_image = kind == 'x' || kind == 'g';
      const Shape own = is_image ? shape : Shape{shape[1]};
      std::vector<float> values = Floats(Count(own), seed++);
      for (float& value : values) {
        if (kind == 'x') value = 3 + 2 * value;
        if (kind == 'v') value = 1 + 0.5f * value;
      }
      Add(&sources, own, values);
    }
    return sources;
  }
  void ExpectAgreement(choir_op_t op, const std::string& kinds,
                       const std::vector<std::string>& launched) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(choir_op_name(op)) + " " +
                   ::testing::PrintToString(shape));
      const Sources sources = Make4(kinds, shape);
      choir_batch_norm_attrs_t attrs =
          Attrs<choir_batch_norm_attrs_t>(CHOIR_OP_BATCH_NORM);
      attrs.epsilon = 0.001;
      (void)Launched();
      const std::vector<TensorPtr> got = Results(op, sources.gpu, &attrs);
      std::vector<std::string> expected = launched;
      if (shape[1] % 4 == 0) expected.back() += "_grouped";
      EXPECT_EQ(Launched(), expected);
      const std::vector<TensorPtr> want = Results(op, sources.cpu, &attrs);
      for (size_t i = 0; i < got.size(); ++i) {
        const std::vector<double> exact = Read<double>(want[i]);
        ExpectClose(Read<float>(got[i]), {exact.begin(), exact.end()}, 1e-5);
      }
      if (HasFailure()) return;
    }
    EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
  }
};

TEST_F(CudaBatchNorm, Forward) {
  ExpectAgreement(CHOIR_OP_BATCH_NORM, "xcc",
                  {"choir_batch_norm_sums", "choir_batch_norm_moments",
                   "choir_batch_norm"});
}
TEST_F(CudaBatchNorm, Inference) {
  ExpectAgreement(CHOIR_OP_BATCH_NORM_INFER, "xcccv",
                  {"choir_batch_norm_infer"});
}
TEST_F(CudaBatchNorm, Gradient) {
  ExpectAgreement(CHOIR_OP_BATCH_NORM_GRAD, "xccvg",
                  {"choir_batch_norm_grad_sums", "choir_batch_norm_gradients",
                   "choir_batch_norm_grad"});
}
TEST_F(CudaBatchNorm, WithRelu) {
  for (const char* kinds : {"xcc", "xccg"})
    ExpectAgreement(CHOIR_OP_BATCH_NORM_RELU, kinds,
                    {"choir_batch_norm_sums", "choir_batch_norm_moments",
                     "choir_batch_norm_relu"});
}
TEST_F(CudaBatchNorm, GradientThroughRelu) {
  for (const char* kinds : {"xcccvg", "xcccvgg"})
    ExpectAgreement(
        CHOIR_OP_BATCH_NORM_RELU_GRAD, kinds,
        {"choir_batch_norm_relu_grad_sums", "choir_batch_norm_gradients",
         "choir_batch_norm_relu_grad"});
}
TEST_F(CudaBatchNorm, GradientThroughReluAndSum) {
  for (const char* kinds : {"xccvgg", "xccvggg"})
    ExpectAgreement(
        CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD, kinds,
        {"choir_batch_norm_add_relu_grad_sums", "choir_batch_norm_gradients",
         "choir_batch_norm_add_relu_grad"});
}

// A graph may put one of these ops in the place of several.
TEST_F(CudaBatchNorm, TogetherHasTheBitsOfOneByOne) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const Sources sources = Make4("xccggg", shape);
    choir_tensor_t *x = sources.gpu[0], *scale = sources.gpu[1],
                   *bias = sources.gpu[2], *residual = sources.gpu[3],
                   *dy = sources.gpu[4], *dy2 = sources.gpu[5];
    const auto norm = Results(CHOIR_OP_BATCH_NORM, {x, scale, bias});
    choir_tensor_t *mean = norm[1].get(), *variance = norm[2].get();
    TensorPtr g = Result(CHOIR_OP_ADD, {dy, dy2});

    TensorPtr y = Result(CHOIR_OP_RELU, {norm[0].get()});
    EXPECT_EQ(
        Read<float>(Results(CHOIR_OP_BATCH_NORM_RELU, {x, scale, bias})[0]),
        Read<float>(y));
    TensorPtr dn = Result(CHOIR_OP_RELU_GRAD, {y.get(), g.get()});
    auto want =
        Results(CHOIR_OP_BATCH_NORM_GRAD, {x, scale, mean, variance, dn.get()});
    auto got = Results(CHOIR_OP_BATCH_NORM_RELU_GRAD,
                       {x, scale, bias, mean, variance, dy, dy2});
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(Read<float>(got[i]), Read<float>(want[i])) << i;

    y = Result(CHOIR_OP_RELU,
               {Result(CHOIR_OP_ADD, {norm[0].get(), residual}).get()});
    EXPECT_EQ(Read<float>(Results(CHOIR_OP_BATCH_NORM_RELU,
                                  {x, scale, bias, residual})[0]),
              Read<float>(y));
    dn = Result(CHOIR_OP_RELU_GRAD, {y.get(), g.get()});
    want =
        Results(CHOIR_OP_BATCH_NORM_GRAD, {x, scale, mean, variance, dn.get()});
    got = Results(CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD,
                  {x, scale, mean, variance, y.get(), dy, dy2});
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(Read<float>(got[i]), Read<float>(want[i])) << i;
    EXPECT_EQ(Read<float>(got[3]), Read<float>(dn));
    if (HasFailure()) return;
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

// Squares of numbers far from 0 do not swallow what is between them.
TEST_F(CudaBatchNorm, TheVarianceOfLargeNumbersIsRight) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(i % 2 ? 100001.0f : 99999.0f);
  Sources sources;
  Add(&sources, {1000, 1}, values);
  Add(&sources, {1}, {1});
  Add(&sources, {1}, {0});
  const std::vector<TensorPtr> got =
      Results(CHOIR_OP_BATCH_NORM, sources.gpu, nullptr);
  EXPECT_EQ(Read<float>(got[1]), std::vector<float>{100000});
  EXPECT_EQ(Read<float>(got[2]), std::vector<float>{1});
}

}  // namespace
