// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/fake_cuda.h"

// Linked into a suite: its device `cuda` is the real one over a scripted
// driver, and its kernels are compiled for the host, so that what they do is
// tested on machines without a GPU.

namespace {

class ScriptedCuda : public ::testing::Environment {
 public:
  // For the life of the process: a suite keeps devices until its end.
  void SetUp() override {
    fake_ = new choir::testing::FakeCuda;
    choir::testing::CudaKernelsOnHost(true);
  }

 private:
  static choir::testing::FakeCuda* fake_;
};

choir::testing::FakeCuda* ScriptedCuda::fake_ = nullptr;

const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new ScriptedCuda);

}  // namespace
