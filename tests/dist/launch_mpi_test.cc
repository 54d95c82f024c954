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

// What a launcher prints that is started with mpiexec's environment and this;
// of what is in both the latter counts.
ProcessResult Launch(const std::vector<std::string>& more) {
  std::vector<std::string> environment = choir_testing::MpiexecEnvironment();
  environment.push_back("CHOIR_TEST_LAUNCHER=1");
  environment.insert(environment.end(), more.begin(), more.end());
  ProcessGroup group;
  group.Start({choir_testing::OwnPath(), choir_testing::OwnFilter()},
              environment);
  return group.Wait(Patience(40))[0];
}

bool IsRank() { return getenv("OMPI_COMM_WORLD_RANK") != nullptr; }
bool IsLauncher() { return getenv("CHOIR_TEST_LAUNCHER") != nullptr; }

TEST(LaunchMpiTest, ARanksExitStatusIsNotTakenForAMissingMpiexec) {
  if (IsRank()) _exit(127);
  if (IsLauncher()) RunLauncher();
  const ProcessResult result = Launch({});
  EXPECT_EQ(result.exit_status, 127) << result.output;
  EXPECT_NE(result.output.find("MESSAGE=\n"), std::string::npos)
      << result.output;
}

TEST(LaunchMpiTest, AMissingMpiexecIsTold) {
  if (IsLauncher()) RunLauncher();
  const ProcessResult result = Launch({"PATH=/nowhere"});
  EXPECT_NE(result.output.find("MESSAGE=launch: there is no mpiexec; it comes "
                               "with Open MPI (Debian: openmpi-bin)\n"),
            std::string::npos)
      << result.output;
}

TEST(LaunchMpiTest, AFolderThatCannotBeMadeIsTold) {
  if (IsRank()) _exit(0);
  if (IsLauncher()) RunLauncher();
  const std::string lengthy = "/" + std::string(5000, 'x');
  for (const std::string& folder : {std::string("/nowhere"), lengthy}) {
    const ProcessResult result = Launch({"TMPDIR=" + folder});
    EXPECT_TRUE(choir_testing::Contains(
        result.output,
        "MESSAGE=launch: cannot make a folder for Open MPI in /[a-z]+: "
        "[A-Z][a-z "
        "]+; OMPI_MCA_orte_tmpdir_base chooses another\n"))
        << result.output;
  }
}

// Of the worker that launches, ranks get nothing that says who they are.
TEST(LaunchMpiTest, AWorkerCanLaunchRanks) {
  const std::vector<std::string> outer = {
      "CHOIR_RANK=7", "CHOIR_SIZE=9",
      "CHOIR_COMM_ID=0123456789abcdef0123456789abcdef", "CHOIR_BOARD_FD=88",
      "CHOIR_LAUNCH=0"};
  if (IsRank()) {
    for (const std::string& entry : outer) {
      const char* value = getenv(entry.substr(0, entry.find('=')).c_str());
      if (value && entry.substr(entry.find('=') + 1) == value)
        printf("HAS %s\n", entry.c_str());
    }
    const char* comm = getenv("CHOIR_COMM");
    printf("COMM=%s\n", comm ? comm : "(none)");
    fflush(stdout);
    _exit(0);
  }
  if (IsLauncher()) RunLauncher();
  std::vector<std::string> environment = outer;
  environment.push_back("CHOIR_COMM=mpi");  // the user's own choice
  const ProcessResult result = Launch(environment);
  EXPECT_EQ(result.exit_status, 0) << result.output;
  EXPECT_EQ(result.output.find("HAS "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("COMM=mpi\n"), std::string::npos)
      << result.output;
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
    {"rank_killed", "rank", SIGKILL, 137, "rank 1.*\\ssignal 9 "},
    {"rank_terminated", "rank", SIGTERM, 143, "rank 1.*\\ssignal 15 "},
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
