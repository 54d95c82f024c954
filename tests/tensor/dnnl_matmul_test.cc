// SPDX-License-Identifier: Apache-2.0
// Products have the same bits for every number of threads: with AVX-512 all,
// with AVX2 those of few rows or few columns (dnnl_matmul_avx2_test); batches
// of them too.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tests/tensor/kernel_problem.h"

namespace {

using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

struct Sizes {
  int m, n, k;
  int batch = 1;
};

TEST(DnnlMatmul, HasTheSameBitsForEveryNumberOfThreads) {
  const choir__isa_t isa = choir__isa();
  if (isa == CHOIR__ISA_BASE) GTEST_SKIP() << "this processor has no AVX2";
  const choir_op_def_t* def = choir__op_def(CHOIR_OP_MATMUL);
  std::vector<std::unique_ptr<Device>> devices;
  for (int threads : {1, 2, 3, 4, 5, 7})
    devices.push_back(std::make_unique<Device>(threads));
  const Sizes all[] = {
      // The MNIST network's.
      {64, 10, 500},
      {64, 500, 800},
      {500, 10, 64},
      {64, 800, 500},
      // One row, one column.
      {1, 700, 900},
      {700, 1, 900},
      // b is copied.
      {16, 512, 300},
      {300, 1024, 270},
      {379, 512, 100},
      // The most that is few.
      {256, 1000, 130},
      {1000, 256, 130},
      // Ends that are no unit.
      {33, 65, 700},
      {1001, 17, 513},
      {129, 401, 65},
      {7, 3000, 31},
      // Neither is few.
      {400, 300, 500},
      {512, 1024, 768},
      // Batches: threads share the products, or, of fewer, each of them.
      {64, 64, 32, 6},
      {33, 65, 70, 5},
      {1, 64, 65, 6},
      {16, 512, 300, 4},
      {300, 129, 33, 6},
  };
  for (const Sizes& s : all) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool ta = transposed & 1, tb = transposed & 2;
      const bool is_copied = !tb && s.n % 512 == 0 && s.m < 380;
      if (isa == CHOIR__ISA_AVX2 && s.m > 256 && s.n > 256 && !is_copied)
        continue;
      auto pair = [&s](int rows, int columns) {
        return (s.batch > 1 ? std::to_string(s.batch) + "," : "") +
               std::to_string(rows) + "," + std::to_string(columns);
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
