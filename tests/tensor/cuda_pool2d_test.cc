// SPDX-License-Identifier: Apache-2.0
// Pooling on a GPU, in both layouts.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/tensor/cuda_kernels_testing.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

struct Window {
  int64_t kernel[2];
  int64_t stride[2];
  int64_t padding[2];
};
const Window kWindows[] = {
    {{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}},
    {{3, 2}, {1, 2}, {1, 0}}, {{1, 1}, {2, 3}, {0, 0}},
    {{5, 4}, {2, 3}, {2, 1}}, {{2, 2}, {3, 3}, {1, 1}},
    {{7, 6}, {1, 1}, {0, 0}},
};
const Shape kShapes[] = {
    {1, 1, 7, 6}, {2, 3, 9, 8}, {2, 8, 12, 12}, {3, 20, 7, 9}};

class CudaPool2d : public CudaKernelsTest {
 protected:
  static choir_pool2d_attrs_t AttrsOf(const Window& window) {
    choir_pool2d_attrs_t attrs =
        Attrs<choir_pool2d_attrs_t>(CHOIR_OP_MAX_POOL2D);
    for (int i = 0; i < 2; ++i) {
      attrs.kernel[i] = window.kernel[i];
      attrs.stride[i] = window.stride[i];
      attrs.padding[i] = window.padding[i];
    }
    return attrs;
  }
  static TensorPtr Image(const DevicePtr& device, const Shape& shape,
                         uint32_t seed, bool channels_last) {
    const std::vector<float> values = Floats(Count(shape), seed);
    return channels_last ? MakeChannelsLast<float>(device.get(), shape, values)
                         : Make<float>(device.get(), shape, values);
  }
};

TEST_F(CudaPool2d, HasTheResultsOfTheCpu) {
  for (const Shape& shape : kShapes) {
    for (const Window& window : kWindows) {
      for (bool last : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(shape) + " kernel " +
                     std::to_string(window.kernel[0]) + " " +
                     (last ? "channels-last" : "row-major"));
        const choir_pool2d_attrs_t attrs = AttrsOf(window);
        TensorPtr x = Image(gpu_, shape, 3, last);
        TensorPtr host_x = Image(cpu_, shape, 3, last);
        (void)Launched();
        std::vector<TensorPtr> most =
            Results(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs);
        EXPECT_EQ(Launched(),
                  std::vector<std::string>{last && shape[1] % 4 == 0
                                               ? "choir_max_pool2d_grouped"
                                               : "choir_max_pool2d"});
        std::vector<TensorPtr> want =
            Results(CHOIR_OP_MAX_POOL2D, {host_x.get()}, &attrs);
        EXPECT_EQ(Read<float>(most[0]), Read<float>(want[0]));
        EXPECT_EQ(Read<uint8_t>(most[1]), Read<uint8_t>(want[1]));
        TensorPtr mean = Result(CHOIR_OP_AVG_POOL2D, {x.get()}, &attrs);
        ExpectClose(
            Read<float>(mean),
            Read<float>(Result(CHOIR_OP_AVG_POOL2D, {host_x.get()}, &attrs)),
            1e-6);
        const Shape out = ShapeOf(most[0].get());
        TensorPtr dy = Image(gpu_, out, 4, last);
        TensorPtr host_dy = Image(cpu_, out, 4, last);
        ExpectClose(
            Read<float>(Result(CHOIR_OP_MAX_POOL2D_GRAD,
                               {x.get(), most[1].get(), dy.get()}, &attrs)),
            Read<float>(Result(CHOIR_OP_MAX_POOL2D_GRAD,
                               {host_x.get(), want[1].get(), host_dy.get()},
                               &attrs)),
            1e-6);
        const std::vector<float> before = Floats(Count(shape), 5);
        ExpectClose(
            Read<float>(Added(gpu_, CHOIR_OP_AVG_POOL2D_GRAD,
                              {x.get(), dy.get()}, &attrs, shape, before)),
            Read<float>(Added(cpu_, CHOIR_OP_AVG_POOL2D_GRAD,
                              {host_x.get(), host_dy.get()}, &attrs, shape,
                              before)),
            1e-6);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(choir_op_stats().host_fallbacks, 0u);
}

TEST_F(CudaPool2d, TheFirstOfEqualsWinsAndNoNumberIsTheLargest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TensorPtr x = Make<float>(gpu_.get(), {1, 1, 2, 6},
                            {5, 5, 1, kNan, -kInfinity, -kInfinity,  //
                             5, 5, kNan, 9, -kInfinity, -kInfinity});
  const choir_pool2d_attrs_t attrs = AttrsOf({{2, 2}, {2, 2}, {0, 0}});
  std::vector<TensorPtr> most = Results(CHOIR_OP_MAX_POOL2D, {x.get()}, &attrs);
  const std::vector<float> y = Read<float>(most[0]);
  EXPECT_EQ(y[0], 5);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], -kInfinity);
  EXPECT_EQ(Read<uint8_t>(most[1]), (std::vector<uint8_t>{0, 1, 0}));
}

}  // namespace
