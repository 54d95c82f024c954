// SPDX-License-Identifier: Apache-2.0
// oneDNN's primitives are made once for a problem and kept, up to a bound.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tensor/kernels/cpu/dnnl_engine.h"
#include "tests/tensor/kernel_problem.h"

// In the place of the library's, for all calls of this program.
static bool has_no_memory;
extern "C" dnnl_status_t dnnl_primitive_attr_create(
    dnnl_primitive_attr_t* attr) {
  static const auto create =
      reinterpret_cast<decltype(&dnnl_primitive_attr_create)>(
          dlsym(RTLD_NEXT, "dnnl_primitive_attr_create"));
  if (!has_no_memory) return create(attr);
  has_no_memory = false;
  return dnnl_out_of_memory;
}

namespace {

using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

class DnnlPlans : public testing::Test {
 protected:
  void SetUp() override { choir__dnnl_cache_clear(); }
  static const choir_op_def_t* def() { return choir__op_def(CHOIR_OP_CONV2D); }
};

TEST_F(DnnlPlans, AreBuiltOnceForAProblem) {
  Device device(1);
  Problem problem(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kChannelsLast,
                  false, CHOIR_DTYPE_F32, device);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < 5; ++i) problem.Run(&choir__cpu_conv2d, device.stream());
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.built - before.built, 1u);
  EXPECT_EQ(after.reused - before.reused, 4u);
  EXPECT_EQ(after.kept, 1);
  // Another layout or number of threads is another problem.
  Device two(2);
  problem.Run(&choir__cpu_conv2d, two.stream());
  Problem dense(def(), {"2,3,8,8;4,3,3,3;4", nullptr}, Layout::kDense, false,
                CHOIR_DTYPE_F32, device);
  dense.Run(&choir__cpu_conv2d, device.stream());
  EXPECT_EQ(choir__dnnl_cache_stats().built - before.built, 3u);
  // An activation is not: it comes after the plan.
  Problem relu(def(), {"2,3,8,8;4,3,3,3;4", "activation=relu"},
               Layout::kChannelsLast, false, CHOIR_DTYPE_F32, device);
  relu.Run(&choir__cpu_conv2d, device.stream());
  EXPECT_EQ(choir__dnnl_cache_stats().built - before.built, 3u);
}

TEST_F(DnnlPlans, AreBounded) {
  Device device(1);
  const auto before = choir__dnnl_cache_stats();
  for (int i = 0; i < CHOIR__DNNL_PLANS + 20; ++i) {
    const std::string shapes = "1,1," + std::to_string(1 + i / 24) + "," +
                               std::to_string(1 + i % 24) + ";1,1,1,1;1";
    Problem problem(def(), {shapes.c_str(), nullptr}, Layout::kChannelsLast,
                    false, CHOIR_DTYPE_F32, device);
    problem.Run(&choir__cpu_conv2d, device.stream());
  }
  const auto after = choir__dnnl_cache_stats();
  EXPECT_EQ(after.kept, CHOIR__DNNL_PLANS);
  EXPECT_EQ(after.dropped - before.dropped, 20u);
  choir__dnnl_cache_clear();
  EXPECT_EQ(choir__dnnl_cache_stats().kept, 0);
}

TEST_F(DnnlPlans, ServeThreadsAtTheSameTime) {
  const choir_op_case_t op_case = {"8,3,12,12;8,3,3,3;8", "padding=1"};
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Device device(1);
      Problem problem(def(), op_case, Layout::kChannelsLast, false,
                      CHOIR_DTYPE_F32, device);
      const auto want = problem.Run(&choir__cpu_conv2d, device.stream());
      for (int i = 0; i < 200; ++i)
        wrong += problem.Run(&choir__cpu_conv2d, device.stream()) != want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(choir__dnnl_cache_stats().kept, kThreads);
}

// Of a problem for which Winograd's algorithm is tried first: what it is not
// given once is no reason to do without it for ever.
TEST_F(DnnlPlans, AFailureChoosesNoOtherAlgorithm) {
  Device device(1);
  Problem problem(def(), {"16,64,8,8;64,64,3,3;64", "padding=1,1"},
                  Layout::kChannelsLast, false, CHOIR_DTYPE_F32, device);
  const auto want = problem.Run(&choir__cpu_conv2d, device.stream());
  choir__dnnl_cache_clear();
  choir_record_t record = problem.record();
  record.kernel = &choir__cpu_conv2d.kernel;
  has_no_memory = true;
  EXPECT_STATUS(OUT_OF_MEMORY, "dnnl_primitive_attr_create failed",
                record.kernel->run(&record, device.stream()));
  EXPECT_TRUE(problem.Run(&choir__cpu_conv2d, device.stream()) == want);
}

TEST_F(DnnlPlans, CountTheirReorders) {
  Device device(1);
  Problem problem(def(), {"2,16,8,8;32,16,3,3;32", nullptr}, Layout::kDense,
                  false, CHOIR_DTYPE_F32, device);
  choir_op_stats_reset();
  problem.Run(&choir__cpu_conv2d, device.stream());
  // x and W at least: neither lies as the primitive wants it.
  EXPECT_GE(choir_op_stats().reorders, 2u);
  EXPECT_GE(choir_op_stats().reorder_bytes, 4u * (2 * 16 * 64 + 32 * 16 * 9));
}

}  // namespace
