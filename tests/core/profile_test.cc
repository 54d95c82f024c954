// SPDX-License-Identifier: Apache-2.0
#include "core/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/stage.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernels.h"

namespace {

using choir::testing::FailEveryAllocation;
using choir::testing::FailingAllocator;
using choir::testing::FirstElement;
using choir::testing::Gate;
using choir::testing::TestRecord;

choir_status_t Append(void* self, const char* text, size_t bytes) {
  static_cast<std::string*>(self)->append(text, bytes);
  return nullptr;
}

choir_status_t Refuse(void* /*self*/, const char* /*text*/, size_t /*bytes*/) {
  return CHOIR_ERROR(UNAVAILABLE, "no room");
}

class ProfileTest : public ::testing::Test {
 protected:
  void Make(int32_t max_rows, int64_t max_events) {
    choir_profile_options_t options = {max_rows, max_events, {}};
    ASSERT_OK(choir_profile_create(&options, &profile_));
  }
  void TearDown() override { choir_profile_destroy(profile_); }

  // "name|label" of each row.
  std::map<std::string, choir_profile_row_t> Rows() {
    std::vector<choir_profile_row_t> rows(
        choir_profile_rows(profile_, nullptr));
    EXPECT_EQ(choir_profile_rows(profile_, rows.data()), rows.size());
    std::map<std::string, choir_profile_row_t> by_name;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i > 0) {
        EXPECT_LE(rows[i].seconds, rows[i - 1].seconds);
      }
      EXPECT_GE(rows[i].min_seconds, 0);
      EXPECT_LE(rows[i].min_seconds, rows[i].max_seconds);
      EXPECT_LE(rows[i].max_seconds, rows[i].seconds);
      // The sum of doubles may be a bit off.
      EXPECT_GE(rows[i].seconds * 1.000001,
                rows[i].min_seconds * static_cast<double>(rows[i].calls));
      by_name[std::string(rows[i].name) + "|" + rows[i].label] = rows[i];
    }
    EXPECT_EQ(by_name.size(), rows.size());
    return by_name;
  }
  void Span(choir_span_kind_t kind, const char* name,
            const char* label = nullptr) {
    const choir_span_t span = choir_span_begin(kind);
    choir_span_end(&span, name, label, nullptr);
  }
  std::string Events() {
    std::string text;
    EXPECT_OK(choir_profile_write_events(profile_, 3, "rank \"3\"", 0, Append,
                                         &text));
    return text;
  }
  static int Count(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + 1))
      ++count;
    return count;
  }

  choir_profile_t* profile_ = nullptr;
};

// On every device, from every stream, on whatever thread it runs.
class ProfileDeviceTest : public ProfileTest,
                          public ::testing::WithParamInterface<const char*> {};

TEST_P(ProfileDeviceTest, TimesEveryRecordWhereItRuns) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create(GetParam(), nullptr, &device));
  choir_stream_t* compute = choir_device_stream(device);
  choir_stream_t* background = nullptr;
  ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &background));
  choir_buffer_t* buffers[2];
  for (choir_buffer_t*& buffer : buffers)
    ASSERT_OK(choir_buffer_create(device, 80, &buffer));
  Make(0, 100);
  ASSERT_OK(
      choir_stream_submit(compute, TestRecord::Fill(buffers[0], 9).get()));
  ASSERT_OK(choir_stream_synchronize(compute));
  ASSERT_OK(choir_profile_start(profile_));
  choir_profile_keep_events(profile_, true);
  ASSERT_OK(
      choir_stream_submit(compute, TestRecord::Fill(buffers[0], 1).get()));
  choir_stream_set_label(compute, "conv1");
  for (int i = 0; i < 3; ++i)
    ASSERT_OK(choir_stream_submit(
        compute, TestRecord::Affine(buffers[0], buffers[0], 3, 0).get()));
  choir_stream_set_label(compute, nullptr);
  {
    // The record's own label goes first, and lives as long as the call.
    std::string label = "bucket 0";
    TestRecord fill = TestRecord::Fill(buffers[1], 5);
    choir_record_t record = *fill.get();
    record.label = label.c_str();
    choir_stream_set_label(background, "other");
    ASSERT_OK(choir_stream_submit(background, &record));
    label = "gone....";
  }
  ASSERT_OK(choir_stream_synchronize(compute));
  ASSERT_OK(choir_stream_synchronize(background));
  choir_profile_stop(profile_);
  ASSERT_OK(
      choir_stream_submit(compute, TestRecord::Fill(buffers[1], 7).get()));
  EXPECT_EQ(FirstElement(buffers[0], compute), 27);

  const bool is_null = std::string(GetParam()) == "null";
  const bool is_inline = std::string(GetParam()) != "cpu_async";
  auto rows = Rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows["fill/test|"].calls, 1);
  EXPECT_EQ(rows["fill/test|"].beside, !is_inline);
  EXPECT_EQ(rows["affine/test|conv1"].calls, 3);
  EXPECT_EQ(rows["affine/test|conv1"].kind, CHOIR_SPAN_OP);
  EXPECT_EQ(rows["affine/test|conv1"].cost.flops, 3 * 20.0);
  EXPECT_EQ(rows["affine/test|conv1"].cost.bytes, 3 * 160.0);
  EXPECT_EQ(rows["fill/test|bucket 0"].calls, 1);
  EXPECT_EQ(rows["fill/test|bucket 0"].beside, !is_null);
  const choir_profile_totals_t totals = choir_profile_totals(profile_);
  EXPECT_EQ(totals.events, 5);
  EXPECT_EQ(totals.lost_events, 0);
  double inside = 0;
  for (const auto& row : rows)
    if (!row.second.beside) inside += row.second.seconds;
  EXPECT_NEAR(totals.seconds - totals.outside_seconds, inside, 1e-9);
  EXPECT_GE(totals.outside_seconds, 0);
  // Threads that had spans: the caller's and the streams'.
  const std::string events = Events();
  EXPECT_EQ(Count(events, "thread_name"), is_null ? 1 : 2) << events;
  EXPECT_EQ(Count(events, "\"ph\":\"X\""), 5) << events;
  EXPECT_EQ(Count(events, "no room"), 0) << events;
  EXPECT_EQ(Count(events, "\"of\":\"conv1\""), 3) << events;
  EXPECT_EQ(Count(events, "\"name\":\"main\""), is_inline ? 1 : 0) << events;

  for (choir_buffer_t* buffer : buffers) choir_buffer_release(buffer);
  choir_stream_release(background);
  choir_device_release(device);
}

INSTANTIATE_TEST_SUITE_P(Devices, ProfileDeviceTest,
                         ::testing::Values("cpu", "cpu_async", "null"));

// A record that waits on its thread takes long there, not where it was
// submitted.
TEST_F(ProfileTest, TimeIsThatOfRunningNotOfSubmitting) {
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu", nullptr, &device));
  choir_stream_t* background = nullptr;
  ASSERT_OK(choir_stream_create(device, CHOIR_STREAM_BACKGROUND, &background));
  Make(0, 0);
  Gate gate;
  ASSERT_OK(choir_profile_start(profile_));
  const choir_record_t record = gate.Record();
  ASSERT_OK(choir_stream_submit(background, &record));
  gate.AwaitArrivals(1);
  const double arrived = choir_clock_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const double waited = choir_clock_seconds() - arrived;
  gate.Open();
  ASSERT_OK(choir_stream_synchronize(background));
  choir_profile_stop(profile_);
  auto rows = Rows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows.begin()->second.beside);
  EXPECT_GE(rows.begin()->second.seconds, waited);
  choir_stream_release(background);
  choir_device_release(device);
}

TEST_F(ProfileTest, TimeOfTheStarterIsItsInnermostSpans) {
  Make(0, 0);
  ASSERT_OK(choir_profile_start(profile_));
  const choir_span_t phase = choir_span_begin(CHOIR_SPAN_PHASE);
  const choir_span_t outer = choir_span_begin(CHOIR_SPAN_COMM);
  Span(CHOIR_SPAN_WAIT, "wait", "rank 1");
  Span(CHOIR_SPAN_WAIT, "wait", "rank 2");
  choir_span_end(&outer, "all_reduce/comm", "loss", nullptr);
  Span(CHOIR_SPAN_LOADER, "wait for a batch");
  choir_span_end(&phase, "step", nullptr, nullptr);
  std::thread other([&] { Span(CHOIR_SPAN_LOADER, "wait for a batch"); });
  other.join();
  choir_profile_stop(profile_);
  // The same name on two threads is two rows.
  ASSERT_EQ(choir_profile_rows(profile_, nullptr), 6u);
  std::vector<choir_profile_row_t> rows(6);
  choir_profile_rows(profile_, rows.data());
  double inside = 0, all_reduce = 0, waits = 0, step = 0;
  for (const choir_profile_row_t& row : rows) {
    if (row.kind == CHOIR_SPAN_COMM) all_reduce = row.seconds;
    if (row.kind == CHOIR_SPAN_PHASE) step = row.seconds;
    if (row.kind == CHOIR_SPAN_WAIT) waits += row.seconds;
    if (row.beside) {
      EXPECT_EQ(row.kind, CHOIR_SPAN_LOADER);
    }
    if (row.kind == CHOIR_SPAN_COMM ||
        (row.kind == CHOIR_SPAN_LOADER && !row.beside))
      inside += row.seconds;
  }
  EXPECT_LE(waits, all_reduce);
  EXPECT_LE(inside, step);
  const choir_profile_totals_t totals = choir_profile_totals(profile_);
  EXPECT_NEAR(totals.seconds - totals.outside_seconds, inside, 1e-9);
  const double* self = totals.self_seconds;
  EXPECT_NEAR(self[CHOIR_SPAN_WAIT], waits, 1e-9);
  EXPECT_NEAR(self[CHOIR_SPAN_COMM], all_reduce - waits, 1e-9);
  EXPECT_NEAR(self[CHOIR_SPAN_LOADER], inside - all_reduce, 1e-9);
  EXPECT_EQ(self[CHOIR_SPAN_OP], 0);
  EXPECT_EQ(self[CHOIR_SPAN_PHASE], 0);
}

TEST_F(ProfileTest, StartsStopsAndStartsAgain) {
  Make(0, 10);
  Span(CHOIR_SPAN_OP, "before");
  ASSERT_OK(choir_profile_start(profile_));
  EXPECT_STATUS(FAILED_PRECONDITION, "a profile runs already",
                choir_profile_start(profile_));
  choir_profile_t* second = nullptr;
  ASSERT_OK(choir_profile_create(nullptr, &second));
  EXPECT_STATUS(FAILED_PRECONDITION, "a profile runs already",
                choir_profile_start(second));
  choir_profile_stop(second);  // runs not: nothing happens
  Span(CHOIR_SPAN_OP, "one");
  const choir_span_t open = choir_span_begin(CHOIR_SPAN_OP);
  choir_profile_stop(profile_);
  choir_span_end(&open, "open", nullptr, nullptr);
  ASSERT_OK(choir_profile_start(second));
  Span(CHOIR_SPAN_OP, "two");
  choir_profile_destroy(second);
  ASSERT_OK(choir_profile_start(profile_));
  Span(CHOIR_SPAN_OP, "one");
  choir_profile_keep_events(profile_, true);
  Span(CHOIR_SPAN_OP, "three");
  choir_profile_keep_events(profile_, false);
  Span(CHOIR_SPAN_OP, "three");
  choir_profile_stop(profile_);
  auto rows = Rows();
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows["one|"].calls, 2);
  EXPECT_EQ(rows["three|"].calls, 2);
  EXPECT_EQ(choir_profile_totals(profile_).events, 1);

  choir_profile_reset(profile_);
  EXPECT_EQ(choir_profile_rows(profile_, nullptr), 0u);
  EXPECT_EQ(choir_profile_totals(profile_).seconds, 0);
  EXPECT_EQ(choir_profile_totals(profile_).outside_seconds, 0);
  EXPECT_EQ(Count(Events(), "\"name\":\"three\""), 1);
}

TEST_F(ProfileTest, FullTablesGoOnCounting) {
  Make(3, 2);
  ASSERT_OK(choir_profile_start(profile_));
  choir_profile_keep_events(profile_, true);
  for (const char* name : {"a", "b", "c", "d", "c", "a"})
    Span(CHOIR_SPAN_OP, name);
  choir_profile_stop(profile_);
  auto rows = Rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows["a|"].calls, 2);
  EXPECT_EQ(rows["b|"].calls, 1);
  EXPECT_EQ(rows["others|"].calls, 3);
  EXPECT_EQ(choir_profile_totals(profile_).events, 2);
  EXPECT_EQ(choir_profile_totals(profile_).lost_events, 4);
  EXPECT_EQ(Count(Events(), "\"labels\":\"4 spans had no room\""), 1);
}

TEST_F(ProfileTest, LongTextsAreCut) {
  Make(0, 0);
  const std::string longer(100, 'x');
  ASSERT_OK(choir_profile_start(profile_));
  for (int i = 0; i < 2; ++i)
    Span(CHOIR_SPAN_OP, longer.c_str(), longer.c_str());
  choir_profile_stop(profile_);
  auto rows = Rows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows.begin()->second.name, std::string(47, 'x'));
  EXPECT_EQ(rows.begin()->second.label, std::string(47, 'x'));
  EXPECT_EQ(rows.begin()->second.calls, 2);
}

TEST_F(ProfileTest, PrintsAsMuchAsAsked) {
  Make(0, 0);
  ASSERT_OK(choir_profile_start(profile_));
  const choir_span_t forward = choir_span_begin(CHOIR_SPAN_PHASE);
  const choir_cost_t cost = {4e3, 2e3};
  const choir_span_t op = choir_span_begin(CHOIR_SPAN_OP);
  choir_span_end(&op, "conv2d/cpu", "conv1", &cost);
  choir_span_end(&forward, "forward", nullptr, nullptr);
  choir_profile_stop(profile_);
  std::string text;
  EXPECT_OK(
      choir_profile_print(profile_, CHOIR_PROFILE_NOTHING, Append, &text));
  EXPECT_EQ(text, "");
  EXPECT_OK(choir_profile_print(profile_, CHOIR_PROFILE_PHASES, Append, &text));
  EXPECT_EQ(text.rfind("Time Profiling:\nforward: 0.", 0), 0u) << text;
  EXPECT_EQ(Count(text, "\n"), 2) << text;
  const std::string phases = text;
  text.clear();
  EXPECT_OK(choir_profile_print(profile_, CHOIR_PROFILE_OPS, Append, &text));
  EXPECT_EQ(text.rfind(phases, 0), 0u) << text;
  EXPECT_EQ(Count(text, "\n"), 6) << text;
  for (const char* part :
       {"GFLOP/s", "conv2d/cpu", "conv1", "outside of these"})
    EXPECT_EQ(Count(text, part), 1) << part << " in\n" << text;
  EXPECT_STATUS(
      UNAVAILABLE, "no room",
      choir_profile_print(profile_, CHOIR_PROFILE_OPS, Refuse, nullptr));
}

TEST_F(ProfileTest, EventsAreEscaped) {
  Make(0, 4);
  ASSERT_OK(choir_profile_start(profile_));
  choir_profile_keep_events(profile_, true);
  Span(CHOIR_SPAN_LOADER, "a\\b", "\n\"");
  choir_profile_stop(profile_);
  const std::string events = Events();
  EXPECT_EQ(Count(events, R"("name":"rank \"3\"")"), 1) << events;
  EXPECT_EQ(Count(events, R"("name":"a\\b","cat":"loader")"), 1) << events;
  EXPECT_EQ(Count(events, R"("of":"\u000a\"")"), 1) << events;
  EXPECT_STATUS(
      UNAVAILABLE, "no room",
      choir_profile_write_events(profile_, 0, "", 0, Refuse, nullptr));
}

TEST_F(ProfileTest, SteadyLoopTakesNoMemory) {
  FailingAllocator memory;
  choir_device_options_t device_options = {1, memory.get(), 0};
  choir_profile_options_t options = {16, 1000, memory.get()};
  choir_device_t* device = nullptr;
  ASSERT_OK(choir_device_create("cpu_async", &device_options, &device));
  choir_stream_t* stream = choir_device_stream(device);
  choir_buffer_t* buffer = nullptr;
  ASSERT_OK(choir_buffer_create(device, 80, &buffer));
  ASSERT_OK(choir_profile_create(&options, &profile_));
  uint64_t before = 0;
  for (int i = 0; i < 300; ++i) {
    if (i == 20) {
      ASSERT_OK(choir_profile_start(profile_));
      choir_profile_keep_events(profile_, true);
      before = memory.allocations();
    }
    choir_stream_set_label(stream, i % 2 ? "odd" : "even");
    ASSERT_OK(choir_stream_submit(
        stream, TestRecord::Affine(buffer, buffer, 1, 1).get()));
    ASSERT_OK(choir_stream_synchronize(stream));
  }
  choir_profile_stop(profile_);
  EXPECT_EQ(memory.allocations(), before);
  auto rows = Rows();
  EXPECT_EQ(rows["affine/test|odd"].calls, 140);
  EXPECT_EQ(rows["affine/test|even"].calls, 140);
  choir_buffer_release(buffer);
  choir_device_release(device);
  choir_profile_destroy(profile_);
  profile_ = nullptr;
}

TEST_F(ProfileTest, FailsWithoutMemoryOrWithWrongSizes) {
  EXPECT_GT(FailEveryAllocation([](choir_allocator_t allocator) {
              choir_profile_options_t options = {8, 8, allocator};
              choir_profile_t* profile = nullptr;
              choir_status_t status = choir_profile_create(&options, &profile);
              choir_profile_destroy(profile);
              return status;
            }),
            3);
  choir_profile_options_t wrong = {-1, 0, {}};
  EXPECT_STATUS(INVALID_ARGUMENT, "-1 rows",
                choir_profile_create(&wrong, &profile_));
  EXPECT_EQ(profile_, nullptr);
  choir_profile_destroy(nullptr);
}

}  // namespace
