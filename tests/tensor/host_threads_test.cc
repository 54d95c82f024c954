// SPDX-License-Identifier: Apache-2.0
// The OpenMP threads of the program that calls Choir are its own: how many it
// has asked for is the same after every kernel, and those that wait for its
// next parallel region go on waiting.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "tensor/kernels/cpu/cpu_amx.h"
#include "tests/tensor/kernel_cases.h"
#include "tests/tensor/kernel_problem.h"
#include "tests/testing/failing_allocator.h"

#if defined(_OPENMP)
#include <omp.h>

namespace {
std::atomic<int> threads_started{0};
}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr,
                              void* (*start)(void*), void* context) {
  using Create =
      int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create next =
      reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  threads_started.fetch_add(1);
  return next(thread, attr, start, context);
}

namespace {

using choir::testing::AllKernels;
using choir::testing::Cases;
using choir::testing::Device;
using choir::testing::FailingAllocator;
using choir::testing::kLayouts;
using choir::testing::Layout;
using choir::testing::Problem;
using choir::testing::Wide;

// A parallel region of the host; the sum keeps it.
int HostRegion() {
  int sum = 0;
#pragma omp parallel reduction(+ : sum)
  sum += omp_get_thread_num() + 1;
  return sum;
}

class HostThreads : public testing::Test {
 protected:
  void SetUp() override { omp_set_num_threads(4); }
};

TEST_F(HostThreads, AreAsManyAfterEveryKernel) {
  for (int threads : {1, 2}) {
    Device device(threads);
    for (const choir_op_kernel_t* kernel : AllKernels()) {
      const choir_op_def_t* def = choir__op_def(kernel->op);
      // Many of oneDNN's, as it has many ways; some of each other kernel's.
      const size_t most = strcmp(kernel->algorithm, "dnnl") == 0 ? 1000 : 4;
      size_t index = 0, ran = 0;
      for (const choir_op_case_t& c : Cases(def)) {
        const Layout layout = kLayouts[index++ % 4];
        // Some kernels are of 16 bits alone.
        for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16}) {
          Problem problem(def, c, layout, false, dtype, device, Wide::kSources);
          if (!problem.valid() || problem.empty() ||
              !kernel->supports(&problem.record()))
            continue;
          problem.Run(kernel, device.stream());
          ASSERT_EQ(omp_get_max_threads(), 4)
              << problem.Describe() << " on " << threads << " threads";
          ++ran;
          break;
        }
        if (ran == most) break;
      }
      // Of 16 bits, where the processor multiplies them.
      const bool is_narrow = strcmp(kernel->algorithm, "amx") == 0 ||
                             kernel == &choir__cpu_conv2d_max_pool2d_dnnl;
      if (!is_narrow || choir__has_amx()) {
        EXPECT_GT(ran, 0u) << kernel->kernel.name;
      }
    }
  }
  EXPECT_EQ(omp_get_max_threads(), 4);
}

TEST_F(HostThreads, AreAsManyAfterACallThatFailed) {
  for (int threads : {1, 2}) {
    FailingAllocator allocator;
    Device device(threads, allocator.get());
    // Dense images are reordered to scratch memory.
    Problem problem(choir__op_def(CHOIR_OP_CONV2D),
                    {"2,32,64,64;32,32,3,3;32", nullptr}, Layout::kDense, false,
                    CHOIR_DTYPE_F32, device);
    ASSERT_TRUE(problem.valid());
    choir_record_t record = problem.record();
    record.kernel = &choir__cpu_conv2d.kernel;
    allocator.FailLarge(1 << 16);
    choir_status_t status = record.kernel->run(&record, device.stream());
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY);
    choir_status_free(status);
    EXPECT_EQ(omp_get_max_threads(), 4);
  }
}

// A kernel on one thread opens no region, one on as many as the host has takes
// the host's: neither ends threads that the host's next region has to start
// again.
TEST_F(HostThreads, AreNotStartedAnewForEachRegion) {
  for (int threads : {1, 4}) {
    Device device(threads);
    std::vector<std::unique_ptr<Problem>> problems;
    const auto add = [&](choir_op_t op, choir_op_case_t c) {
      problems.push_back(std::make_unique<Problem>(choir__op_def(op), c,
                                                   Layout::kDense, false,
                                                   CHOIR_DTYPE_F32, device));
    };
    add(CHOIR_OP_MATMUL, {"400,300;300,500", nullptr});
    add(CHOIR_OP_MATMUL, {"128,800;800,2048", nullptr});
    add(CHOIR_OP_CONV2D, {"8,32,32,32;32,32,3,3;32", "padding=1"});
    const auto round = [&] {
      for (const auto& problem : problems) {
        problem->Run(problem->record().src_count == 2 ? &choir__cpu_matmul
                                                      : &choir__cpu_conv2d,
                     device.stream());
        EXPECT_EQ(HostRegion(), 1 + 2 + 3 + 4);
      }
    };
    round();
    const int before = threads_started;
    for (int i = 0; i < 10; ++i) round();
    EXPECT_EQ(threads_started - before, 0) << "on " << threads << " threads";
  }
}

}  // namespace

#else
TEST(HostThreads, NeedOpenMP) { GTEST_SKIP() << "built without OpenMP"; }
#endif
