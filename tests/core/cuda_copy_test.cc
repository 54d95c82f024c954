// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/device.h"
#include "tests/core/cuda_testing.h"

// Copies between the host and the GPU (core/device/cuda/cuda_copy.c).

namespace {

using choir::testing::CudaTest;

class CudaCopyTest : public CudaTest {
 protected:
  // The log with events named a, b, c, ... in order of appearance.
  std::vector<std::string> Log() {
    std::vector<std::string> lines = fake_.TakeLog();
    std::vector<std::string> names;
    for (std::string& line : lines) {
      const size_t start = line.find("event");
      if (start == std::string::npos) continue;
      const size_t stop = line.find_first_not_of("0123456789", start + 5);
      const std::string name = line.substr(start, stop - start);
      size_t i = 0;
      while (i < names.size() && names[i] != name) ++i;
      if (i == names.size()) names.push_back(name);
      line.replace(start, name.size(), std::string(1, char('a' + i)));
    }
    return lines;
  }
};

std::vector<char> Pattern(size_t bytes) {
  std::vector<char> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i)
    pattern[i] = static_cast<char>(i * 7 + i / 4093);
  return pattern;
}

using Lines = std::vector<std::string>;

TEST_F(CudaCopyTest, AWriteFollowsItsStreamOnTheCopyStream) {
  choir_buffer_t* buffer = NewBuffer(64);
  const std::vector<char> bytes = Pattern(64);
  ASSERT_OK(choir_buffer_write(buffer, stream_, 0, bytes.data(), 64));
  EXPECT_EQ(Log(), (Lines{"record a stream2", "wait stream1 a", "synchronize b",
                          "to_device 64 stream1", "record b stream1",
                          "synchronize b"}));
  choir_buffer_release(buffer);
}

TEST_F(CudaCopyTest, AReadFollowsItsStreamOnTheCopyStream) {
  choir_buffer_t* buffer = NewBuffer(64);
  char bytes[64];
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, bytes, 64));
  EXPECT_EQ(Log(),
            (Lines{"record a stream2", "wait stream1 a", "to_host 64 stream1",
                   "record b stream1", "synchronize b"}));
  choir_buffer_release(buffer);
}

// While one piece is on its way, the host has the other.
TEST_F(CudaCopyTest, LargeCopiesGoInTwoPiecesAtATime) {
  const size_t bytes = (10 << 20) + 5;
  choir_buffer_t* buffer = NewBuffer(bytes);
  const std::vector<char> given = Pattern(bytes);
  ASSERT_OK(choir_buffer_write(buffer, stream_, 0, given.data(), bytes));
  EXPECT_EQ(Log(), (Lines{"record a stream2", "wait stream1 a", "synchronize b",
                          "to_device 4194304 stream1", "record b stream1",
                          "synchronize c", "to_device 4194304 stream1",
                          "record c stream1", "synchronize b",
                          "to_device 2097157 stream1", "record b stream1",
                          "synchronize b"}));
  std::vector<char> back(bytes);
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
  EXPECT_EQ(
      Log(),
      (Lines{"record a stream2", "wait stream1 a", "to_host 4194304 stream1",
             "record b stream1", "to_host 4194304 stream1", "record c stream1",
             "synchronize b", "to_host 2097157 stream1", "record b stream1",
             "synchronize c", "synchronize b"}));
  EXPECT_TRUE(back == given);
  choir_buffer_release(buffer);
}

TEST_F(CudaCopyTest, EverySizeAroundThePiecesArrives) {
  const size_t piece = 4 << 20;
  for (size_t bytes : {size_t{1}, piece - 1, piece, piece + 1, 2 * piece - 1,
                       2 * piece, 2 * piece + 1, 3 * piece, 5 * piece - 3}) {
    choir_buffer_t* buffer = NewBuffer(bytes);
    const std::vector<char> given = Pattern(bytes);
    std::vector<char> back(bytes);
    ASSERT_OK(choir_buffer_write(buffer, stream_, 0, given.data(), bytes));
    ASSERT_OK(choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
    EXPECT_TRUE(back == given) << bytes;
    choir_buffer_release(buffer);
  }
}

TEST_F(CudaCopyTest, CopiesWaitForTheirStreamAndNoOther) {
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &other));
  choir_buffer_t* buffer = NewBuffer(8);
  char* data = static_cast<char*>(choir_buffer_data(buffer));
  Submit(other, kThird, [] {});
  Submit(stream_, kCompute, [data] { std::memset(data, 1, 8); }, {buffer});
  char bytes[8];
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, bytes, 8));
  EXPECT_EQ(bytes[7], 1);
  // Work that was given before a write comes before it.
  Submit(stream_, kCompute, [data] { std::memset(data, 2, 8); }, {buffer});
  const char three[8] = {3, 3, 3, 3, 3, 3, 3, 3};
  ASSERT_OK(choir_buffer_write(buffer, stream_, 0, three, 8));
  ASSERT_OK(choir_stream_synchronize(stream_));
  EXPECT_EQ(data[0], 3);
  EXPECT_EQ(fake_.Pending(kThird), 1u);
  choir_buffer_release(buffer);
  choir_stream_release(other);
}

// What the memory's former owner does on another stream comes first.
TEST_F(CudaCopyTest, AWriteToUsedMemoryWaitsForTheFormerUse) {
  choir_stream_t* other = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &other));
  choir_buffer_t* a = NewBuffer(8);
  char* data = static_cast<char*>(choir_buffer_data(a));
  for (int i = 0; i < 3; ++i)
    Submit(other, kThird, [data] { std::memset(data, 1, 8); }, {a});
  choir_buffer_release(a);
  choir_buffer_t* b = NewBuffer(8);
  ASSERT_EQ(choir_buffer_data(b), data);
  const char three[8] = {3, 3, 3, 3, 3, 3, 3, 3};
  ASSERT_OK(choir_buffer_write(b, stream_, 0, three, 8));
  ASSERT_OK(choir_stream_synchronize(other));
  EXPECT_EQ(data[0], 3);
  choir_buffer_release(b);
  choir_stream_release(other);
}

TEST_F(CudaCopyTest, NoBytesStillWaitForTheStream) {
  choir_buffer_t* buffer = NewBuffer(8);
  int runs = 0;
  Submit(stream_, kCompute, [&] { ++runs; });
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, nullptr, 0));
  EXPECT_EQ(runs, 1);
  Submit(stream_, kCompute, [&] { ++runs; });
  ASSERT_OK(choir_buffer_write(buffer, stream_, 0, nullptr, 0));
  EXPECT_EQ(runs, 2);
  choir_buffer_release(buffer);
}

TEST_F(CudaCopyTest, AFailureInTheMiddleLeavesTheNextCopyAlone) {
  const size_t bytes = 9 << 20;
  choir_buffer_t* buffer = NewBuffer(bytes);
  const std::vector<char> given = Pattern(bytes);
  std::vector<char> back(bytes);
  const char* const calls[] = {"cuMemcpyHtoDAsync", "cuEventRecord",
                               "cuStreamWaitEvent"};
  for (const char* call : calls) {
    fake_.FailNext(call, 1, std::string(call) == "cuStreamWaitEvent" ? 0 : 1);
    EXPECT_STATUS(INTERNAL, std::string("cuda:0: ") + call,
                  choir_buffer_write(buffer, stream_, 0, given.data(), bytes));
    EXPECT_EQ(fake_.Pending(kCopies), 0u);
  }
  ASSERT_OK(choir_buffer_write(buffer, stream_, 0, given.data(), bytes));
  fake_.FailNext("cuMemcpyDtoHAsync", 1, 1);
  EXPECT_STATUS(INTERNAL, "cuda:0: cuMemcpyDtoHAsync",
                choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
  ASSERT_OK(choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
  EXPECT_TRUE(back == given);
  choir_buffer_release(buffer);
}

TEST_F(CudaCopyTest, WithoutPinnedMemoryTheCopyFailsAndMayBeTriedAgain) {
  choir_buffer_t* buffer = NewBuffer(8);
  char bytes[8] = {};
  for (int nth = 0; nth < 2; ++nth) {
    fake_.FailNext("cuMemAllocHost", 2);
    EXPECT_STATUS(OUT_OF_MEMORY,
                  "4194304 bytes of pinned memory: cuda:0: cuMemAllocHost: "
                  "CUDA_ERROR_OUT_OF_MEMORY",
                  choir_buffer_write(buffer, stream_, 0, bytes, 8));
  }
  EXPECT_OK(choir_buffer_write(buffer, stream_, 0, bytes, 8));
  choir_buffer_release(buffer);
}

// Streams of different threads share the copy stream and its two pieces.
TEST_F(CudaCopyTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      choir_stream_t* stream = nullptr;
      ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &stream));
      for (int round = 0; round < 20; ++round) {
        const size_t bytes = static_cast<size_t>(100 + 37 * round + t);
        std::vector<char> given(bytes, static_cast<char>(16 * t + round));
        std::vector<char> back(bytes);
        choir_buffer_t* buffer = NewBuffer(bytes);
        ASSERT_OK(choir_buffer_write(buffer, stream, 0, given.data(), bytes));
        ASSERT_OK(choir_buffer_read(buffer, stream, 0, back.data(), bytes));
        EXPECT_TRUE(back == given);
        choir_buffer_release(buffer);
      }
      choir_stream_release(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
