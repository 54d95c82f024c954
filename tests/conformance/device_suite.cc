// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/stage.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

// What every line of core/device/devices.def must do. A new device passes this
// suite before anything else is built on it; nothing here knows which device
// runs.

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::TestRecord;

const char* const kDevices[] = {
#define X(name, factory) #name,
#include "core/device/devices.def"
#undef X
};

const choir_stream_kind_t kKinds[] = {CHOIR_STREAM_COMPUTE,
                                      CHOIR_STREAM_BACKGROUND};

class DeviceSuite : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    choir_device_options_t options = {};
    options.allocator = allocator_.get();
    options.seed = 5;
    choir_status_t status = choir_device_create(GetParam(), &options, &device_);
    if (choir_status_code(status) == CHOIR_STATUS_UNAVAILABLE) {
      std::string reason = choir_status_message(status);
      choir_status_free(status);
      GTEST_SKIP() << reason;
    }
    ASSERT_OK(status);
    stream_ = choir_device_stream(device_);
  }
  void TearDown() override {
    choir_device_release(device_);
    EXPECT_EQ(allocator_.live_blocks(), 0u);
  }
  choir_buffer_t* NewBuffer(size_t bytes) {
    choir_buffer_t* buffer = nullptr;
    EXPECT_OK(choir_buffer_create(device_, bytes, &buffer));
    return buffer;
  }
  choir_stream_t* NewStream(choir_stream_kind_t kind) {
    choir_stream_t* stream = nullptr;
    EXPECT_OK(choir_stream_create(device_, kind, &stream));
    return stream;
  }
  choir_event_t* NewEvent() {
    choir_event_t* event = nullptr;
    EXPECT_OK(choir_event_create(device_, &event));
    return event;
  }
  void Submit(choir_stream_t* stream, TestRecord record) {
    ASSERT_OK(choir_stream_submit(stream, record.get()));
    record.Spoil();
  }

  FailingAllocator allocator_;
  choir_device_t* device_ = nullptr;
  choir_stream_t* stream_ = nullptr;
};

TEST_P(DeviceSuite, TellsWhatItIs) {
  EXPECT_STREQ(choir_device_name(device_), GetParam());
  EXPECT_NE(std::string(choir_device_kernels(device_)), "");
  EXPECT_GE(choir_device_threads(device_), 1);
  ASSERT_NE(stream_, nullptr);
  EXPECT_EQ(choir_stream_device(stream_), device_);
  EXPECT_EQ(choir_device_stream(device_), stream_);
  choir_allocator_t objects = choir_device_allocator(device_);
  void* memory = objects.alloc(objects.self, 100, 16);
  ASSERT_NE(memory, nullptr);
  objects.free(objects.self, memory, 100, 16);
}

TEST_P(DeviceSuite, BuffersKeepWhatIsWritten) {
  for (size_t bytes : {0u, 1u, 63u, 64u, 65u, 4096u, 1000003u}) {
    choir_buffer_t* buffer = NewBuffer(bytes);
    EXPECT_EQ(choir_buffer_bytes(buffer), bytes);
    EXPECT_EQ(choir_buffer_device(buffer), device_);
    ASSERT_NE(choir_buffer_data(buffer), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(choir_buffer_data(buffer)) % 64, 0u);
    std::vector<unsigned char> given(bytes);
    for (size_t i = 0; i < bytes; ++i)
      given[i] = static_cast<unsigned char>(i * 7 + i / 251);
    ASSERT_OK(choir_buffer_write(buffer, stream_, 0, given.data(), bytes));
    std::vector<unsigned char> back(bytes, 0xee);
    ASSERT_OK(choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
    EXPECT_EQ(back, given);
    // A part of it, and nothing beside the part.
    if (bytes > 40) {
      unsigned char part[10];
      std::memset(part, 0xab, sizeof(part));
      ASSERT_OK(choir_buffer_write(buffer, stream_, 21, part, sizeof(part)));
      std::copy(part, part + 10, given.begin() + 21);
      ASSERT_OK(choir_buffer_read(buffer, stream_, 0, back.data(), bytes));
      EXPECT_EQ(back, given);
      ASSERT_OK(choir_buffer_read(buffer, stream_, 25, part, sizeof(part)));
      EXPECT_TRUE(std::equal(part, part + 10, given.begin() + 25));
    }
    choir_buffer_release(buffer);
  }
}

TEST_P(DeviceSuite, RangesAreChecked) {
  choir_buffer_t* buffer = NewBuffer(100);
  char bytes[128] = {};
  EXPECT_STATUS(OUT_OF_RANGE,
                "101 bytes from byte 0; needs to stay inside the buffer's 100",
                choir_buffer_read(buffer, stream_, 0, bytes, 101));
  EXPECT_STATUS(OUT_OF_RANGE, "1 bytes from byte 100",
                choir_buffer_write(buffer, stream_, 100, bytes, 1));
  EXPECT_STATUS(OUT_OF_RANGE, "from byte 101",
                choir_buffer_read(buffer, stream_, 101, bytes, 0));
  EXPECT_STATUS(OUT_OF_RANGE, "bytes from byte 8",
                choir_buffer_read(buffer, stream_, 8, bytes, SIZE_MAX));
  EXPECT_OK(choir_buffer_read(buffer, stream_, 100, bytes, 0));
  choir_buffer_release(buffer);
}

TEST_P(DeviceSuite, WrappedMemoryIsReleasedOnceByItsOwner) {
  // Device memory of some other owner: here another buffer.
  choir_buffer_t* owner = NewBuffer(64);
  static int released;
  static void* released_data;
  released = 0;
  int context = 0;
  choir_buffer_t* wrapped = nullptr;
  ASSERT_OK(choir_buffer_wrap(
      device_, choir_buffer_data(owner), 64,
      [](void* self, void* data) {
        ++*static_cast<int*>(self);
        released_data = data;
        ++released;
      },
      &context, &wrapped));
  EXPECT_EQ(choir_buffer_data(wrapped), choir_buffer_data(owner));
  Submit(stream_, TestRecord::Fill(wrapped, 31));
  EXPECT_EQ(FirstElement(owner, stream_), 31);
  choir_buffer_retain(wrapped);
  choir_buffer_release(wrapped);
  EXPECT_EQ(released, 0);
  choir_buffer_release(wrapped);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(context, 1);
  EXPECT_EQ(released_data, choir_buffer_data(owner));
  // The callback is not required, and neither is memory.
  ASSERT_OK(choir_buffer_wrap(device_, choir_buffer_data(owner), 8, nullptr,
                              nullptr, &wrapped));
  choir_buffer_release(wrapped);
  ASSERT_OK(choir_buffer_wrap(device_, nullptr, 0, nullptr, nullptr, &wrapped));
  EXPECT_OK(choir_buffer_read(wrapped, stream_, 0, nullptr, 0));
  choir_buffer_release(wrapped);
  choir_buffer_release(owner);
}

TEST_P(DeviceSuite, RecordsRunInOrderOnEveryKindOfStream) {
  for (choir_stream_kind_t kind : kKinds) {
    choir_stream_t* stream = NewStream(kind);
    EXPECT_EQ(choir_stream_device(stream), device_);
    choir_buffer_t* a = NewBuffer(800);
    choir_buffer_t* b = NewBuffer(800);
    Submit(stream, TestRecord::Fill(a, 1));
    Submit(stream, TestRecord::Fill(b, 0));
    int64_t expected_a = 1;
    int64_t expected_b = 0;
    for (int i = 0; i < 30; ++i) {
      Submit(stream, TestRecord::Affine(a, b, 3, i, /*accumulate=*/true));
      Submit(stream, TestRecord::Affine(b, a, 1, -i));
      expected_b += expected_a * 3 + i;
      expected_a = expected_b - i;
    }
    ASSERT_OK(choir_stream_synchronize(stream));
    EXPECT_EQ(FirstElement(a, stream), expected_a);
    std::vector<int64_t> all(100);
    ASSERT_OK(choir_buffer_read(b, stream, 0, all.data(), 800));
    EXPECT_EQ(all, std::vector<int64_t>(100, expected_b));
    choir_buffer_release(a);
    choir_buffer_release(b);
    choir_stream_release(stream);
  }
}

TEST_P(DeviceSuite, OperandsOutliveTheirSubmitter) {
  for (choir_stream_kind_t kind : kKinds) {
    choir_stream_t* stream = NewStream(kind);
    choir_buffer_t* result = NewBuffer(64);
    choir_buffer_t* temporary = NewBuffer(64);
    Submit(stream, TestRecord::Fill(temporary, 5));
    Submit(stream, TestRecord::Affine(temporary, result, 2, 1));
    choir_buffer_release(temporary);
    // Would take over the memory if it were free too early.
    for (int i = 0; i < 5; ++i) {
      choir_buffer_t* other = NewBuffer(64);
      Submit(stream, TestRecord::Fill(other, 1000));
      choir_buffer_release(other);
    }
    EXPECT_EQ(FirstElement(result, stream), 11);
    choir_buffer_release(result);
    choir_stream_release(stream);
  }
}

TEST_P(DeviceSuite, AFailureIsToldOnceAndTheStreamWorksAgain) {
  for (choir_stream_kind_t kind : kKinds) {
    choir_stream_t* stream = NewStream(kind);
    choir_buffer_t* buffer = NewBuffer(64);
    Submit(stream, TestRecord::Fill(buffer, 1));
    ASSERT_OK(choir_stream_synchronize(stream));
    choir_status_t told[3];
    told[0] = choir_stream_submit(stream, TestRecord::Fail(7).get());
    bool at_once = told[0] != nullptr;
    told[1] = choir_stream_submit(stream, TestRecord::Fill(buffer, 2).get());
    told[2] = choir_stream_synchronize(stream);
    int failures = 0;
    for (choir_status_t status : told) {
      if (!status) continue;
      ++failures;
      EXPECT_STATUS(OUT_OF_RANGE, "fail: 7 given", status);
    }
    EXPECT_EQ(failures, 1);
    EXPECT_EQ(FirstElement(buffer, stream), at_once ? 2 : 1);
    Submit(stream, TestRecord::Fill(buffer, 3));
    EXPECT_EQ(FirstElement(buffer, stream), 3);
    choir_buffer_release(buffer);
    choir_stream_release(stream);
  }
}

TEST_P(DeviceSuite, EventsOrderStreams) {
  choir_stream_t* background = NewStream(CHOIR_STREAM_BACKGROUND);
  choir_buffer_t* buffer = NewBuffer(64);
  choir_event_t* there = NewEvent();
  choir_event_t* back = NewEvent();
  Submit(stream_, TestRecord::Fill(buffer, 0));
  int64_t expected = 0;
  for (int i = 0; i < 60; ++i) {
    Submit(stream_, TestRecord::Affine(buffer, buffer, 1, 1));
    ASSERT_OK(choir_event_record(there, stream_));
    ASSERT_OK(choir_stream_wait_event(background, there));
    Submit(background, TestRecord::Affine(buffer, buffer, 2, 0));
    ASSERT_OK(choir_event_record(back, background));
    ASSERT_OK(choir_stream_wait_event(stream_, back));
    expected = (expected + 1) * 2;
    if (i % 20 == 19) {
      Submit(stream_, TestRecord::Affine(buffer, buffer, 0, 1));
      expected = 1;
    }
  }
  EXPECT_EQ(FirstElement(buffer, stream_), expected);
  choir_event_release(there);
  choir_event_release(back);
  choir_buffer_release(buffer);
  choir_stream_release(background);
}

TEST_P(DeviceSuite, EventsTellTheHost) {
  for (choir_stream_kind_t kind : kKinds) {
    choir_stream_t* stream = NewStream(kind);
    choir_buffer_t* buffer = NewBuffer(64);
    choir_event_t* event = NewEvent();
    // Never recorded: nothing to wait for.
    EXPECT_OK(choir_stream_wait_event(stream, event));
    EXPECT_OK(choir_event_synchronize(event));
    for (int i = 0; i < 20; ++i) {
      Submit(stream, TestRecord::Fill(buffer, i));
      ASSERT_OK(choir_event_record(event, stream));
      ASSERT_OK(choir_event_synchronize(event));
      EXPECT_TRUE(choir_event_is_reached(event));
    }
    // A stream may wait for itself; it is always past its own events.
    Submit(stream, TestRecord::Fill(buffer, 100));
    ASSERT_OK(choir_event_record(event, stream));
    ASSERT_OK(choir_stream_wait_event(stream, event));
    EXPECT_EQ(FirstElement(buffer, stream), 100);
    choir_event_retain(event);
    choir_event_release(event);
    choir_event_release(event);
    choir_buffer_release(buffer);
    choir_stream_release(stream);
  }
}

TEST_P(DeviceSuite, ObjectsOfTwoDevicesDoNotMix) {
  choir_device_t* other = nullptr;
  ASSERT_OK(choir_device_create(GetParam(), nullptr, &other));
  choir_buffer_t* buffer = NewBuffer(64);
  choir_event_t* event = NewEvent();
  char byte = 0;
  choir_stream_t* foreign = choir_device_stream(other);
  EXPECT_STATUS(INVALID_ARGUMENT, "needs both on one device",
                choir_buffer_read(buffer, foreign, 0, &byte, 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs both on one device",
                choir_buffer_write(buffer, foreign, 0, &byte, 1));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs both of one device",
                choir_event_record(event, foreign));
  EXPECT_STATUS(INVALID_ARGUMENT, "needs both of one device",
                choir_stream_wait_event(foreign, event));
  choir_event_release(event);
  choir_buffer_release(buffer);
  choir_device_release(other);
}

TEST_P(DeviceSuite, ReleaseOrderNeverMatters) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    FailingAllocator allocator;
    choir_device_options_t options = {};
    options.allocator = allocator.get();
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create(GetParam(), &options, &device));
    choir_stream_t* stream = nullptr;
    ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &stream));
    choir_buffer_t* buffer = nullptr;
    ASSERT_OK(choir_buffer_create(device, 64, &buffer));
    choir_event_t* event = nullptr;
    ASSERT_OK(choir_event_create(device, &event));
    Submit(stream, TestRecord::Fill(buffer, 1));
    ASSERT_OK(choir_event_record(event, stream));
    ASSERT_OK(choir_stream_synchronize(stream));
    for (int which : order) {
      if (which == 0) choir_device_release(device);
      if (which == 1) choir_stream_release(stream);
      if (which == 2) choir_buffer_release(buffer);
      if (which == 3) choir_event_release(event);
    }
    EXPECT_EQ(allocator.live_blocks(), 0u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(DeviceSuite, StagesStandBeforeTheDoor) {
  choir_stream_t* stream = NewStream(CHOIR_STREAM_BACKGROUND);
  choir_buffer_t* buffer = NewBuffer(64);
  choir_count_stage_t count;
  choir_check_stage_t check;
  choir_count_stage_init(&count);
  choir_check_stage_init(&check);
  choir_stream_push_stage(stream, &count.stage);
  choir_stream_push_stage(stream, &check.stage);
  Submit(stream, TestRecord::Fill(buffer, 1));
  choir_stream_pop_stage(stream, &check.stage);
  Submit(stream, TestRecord::Fill(buffer, 2));
  choir_stream_pop_stage(stream, &count.stage);
  Submit(stream, TestRecord::Fill(buffer, 3));
  EXPECT_EQ(count.records, 2u);
  EXPECT_EQ(FirstElement(buffer, stream), 3);
  choir_buffer_release(buffer);
  choir_stream_release(stream);
}

TEST_P(DeviceSuite, ASteadyLoopAsksForNoMemory) {
  choir_stream_t* background = NewStream(CHOIR_STREAM_BACKGROUND);
  choir_event_t* event = NewEvent();
  choir_buffer_t* result = NewBuffer(800);
  Submit(stream_, TestRecord::Fill(result, 0));
  uint64_t base_allocations = 0;
  uint64_t pool_allocations = 0;
  for (int step = 0; step < 30; ++step) {
    for (choir_stream_t* stream : {stream_, background}) {
      choir_buffer_t* temporary = NewBuffer(800);
      Submit(stream, TestRecord::Fill(temporary, 1));
      Submit(stream, TestRecord::Affine(temporary, result, 1, 0, true));
      choir_buffer_release(temporary);
      ASSERT_OK(choir_event_record(event, stream));
      ASSERT_OK(choir_stream_wait_event(
          stream == stream_ ? background : stream_, event));
    }
    ASSERT_OK(choir_stream_synchronize(stream_));
    ASSERT_OK(choir_stream_synchronize(background));
    if (step == 0) {
      base_allocations = allocator_.allocations();
      pool_allocations = choir_device_memory(device_).base_allocations;
    }
  }
  // How full the queues get depends on the threads: at most one step's four
  // records, two waits and two buffers of two blocks. What matters is that it
  // does not grow with the steps.
  EXPECT_LE(allocator_.allocations(), base_allocations + 10);
  EXPECT_LE(choir_device_memory(device_).base_allocations,
            pool_allocations + 10);
  EXPECT_EQ(FirstElement(result, stream_), 60);
  choir_buffer_release(result);
  choir_event_release(event);
  choir_stream_release(background);
}

choir_status_t UseEverything(choir_device_t* device) {
  choir_stream_t* stream = nullptr;
  choir_event_t* event = nullptr;
  choir_buffer_t* buffer = nullptr;
  int64_t value = 3;
  choir_status_t status =
      choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &stream);
  if (!status) status = choir_event_create(device, &event);
  if (!status) status = choir_buffer_create(device, 1000, &buffer);
  if (!status) {
    status = choir_stream_submit(stream, TestRecord::Fill(buffer, 7).get());
  }
  if (!status) status = choir_event_record(event, stream);
  if (!status) {
    status = choir_stream_wait_event(choir_device_stream(device), event);
  }
  if (!status) {
    status = choir_buffer_read(buffer, choir_device_stream(device), 0, &value,
                               sizeof(value));
  }
  if (!status) {
    EXPECT_EQ(value, 7);
  }
  choir_buffer_release(buffer);
  choir_event_release(event);
  choir_stream_release(stream);
  return status;
}

TEST_P(DeviceSuite, EveryFailedAllocationIsReportedAndLeaksNothing) {
  int64_t failures = FailEveryAllocation([](choir_allocator_t allocator) {
    choir_device_options_t options = {};
    options.allocator = allocator;
    choir_device_t* device = nullptr;
    CHOIR_TRY(choir_device_create(GetParam(), &options, &device));
    choir_status_t status = UseEverything(device);
    choir_device_release(device);
    return status;
  });
  EXPECT_GT(failures, 5);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceSuite, ::testing::ValuesIn(kDevices),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
