// SPDX-License-Identifier: Apache-2.0
// The guard by itself; the launchers' tests have the rest.
#include "dist/guard_internal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/testing/ranks.h"

namespace {

// What comes of the child's end, as waitpid gives it.
int StatusOfChild(choir_guard_t* guard, double seconds) {
  const double end = choir_clock_seconds() + choir_testing::Patience(seconds);
  choir_guard_event_t event;
  while (choir_clock_seconds() < end) {
    choir_guard_wait(guard, 0.1, &event);
    if (event.kind == CHOIR_GUARD_ENDED && event.child == 0)
      return event.status;
  }
  return -1;
}

// An order for what lost its parent changes nothing for a child that has its
// grace already.
TEST(GuardTest, AnOrderForOrphansLeavesChildrenTheirGrace) {
  char shell[] = "sh", command[] = "-c",
       script[] = "trap 'sleep 1; exit 7' TERM; while :; do sleep 0.02; done";
  char* argv[] = {shell, command, script, nullptr};
  char path[] = "PATH=/usr/bin:/bin", mark[] = "CHOIR_LAUNCH=guard-test";
  char* environment[] = {path, mark, nullptr};
  choir_guard_child_t child = {"/bin/sh", argv, environment, 0};
  choir_guard_config_t config = {};
  config.children = &child;
  config.count = 1;
  config.inherited_fds[0] = config.inherited_fds[1] = -1;
  config.mark = "guard-test";
  choir_guard_t guard;
  ASSERT_EQ(choir_guard_start(&config, &guard), nullptr);
  usleep(300000);  // the shell sets its trap
  const double grace = choir_testing::Patience(20);
  choir_guard_end(&guard, grace, 0.1);
  usleep(200000);
  choir_guard_end_orphans(&guard, 0.1);
  const int status = StatusOfChild(&guard, 20);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 7);
  choir_guard_event_t event;
  while (!guard.is_over) choir_guard_wait(&guard, 1, &event);
  EXPECT_FALSE(guard.was_killed);
  choir_guard_finish(&guard);
}

}  // namespace
