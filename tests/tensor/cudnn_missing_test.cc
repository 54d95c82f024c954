// SPDX-License-Identifier: Apache-2.0
// A machine with a GPU and without cuDNN: convolutions run on the host, and one
// line of the log says why. In a process of its own, as the library is looked
// for once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/log.h"
#include "tests/tensor/ops_testing.h"
#include "tests/testing/fake_cuda.h"

namespace {

using namespace choir::testing;  // NOLINT: all of this file is about them

TEST(CudnnMissing, ConvolutionsRunOnTheHostAndItIsSaidOnce) {
  setenv("CHOIR_CUDNN_LIBRARY", "/nowhere/libcudnn.so", 1);
  std::vector<std::string> logged;
  choir_log_set_sink(
      [](void* self, choir_log_level_t, const char*, const char* message) {
        static_cast<std::vector<std::string>*>(self)->emplace_back(message);
      },
      &logged, CHOIR_LOG_WARNING);
  FakeCuda cuda;
  DevicePtr gpu = MakeDevice("cuda");
  choir_op_stats_reset();
  TensorPtr x = Make<float>(gpu.get(), {1, 1, 1, 2}, {2, 3});
  TensorPtr w = Make<float>(gpu.get(), {1, 1, 1, 2}, {5, 7});
  TensorPtr b = Make<float>(gpu.get(), {1}, {100});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Read<float>(Result(CHOIR_OP_CONV2D, {x.get(), w.get(), b.get()})),
              std::vector<float>{131});
  EXPECT_EQ(choir_op_stats().host_fallbacks, 3u);
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  EXPECT_EQ(logged,
            std::vector<std::string>{
                "cuDNN: /nowhere/libcudnn.so: cannot open shared object file: "
                "No such file or directory; needs cuDNN 9 for CUDA 13 (or its "
                "path in CHOIR_CUDNN_LIBRARY); convolutions on GPUs run on the "
                "host"});
}

}  // namespace
