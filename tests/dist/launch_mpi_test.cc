// SPDX-License-Identifier: Apache-2.0
// Ranks that mpiexec starts, and what they start, end with the run however it
// ends. The test starts itself as a launcher, and that by mpiexec as ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "dist/launch.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;

struct End {
  const char* name;
  const char* who;  // "rank", "mpiexec", "launcher", "group"; "": nobody
  int signal_number;
  int exit_status;
  const char* message;
};

void PrintTo(const End& end, std::ostream* out) { *out << end.name; }

constexpr size_t kRanks = 2;

[[noreturn]] void RunRank(const End& end, const std::string& mark) {
  const std::string family = mark + "-family";
  choir_testing::StartFamily(family);
  constexpr size_t kAll = kRanks * choir_testing::kFamilySize;
  EXPECT_TRUE(choir_testing::WaitForProcesses(family, kAll, kAll, 20));
  printf("RANK%s=%d PARENT=%d\n", getenv("OMPI_COMM_WORLD_RANK"), getpid(),
         getppid());
  fflush(stdout);
  if (!strcmp(end.who, "")) {
    usleep(300000);  // the others count too
    _exit(0);
  }
  for (;;) pause();
}

[[noreturn]] void RunLauncher() {
  std::string filter = choir_testing::OwnFilter();
  char name[] = "launch_mpi_test";
  char* argv[] = {name, &filter[0], nullptr};
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = argv;
  config.workers = kRanks;
  config.grace = 0;
  choir_launch_report_t report;
  choir_status_t status = choir_launch_mpiexec(&config, &report);
  printf("MESSAGE=%s\n",
         status ? choir_status_message(status) : report.message);
  fflush(stdout);
  _exit(report.exit_status);
}

int NumberAfter(const std::string& text, const std::string& word) {
  size_t at = text.find(word);
  return at == std::string::npos ? -1 : atoi(text.c_str() + at + word.size());
}

class MpiTreeTest : public ::testing::TestWithParam<End> {};

TEST_P(MpiTreeTest, EndsWithAllItsProcesses) {
  const End& end = GetParam();
  const char* given = getenv("CHOIR_TEST_TREE");
  const std::string mark = given ? given : "tree-" + choir_testing::MakeId();
  if (getenv("OMPI_COMM_WORLD_RANK")) RunRank(end, mark);
  if (given) RunLauncher();
  std::vector<std::string> environment = choir_testing::MpiexecEnvironment();
  environment.push_back("CHOIR_TEST_TREE=" + mark);
  ProcessGroup group;
  group.Start({choir_testing::OwnPath(), choir_testing::OwnFilter()},
              environment);
  ASSERT_TRUE(group.WaitForOutput(0, "RANK0=", Patience(40)))
      << group.output(0);
  ASSERT_TRUE(group.WaitForOutput(0, "RANK1=", Patience(40)));
  const std::string who = end.who;
  pid_t launcher = group.pid(0);
  if (who == "rank")
    kill(NumberAfter(group.output(0), "RANK1="), end.signal_number);
  if (who == "mpiexec")
    kill(NumberAfter(group.output(0), "PARENT="), end.signal_number);
  if (who == "launcher") kill(launcher, end.signal_number);
  if (who == "group") kill(-launcher, end.signal_number);
  ProcessResult result = group.Wait(Patience(40))[0];
  EXPECT_EQ(result.exit_status, end.exit_status) << result.output;
  EXPECT_TRUE(choir_testing::Contains(result.output, end.message))
      << result.output;
  bool launcher_is_gone =
      end.signal_number == SIGKILL && (who == "launcher" || who == "group");
  EXPECT_TRUE(choir_testing::WaitForProcesses(
      mark, 0, 0, launcher_is_gone ? Patience(10) : 0))
      << choir_testing::ProcessesWith(mark).size() << " survivors";
  for (pid_t pid : choir_testing::ProcessesWith(mark)) kill(pid, SIGKILL);
}

const End kEnds[] = {
    {"well", "", 0, 0, "MESSAGE=\n"},
    {"rank_killed", "rank", SIGKILL, 137, "rank 1.* signal 9 "},
    {"rank_terminated", "rank", SIGTERM, 143, "rank 1.* signal 15 "},
    {"mpiexec_killed", "mpiexec", SIGKILL, 137,
     "MESSAGE=mpiexec \\(host .+, pid \\d+\\) was killed by signal 9 "
     "\\(Killed\\); all ranks were ended\n"},
    {"launcher_killed", "launcher", SIGKILL, 137, "RANK1="},
    {"launcher_terminated", "launcher", SIGTERM, 143,
     "MESSAGE=interrupted by signal 15 \\(Terminated\\); all ranks were "
     "ended\n"},
    {"group_interrupted", "group", SIGINT, 130,
     "MESSAGE=interrupted by signal 2 \\(Interrupt\\); all ranks were ended\n"},
    {"group_killed", "group", SIGKILL, 137, "RANK1="},
};

INSTANTIATE_TEST_SUITE_P(Ends, MpiTreeTest, ::testing::ValuesIn(kEnds),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
