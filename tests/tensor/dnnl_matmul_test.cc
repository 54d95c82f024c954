// SPDX-License-Identifier: Apache-2.0
// With AVX2 products of few rows or few columns have the same bits for every
// number of threads.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/kernel_problem.h"

namespace {

using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

// oneDNN looks at it once, on its first call.
const int kLimited = setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);

struct Sizes {
  int m, n, k;
};

TEST(DnnlMatmul, HasTheSameBitsForEveryNumberOfThreads) {
  ASSERT_EQ(kLimited, 0);
  if (choir__isa() != CHOIR__ISA_AVX2)
    GTEST_SKIP() << "this processor has no AVX2";
  const choir_op_def_t* def = choir__op_def(CHOIR_OP_MATMUL);
  std::vector<std::unique_ptr<Device>> devices;
  for (int threads : {1, 2, 3, 4, 5, 7})
    devices.push_back(std::make_unique<Device>(threads));
  const Sizes all[] = {
      {64, 10, 500},  // the CNN's layers
      {64, 500, 800},   {500, 10, 64},   {64, 800, 500},
      {1, 700, 900},                     // one row, one column
      {700, 1, 900},    {16, 512, 300},  // b is copied
      {300, 1024, 270}, {379, 512, 100}, {256, 1000, 130},  // the last of few
      {1000, 256, 130}, {33, 65, 700},                      // odd ends
      {1001, 17, 513},  {129, 401, 65},  {7, 3000, 31},
  };
  for (const Sizes& s : all) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed & 1, tb = transposed & 2;
      // Not copied then, and oneDNN's to share out.
      if (tb && s.m > 256 && s.n > 256) continue;
      auto pair = [](int rows, int columns) {
        return std::to_string(rows) + "," + std::to_string(columns);
      };
      const std::string shapes = (ta ? pair(s.k, s.m) : pair(s.m, s.k)) + ";" +
                                 (tb ? pair(s.n, s.k) : pair(s.k, s.n));
      const std::string attrs =
          std::string(ta ? "transpose_a=1" : "transpose_a=0") +
          (tb ? " transpose_b=1" : " transpose_b=0");
      Problem problem(def, {shapes.c_str(), attrs.c_str()}, Layout::kDense,
                      false, CHOIR_DTYPE_F32, *devices[0]);
      ASSERT_TRUE(problem.valid()) << shapes;
      const auto want = problem.Run(&choir__cpu_matmul, devices[0]->stream());
      for (const auto& device : devices)
        ASSERT_EQ(problem.Run(&choir__cpu_matmul, device->stream()), want)
            << problem.Describe() << " on "
            << choir_device_threads(device->device) << " threads";
    }
  }
}

}  // namespace
