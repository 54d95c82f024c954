// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_FAILING_ALLOCATOR_H_
#define CHOIR_TESTS_TESTING_FAILING_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "core/allocator.h"
#include "core/device.h"

namespace choir {
namespace testing {

// An allocator over the C library's that counts, checks that each block comes
// back once with the size and alignment it was asked for, and can fail at a
// chosen allocation. Blocks that are still out at the end fail the test.
//
// Threads: thread-safe.
class FailingAllocator {
 public:
  FailingAllocator() = default;
  ~FailingAllocator();
  FailingAllocator(const FailingAllocator&) = delete;
  FailingAllocator& operator=(const FailingAllocator&) = delete;

  choir_allocator_t get();

  // The `nth` allocation from now on fails (0: the next), and with `for_good`
  // all after it. A negative number: none does.
  void FailAt(int64_t nth, bool for_good = false);
  // Every allocation of at least so many bytes fails from now on.
  void FailLarge(size_t bytes);
  // Whether the chosen allocation came.
  bool failed() const;
  // Blocks ever handed out, and those that are out now.
  uint64_t allocations() const;
  size_t live_blocks() const;

 private:
  struct Block {
    size_t bytes;
    size_t alignment;
  };
  static void* Alloc(void* self, size_t bytes, size_t alignment);
  static void Free(void* self, void* memory, size_t bytes, size_t alignment);

  mutable std::mutex lock_;
  std::map<void*, Block> blocks_;
  uint64_t allocations_ = 0;
  size_t large_ = SIZE_MAX;
  int64_t left_ = -1;
  bool for_good_ = false;
  bool failed_ = false;
};

// Runs `attempt` again and again, each time with a later allocation failing,
// until one run asks for too few to be failed. Each run must return a status
// that is OUT_OF_MEMORY (or OK, if it could do without), and leave no block
// behind. Returns how many allocations were failed.
int64_t FailEveryAllocation(
    const std::function<choir_status_t(choir_allocator_t)>& attempt);
// The same of a `cpu` device of one thread with this allocator, made and
// released in each run.
int64_t FailEveryAllocationOnCpu(
    const std::function<choir_status_t(choir_device_t*)>& attempt);

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_FAILING_ALLOCATOR_H_
