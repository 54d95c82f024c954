// SPDX-License-Identifier: Apache-2.0
// CHOIR_STRICT_DEVICE=1, which is read once and so needs a process of its own.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::DevicePtr;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::TensorPtr;

TEST(StrictDevice, ForbidsTheHostAndNothingElse) {
  ASSERT_EQ(setenv("CHOIR_STRICT_DEVICE", "1", 1), 0);
  DevicePtr null = MakeDevice("null");
  TensorPtr x = Make<float>(null.get(), {2}, {-1, 2});
  EXPECT_STATUS(UNIMPLEMENTED,
                "relu: device null has no kernel for f32 (2); "
                "CHOIR_STRICT_DEVICE=1 forbids the run on the host",
                Failure(CHOIR_OP_RELU, {x.get()}));
  // Views need no kernel, and the CPU's reference is on its own device.
  EXPECT_EQ(Read<float>(Result(CHOIR_OP_TRANSPOSE, {x.get()})),
            (std::vector<float>{-1, 2}));
  DevicePtr cpu = MakeDevice("cpu");
  TensorPtr y = Make<double>(cpu.get(), {2}, {-1, 2});
  EXPECT_EQ(Read<double>(Result(CHOIR_OP_RELU, {y.get()})),
            (std::vector<double>{0, 2}));
  // Read once: it stays as it was.
  ASSERT_EQ(unsetenv("CHOIR_STRICT_DEVICE"), 0);
  EXPECT_STATUS(UNIMPLEMENTED, "relu", Failure(CHOIR_OP_RELU, {x.get()}));
}

}  // namespace
