// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "core/cuda_driver_internal.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/status_matchers.h"

// The table of the driver's functions (core/device/cuda/cuda_driver.c).

namespace {

using choir::testing::FakeCuda;

bool MachineHasDriver() {
  return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
}

TEST(CudaDriverTest, WithoutADriverOneSentenceSaysSoEachTime) {
  if (MachineHasDriver()) GTEST_SKIP() << "this machine has a driver";
  for (int i = 0; i < 3; ++i) {
    const choir__cuda_driver_t* driver = nullptr;
    choir_status_t status = choir__cuda_driver(&driver);
    EXPECT_EQ(driver, nullptr);
    std::string message = choir_status_message(status);
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.find("libcuda.so.1"), std::string::npos) << message;
    EXPECT_STATUS(UNAVAILABLE,
                  "needs one for CUDA 13 and a GPU of compute capability 7.5",
                  status);
  }
}

TEST(CudaDriverTest, ADriverGivesEveryFunction) {
  if (!MachineHasDriver()) GTEST_SKIP() << "this machine has no NVIDIA driver";
  const choir__cuda_driver_t* driver = nullptr;
  ASSERT_OK(choir__cuda_driver(&driver));
#define X(symbol, parameters) EXPECT_NE(driver->symbol, nullptr);
  CHOIR__CUDA_SYMBOLS(X)
#undef X
}

TEST(CudaDriverTest, ResultsBecomeStatusesWithCallNameAndText) {
  FakeCuda fake;
  const choir__cuda_driver_t* driver = nullptr;
  ASSERT_OK(choir__cuda_driver(&driver));
  EXPECT_OK(choir__cuda_status(driver, static_cast<choir__cu_result_t>(0),
                               "cuda:0", "cuInit"));
  EXPECT_STATUS(INTERNAL,
                "cuda:3: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700),"
                " an illegal memory access was encountered",
                choir__cuda_status(driver, static_cast<choir__cu_result_t>(700),
                                   "cuda:3", "cuStreamSynchronize"));
  // Without the version that the symbol has.
  EXPECT_STATUS(OUT_OF_MEMORY,
                "cuda:0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY, out of memory",
                choir__cuda_status(driver, static_cast<choir__cu_result_t>(2),
                                   "cuda:0", "cuMemAlloc_v2"));
  EXPECT_STATUS(
      INTERNAL, "cuda:0: cuInit: an unknown error (4711)",
      choir__cuda_status(driver, static_cast<choir__cu_result_t>(4711),
                         "cuda:0", "cuInit"));
}

TEST(CudaDriverTest, AReplacementIsTakenBack) {
  const choir__cuda_driver_t* scripted = nullptr;
  {
    FakeCuda fake;
    ASSERT_OK(choir__cuda_driver(&scripted));
  }
  const choir__cuda_driver_t* driver = nullptr;
  choir_status_free(choir__cuda_driver(&driver));
  EXPECT_NE(driver, scripted);
}

}  // namespace
