// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/device.h"
#include "tests/core/cuda_testing.h"

// The pool of the GPU's memory (core/device/cuda/cuda_pool.c): figures, and
// that reuse is in the order of streams.

namespace {

using choir::testing::CudaTest;

class CudaPoolTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &third_));
    ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &fourth_));
    fake_.ClearLog();
  }
  void TearDown() override {
    choir_stream_release(third_);
    choir_stream_release(fourth_);
    CudaTest::TearDown();
  }
  enum { kFourth = 4 };
  // Work that notes when it ran. Three pieces, as a question about an event
  // lets the script's streams advance by one.
  void Note(choir_stream_t* stream, int number, char mark,
            std::vector<choir_buffer_t*> buffers) {
    Submit(
        stream, number, [] {}, buffers);
    Submit(
        stream, number, [] {}, buffers);
    Submit(
        stream, number, [this, mark] { order_ += mark; }, buffers);
  }
  // Waits between streams since the last question.
  int Waits() {
    int waits = 0;
    for (const std::string& line : fake_.TakeLog())
      waits += line.compare(0, 5, "wait ") == 0;
    return waits;
  }
  choir_pool_stats_t Figures() { return choir_device_memory(device_); }

  choir_stream_t* third_ = nullptr;
  choir_stream_t* fourth_ = nullptr;
  std::string order_;
};

TEST_F(CudaPoolTest, FiguresAreTheGpus) {
  EXPECT_EQ(Figures().in_use_bytes, 0u);
  choir_buffer_t* a = NewBuffer(1000);   // class of 1024
  choir_buffer_t* b = NewBuffer(40000);  // class of 40960
  EXPECT_EQ(reinterpret_cast<uintptr_t>(choir_buffer_data(a)) % 64, 0u);
  EXPECT_EQ(Figures().in_use_bytes, 1024u + 40960u);
  EXPECT_EQ(Figures().cached_bytes, 0u);
  EXPECT_EQ(fake_.live_bytes(), 1024u + 40960u);
  choir_buffer_release(b);
  EXPECT_EQ(Figures().in_use_bytes, 1024u);
  EXPECT_EQ(Figures().cached_bytes, 40960u);
  EXPECT_EQ(Figures().peak_bytes, 1024u + 40960u);
  EXPECT_EQ(Figures().base_allocations, 2u);
  // Only the same class is handed out again.
  choir_buffer_t* c = NewBuffer(50000);  // class of 57344
  choir_buffer_t* d = NewBuffer(40960);
  EXPECT_EQ(Figures().base_allocations, 3u);
  EXPECT_EQ(Figures().cached_bytes, 0u);
  choir_buffer_release(a);
  choir_buffer_release(c);
  choir_buffer_release(d);
  choir_device_trim(device_);
  EXPECT_EQ(Figures().cached_bytes, 0u);
  EXPECT_EQ(Figures().in_use_bytes, 0u);
  EXPECT_EQ(fake_.live_bytes(), 0u);
  EXPECT_EQ(Figures().peak_bytes, 1024u + 57344u + 40960u);
}

// ---- Order ----

TEST_F(CudaPoolTest, OnOneStreamReuseWaitsForNothing) {
  choir_buffer_t* a = NewBuffer(4096);
  void* data = choir_buffer_data(a);
  Note(stream_, kCompute, 'a', {a});
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(4096);
  EXPECT_EQ(choir_buffer_data(b), data);
  Note(stream_, kCompute, 'b', {b});
  EXPECT_EQ(Waits(), 0);
  ASSERT_OK(choir_stream_synchronize(stream_));
  EXPECT_EQ(order_, "ab");
  choir_buffer_release(b);
}

TEST_F(CudaPoolTest, OnAnotherStreamReuseComesAfterTheFormerUse) {
  choir_buffer_t* a = NewBuffer(4096);
  void* data = choir_buffer_data(a);
  Note(stream_, kCompute, 'a', {a});
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(4096);
  EXPECT_EQ(choir_buffer_data(b), data);
  fake_.ClearLog();
  Note(third_, kThird, 'b', {b});
  EXPECT_EQ(Waits(), 1);
  Note(third_, kThird, 'c', {b});
  EXPECT_EQ(Waits(), 0);  // once is enough
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "abc");
  choir_buffer_release(b);
}

// Streams that share a buffer are ordered by the program's events, not here.
TEST_F(CudaPoolTest, WithinOneLifeNothingIsOrdered) {
  choir_buffer_t* a = NewBuffer(4096);
  Note(stream_, kCompute, 'a', {a});
  Note(third_, kThird, 'b', {a});
  EXPECT_EQ(Waits(), 0);
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "b");
  ASSERT_OK(choir_stream_synchronize(stream_));
  choir_buffer_release(a);
}

TEST_F(CudaPoolTest, EveryFormerStreamAndEveryNewOneCounts) {
  choir_buffer_t* a = NewBuffer(4096);
  Note(stream_, kCompute, 'a', {a});
  Note(third_, kThird, 'b', {a});
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(4096);
  fake_.ClearLog();
  Note(fourth_, kFourth, 'c', {b});
  EXPECT_EQ(Waits(), 2);
  // Its own former work is before it anyway.
  Note(third_, kThird, 'd', {b});
  EXPECT_EQ(Waits(), 1);
  ASSERT_OK(choir_stream_synchronize(fourth_));
  EXPECT_EQ(order_, "abc");
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "abcd");
  choir_buffer_release(b);
}

TEST_F(CudaPoolTest, AnOwnerThatNeverUsedItHandsOrderOn) {
  choir_buffer_t* a = NewBuffer(4096);
  Note(stream_, kCompute, 'a', {a});
  choir_buffer_release(a);
  choir_buffer_release(NewBuffer(4096));
  choir_buffer_t* c = NewBuffer(4096);
  Note(third_, kThird, 'c', {c});
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "ac");
  choir_buffer_release(c);
}

TEST_F(CudaPoolTest, FinishedWorkIsNotWaitedFor) {
  choir_buffer_t* a = NewBuffer(4096);
  Note(stream_, kCompute, 'a', {a});
  ASSERT_OK(choir_stream_synchronize(stream_));
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(4096);
  fake_.ClearLog();
  Note(third_, kThird, 'b', {b});
  EXPECT_EQ(fake_.TakeLog(), std::vector<std::string>{});
  // A read waited for the stream too.
  char byte;
  Note(stream_, kCompute, 'c', {b});
  ASSERT_OK(choir_stream_synchronize(third_));
  ASSERT_OK(choir_buffer_read(b, stream_, 0, &byte, 1));
  choir_buffer_release(b);
  b = NewBuffer(4096);
  fake_.ClearLog();
  Note(fourth_, kFourth, 'd', {b});
  EXPECT_EQ(fake_.TakeLog(), std::vector<std::string>{});
  choir_buffer_release(b);
}

// The next stream in a released one's place is another stream.
TEST_F(CudaPoolTest, ReleasedStreamsAreForgotten) {
  choir_buffer_t* a = NewBuffer(4096);
  Note(stream_, kCompute, 'a', {a});
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(4096);
  Note(third_, kThird, 'b', {b});  // waits for compute, and so did its place
  choir_stream_release(third_);
  EXPECT_EQ(order_, "ab");
  Note(stream_, kCompute, 'c', {b});
  choir_buffer_release(b);
  choir_buffer_t* c = NewBuffer(4096);
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &third_));
  Note(third_, 5, 'd', {c});
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "abcd");
  choir_buffer_release(c);
}

TEST_F(CudaPoolTest, WrappedPartsOfBlocksCount) {
  choir_buffer_t* owner = NewBuffer(4096);
  choir_buffer_t* part = nullptr;
  ASSERT_OK(choir_buffer_wrap(
      device_, static_cast<char*>(choir_buffer_data(owner)) + 1024, 512,
      [](void* context, void*) {
        choir_buffer_release(static_cast<choir_buffer_t*>(context));
      },
      owner, &part));
  Note(stream_, kCompute, 'a', {part});
  choir_buffer_release(part);  // and so the owner
  choir_buffer_t* b = NewBuffer(4096);
  Note(third_, kThird, 'b', {b});
  ASSERT_OK(choir_stream_synchronize(third_));
  EXPECT_EQ(order_, "ab");
  choir_buffer_release(b);
}

TEST_F(CudaPoolTest, ForeignMemoryIsDoneWithWhenSubmitReturns) {
  std::vector<char> memory(64);
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_wrap(device_, memory.data(), memory.size(), nullptr,
                              nullptr, &buffer));
  Note(stream_, kCompute, 'a', {buffer});
  EXPECT_EQ(order_, "a");
  choir_buffer_release(buffer);
}

// ---- The end of memory ----

TEST_F(CudaPoolTest, CachedBlocksGoBackBeforeMemoryIsOut) {
  fake_.set_bytes(1 << 20);
  choir_buffer_t* a = NewBuffer(512 << 10);
  choir_buffer_t* b = NewBuffer(256 << 10);
  Note(stream_, kCompute, 'a', {a});
  choir_buffer_release(a);
  // The work on it is waited for first: the script would complain.
  choir_buffer_t* c = NewBuffer(768 << 10);
  EXPECT_EQ(order_, "a");
  EXPECT_EQ(Figures().in_use_bytes, size_t{1024} << 10);
  EXPECT_EQ(Figures().cached_bytes, 0u);
  choir_buffer_release(b);
  choir_buffer_release(c);
}

TEST_F(CudaPoolTest, WithoutMemoryTheFiguresAreTold) {
  fake_.set_bytes(1 << 20);
  choir_buffer_t* a = NewBuffer(512 << 10);
  choir_buffer_release(NewBuffer(4096));
  choir_buffer_t* b = nullptr;
  EXPECT_STATUS(OUT_OF_MEMORY,
                "cuda:0: 900000 bytes asked for; 524288 are in use and 4096 "
                "were cached and given back, and the GPU has 524288 left of "
                "1048576",
                choir_buffer_create(device_, 900000, &b));
  EXPECT_EQ(b, nullptr);
  EXPECT_EQ(Figures().in_use_bytes, 524288u);
  EXPECT_EQ(Figures().base_allocations, 2u);
  EXPECT_STATUS(OUT_OF_MEMORY, "bytes asked for",
                choir_buffer_create(device_, SIZE_MAX / 2, &b));
  fake_.FailNext("cuMemAlloc", 700);
  EXPECT_STATUS(INTERNAL, "cuda:0: cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS",
                choir_buffer_create(device_, 64, &b));
  ASSERT_OK(choir_buffer_create(device_, 64, &b));
  choir_buffer_release(b);
  choir_buffer_release(a);
}

TEST_F(CudaPoolTest, ManyBlocksAreFoundAgain) {
  std::vector<choir_buffer_t*> buffers;
  for (int i = 0; i < 300; ++i)
    buffers.push_back(NewBuffer(static_cast<size_t>(64 + 977 * i)));
  EXPECT_EQ(Figures().base_allocations, 300u);
  for (size_t i = 0; i < buffers.size(); i += 2) {
    choir_buffer_release(buffers[i]);
    buffers[i] = nullptr;
  }
  choir_device_trim(device_);
  const uint64_t half = Figures().in_use_bytes;
  EXPECT_EQ(fake_.live_bytes(), half);
  for (choir_buffer_t* buffer : buffers) choir_buffer_release(buffer);
  EXPECT_EQ(Figures().in_use_bytes, 0u);
  EXPECT_EQ(Figures().cached_bytes, half);
}

}  // namespace
