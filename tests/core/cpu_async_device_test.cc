// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/device.h"
#include "tests/testing/status_matchers.h"

// The promise of the test device: what is ordered stays ordered, and what is
// not goes wrong soon.

namespace {

// Records share an atomic counter, so that a missing event shows as a wrong
// number and not as undefined behaviour.
std::atomic<int64_t> steps_done;
std::atomic<int> violations;

struct Step {
  int64_t number;
  int is_consumer;
};

// The producer finishes step n; the consumer of step n needs it finished.
choir_status_t RunStep(const choir_record_t* record, choir_stream_t*) {
  const Step* step = static_cast<const Step*>(record->attrs);
  if (step->is_consumer) {
    if (steps_done < step->number) ++violations;
  } else {
    steps_done = step->number;
  }
  return nullptr;
}

const choir_kernel_t kStep = {"step/test", RunStep, nullptr,
                              nullptr,     nullptr, false};

void SubmitStep(choir_stream_t* stream, int64_t number, bool is_consumer) {
  Step step = {number, is_consumer};
  choir_record_t record = {};
  record.kernel = &kStep;
  record.attrs = &step;
  record.attrs_bytes = sizeof(step);
  ASSERT_OK(choir_stream_submit(stream, &record));
}

enum class Order { kComputeProduces, kBackgroundProduces };

// How often a consumer ran too early over one run of 40 steps.
int Violations(uint64_t seed, Order order, bool with_event) {
  choir_device_options_t options = {};
  options.seed = seed;
  choir_device_t* device = nullptr;
  EXPECT_OK(choir_device_create("cpu_async", &options, &device));
  choir_stream_t* background = nullptr;
  EXPECT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &background));
  choir_event_t* event = nullptr;
  EXPECT_OK(choir_event_create(device, &event));
  choir_stream_t* producer = choir_device_stream(device);
  choir_stream_t* consumer = background;
  if (order == Order::kBackgroundProduces) std::swap(producer, consumer);
  steps_done = 0;
  violations = 0;
  for (int64_t number = 1; number <= 40; ++number) {
    SubmitStep(producer, number, /*is_consumer=*/false);
    if (with_event) {
      EXPECT_OK(choir_event_record(event, producer));
      EXPECT_OK(choir_stream_wait_event(consumer, event));
    }
    SubmitStep(consumer, number, /*is_consumer=*/true);
  }
  EXPECT_OK(choir_stream_synchronize(producer));
  EXPECT_OK(choir_stream_synchronize(consumer));
  choir_event_release(event);
  choir_stream_release(background);
  choir_device_release(device);
  return violations;
}

TEST(CpuAsyncDeviceTest, AMissingEventShows) {
  for (Order order : {Order::kComputeProduces, Order::kBackgroundProduces}) {
    int runs_that_show = 0;
    for (uint64_t seed = 0; seed < 20; ++seed)
      runs_that_show += Violations(seed, order, /*with_event=*/false) > 0;
    // Most runs show it; a busy machine may hide it in some.
    EXPECT_GE(runs_that_show, 3);
    ::testing::Test::RecordProperty(order == Order::kComputeProduces
                                        ? "compute_produces"
                                        : "background_produces",
                                    runs_that_show);
  }
}

TEST(CpuAsyncDeviceTest, WithEventsNothingIsEverTooEarly) {
  for (Order order : {Order::kComputeProduces, Order::kBackgroundProduces})
    for (uint64_t seed = 0; seed < 20; ++seed)
      EXPECT_EQ(Violations(seed, order, /*with_event=*/true), 0) << seed;
}

TEST(CpuAsyncDeviceTest, AMissingSynchronizeShows) {
  int early = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    choir_device_options_t options = {};
    options.seed = seed;
    choir_device_t* device = nullptr;
    ASSERT_OK(choir_device_create("cpu_async", &options, &device));
    choir_stream_t* stream = choir_device_stream(device);
    steps_done = 0;
    for (int64_t number = 1; number <= 20; ++number)
      SubmitStep(stream, number, /*is_consumer=*/false);
    early += steps_done < 20;
    ASSERT_OK(choir_stream_synchronize(stream));
    EXPECT_EQ(steps_done, 20);
    choir_device_release(device);
  }
  EXPECT_GE(early, 3);
  ::testing::Test::RecordProperty("early", early);
}

}  // namespace
