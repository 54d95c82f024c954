// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/log.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

// The queue with a thread (core/device/stream_thread.c), reached through the
// background streams of "cpu".

namespace {

using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::Gate;
using choir::testing::TestRecord;

class StreamThreadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    choir_device_options_t options = {};
    options.allocator = allocator_.get();
    ASSERT_OK(choir_device_create("cpu", &options, &device_));
    ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &a_));
    ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &b_));
    ASSERT_OK(choir_buffer_create(device_, 64, &x_));
    ASSERT_OK(choir_buffer_create(device_, 64, &y_));
    Write(x_, 0);
    Write(y_, 0);
  }
  void TearDown() override {
    choir_buffer_release(x_);
    choir_buffer_release(y_);
    choir_stream_release(a_);
    choir_stream_release(b_);
    choir_device_release(device_);
    EXPECT_EQ(allocator_.live_blocks(), 0u);
  }
  void Write(choir_buffer_t* buffer, int64_t value) {
    ASSERT_OK(choir_stream_submit(choir_device_stream(device_),
                                  TestRecord::Fill(buffer, value).get()));
  }
  int64_t Look(choir_buffer_t* buffer) {
    return *static_cast<int64_t*>(choir_buffer_data(buffer));
  }
  void Submit(choir_stream_t* stream, TestRecord record) {
    ASSERT_OK(choir_stream_submit(stream, record.get()));
    record.Spoil();  // the queue has its own copy
  }
  void Close(choir_stream_t* stream, Gate* gate) {
    choir_record_t record = gate->Record();
    ASSERT_OK(choir_stream_submit(stream, &record));
  }

  FailingAllocator allocator_;
  choir_device_t* device_ = nullptr;
  choir_stream_t* a_ = nullptr;
  choir_stream_t* b_ = nullptr;
  choir_buffer_t* x_ = nullptr;
  choir_buffer_t* y_ = nullptr;
};

TEST_F(StreamThreadTest, RunsInOrderBesideTheCaller) {
  Gate gate;
  Close(a_, &gate);
  for (int i = 0; i < 10; ++i) Submit(a_, TestRecord::Affine(x_, x_, 2, 1));
  gate.AwaitArrivals(1);
  EXPECT_EQ(Look(x_), 0);
  gate.Open();
  ASSERT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 1023);
}

TEST_F(StreamThreadTest, AFailureIsToldOnceBySynchronize) {
  Submit(a_, TestRecord::Fill(x_, 1));
  Gate gate;
  Close(a_, &gate);
  Submit(a_, TestRecord::Fail(7));
  Submit(a_, TestRecord::Fill(x_, 2));
  Submit(a_, TestRecord::Fail(8));
  Submit(a_, TestRecord::Fill(x_, 3));
  gate.Open();
  EXPECT_STATUS(OUT_OF_RANGE, "submitted earlier, fail/test: fail: 7 given",
                choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 1);  // later records were no-ops
  EXPECT_OK(choir_stream_synchronize(a_));
  Submit(a_, TestRecord::Fill(x_, 4));
  EXPECT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 4);
}

TEST_F(StreamThreadTest, AFailureIsToldOnceBySubmit) {
  Submit(a_, TestRecord::Fail(7));
  // Without a synchronize: when the event is there, so is the failure.
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  ASSERT_OK(choir_event_record(event, a_));
  ASSERT_OK(choir_event_synchronize(event));
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 7 given",
                choir_stream_submit(a_, TestRecord::Fill(x_, 1).get()));
  EXPECT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 0);  // the record that was refused did not run
  Submit(a_, TestRecord::Fill(x_, 2));
  EXPECT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 2);
  choir_event_release(event);
}

TEST_F(StreamThreadTest, WhatWasQueuedWhenAFailureIsToldStaysANoOp) {
  Gate start;
  Gate held;
  choir_event_t* failed = nullptr;
  choir_event_t* freed = nullptr;
  ASSERT_OK(choir_event_create(device_, &failed));
  ASSERT_OK(choir_event_create(device_, &freed));
  Close(b_, &held);
  ASSERT_OK(choir_event_record(freed, b_));
  Close(a_, &start);
  Submit(a_, TestRecord::Fail(7));
  ASSERT_OK(choir_event_record(failed, a_));
  ASSERT_OK(choir_stream_wait_event(a_, freed));  // waits hold, failed or not
  Submit(a_, TestRecord::Fill(x_, 1));            // unaware of the failure
  start.Open();
  ASSERT_OK(choir_event_synchronize(failed));
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 7 given",
                choir_stream_submit(a_, TestRecord::Fill(x_, 2).get()));
  Submit(a_, TestRecord::Affine(x_, y_, 1, 5));  // aware: runs
  held.Open();
  EXPECT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(Look(x_), 0);
  EXPECT_EQ(Look(y_), 5);
  choir_event_release(failed);
  choir_event_release(freed);
}

TEST_F(StreamThreadTest, ReadAndWriteTellFailuresAndLeaveMemoryAlone) {
  Submit(a_, TestRecord::Fail(7));
  int64_t value = 99;
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 7 given",
                choir_buffer_read(x_, a_, 0, &value, sizeof(value)));
  EXPECT_EQ(value, 99);
  Submit(a_, TestRecord::Fail(8));
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 8 given",
                choir_buffer_write(x_, a_, 0, &value, sizeof(value)));
  EXPECT_EQ(Look(x_), 0);
}

TEST_F(StreamThreadTest, AFailureNobodyAskedForIsLogged) {
  static std::string logged;
  logged.clear();
  choir_log_set_sink([](void*, choir_log_level_t, const char*,
                        const char* message) { logged = message; },
                     nullptr, CHOIR_LOG_WARNING);
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &stream));
  Submit(stream, TestRecord::Fail(7));
  choir_stream_release(stream);
  EXPECT_NE(logged.find("fail: 7 given"), std::string::npos) << logged;
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
}

TEST_F(StreamThreadTest, ReleaseWaitsForTheWork) {
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &stream));
  for (int i = 0; i < 500; ++i)
    Submit(stream, TestRecord::Affine(x_, x_, 1, 1));
  choir_stream_release(stream);
  EXPECT_EQ(Look(x_), 500);
}

TEST_F(StreamThreadTest, OperandsLiveUntilTheRecordHasRun) {
  Gate gate;
  Close(a_, &gate);
  choir_buffer_t* temporary = nullptr;
  ASSERT_OK(choir_buffer_create(device_, 64, &temporary));
  Submit(a_, TestRecord::Fill(temporary, 11));
  Submit(a_, TestRecord::Affine(temporary, x_, 2, 0));
  uint64_t in_use = choir_device_memory(device_).in_use_bytes;
  choir_buffer_release(temporary);
  EXPECT_EQ(choir_device_memory(device_).in_use_bytes, in_use);
  gate.Open();
  ASSERT_OK(choir_stream_synchronize(a_));
  EXPECT_LT(choir_device_memory(device_).in_use_bytes, in_use);
  EXPECT_EQ(Look(x_), 22);
}

std::atomic<int> references{0};

TEST_F(StreamThreadTest, AttributesAreHeldUntilTheRecordHasRun) {
  choir_kernel_t kernel = {
      "holds/test",
      [](const choir_record_t* record, choir_stream_t*) -> choir_status_t {
        if (references != 1 || *static_cast<const int*>(record->attrs) != 42)
          return CHOIR_ERROR(INTERNAL, "not held");
        return nullptr;
      },
      nullptr,
      [](const void*) { ++references; },
      [](const void*) { --references; },
      false};
  int attrs = 42;
  choir_record_t record = {};
  record.kernel = &kernel;
  record.attrs = &attrs;
  record.attrs_bytes = sizeof(attrs);
  ASSERT_OK(choir_stream_submit(a_, &record));
  attrs = 0;
  EXPECT_OK(choir_stream_synchronize(a_));
  EXPECT_EQ(references, 0);
  // Records that are skipped or refused let go as well.
  Gate gate;
  Close(a_, &gate);
  Submit(a_, TestRecord::Fail(7));
  ASSERT_OK(choir_stream_submit(a_, &record));
  EXPECT_EQ(references, 1);
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  ASSERT_OK(choir_event_record(event, a_));
  gate.Open();
  ASSERT_OK(choir_event_synchronize(event));
  EXPECT_EQ(references, 0);
  EXPECT_STATUS(OUT_OF_RANGE, "fail: 7 given",
                choir_stream_submit(a_, &record));
  EXPECT_EQ(references, 0);
  choir_event_release(event);
}

TEST_F(StreamThreadTest, EventsReferToTheirLatestRecord) {
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  EXPECT_TRUE(choir_event_is_reached(event));  // never recorded
  EXPECT_OK(choir_event_synchronize(event));
  Gate first;
  Gate second;
  Close(a_, &first);
  Submit(a_, TestRecord::Fill(x_, 1));
  ASSERT_OK(choir_event_record(event, a_));
  // b waits for the first record of the event, though it is recorded again on
  // another stream, where it is reached at once.
  ASSERT_OK(choir_stream_wait_event(b_, event));
  Submit(b_, TestRecord::Affine(x_, y_, 10, 0));
  ASSERT_OK(choir_event_record(event, choir_device_stream(device_)));
  EXPECT_TRUE(choir_event_is_reached(event));
  EXPECT_OK(choir_event_synchronize(event));
  EXPECT_EQ(Look(y_), 0);
  first.Open();
  ASSERT_OK(choir_stream_synchronize(b_));
  EXPECT_EQ(Look(y_), 10);

  Close(a_, &second);
  ASSERT_OK(choir_event_record(event, a_));
  EXPECT_FALSE(choir_event_is_reached(event));
  second.Open();
  EXPECT_OK(choir_event_synchronize(event));
  EXPECT_TRUE(choir_event_is_reached(event));
  choir_event_release(event);
}

TEST_F(StreamThreadTest, AnEventOutlivesItsStream) {
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &stream));
  Submit(stream, TestRecord::Fill(x_, 1));
  ASSERT_OK(choir_event_record(event, stream));
  choir_stream_release(stream);
  EXPECT_TRUE(choir_event_is_reached(event));
  EXPECT_OK(choir_stream_wait_event(a_, event));
  EXPECT_OK(choir_event_synchronize(event));
  choir_event_release(event);
}

TEST_F(StreamThreadTest, WaitingForOneselfIsRefusedNotAHang) {
  choir_kernel_t kernel = {
      "waits/test",
      [](const choir_record_t*, choir_stream_t* stream) -> choir_status_t {
        return choir_stream_synchronize(stream);
      },
      nullptr,
      nullptr,
      nullptr,
      false};
  choir_record_t record = {};
  record.kernel = &kernel;
  ASSERT_OK(choir_stream_submit(a_, &record));
  EXPECT_STATUS(FAILED_PRECONDITION, "a record waits for its own stream",
                choir_stream_synchronize(a_));
  // An event of the stream's own past is no wait at all.
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  Submit(a_, TestRecord::Fill(x_, 3));
  ASSERT_OK(choir_event_record(event, a_));
  ASSERT_OK(choir_stream_wait_event(a_, event));
  ASSERT_OK(choir_stream_synchronize(a_));
  choir_event_release(event);
}

// Ping-pong between two streams and the caller's thread: every hand-over by an
// event, thousands of times. Lost wake-ups and missing barriers show here.
TEST_F(StreamThreadTest, EventsHandOverBetweenManyStreams) {
  choir_event_t* events[3] = {};
  for (choir_event_t*& event : events)
    ASSERT_OK(choir_event_create(device_, &event));
  choir_stream_t* streams[3] = {a_, b_, choir_device_stream(device_)};
  const int kRounds = 1500;
  for (int i = 0; i < kRounds; ++i) {
    for (int s = 0; s < 3; ++s) {
      ASSERT_OK(choir_stream_wait_event(streams[s], events[(s + 2) % 3]));
      Submit(streams[s], TestRecord::Affine(x_, x_, 1, 1));
      ASSERT_OK(choir_event_record(events[s], streams[s]));
    }
  }
  for (choir_stream_t* stream : streams)
    ASSERT_OK(choir_stream_synchronize(stream));
  EXPECT_EQ(Look(x_), 3 * kRounds);
  for (choir_event_t* event : events) choir_event_release(event);
}

TEST_F(StreamThreadTest, SteadyWorkAsksTheBaseForNothing) {
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  uint64_t after_warm_up = 0;
  for (int round = 0; round < 6; ++round) {
    // The queue is at its fullest behind the gate, so each round needs the
    // same blocks.
    Gate gate;
    Close(a_, &gate);
    gate.AwaitArrivals(1);
    for (int i = 0; i < 40; ++i) {
      choir_buffer_t* temporary = nullptr;
      ASSERT_OK(choir_buffer_create(device_, 1000, &temporary));
      Submit(a_, TestRecord::Fill(temporary, i));
      Submit(a_, TestRecord::Affine(temporary, x_, 1, 0));
      ASSERT_OK(choir_event_record(event, a_));
      ASSERT_OK(choir_stream_wait_event(b_, event));
      choir_buffer_release(temporary);
    }
    gate.Open();
    ASSERT_OK(choir_stream_synchronize(a_));
    ASSERT_OK(choir_stream_synchronize(b_));
    if (round == 1) after_warm_up = allocator_.allocations();
  }
  EXPECT_EQ(allocator_.allocations(), after_warm_up);
  choir_event_release(event);
}

TEST_F(StreamThreadTest, WithoutMemorySubmitFailsAndNothingRuns) {
  Gate gate;
  Close(a_, &gate);
  gate.AwaitArrivals(1);
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device_, &event));
  ASSERT_OK(choir_event_record(event, a_));
  allocator_.FailAt(0, /*for_good=*/true);
  // The pool has a few blocks left; take them until it asks the base.
  int accepted = 0;
  choir_status_t status = nullptr;
  while (!status && accepted < 1000) {
    status = choir_stream_submit(a_, TestRecord::Affine(x_, x_, 1, 1).get());
    if (!status) ++accepted;
  }
  EXPECT_STATUS(OUT_OF_MEMORY, "a place in the queue", status);
  status = nullptr;
  int waits = 0;
  while (!status && waits < 1000) {
    status = choir_stream_wait_event(b_, event);
    if (!status) ++waits;
  }
  EXPECT_STATUS(OUT_OF_MEMORY, "a place in the queue", status);
  allocator_.FailAt(-1);
  gate.Open();
  ASSERT_OK(choir_stream_synchronize(a_));
  ASSERT_OK(choir_stream_synchronize(b_));
  EXPECT_EQ(Look(x_), accepted);
  choir_event_release(event);
}

}  // namespace
