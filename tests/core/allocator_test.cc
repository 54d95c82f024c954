// SPDX-License-Identifier: Apache-2.0
#include "core/allocator.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/allocator_internal.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FailingAllocator;

bool IsAligned(const void* memory, size_t alignment) {
  return reinterpret_cast<uintptr_t>(memory) % alignment == 0;
}

TEST(MemoryTest, AvailableIsNotMoreThanTheLimits) {
  EXPECT_GT(choir_memory_available(), 0u);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 1 << 30;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_LT(choir_memory_available(), uint64_t{1} << 30);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
}

TEST(AllocatorTest, SystemServesAnyAlignment) {
  choir_allocator_t system = choir_allocator_system();
  for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
    void* memory = system.alloc(system.self, 100, alignment);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(IsAligned(memory, alignment));
    system.free(system.self, memory, 100, alignment);
  }
}

TEST(AllocatorTest, DefaultStaysOnceTaken) {
  EXPECT_STATUS(INVALID_ARGUMENT, "alloc is NULL",
                choir_allocator_set_default({nullptr, nullptr, nullptr}));
  choir_allocator_t system = choir_allocator_system();
  ASSERT_OK(choir_allocator_set_default(system));
  EXPECT_EQ(choir_allocator_default().alloc, system.alloc);
  EXPECT_STATUS(FAILED_PRECONDITION, "in use",
                choir_allocator_set_default(system));
}

TEST(AllocatorTest, AllocateClearsAndNamesTheThing) {
  FailingAllocator allocator;
  void* memory = nullptr;
  ASSERT_OK(choir_allocate(allocator.get(), 100, "thing", &memory));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(static_cast<char*>(memory)[i], 0);
  choir_deallocate(allocator.get(), memory, 100);
  ASSERT_OK(choir_allocate(allocator.get(), 0, "nothing", &memory));
  EXPECT_NE(memory, nullptr);
  choir_deallocate(allocator.get(), memory, 0);
  choir_deallocate(allocator.get(), nullptr, 10);

  allocator.FailAt(0);
  EXPECT_STATUS(OUT_OF_MEMORY, "thing: 100 bytes",
                choir_allocate(allocator.get(), 100, "thing", &memory));
  EXPECT_EQ(memory, nullptr);
}

TEST(AllocatorTest, SizeClassesAreFourToAPowerOfTwo) {
  EXPECT_EQ(choir__pool_class_bytes(1), 64u);
  EXPECT_EQ(choir__pool_class_bytes(64), 64u);
  EXPECT_EQ(choir__pool_class_bytes(65), 80u);
  EXPECT_EQ(choir__pool_class_bytes(81), 96u);
  EXPECT_EQ(choir__pool_class_bytes(112), 112u);
  EXPECT_EQ(choir__pool_class_bytes(113), 128u);
  EXPECT_EQ(choir__pool_class_bytes(129), 160u);
  size_t before = 0;
  for (size_t bytes = 65; bytes < (1u << 22); bytes += 1 + bytes / 97) {
    size_t given = choir__pool_class_bytes(bytes);
    EXPECT_GE(given, bytes);
    EXPECT_LE(given, bytes + bytes / 4);
    EXPECT_GE(given, before);
    EXPECT_EQ(choir__pool_class_bytes(given), given);
    before = given;
  }
  EXPECT_EQ(choir__pool_class_bytes(size_t{1} << 47), size_t{1} << 47);
  EXPECT_EQ(choir__pool_class_bytes((size_t{1} << 47) + 1), SIZE_MAX);
  EXPECT_EQ(choir__pool_class_bytes(SIZE_MAX), SIZE_MAX);
}

class PoolTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(choir_pool_create(base_.get(), &pool_)); }
  void TearDown() override { choir_pool_destroy(pool_); }
  void* Alloc(size_t bytes, size_t alignment = 16) {
    choir_allocator_t allocator = choir_pool_allocator(pool_);
    return allocator.alloc(allocator.self, bytes, alignment);
  }
  void Free(void* memory, size_t bytes, size_t alignment = 16) {
    choir_allocator_t allocator = choir_pool_allocator(pool_);
    allocator.free(allocator.self, memory, bytes, alignment);
  }

  FailingAllocator base_;
  choir_pool_t* pool_ = nullptr;
};

TEST_F(PoolTest, HandsBlocksOutAgain) {
  void* first = Alloc(1000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(choir_pool_stats(pool_).in_use_bytes, 1024u);
  Free(first, 1000);
  EXPECT_EQ(choir_pool_stats(pool_).in_use_bytes, 0u);
  EXPECT_EQ(choir_pool_stats(pool_).cached_bytes, 1024u);
  EXPECT_EQ(Alloc(1024), first);  // the same class
  void* other = Alloc(1024);
  EXPECT_NE(other, first);
  choir_pool_stats_t stats = choir_pool_stats(pool_);
  EXPECT_EQ(stats.base_allocations, 2u);
  EXPECT_EQ(stats.peak_bytes, 2048u);
  Free(first, 1024);
  Free(other, 1024);
  Free(nullptr, 1);
}

TEST_F(PoolTest, BlocksAreAlignedAndApart) {
  for (size_t alignment = 1; alignment <= 8192; alignment *= 2) {
    std::vector<char*> blocks;
    for (int round = 0; round < 3; ++round) {
      for (size_t bytes : {1u, 63u, 64u, 65u, 4095u, 5000u}) {
        char* block = static_cast<char*>(Alloc(bytes, alignment));
        ASSERT_NE(block, nullptr);
        EXPECT_TRUE(IsAligned(block, alignment < 64 ? 64 : alignment));
        std::memset(block, static_cast<int>(blocks.size()), bytes);
        blocks.push_back(block);
      }
    }
    size_t at = 0;
    for (int round = 0; round < 3; ++round) {
      for (size_t bytes : {1u, 63u, 64u, 65u, 4095u, 5000u}) {
        for (size_t i = 0; i < bytes; ++i)
          ASSERT_EQ(blocks[at][i], static_cast<char>(at));
        Free(blocks[at++], bytes, alignment);
      }
    }
  }
  EXPECT_EQ(choir_pool_stats(pool_).in_use_bytes, 0u);
}

TEST_F(PoolTest, TrimGivesTheCacheBack) {
  size_t own = base_.live_blocks();
  void* kept = Alloc(100);
  void* freed = Alloc(5000);
  Free(freed, 5000);
  EXPECT_EQ(base_.live_blocks(), own + 2);
  choir_pool_trim(pool_);
  EXPECT_EQ(base_.live_blocks(), own + 1);
  EXPECT_EQ(choir_pool_stats(pool_).cached_bytes, 0u);
  Free(kept, 100);
}

TEST_F(PoolTest, TrimsBeforeItGivesUp) {
  void* cached = Alloc(5000);
  Free(cached, 5000);
  base_.FailAt(0);  // once: the attempt after the trim works
  void* memory = Alloc(100);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(choir_pool_stats(pool_).cached_bytes, 0u);
  base_.FailAt(0, /*for_good=*/true);
  EXPECT_EQ(Alloc(100), nullptr);
  base_.FailAt(-1);
  EXPECT_EQ(choir_pool_stats(pool_).in_use_bytes, 112u);
  Free(memory, 100);
  EXPECT_EQ(Alloc(SIZE_MAX), nullptr);
  EXPECT_EQ(Alloc(SIZE_MAX - 100, 4096), nullptr);
}

TEST_F(PoolTest, SteadyLoopAsksTheBaseForNothing) {
  std::mt19937 random(1);
  std::vector<size_t> sizes;
  for (int i = 0; i < 200; ++i) sizes.push_back(1 + random() % 100000);
  uint64_t after_warm_up = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<void*> blocks;
    for (size_t bytes : sizes) blocks.push_back(Alloc(bytes, 64));
    for (size_t i = 0; i < sizes.size(); ++i) Free(blocks[i], sizes[i], 64);
    if (round == 0) after_warm_up = base_.allocations();
  }
  EXPECT_EQ(base_.allocations(), after_warm_up);
}

TEST_F(PoolTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      std::mt19937 random(seed);
      std::vector<std::pair<unsigned char*, size_t>> held;
      for (int i = 0; i < 3000; ++i) {
        if (held.size() < 20 && random() % 2) {
          size_t bytes = 1 + random() % 3000;
          auto* block = static_cast<unsigned char*>(Alloc(bytes));
          ASSERT_NE(block, nullptr);
          block[0] = block[bytes - 1] = static_cast<unsigned char>(seed);
          held.push_back({block, bytes});
        } else if (!held.empty()) {
          size_t at = random() % held.size();
          ASSERT_EQ(held[at].first[0], seed);
          ASSERT_EQ(held[at].first[held[at].second - 1], seed);
          Free(held[at].first, held[at].second);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        }
        if (i % 1000 == 0) choir_pool_trim(pool_);
      }
      for (auto& block : held) Free(block.first, block.second);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(choir_pool_stats(pool_).in_use_bytes, 0u);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(PoolTest, StalePointersAreCaught) {
  auto* block = static_cast<volatile char*>(Alloc(1000));
  EXPECT_DEATH(block[1001] = 1, "use-after-poison");
  Free(const_cast<char*>(block), 1000);
  EXPECT_DEATH(block[500] = 1, "use-after-poison");
}
#endif

TEST(ArenaTest, BlocksAreAlignedAndApart) {
  FailingAllocator base;
  choir_arena_t* arena = nullptr;
  ASSERT_OK(choir_arena_create(base.get(), 1000, &arena));
  std::vector<char*> blocks;
  for (size_t i = 0; i < 200; ++i) {
    size_t bytes = i * 7 % 301;
    char* block = static_cast<char*>(choir_arena_alloc(arena, bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(IsAligned(block, 16));
    std::memset(block, static_cast<int>(i), bytes);
    blocks.push_back(block);
  }
  for (size_t i = 0; i < 200; ++i)
    for (size_t k = 0; k < i * 7 % 301; ++k)
      ASSERT_EQ(blocks[i][k], static_cast<char>(i));
  choir_arena_destroy(arena);
  choir_arena_destroy(nullptr);
}

TEST(ArenaTest, ResetKeepsTheChunks) {
  FailingAllocator base;
  choir_arena_t* arena = nullptr;
  ASSERT_OK(choir_arena_create(base.get(), 512, &arena));
  choir_arena_reset(arena);
  uint64_t after_warm_up = 0;
  void* first = nullptr;
  for (int round = 0; round < 4; ++round) {
    for (size_t bytes : {100u, 400u, 5000u, 16u, 0u, 600u}) {
      void* block = choir_arena_alloc(arena, bytes);
      ASSERT_NE(block, nullptr);
      if (round == 0 && bytes == 100u) first = block;
      if (bytes == 100u) {
        EXPECT_EQ(block, first);
      }
    }
    if (round == 0) after_warm_up = base.allocations();
    choir_arena_reset(arena);
  }
  EXPECT_EQ(base.allocations(), after_warm_up);
  choir_arena_destroy(arena);
}

TEST(ArenaTest, NoMemoryIsNull) {
  FailingAllocator base;
  choir_arena_t* arena = nullptr;
  ASSERT_OK(choir_arena_create(base.get(), 512, &arena));
  base.FailAt(0);
  EXPECT_EQ(choir_arena_alloc(arena, 100), nullptr);
  EXPECT_NE(choir_arena_alloc(arena, 100), nullptr);
  EXPECT_EQ(choir_arena_alloc(arena, SIZE_MAX), nullptr);
  choir_arena_destroy(arena);
}

TEST(AllocatorTest, EveryFailureIsReportedAndLeaksNothing) {
  int64_t failures = FailEveryAllocation([](choir_allocator_t base) {
    choir_pool_t* pool = nullptr;
    CHOIR_TRY(choir_pool_create(base, &pool));
    choir_arena_t* arena = nullptr;
    choir_status_t status =
        choir_arena_create(choir_pool_allocator(pool), 512, &arena);
    if (!status &&
        (!choir_arena_alloc(arena, 10) || !choir_arena_alloc(arena, 1000)))
      status = CHOIR_ERROR(OUT_OF_MEMORY, "arena");
    choir_arena_destroy(arena);
    choir_pool_destroy(pool);
    return status;
  });
  EXPECT_GE(failures, 3);
}

}  // namespace
