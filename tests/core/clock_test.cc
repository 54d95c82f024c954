// SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "core/allocator.h"
#include "core/device.h"
#include "tests/testing/status_matchers.h"

namespace {

// The exit code of `body` in a forked child; -1 when it was killed, by the
// alarm if it hung.
int InChild(const std::function<int()>& body) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(body());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ClockTest, Advances) {
  double before = choir_clock_seconds();
  usleep(2000);
  double after = choir_clock_seconds();
  EXPECT_GE(after - before, 0.002);
  EXPECT_LT(after - before, 10.0);
}

// 0 when `status` is a FAILED_PRECONDITION.
int Refused(choir_status_t status) {
  int code = choir_status_code(status) == CHOIR_STATUS_FAILED_PRECONDITION;
  choir_status_free(status);
  return code ? 0 : 1;
}

TEST(ClockTest, AChildForkedBeforeThreadsIsFree) {
  // This test stands before those that start threads.
  EXPECT_EQ(InChild([] {
              if (choir_process_is_forked_child()) return 1;
              choir_device_t* device = nullptr;
              choir_status_t status =
                  choir_device_create("cpu_async", nullptr, &device);
              if (status) return 2;
              choir_device_release(device);
              return 0;
            }),
            0);
}

choir_status_t Nothing(const choir_record_t*, choir_stream_t*) {
  return nullptr;
}

TEST(ClockTest, AChildForkedAfterThreadsIsRefusedAndNeverHangs) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu_async", nullptr, &device));
  choir_stream_t* background = nullptr;
  ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &background));
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device, 64, &buffer));
  choir_event_t* event = nullptr;
  ASSERT_OK(choir_event_create(device, &event));
  choir_kernel_t kernel = {"nothing", Nothing, nullptr,
                           nullptr,   nullptr, false};
  choir_record_t record = {};
  record.kernel = &kernel;
  choir_stream_t* stream = choir_device_stream(device);
  for (int i = 0; i < 50; ++i) ASSERT_OK(choir_stream_submit(stream, &record));
  ASSERT_OK(choir_event_record(event, stream));
  EXPECT_FALSE(choir_process_is_forked_child());

  // While records run: their locks may be held at the moment of the fork.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(InChild([&] {
                if (!choir_process_is_forked_child()) return 1;
                char byte = 0;
                choir_device_t* other_device = nullptr;
                choir_buffer_t* other_buffer = nullptr;
                choir_stream_t* other_stream = nullptr;
                choir_event_t* other_event = nullptr;
                int bad = 0;
                bad +=
                    Refused(choir_device_create("cpu", nullptr, &other_device));
                bad += Refused(choir_buffer_create(device, 8, &other_buffer));
                bad += Refused(choir_buffer_wrap(device, &byte, 1, nullptr,
                                                 nullptr, &other_buffer));
                bad += Refused(choir_buffer_read(buffer, stream, 0, &byte, 1));
                bad += Refused(choir_buffer_write(buffer, stream, 0, &byte, 1));
                bad += Refused(choir_stream_create(
                    device, CHOIR_STREAM_BACKGROUND, &other_stream));
                bad += Refused(choir_stream_submit(stream, &record));
                bad += Refused(choir_stream_synchronize(background));
                bad += Refused(choir_event_create(device, &other_event));
                bad += Refused(choir_event_record(event, stream));
                bad += Refused(choir_stream_wait_event(stream, event));
                bad += Refused(choir_event_synchronize(event));
                if (!choir_event_is_reached(event)) ++bad;
                // Memory that the device lent still works, and letting go of
                // everything returns.
                choir_allocator_t allocator = choir_device_allocator(device);
                void* memory = allocator.alloc(allocator.self, 100, 16);
                if (!memory) ++bad;
                allocator.free(allocator.self, memory, 100, 16);
                choir_device_memory(device);
                choir_event_release(event);
                choir_buffer_release(buffer);
                choir_stream_release(background);
                choir_device_release(device);
                return bad;
              }),
              0);
  }
  EXPECT_OK(choir_stream_synchronize(stream));
  choir_event_release(event);
  choir_buffer_release(buffer);
  choir_stream_release(background);
  choir_device_release(device);
}

}  // namespace
