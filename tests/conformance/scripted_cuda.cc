// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/tensor/cuda_on_host.h"
#include "tests/tensor/fake_cublas.h"
#include "tests/tensor/fake_cudnn.h"
#include "tests/testing/fake_cuda.h"

// Linked into a suite: its device `cuda` is the real one over a scripted
// driver, its kernels are compiled for the host, and scripts stand in the place
// of CUDA's libraries, so that what they do is tested on machines without a
// GPU.

namespace {

class ScriptedCuda : public ::testing::Environment {
 public:
  // For the life of the process: a suite keeps devices until its end.
  void SetUp() override {
    fake_ = new choir::testing::FakeCuda;
    cublas_ = new choir::testing::FakeCublas;
    cudnn_ = new choir::testing::FakeCudnn;
    choir::testing::CudaKernelsOnHost(true);
  }

 private:
  static choir::testing::FakeCuda* fake_;
  static choir::testing::FakeCublas* cublas_;
  static choir::testing::FakeCudnn* cudnn_;
};

choir::testing::FakeCuda* ScriptedCuda::fake_ = nullptr;
choir::testing::FakeCublas* ScriptedCuda::cublas_ = nullptr;
choir::testing::FakeCudnn* ScriptedCuda::cudnn_ = nullptr;

const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new ScriptedCuda);

}  // namespace
