// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

struct Line {
  choir_log_level_t level;
  std::string subsystem;
  std::string message;
};

void Keep(void* self, choir_log_level_t level, const char* subsystem,
          const char* message) {
  static_cast<std::vector<Line>*>(self)->push_back({level, subsystem, message});
}

TEST(LogTest, WithoutASinkNothingHappens) {
  choir_log(CHOIR_LOG_ERROR, "core", "%s", "dropped");
}

TEST(LogTest, SinkGetsWhatTheLevelLetsPass) {
  std::vector<Line> lines;
  choir_log_set_sink(Keep, &lines, CHOIR_LOG_WARNING);
  choir_log(CHOIR_LOG_ERROR, "core", "one %d", 1);
  choir_log(CHOIR_LOG_WARNING, "dist", "two");
  choir_log(CHOIR_LOG_INFO, "dist", "three");
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_DEBUG);
  choir_log(CHOIR_LOG_ERROR, "core", "four");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].level, CHOIR_LOG_ERROR);
  EXPECT_EQ(lines[0].subsystem, "core");
  EXPECT_EQ(lines[0].message, "one 1");
  EXPECT_EQ(lines[1].message, "two");
}

TEST(LogTest, LongMessagesAreCut) {
  std::vector<Line> lines;
  choir_log_set_sink(Keep, &lines, CHOIR_LOG_DEBUG);
  choir_log(CHOIR_LOG_DEBUG, "core", "%s", std::string(5000, 'x').c_str());
  choir_log_set_sink(nullptr, nullptr, CHOIR_LOG_ERROR);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].message, std::string(1023, 'x'));
}

}  // namespace
