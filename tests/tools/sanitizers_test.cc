// SPDX-License-Identifier: Apache-2.0
// The sanitizer configurations find what they are for: one planted fault of
// each kind, in a process of its own. Run by .ci/run beside the other tests.

#include <pthread.h>

#include <climits>
#include <cstdlib>

#include "gtest/gtest.h"

namespace {

// Read by the compiler as unknown.
volatile int one = 1;
[[maybe_unused]] void* volatile kept;

#if defined(__SANITIZE_ADDRESS__)

TEST(SanitizersDeathTest, ReadPastTheEnd) {
  EXPECT_DEATH(
      {
        kept = std::malloc(8);
        std::exit(static_cast<char*>(kept)[7 + one]);
      },
      "heap-buffer-overflow");
}

TEST(SanitizersDeathTest, UseAfterFree) {
  EXPECT_DEATH(
      {
        kept = std::malloc(8);
        std::free(kept);
        std::exit(static_cast<char*>(kept)[one]);
      },
      "heap-use-after-free");
}

TEST(SanitizersDeathTest, SignedOverflow) {
  EXPECT_DEATH(std::exit((INT_MAX + one) & 1), "signed integer overflow");
}

TEST(SanitizersDeathTest, Leak) {
  // The status of a process that went well is changed at its end.
  EXPECT_EXIT(
      {
        kept = std::malloc(77);
        kept = nullptr;
        std::exit(0);
      },
      testing::ExitedWithCode(1), "77 byte\\(s\\) leaked");
}

#elif defined(__SANITIZE_THREAD__)

int shared;

void* add(void*) {
  shared += one;
  return nullptr;
}

TEST(SanitizersDeathTest, Race) {
  // 66: ThreadSanitizer's own status.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        pthread_t threads[2];
        for (auto& thread : threads) {
          pthread_create(&thread, nullptr, add, nullptr);
        }
        for (auto& thread : threads) pthread_join(thread, nullptr);
        std::exit(0);
      },
      testing::ExitedWithCode(66), "data race");
}

#else

TEST(SanitizersDeathTest, NeedsASanitizer) {
  FAIL() << "build with --config=asan or --config=tsan, one is " << one;
}

#endif

}  // namespace
