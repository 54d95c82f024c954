// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_parts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/status_matchers.h"

// What ops on GPUs are computed with (tensor/gpu_parts.c).

namespace {

TEST(GpuParts, KernelsAreThereIfThisBuildHasTheirCode) {
  bool has_code = true;
#define CHOIR__CUDA_FILE(name) \
  has_code = has_code && choir__cuda_##name##_module.image;
#include "tensor/kernels/kernels.def"
  choir_gpu_part_t part;
  choir_status_t status = choir_gpu_part(0, &part);
  EXPECT_STREQ(part.name, "kernels");
  EXPECT_STREQ(part.version, "");
  if (has_code) {
    EXPECT_OK(status);
  } else {
    EXPECT_STATUS(UNAVAILABLE, "needs one with --config=cuda", status);
  }
}

// As in a build with, and in one without the toolkit.
TEST(GpuParts, CodeThatComesAndGoesIsTold) {
  choir_gpu_part_t part;
  choir::testing::CudaKernelsOnHost(true);
  EXPECT_OK(choir_gpu_part(0, &part));
  choir::testing::CudaKernelsOnHost(false);
  EXPECT_STATUS(UNAVAILABLE, "no code for GPUs (none of cuda_",
                choir_gpu_part(0, &part));
  EXPECT_STREQ(part.name, "kernels");
}

TEST(GpuParts, EachHasANameOfItsOwnAndIsThereOrUnavailable) {
  std::set<std::string> names;
  for (int32_t i = 0; i < choir_gpu_part_count(); ++i) {
    choir_gpu_part_t part;
    choir_status_t status = choir_gpu_part(i, &part);
    ASSERT_NE(part.name, nullptr);
    EXPECT_TRUE(names.insert(part.name).second) << part.name;
    if (status) {
      EXPECT_STATUS(UNAVAILABLE, "needs", status);
      EXPECT_STREQ(part.version, "");
    }
  }
}

TEST(GpuParts, AWrongIndexIsTold) {
  choir_gpu_part_t part;
  for (int32_t index : {-1, choir_gpu_part_count()}) {
    EXPECT_STATUS(OUT_OF_RANGE,
                  "index is " + std::to_string(index) + "; needs a number",
                  choir_gpu_part(index, &part));
    EXPECT_EQ(part.name, nullptr);
  }
}

}  // namespace
