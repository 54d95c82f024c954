// SPDX-License-Identifier: Apache-2.0
// One file from all ranks. That it is JSON is asked by tests/examples.
#include <gtest/gtest.h>

#include <string>

#include "dist/timeline.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Rank;

choir_status_t Append(void* self, const char* text, size_t bytes) {
  static_cast<std::string*>(self)->append(text, bytes);
  return nullptr;
}

choir_status_t Refuse(void* /*self*/, const char* /*text*/, size_t /*bytes*/) {
  return CHOIR_ERROR(UNAVAILABLE, "no room");
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
}

void Spans(int count, const std::string& name) {
  for (int i = 0; i < count; ++i) {
    const choir_span_t span = choir_span_begin(CHOIR_SPAN_OP);
    choir_span_end(&span, name.c_str(), nullptr, nullptr);
  }
}

choir_profile_t* StartProfile(int64_t max_events) {
  choir_profile_options_t options = {0, max_events, {}};
  choir_profile_t* profile = nullptr;
  EXPECT_OK(choir_profile_create(&options, &profile));
  EXPECT_OK(choir_profile_start(profile));
  choir_profile_keep_events(profile, true);
  return profile;
}

TEST(TimelineTest, OneProcessNeedsNoCommunicator) {
  choir_profile_t* profile = StartProfile(10);
  Spans(2, "fill");
  choir_profile_stop(profile);
  std::string text;
  ASSERT_OK(choir_timeline_write(nullptr, profile, Append, &text));
  EXPECT_EQ(text.rfind("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{", 0),
            0u)
      << text;
  EXPECT_EQ(text.substr(text.size() - 5), "}\n]}\n") << text;
  EXPECT_EQ(Count(text, "\"ph\":\"X\""), 2) << text;
  // The first event is where time begins.
  EXPECT_EQ(Count(text, "\"ts\":0.000,"), 1) << text;
  EXPECT_STATUS(UNAVAILABLE, "no room",
                choir_timeline_write(nullptr, profile, Refuse, nullptr));
  EXPECT_STATUS(INVALID_ARGUMENT, "writer is NULL",
                choir_timeline_write(nullptr, profile, nullptr, nullptr));
  choir_profile_destroy(profile);
}

// Rank 1's text is longer than a piece, rank 2 has no events.
TEST(TimelineTest, RankZeroWritesTheEventsOfAll) {
  if (choir_testing::RunRanks("shm", 3)) return;
  choir_comm_config_t config;
  ASSERT_OK(choir_comm_config_init(&config));
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_create(&config, &comm));
  choir_profile_t* profile = StartProfile(5000);
  ASSERT_OK(choir_comm_barrier(comm, "together"));
  if (Rank() == 2) choir_profile_keep_events(profile, false);
  const int counts[] = {4, 2000, 3};
  Spans(counts[Rank()], "rank " + std::to_string(Rank()));
  // Whoever comes first waits for the others, inside of the collective.
  ASSERT_OK(choir_comm_barrier(comm, "end"));
  choir_profile_stop(profile);
  std::string text;
  ASSERT_OK(choir_timeline_write(comm, profile, Append, &text));
  if (Rank() == 0) {
    EXPECT_EQ(Count(text, "\"name\":\"rank 0\",\"cat\":\"op\""), 4);
    EXPECT_EQ(Count(text, "\"name\":\"rank 1\",\"cat\":\"op\""), 2000);
    EXPECT_EQ(Count(text, "\"name\":\"rank 2\",\"cat\":\"op\""), 0);
    EXPECT_EQ(Count(text, "\"process_name\""), 3);
    // Rank 2 may have been in its first barrier when it stopped noting them.
    EXPECT_GE(Count(text, "\"name\":\"barrier/comm\",\"cat\":\"comm\""), 4);
    EXPECT_GT(text.size(), 2000u * 60);
    EXPECT_EQ(Count(text, "{"), Count(text, "}"));
    EXPECT_EQ(Count(text, "\"ts\":-"), 0);
  } else {
    EXPECT_EQ(text, "");
  }
  // Where rank 0 cannot write, the others are through and the communicator
  // still works.
  choir_status_t status = choir_timeline_write(comm, profile, Refuse, nullptr);
  EXPECT_EQ(choir_status_code(status),
            Rank() == 0 ? CHOIR_STATUS_UNAVAILABLE : CHOIR_STATUS_OK);
  choir_status_free(status);
  // What is wrong with one rank's call all hear.
  status = choir_timeline_write(comm, Rank() == 1 ? nullptr : profile, Append,
                                &text);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(choir_testing::Contains(
      choir_status_message(status),
      Rank() == 1 ? "^timeline_write: profile is NULL$"
                  : "^all_reduce 'timeline' \\(operation \\d+\\): rank 1: "
                    "timeline_write: profile is NULL$"))
      << choir_status_message(status);
  choir_status_free(status);
  ASSERT_OK(choir_comm_barrier(comm, "in order"));
  choir_profile_destroy(profile);
  ASSERT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
}

}  // namespace
