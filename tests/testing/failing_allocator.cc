// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/failing_allocator.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace choir {
namespace testing {

FailingAllocator::~FailingAllocator() {
  EXPECT_EQ(blocks_.size(), 0u) << "blocks that were never given back";
  choir_allocator_t system = choir_allocator_system();
  for (const auto& block : blocks_) {
    system.free(system.self, block.first, block.second.bytes,
                block.second.alignment);
  }
}

choir_allocator_t FailingAllocator::get() {
  return choir_allocator_t{this, Alloc, Free};
}

void FailingAllocator::FailAt(int64_t nth, bool for_good) {
  std::lock_guard<std::mutex> guard(lock_);
  left_ = nth;
  for_good_ = for_good;
  failed_ = false;
}

void FailingAllocator::FailLarge(size_t bytes) {
  std::lock_guard<std::mutex> guard(lock_);
  large_ = bytes;
}

bool FailingAllocator::failed() const {
  std::lock_guard<std::mutex> guard(lock_);
  return failed_;
}

uint64_t FailingAllocator::allocations() const {
  std::lock_guard<std::mutex> guard(lock_);
  return allocations_;
}

size_t FailingAllocator::live_blocks() const {
  std::lock_guard<std::mutex> guard(lock_);
  return blocks_.size();
}

void* FailingAllocator::Alloc(void* self, size_t bytes, size_t alignment) {
  FailingAllocator* allocator = static_cast<FailingAllocator*>(self);
  std::lock_guard<std::mutex> guard(allocator->lock_);
  EXPECT_GT(bytes, 0u);
  EXPECT_GT(alignment, 0u);
  EXPECT_EQ(alignment & (alignment - 1), 0u) << "not a power of two";
  if (allocator->left_ == 0) {
    allocator->failed_ = true;
    if (!allocator->for_good_) allocator->left_ = -1;
    return nullptr;
  }
  if (bytes >= allocator->large_) {
    allocator->failed_ = true;
    return nullptr;
  }
  if (allocator->left_ > 0) --allocator->left_;
  choir_allocator_t system = choir_allocator_system();
  void* memory = system.alloc(system.self, bytes, alignment);
  if (!memory) return nullptr;
  ++allocator->allocations_;
  allocator->blocks_[memory] = Block{bytes, alignment};
  return memory;
}

void FailingAllocator::Free(void* self, void* memory, size_t bytes,
                            size_t alignment) {
  FailingAllocator* allocator = static_cast<FailingAllocator*>(self);
  std::lock_guard<std::mutex> guard(allocator->lock_);
  auto block = allocator->blocks_.find(memory);
  if (block == allocator->blocks_.end()) {
    ADD_FAILURE() << "a block came back that is not out";
    return;
  }
  EXPECT_EQ(block->second.bytes, bytes);
  EXPECT_EQ(block->second.alignment, alignment);
  allocator->blocks_.erase(block);
  choir_allocator_t system = choir_allocator_system();
  system.free(system.self, memory, bytes, alignment);
}

int64_t FailEveryAllocation(
    const std::function<choir_status_t(choir_allocator_t)>& attempt) {
  for (int for_good = 0; for_good < 2; ++for_good) {
    for (int64_t nth = 0; nth < 10000; ++nth) {
      FailingAllocator allocator;
      allocator.FailAt(nth, for_good == 1);
      choir_status_t status = attempt(allocator.get());
      bool failed = allocator.failed();
      if (status) {
        EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY)
            << choir_status_message(status);
        EXPECT_TRUE(failed)
            << "out of memory without cause: " << choir_status_message(status);
      }
      choir_status_free(status);
      EXPECT_EQ(allocator.live_blocks(), 0u)
          << "after failing allocation " << nth;
      if (::testing::Test::HasFailure()) return nth;
      if (!failed) {
        if (for_good == 1) return nth;
        break;
      }
    }
  }
  ADD_FAILURE() << "still allocating after 10000 failures";
  return 10000;
}

int64_t FailEveryAllocationOnCpu(
    const std::function<choir_status_t(choir_device_t*)>& attempt) {
  return FailEveryAllocation([&](choir_allocator_t allocator) {
    choir_device_options_t options = {};
    options.allocator = allocator;
    options.threads = 1;
    choir_device_t* device = nullptr;
    choir_status_t status = choir_device_create("cpu", &options, &device);
    if (!status) status = attempt(device);
    choir_device_release(device);
    return status;
  });
}

}  // namespace testing
}  // namespace choir
