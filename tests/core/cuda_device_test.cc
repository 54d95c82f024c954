// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/log.h"
#include "tests/core/cuda_testing.h"
#include "tests/testing/failing_allocator.h"

// What is this device's own (core/device/cuda/cuda_device.c and cuda_queue.c);
// what every device does is in tests/conformance/device_suite.cc, which also
// runs with the scripted driver.

namespace {

using choir::testing::CudaTest;
using choir::testing::FailingAllocator;
using choir::testing::FakeCuda;

class CudaDeviceTest : public CudaTest {};

using Lines = std::vector<std::string>;

TEST_F(CudaDeviceTest, IsACudaDevice) {
  EXPECT_STREQ(choir_device_name(device_), "cuda");
  EXPECT_STREQ(choir_device_kernels(device_), "cuda");
  EXPECT_FALSE(choir_device_is_host(device_));
}

TEST_F(CudaDeviceTest, BackgroundStreamsGoFirst) {
  choir_stream_t* background = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &background));
  EXPECT_EQ(fake_.priority(kCompute), 0);
  EXPECT_EQ(fake_.priority(kThird), -5);
  choir_stream_release(background);
}

// A launch is not waited for.
TEST_F(CudaDeviceTest, SubmitReturnsBeforeTheWorkIsDone) {
  int runs = 0;
  Submit(stream_, kCompute, [&] { ++runs; });
  EXPECT_EQ(runs, 0);
  ASSERT_OK(choir_stream_synchronize(stream_));
  EXPECT_EQ(runs, 1);
}

TEST_F(CudaDeviceTest, EventsAreTheDriversEvents) {
  choir_stream_t* other = nullptr;
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &other));
  ASSERT_OK(choir_event_create(device_, &event));
  std::string order;
  Submit(stream_, kCompute, [&] { order += 'a'; });
  fake_.ClearLog();
  ASSERT_OK(choir_event_record(event, stream_));
  ASSERT_OK(choir_stream_wait_event(other, event));
  Lines log = fake_.TakeLog();
  ASSERT_EQ(log.size(), 2u);
  const std::string name = log[0].substr(7, log[0].find(' ', 7) - 7);
  EXPECT_EQ(log,
            (Lines{"record " + name + " stream2", "wait stream3 " + name}));
  Submit(other, kThird, [&] { order += 'b'; });
  EXPECT_FALSE(choir_event_is_reached(event));
  ASSERT_OK(choir_stream_synchronize(other));
  EXPECT_EQ(order, "ab");
  EXPECT_TRUE(choir_event_is_reached(event));
  choir_event_release(event);
  choir_stream_release(other);
}

// ---- Failures on the GPU ----

// The context is lost for good then, so the fixture's ends are warnings.
class CudaFailureTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    choir_log_set_sink(
        [](void* self, choir_log_level_t, const char*, const char* message) {
          static_cast<Lines*>(self)->push_back(message);
        },
        &warnings_, CHOIR_LOG_WARNING);
  }
  void TearDown() override {
    CudaDeviceTest::TearDown();
    choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_WARNING);
    EXPECT_FALSE(warnings_.empty());
  }
  Lines warnings_;
};

TEST_F(CudaFailureTest, ShowAtTheNextSynchronizeWithCallAndRecord) {
  Submit(stream_, kCompute, [] {});
  ASSERT_OK(choir_stream_synchronize(stream_));
  Submit(stream_, kCompute, [] {});
  choir_stream_set_label(stream_, "conv1");
  SubmitFailure(stream_, kCompute, 700);
  choir_stream_set_label(stream_, nullptr);
  EXPECT_STATUS(INTERNAL,
                "one of 2 records submitted earlier, the last of them "
                "work/test of conv1: cuda:0: cuStreamSynchronize: "
                "CUDA_ERROR_ILLEGAL_ADDRESS (700), an illegal memory access "
                "was encountered",
                choir_stream_synchronize(stream_));
  // CUDA does not recover.
  EXPECT_STATUS(INTERNAL, "CUDA_ERROR_ILLEGAL_ADDRESS",
                choir_stream_synchronize(stream_));
}

TEST_F(CudaFailureTest, ShowAtTheNextRead) {
  choir_buffer_t* buffer = NewBuffer(64);
  SubmitFailure(stream_, kCompute, 719);
  char bytes[64];
  EXPECT_STATUS(INTERNAL,
                "one of 1 records submitted earlier, the last of them "
                "work/test: cuda:0: cuEventSynchronize: "
                "CUDA_ERROR_LAUNCH_FAILED",
                choir_buffer_read(buffer, stream_, 0, bytes, sizeof(bytes)));
  choir_buffer_release(buffer);
}

TEST_F(CudaFailureTest, ShowAtEventsWhichAreReached) {
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  SubmitFailure(stream_, kCompute, 700);
  ASSERT_OK(choir_event_record(event, stream_));
  while (!choir_event_is_reached(event)) {
  }
  EXPECT_STATUS(INTERNAL, "cuda:0: cuEventSynchronize: CUDA_ERROR_ILLEGAL",
                choir_event_synchronize(event));
  choir_event_release(event);
}

TEST_F(CudaFailureTest, ThatNobodyAskedForAreLogged) {
  SubmitFailure(stream_, kCompute, 700);
  choir_device_release(device_);
  device_ = nullptr;
  ASSERT_FALSE(warnings_.empty());
  EXPECT_NE(warnings_[0].find("a stream was released with a failure that "
                              "nobody asked for: cuda:0: cuStreamSynchronize: "
                              "CUDA_ERROR_ILLEGAL_ADDRESS"),
            std::string::npos)
      << warnings_[0];
}

// ---- Failures of calls ----

TEST(CudaCallsTest, EveryFailedCallOfTheMakingIsToldAndLeavesNothing) {
  const struct {
    const char* symbol;
    int times;
  } calls[] = {
      {"cuDevicePrimaryCtxRetain", 1},
      {"cuCtxPushCurrent", 2},
      {"cuCtxGetStreamPriorityRange", 1},
      {"cuStreamCreateWithPriority", 2},
      {"cuEventCreate", 5},
      {"cuDriverGetVersion", 1},
      {"cuDeviceGetCount", 1},
      {"cuDeviceGetAttribute", 2},
      {"cuDeviceGetName", 1},
      {"cuDeviceTotalMem", 1},
      {"cuDeviceGet", 1},
  };
  for (const auto& call : calls) {
    for (int nth = 0; nth < call.times; ++nth) {
      FakeCuda fake;
      FailingAllocator allocator;
      choir_device_options_t options = {};
      options.allocator = allocator.get();
      fake.FailNext(call.symbol, 1, nth);
      choir_device_t* device = nullptr;
      EXPECT_STATUS(INTERNAL,
                    std::string(call.symbol) +
                        ": CUDA_ERROR_INVALID_VALUE (1), invalid argument",
                    choir_device_create("cuda", &options, &device));
      EXPECT_EQ(device, nullptr);
      EXPECT_EQ(allocator.live_blocks(), 0u);
    }
  }
}

TEST_F(CudaDeviceTest, FailedCallsAreTold) {
  choir_stream_t* stream = nullptr;
  choir_event_t* event = nullptr;
  fake_.FailNext("cuStreamCreateWithPriority", 1);
  EXPECT_STATUS(INTERNAL, "cuStreamCreateWithPriority",
                choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &stream));
  fake_.FailNext("cuEventCreate", 1);
  EXPECT_STATUS(INTERNAL, "cuEventCreate",
                choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &stream));
  fake_.FailNext("cuEventCreate", 1);
  EXPECT_STATUS(INTERNAL, "cuEventCreate", choir_event_create(device_, &event));
  ASSERT_OK(choir_event_create(device_, &event));
  fake_.FailNext("cuEventRecord", 1);
  EXPECT_STATUS(INTERNAL, "cuEventRecord", choir_event_record(event, stream_));
  fake_.FailNext("cuStreamWaitEvent", 1);
  EXPECT_STATUS(INTERNAL, "cuStreamWaitEvent",
                choir_stream_wait_event(stream_, event));
  fake_.FailNext("cuCtxPushCurrent", 1);
  EXPECT_STATUS(INTERNAL, "cuCtxPushCurrent", choir_event_synchronize(event));
  choir_event_release(event);
}

TEST_F(CudaDeviceTest, StreamsHaveALimitAndComeBack) {
  std::vector<choir_stream_t*> streams;
  // One of 32 is for copies, one the device's own.
  for (int i = 0; i < 30; ++i) {
    streams.push_back(nullptr);
    ASSERT_OK(
        choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &streams.back()));
  }
  choir_stream_t* stream = nullptr;
  EXPECT_STATUS(OUT_OF_RANGE, "cuda:0 has 32 streams",
                choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &stream));
  choir_stream_release(streams[7]);
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_COMPUTE, &streams[7]));
  for (choir_stream_t* each : streams) choir_stream_release(each);
}

}  // namespace
