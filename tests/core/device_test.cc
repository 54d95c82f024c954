// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/device_backend.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

// What is the same for every device (core/device.c). What each device must do
// is in tests/conformance/device_suite.cc.

namespace {

using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::Gate;
using choir::testing::TestRecord;

TEST(DeviceTest, UnknownNamesListTheKnownOnes) {
  choir_device_t* device = nullptr;
  EXPECT_STATUS(
      NOT_FOUND,
      "no device is called 'gpu'; known are cpu, cpu_async, cuda, null",
      choir_device_create("gpu", nullptr, &device));
  EXPECT_EQ(device, nullptr);
  EXPECT_STATUS(NOT_FOUND, "'(null)'",
                choir_device_create(nullptr, nullptr, &device));
}

TEST(DeviceTest, OptionsAreChecked) {
  choir_device_t* device = nullptr;
  choir_device_options_t options = {};
  options.threads = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "-1 threads; needs at least 1, or 0",
                choir_device_create("cpu", &options, &device));
  options.threads = 7;
  options.allocator.alloc = choir_allocator_system().alloc;
  EXPECT_STATUS(INVALID_ARGUMENT, "allocator.free is NULL",
                choir_device_create("cpu", &options, &device));
  options.allocator = choir_allocator_system();
  ASSERT_OK(choir_device_create("cpu", &options, &device));
  EXPECT_EQ(choir_device_threads(device), 7);
  choir_device_release(device);
}

TEST(DeviceTest, ThreadsAreTheCoresThisProcessMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  EXPECT_EQ(choir_device_threads(device), CPU_COUNT(&before));
  choir_device_release(device);

  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  EXPECT_EQ(choir_device_threads(device), 1);
  choir_device_release(device);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(DeviceTest, DefinitionsOfTheDevices) {
  struct Expected {
    const char* name;
    const char* kernels;
    bool is_host;
  };
  for (const Expected& expected :
       {Expected{"cpu", "cpu", true}, Expected{"cpu_async", "cpu", true},
        Expected{"null", "none", false}}) {
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create(expected.name, nullptr, &device));
    EXPECT_STREQ(choir_device_name(device), expected.name);
    EXPECT_STREQ(choir_device_kernels(device), expected.kernels);
    EXPECT_EQ(choir_device_is_host(device), expected.is_host);
    choir_device_release(device);
  }
}

TEST(DeviceTest, CpuRunsComputeInsideSubmitAndBackgroundBesideIt) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_stream_t* background = nullptr;
  ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &background));
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device, 8, &buffer));
  auto* element = static_cast<int64_t*>(choir_buffer_data(buffer));
  ASSERT_OK(choir_stream_submit(choir_device_stream(device),
                                TestRecord::Fill(buffer, 4).get()));
  EXPECT_EQ(*element, 4);  // no synchronize
  Gate gate;
  choir_record_t wait = gate.Record();
  ASSERT_OK(choir_stream_submit(background, &wait));
  ASSERT_OK(choir_stream_submit(background, TestRecord::Fill(buffer, 5).get()));
  gate.AwaitArrivals(1);
  EXPECT_EQ(*element, 4);
  gate.Open();
  ASSERT_OK(choir_stream_synchronize(background));
  EXPECT_EQ(*element, 5);
  choir_buffer_release(buffer);
  choir_stream_release(background);
  choir_device_release(device);
}

TEST(DeviceTest, NullArgumentsAreRefused) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_stream_t* stream = choir_device_stream(device);
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device, 8, &buffer));
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device, &event));
  choir_buffer_t* no_buffer = nullptr;
  choir_stream_t* no_stream = nullptr;
  choir_event_t* no_event = nullptr;
  char byte = 0;
  EXPECT_STATUS(INVALID_ARGUMENT, "device is NULL",
                choir_buffer_create(nullptr, 8, &no_buffer));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "device is NULL",
      choir_buffer_wrap(nullptr, &byte, 1, nullptr, nullptr, &no_buffer));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "data is NULL",
      choir_buffer_wrap(device, nullptr, 1, nullptr, nullptr, &no_buffer));
  EXPECT_STATUS(INVALID_ARGUMENT, "device is NULL",
                choir_stream_create(nullptr, CHOIR_STREAM_COMPUTE, &no_stream));
  EXPECT_STATUS(INVALID_ARGUMENT, "kind is 7",
                choir_stream_create(device, static_cast<choir_stream_kind_t>(7),
                                    &no_stream));
  EXPECT_STATUS(INVALID_ARGUMENT, "device is NULL",
                choir_event_create(nullptr, &no_event));
  EXPECT_STATUS(INVALID_ARGUMENT, "buffer is NULL",
                choir_buffer_read(nullptr, stream, 0, &byte, 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "stream is NULL",
                choir_buffer_read(buffer, nullptr, 0, &byte, 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "host is NULL",
                choir_buffer_write(buffer, stream, 0, nullptr, 1));
  EXPECT_OK(choir_buffer_write(buffer, stream, 8, nullptr, 0));
  EXPECT_STATUS(INVALID_ARGUMENT, "stream is NULL",
                choir_stream_submit(nullptr, TestRecord::Fail(0).get()));
  EXPECT_STATUS(INVALID_ARGUMENT, "stream is NULL",
                choir_stream_synchronize(nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "event is NULL",
                choir_event_record(nullptr, stream));
  EXPECT_STATUS(INVALID_ARGUMENT, "stream is NULL",
                choir_stream_wait_event(nullptr, event));
  EXPECT_STATUS(INVALID_ARGUMENT, "event is NULL",
                choir_event_synchronize(nullptr));
  choir_device_retain(nullptr);
  choir_device_release(nullptr);
  choir_buffer_retain(nullptr);
  choir_buffer_release(nullptr);
  choir_stream_retain(nullptr);
  choir_stream_release(nullptr);
  choir_event_retain(nullptr);
  choir_event_release(nullptr);
  choir_event_release(event);
  choir_buffer_release(buffer);
  choir_device_release(device);
}

// Waits until the device's memory is back at its base: the last reference may
// go on a thread of the device's own, and then the device goes a little later.
void AwaitEmpty(const FailingAllocator& allocator) {
  for (int i = 0; i < 5000 && allocator.live_blocks() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(allocator.live_blocks(), 0u);
}

TEST(DeviceTest, LastReferenceMayGoInsideAQueue) {
  for (int round = 0; round < 20; ++round) {
    FailingAllocator allocator;
    choir_device_options_t options = {};
    options.allocator = allocator.get();
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu_async", &options, &device));
    choir_buffer_t* buffer = nullptr;
    ASSERT_OK(choir_buffer_create(device, 8, &buffer));
    auto gate = std::make_unique<Gate>();
    choir_record_t wait = gate->Record();
    ASSERT_OK(choir_stream_submit(choir_device_stream(device), &wait));
    ASSERT_OK(choir_stream_submit(choir_device_stream(device),
                                  TestRecord::Fill(buffer, 1).get()));
    choir_buffer_release(buffer);
    choir_device_release(device);
    gate->Open();
    AwaitEmpty(allocator);
  }
}

// A record whose attributes hold the last reference of the stream it runs on,
// as one of a communicator does that owns its stream.
void ReleaseStream(const void* attrs) {
  choir_stream_release(*static_cast<choir_stream_t* const*>(attrs));
}

TEST(DeviceTest, AStreamMayGoInsideItself) {
  for (int round = 0; round < 20; ++round) {
    FailingAllocator allocator;
    choir_device_options_t options = {};
    options.allocator = allocator.get();
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu", &options, &device));
    choir_stream_t* stream = nullptr;
    ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &stream));
    choir_kernel_t kernel = {
        "holds/test",
        [](const choir_record_t*, choir_stream_t*) -> choir_status_t {
          return nullptr;
        },
        nullptr,
        [](const void*) {},
        ReleaseStream,
        false};
    choir_record_t record = {};
    record.kernel = &kernel;
    record.attrs = &stream;
    record.attrs_bytes = sizeof(stream);
    // The record's copy takes over the only reference.
    ASSERT_OK(choir_stream_submit(stream, &record));
    choir_device_release(device);
    AwaitEmpty(allocator);
  }
}

TEST(DeviceTest, TheDevicesOwnStreamKeepsTheDevice) {
  FailingAllocator allocator;
  choir_device_options_t options = {};
  options.allocator = allocator.get();
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu_async", &options, &device));
  choir_stream_t* stream = choir_device_stream(device);
  choir_stream_retain(stream);
  choir_device_release(device);
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(choir_stream_device(stream), 8, &buffer));
  ASSERT_OK(choir_stream_submit(stream, TestRecord::Fill(buffer, 6).get()));
  EXPECT_EQ(FirstElement(buffer, stream), 6);
  choir_buffer_release(buffer);
  choir_stream_release(stream);
  EXPECT_EQ(allocator.live_blocks(), 0u);
}

TEST(DeviceTest, ObjectsAreSharedByThreads) {
  FailingAllocator allocator;
  choir_device_options_t options = {};
  options.allocator = allocator.get();
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", &options, &device));
  choir_buffer_t* shared = nullptr;
  ASSERT_OK(choir_buffer_create(device, 64, &shared));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      choir_stream_t* stream = nullptr;
      ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &stream));
      for (int i = 0; i < 200; ++i) {
        choir_buffer_t* own = nullptr;
        ASSERT_OK(choir_buffer_create(device, 64, &own));
        choir_buffer_retain(shared);
        ASSERT_OK(choir_stream_submit(stream, TestRecord::Fill(own, i).get()));
        if (i % 10 == 0) {
          ASSERT_EQ(FirstElement(own, stream), i);
        }
        choir_buffer_release(own);
        choir_buffer_release(shared);
      }
      choir_stream_release(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  choir_buffer_release(shared);
  choir_device_release(device);
  EXPECT_EQ(allocator.live_blocks(), 0u);
}

}  // namespace
