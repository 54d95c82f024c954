// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "core/device.h"
#include "core/gpu.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/status_matchers.h"

// Which GPUs there are and which are taken (core/device/cuda/cuda_gpus.c).

namespace {

using choir::testing::FakeCuda;

const FakeCuda::Gpu kOld = {"NVIDIA GeForce GTX 1080 Ti", 6, 1, 11u << 20};
const FakeCuda::Gpu kVolta = {"Tesla V100", 7, 0, 16u << 20};
const FakeCuda::Gpu kOldest = {"Tesla T4", 7, 5, 15u << 20};
const FakeCuda::Gpu kNew = {"NVIDIA H200", 9, 0, 139u << 20};

choir_status_t MakeDevice(int32_t index) {
  choir_device_options_t options = {};
  options.index = index;
  choir_device_t* device = nullptr;
  choir_status_t status = choir_device_create("cuda", &options, &device);
  EXPECT_EQ(device == nullptr, status != nullptr);
  choir_device_release(device);
  return status;
}

TEST(CudaGpusTest, GpusAreCountedAndTold) {
  FakeCuda fake({kOld, kVolta, kOldest, kNew});
  int32_t count = -1;
  ASSERT_OK(choir_gpu_count(&count));
  EXPECT_EQ(count, 4);
  const bool supported[] = {false, false, true, true};
  for (int32_t i = 0; i < 4; ++i) {
    choir_gpu_info_t info;
    ASSERT_OK(choir_gpu_info(i, &info));
    EXPECT_EQ(info.is_supported, supported[i]) << info.name;
  }
  choir_gpu_info_t info;
  ASSERT_OK(choir_gpu_info(3, &info));
  EXPECT_STREQ(info.name, "NVIDIA H200");
  EXPECT_EQ(info.major, 9);
  EXPECT_EQ(info.minor, 0);
  EXPECT_EQ(info.total_bytes, 139u << 20);
  // Nothing was started for that.
  EXPECT_EQ(fake.Calls("cuDevicePrimaryCtxRetain"), 0);
}

TEST(CudaGpusTest, MemoryIsToldAndTheGpuLetGoOf) {
  FakeCuda fake({kNew});
  uint64_t unused = 0;
  uint64_t total = 0;
  ASSERT_OK(choir_gpu_memory(0, &unused, &total));
  EXPECT_EQ(unused, 139u << 20);
  EXPECT_EQ(total, 139u << 20);
  fake.FailNext("cuMemGetInfo", 700);
  EXPECT_STATUS(INTERNAL, "cuda:0: cuMemGetInfo: CUDA_ERROR_ILLEGAL_ADDRESS",
                choir_gpu_memory(0, &unused, &total));
  EXPECT_EQ(unused, 0u);
  EXPECT_EQ(fake.Calls("cuDevicePrimaryCtxRelease"), 2);
}

TEST(CudaGpusTest, TheChosenGpuIsTaken) {
  FakeCuda fake({kOld, kNew});
  EXPECT_OK(MakeDevice(1));
}

TEST(CudaGpusTest, TooOldAGpuIsNamed) {
  FakeCuda fake({kOld, kVolta});
  EXPECT_STATUS(UNAVAILABLE,
                "cuda: GPU 0, NVIDIA GeForce GTX 1080 Ti, has compute "
                "capability 6.1; needs 7.5 or newer, as CUDA 13 does",
                MakeDevice(0));
  EXPECT_STATUS(UNAVAILABLE, "Tesla V100, has compute capability 7.0",
                MakeDevice(1));
  uint64_t bytes = 0;
  EXPECT_STATUS(UNAVAILABLE, "GTX 1080 Ti",
                choir_gpu_memory(0, &bytes, &bytes));
  EXPECT_EQ(fake.Calls("cuDevicePrimaryCtxRetain"), 0);
}

TEST(CudaGpusTest, AWrongIndexTellsHowManyThereAre) {
  FakeCuda fake({kNew, kNew});
  const char* text = "this machine has 2, needs a number from 0 to 1";
  EXPECT_STATUS(OUT_OF_RANGE, text, MakeDevice(2));
  EXPECT_STATUS(OUT_OF_RANGE, "GPU -1 asked for", MakeDevice(-1));
  choir_gpu_info_t info;
  EXPECT_STATUS(OUT_OF_RANGE, text, choir_gpu_info(2, &info));
}

TEST(CudaGpusTest, ADriverWithoutGpusSaysSo) {
  FakeCuda fake(std::vector<FakeCuda::Gpu>{});
  int32_t count = -1;
  EXPECT_STATUS(UNAVAILABLE,
                "cuInit: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is "
                "detected); needs a GPU of compute capability 7.5",
                choir_gpu_count(&count));
  EXPECT_EQ(count, 0);
  EXPECT_STATUS(UNAVAILABLE, "CUDA_ERROR_NO_DEVICE", MakeDevice(0));
}

TEST(CudaGpusTest, TheDriversVersionIsTold) {
  FakeCuda fake;
  fake.set_version(13020);
  int32_t version = 0;
  ASSERT_OK(choir_gpu_driver_version(&version));
  EXPECT_EQ(version, 13020);
  fake.FailNext("cuInit", 999);
  EXPECT_STATUS(UNAVAILABLE, "the NVIDIA driver does not start (cuInit",
                choir_gpu_driver_version(&version));
  EXPECT_EQ(version, 0);
}

TEST(CudaGpusTest, AnOldDriverIsToldItsVersion) {
  FakeCuda fake;
  fake.set_version(12040);
  int32_t version = -1;
  EXPECT_STATUS(UNAVAILABLE, "the NVIDIA driver is for CUDA 12.4; needs",
                choir_gpu_driver_version(&version));
  EXPECT_EQ(version, 0);
  EXPECT_STATUS(UNAVAILABLE,
                "the NVIDIA driver is for CUDA 12.4; needs one for CUDA 13.0",
                MakeDevice(0));
}

}  // namespace
