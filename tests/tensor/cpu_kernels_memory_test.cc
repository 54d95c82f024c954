// SPDX-License-Identifier: Apache-2.0
// A kernel that runs again asks the C library for no memory.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "tests/tensor/kernel_cases.h"
#include "tests/tensor/kernel_problem.h"

// ---- Counting allocations ----
//
// Blocks that Choir's own code asks the C library for. oneDNN makes a small
// C++ map for each call that it runs and packs operands of sgemm; those come
// from libstdc++ and libdnnl and are not ours to avoid.

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_calloc(size_t count, size_t bytes);
extern "C" void* __libc_memalign(size_t alignment, size_t bytes);

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> own_allocations{0};
thread_local bool inside = false;

[[maybe_unused]] void CountFor(void* caller) {
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  Dl_info info;
  if (dladdr(caller, &info) == 0 || !info.dli_fname ||
      (!strstr(info.dli_fname, "libstdc++") &&
       !strstr(info.dli_fname, "libdnnl")))
    own_allocations.fetch_add(1);
  inside = false;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHOIR_TEST_COUNTS 0
#else
#define CHOIR_TEST_COUNTS 1
extern "C" {
void* malloc(size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  CountFor(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  CountFor(__builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}
}
#endif

namespace {

using choir::testing::AllKernels;
using choir::testing::Cases;
using choir::testing::Device;
using choir::testing::Layout;
using choir::testing::Problem;

TEST(CpuKernelsMemory, SteadyLoopsAllocateNothing) {
  if (!CHOIR_TEST_COUNTS) GTEST_SKIP() << "a sanitizer owns malloc here";
  Device device(1);
  for (const choir_op_kernel_t* kernel : AllKernels()) {
    const choir_op_def_t* def = choir__op_def(kernel->op);
    for (const choir_op_case_t& c : Cases(def)) {
      Problem problem(def, c, Layout::kChannelsLast, false, CHOIR_DTYPE_F32,
                      device);
      if (!problem.valid() || problem.empty() ||
          !kernel->supports(&problem.record()))
        continue;
      problem.Run(kernel, device.stream());
      choir_record_t record = problem.record();
      record.kernel = &kernel->kernel;
      own_allocations = 0;
      counting = true;
      choir_status_t status = kernel->kernel.run(&record, device.stream());
      counting = false;
      EXPECT_OK(status);
      EXPECT_EQ(own_allocations, 0u) << problem.Describe();
    }
  }
}

}  // namespace
