// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_CUDA_KERNELS_TESTING_H_
#define CHOIR_TESTS_TENSOR_CUDA_KERNELS_TESTING_H_

#include <cmath>
#include <string>
#include <vector>

#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

// A GPU behind the scripted driver with kernels compiled for the host, and the
// CPU beside it. A test says itself where it expects runs on the host.
class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CudaKernelsOnHost(true);
    gpu_ = MakeDevice("cuda");
    cpu_ = MakeDevice("cpu");
    choir_op_stats_reset();
  }
  void TearDown() override {
    gpu_.reset();
    CudaKernelsOnHost(false);
  }

  // Symbols of the kernels launched since the last question.
  std::vector<std::string> Launched() {
    std::vector<std::string> symbols;
    for (const std::string& line : fake_.TakeLog())
      if (line.rfind("launch ", 0) == 0)
        symbols.push_back(line.substr(7, line.find(' ', 7) - 7));
    return symbols;
  }

  // A tensor whose dimension k lies in memory as number order[k], with `gap`
  // elements between what lies furthest in, from element `skip` of its buffer
  // on. Empty order: row-major.
  template <typename T>
  static TensorPtr Place(const DevicePtr& device, const Shape& shape,
                         const std::vector<T>& values,
                         const std::vector<int>& order = {}, int64_t gap = 0,
                         int64_t skip = 0) {
    const size_t ndim = shape.size();
    std::vector<int> inner(ndim);
    for (size_t k = 0; k < ndim; ++k)
      inner[order.empty() ? k : static_cast<size_t>(order[k])] =
          static_cast<int>(k);
    Shape strides(ndim);
    int64_t step = 1 + gap;
    for (size_t i = ndim; i-- > 0;) {
      strides[static_cast<size_t>(inner[i])] = step;
      step *= shape[static_cast<size_t>(inner[i])];
    }
    const int64_t room = (1 + gap) * Count(shape) + skip;
    std::vector<T> memory(static_cast<size_t>(room), T(99));
    for (int64_t i = 0; i < Count(shape); ++i) {
      int64_t at = skip, rest = i;
      for (size_t k = ndim; k-- > 0; rest /= shape[k])
        at += rest % shape[k] * strides[k];
      memory[static_cast<size_t>(at)] = values[static_cast<size_t>(i)];
    }
    TensorPtr whole = Make<T>(device.get(), {room}, memory);
    choir_view_t view = *choir_tensor_view(whole.get());
    view.ndim = static_cast<int32_t>(ndim);
    for (size_t k = 0; k < ndim; ++k) {
      view.shape[k] = shape[k];
      view.strides[k] = strides[k];
    }
    view.offset += skip;
    choir_tensor_t* tensor = nullptr;
    EXPECT_OK(choir_tensor_from_view(&view, &tensor));
    return TensorPtr(tensor);
  }

  // The op, added to what the destination has.
  static TensorPtr Added(const DevicePtr& device, choir_op_t op,
                         const std::vector<choir_tensor_t*>& srcs,
                         const void* attrs, const Shape& shape,
                         const std::vector<float>& before) {
    TensorPtr dst = Make<float>(device.get(), shape, before);
    choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {dst.get()};
    EXPECT_OK(choir_op_run(choir_device_stream(device.get()), op, srcs.data(),
                           static_cast<int32_t>(srcs.size()), attrs, true,
                           dsts));
    return dst;
  }

  // Equal up to `tolerance` times the largest, or at least 1.
  static void ExpectClose(const std::vector<float>& got,
                          const std::vector<float>& want, double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    double largest = 1;
    for (float value : want)
      if (std::isfinite(value))
        largest = std::fmax(largest, std::fabs(static_cast<double>(value)));
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << "element " << i << ": " << got[i];
      } else if (std::isinf(want[i])) {
        ASSERT_EQ(got[i], want[i]) << "element " << i;
      } else {
        ASSERT_NEAR(got[i], want[i], tolerance * largest) << "element " << i;
      }
    }
  }

  FakeCuda fake_;
  DevicePtr gpu_, cpu_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_CUDA_KERNELS_TESTING_H_
