// SPDX-License-Identifier: Apache-2.0
// Three roles in one binary: the test starts itself as a launcher, which
// starts itself as workers (choir_launch_run runs the same program again).
#include "dist/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "dist/elastic/membership_def.h"
#include "tests/dist/board_member.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    choir_status_t status_ = (expr);                              \
    ASSERT_EQ(status_, nullptr) << choir_status_message(status_); \
  } while (0)

std::string Filter() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string("--gtest_filter=") + info->test_suite_name() + "." +
         info->name();
}

bool IsLauncher() { return getenv("CHOIR_TEST_LAUNCHER") != nullptr; }

// What a launcher's report said, read from its output.
struct Report {
  ProcessResult process;
  int exit_status = -1;
  int failed_rank = -2;
  std::string message;
};

std::string LineAfter(const std::string& text, const std::string& mark) {
  size_t at = text.find(mark);
  if (at == std::string::npos) return "(no " + mark + ")";
  at += mark.size();
  return text.substr(at, text.find('\n', at) - at);
}

void StartLauncher(ProcessGroup* group) {
  group->Start({std::filesystem::read_symlink("/proc/self/exe"), Filter()},
               {"CHOIR_TEST_LAUNCHER=1"});
}

Report Finish(ProcessGroup* group) {
  Report report;
  report.process = group->Wait(Patience(30))[0];
  report.exit_status = atoi(LineAfter(report.process.output, "EXIT=").c_str());
  report.failed_rank = atoi(LineAfter(report.process.output, "RANK=").c_str());
  report.message = LineAfter(report.process.output, "MESSAGE=");
  EXPECT_TRUE(report.process.ended) << report.process.output;
  return report;
}

Report Launch() {
  ProcessGroup group;
  StartLauncher(&group);
  return Finish(&group);
}

// "PID (NAME) STATE PARENT"; a state of 0: there is no such process.
struct ProcessState {
  char state = 0;
  pid_t parent = 0;
};

ProcessState StateOf(pid_t pid) {
  ProcessState found;
  std::string path = "/proc/" + std::to_string(pid) + "/stat";
  FILE* file = fopen(path.c_str(), "r");
  if (!file) return found;
  char text[512] = "";
  EXPECT_GT(fread(text, 1, sizeof(text) - 1, file), 0u);
  fclose(file);
  const char* end = strrchr(text, ')');
  int parent = 0;
  EXPECT_EQ(sscanf(end ? end : "", ") %c %d", &found.state, &parent), 2);
  found.parent = parent;
  return found;
}

// Of this process, that nobody has reaped.
int CountZombies() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const ProcessState process = StateOf(pid);
    count += process.state == 'Z' && process.parent == getpid();
  }
  return count;
}

// The launcher's role: prints the report for the parent, and what is left.
void RunLauncher(int32_t workers, double grace = 1, bool is_elastic = false) {
  std::string filter = Filter();
  char name[] = "launch_test";
  char* argv[] = {name, &filter[0], nullptr};
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  config.argv = argv;
  config.workers = workers;
  config.grace = grace;
  config.elastic = is_elastic;
  choir_launch_report_t report;
  auto count_fds = [] {
    int count = 0;
    for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      count += !entry.path().empty();
    return count;
  };
  int before = count_fds();
  choir_status_t status = choir_launch_run(&config, &report);
  printf("STATUS=%s\n", status ? choir_status_message(status) : "ok");
  choir_status_free(status);
  printf("EXIT=%d\nRANK=%d\nMESSAGE=%s\n", report.exit_status,
         report.failed_rank, report.message);
  printf("LEAKED=%d\nZOMBIES=%d\n", count_fds() - before, CountZombies());
  fflush(stdout);
  _exit(report.exit_status);
}

choir_comm_t* Join(double deadline) {
  choir_comm_config_t config;
  choir_status_t status = choir_comm_config_init(&config);
  config.deadline = deadline;
  choir_comm_t* comm = nullptr;
  if (!status) status = choir_comm_create(&config, &comm);
  if (status) {
    fprintf(stderr, "worker: %s\n", choir_status_message(status));
    _exit(1);
  }
  return comm;
}

void Reduce(choir_comm_t* comm) {
  std::vector<float> data(1000, 1);
  choir_status_t status =
      choir_comm_all_reduce(comm, data.data(), data.data(), 1000,
                            CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "bucket 0");
  if (!status) return;
  fprintf(stderr, "SAID(%d)=%s\n", choir_comm_rank(comm),
          choir_status_message(status));
  _exit(1);
}

void Leave(choir_comm_t* comm) {
  choir_status_t status = choir_comm_finalize(comm);
  choir_comm_release(comm);
  fflush(stdout);
  _exit(status ? 1 : 0);
}

bool IsAlive(pid_t pid) {
  const char state = StateOf(pid).state;
  return state && state != 'Z';
}

bool AllGone(const std::vector<pid_t>& pids, double seconds) {
  double end = choir_clock_seconds() + seconds;
  for (;;) {
    bool any = false;
    for (pid_t pid : pids) any = any || IsAlive(pid);
    if (!any) return true;
    if (choir_clock_seconds() > end) return false;
    usleep(10000);
  }
}

std::vector<pid_t> WorkerPids(const std::string& output) {
  const std::string mark = "WORKER=";
  std::vector<pid_t> pids;
  for (size_t at = output.find(mark); at != std::string::npos;
       at = output.find(mark, at + 1))
    pids.push_back(atoi(output.c_str() + at + mark.size()));
  return pids;
}

// A whole line in one write, as workers share the pipe.
void TellPid() {
  char text[32];
  int bytes = snprintf(text, sizeof(text), "WORKER=%d\n", getpid());
  ASSERT_EQ(write(1, text, static_cast<size_t>(bytes)), bytes);
}

TEST(LaunchTest, AllWell) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(10);
    for (int step = 0; step < 20; ++step) {
      choir_launch_note_progress(0, step);
      Reduce(comm);
    }
    Leave(comm);
  }
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 0) << report.process.output;
  EXPECT_EQ(report.failed_rank, -1);
  EXPECT_EQ(report.message, "");
  EXPECT_EQ(LineAfter(report.process.output, "STATUS="), "ok");
  EXPECT_EQ(LineAfter(report.process.output, "LEAKED="), "0");
}

// What `ps` and `top` show, cut by the kernel.
TEST(LaunchTest, WorkersHaveTheProgramsName) {
  if (choir_launch_is_worker()) {
    std::string name;
    std::ifstream("/proc/self/comm") >> name;
    printf("NAME=%s\n", name.c_str());
    Leave(Join(10));
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 0) << report.process.output;
  EXPECT_EQ(LineAfter(report.process.output, "NAME="), "launch_test");
}

// It was left out and has not noticed; the others are through.
TEST(LaunchTest, OneThatWasLeftOutIsNotWaitedFor) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    choir_testing_be_member(choir_comm_rank(comm) == 1 ? 1 : 2);
    if (choir_comm_rank(comm) == 1) raise(SIGSTOP);
    _exit(0);
  }
  if (IsLauncher()) RunLauncher(3, 0.1, true);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 0) << report.process.output;
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, KilledWhenTheRunIsOver) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    choir_testing_be_member(2);
    int32_t first = getpid();
    choir_status_free(choir_comm_broadcast(comm, &first, 1, CHOIR_DTYPE_I32, 0,
                                           "process of rank 0"));
    choir_status_free(choir_comm_finalize(comm));
    if (first == getpid()) Leave(comm);
    while (!kill(first, 0)) usleep(1000);
    raise(SIGKILL);
  }
  if (IsLauncher()) RunLauncher(2, 1, true);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 0) << report.process.output;
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, KilledWorkerIsNamed) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    for (int step = 0;; ++step) {
      choir_launch_note_progress(0, step);
      if (step == 17 && choir_comm_rank(comm) == 1) raise(SIGKILL);
      Reduce(comm);
    }
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 137);
  EXPECT_EQ(report.failed_rank, 1);
  std::string pattern(
      "rank 1 \\(host .+, pid \\d+\\) was killed by signal 9 \\(Killed\\) in "
      "epoch 0 step 17; rank 0 \\(host .+, pid \\d+\\) was waiting for it in "
      "all_reduce 'bucket 0' \\(operation 18\\); all workers were ended");
  EXPECT_TRUE(choir_testing::Matches(report.message, pattern))
      << report.message;
  EXPECT_LT(report.process.seconds, Patience(15));
  // The survivor said it too.
  std::string said(
      "all_reduce 'bucket 0' \\(operation 18\\): rank 1 \\(host .+, pid "
      "\\d+\\) is gone: its process was killed or ended too early");
  EXPECT_TRUE(choir_testing::Matches(
      LineAfter(report.process.output, "SAID(0)="), said))
      << report.process.output;
}

// Survivors that compute and never look at the communicator are ended too.
TEST(LaunchTest, SurvivorsAreEnded) {
  if (choir_launch_is_worker()) {
    TellPid();
    signal(SIGTERM, SIG_IGN);
    choir_comm_t* comm = Join(20);
    if (choir_comm_rank(comm) == 2) abort();
    for (;;) pause();
  }
  if (IsLauncher()) RunLauncher(4);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 128 + SIGABRT);
  EXPECT_EQ(report.failed_rank, 2);
  std::string pattern(
      "rank 2 \\(host .+, pid \\d+\\) was killed by signal 6 \\(Aborted\\); "
      "all workers were ended");
  EXPECT_TRUE(choir_testing::Matches(report.message, pattern))
      << report.message;
  EXPECT_LT(report.process.seconds, Patience(15));
  std::vector<pid_t> pids = WorkerPids(report.process.output);
  EXPECT_EQ(pids.size(), 4u);
  EXPECT_TRUE(AllGone(pids, 0.1));
}

TEST(LaunchTest, UsageErrorGivesTwo) {
  if (choir_launch_is_worker()) _exit(2);
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 2);
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, WorkerThatSaidItselfNeedsNoMessage) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    if (choir_comm_rank(comm) == 1) _exit(1);
    Reduce(comm);
    Leave(comm);
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 1);
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, OddExitStatusIsTold) {
  if (choir_launch_is_worker()) {
    if (!strcmp(getenv("CHOIR_RANK"), "0")) _exit(0);
    choir_launch_note_progress(2, 5);
    _exit(42);
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  std::string pattern(
      "rank 1 \\(host .+, pid \\d+\\) ended with exit status 42 in epoch 2 "
      "step 5; all workers were ended");
  EXPECT_TRUE(choir_testing::Matches(report.message, pattern))
      << report.message;
}

// Fewer than two cores for each worker; what the user chose stays.
TEST(LaunchTest, ThreadsOfACrowdDoNotWaitBusily) {
  if (choir_launch_is_worker()) {
    const char* policy = getenv("OMP_WAIT_POLICY");
    const char* chosen = getenv("CHOIR_TEST_POLICY");
    _exit(policy && !strcmp(policy, chosen ? chosen : "passive") ? 0 : 9);
  }
  const int crowd = static_cast<int>(std::thread::hardware_concurrency()) / 2;
  if (IsLauncher()) RunLauncher(crowd + 1);
  for (const char* chosen : {"", "active"}) {
    if (*chosen) {
      setenv("CHOIR_TEST_POLICY", chosen, 1);
      setenv("OMP_WAIT_POLICY", chosen, 1);
    } else {
      unsetenv("OMP_WAIT_POLICY");
    }
    Report report = Launch();
    EXPECT_EQ(report.exit_status, 0) << chosen << ": " << report.message;
  }
  unsetenv("CHOIR_TEST_POLICY");
  unsetenv("OMP_WAIT_POLICY");
}

// That a program could not be started is not told by an exit status.
TEST(LaunchTest, ExitStatus127IsAnotherOne) {
  if (choir_launch_is_worker()) _exit(127);
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_TRUE(choir_testing::Matches(
      report.message,
      "rank 0 \\(host .+, pid \\d+\\) ended with exit status 127; all workers "
      "were ended"))
      << report.message;
  EXPECT_EQ(LineAfter(report.process.output, "STATUS="), "ok");
}

TEST(LaunchTest, AProgramThatDoesNotStartIsTold) {
  if (IsLauncher()) {
    // More than the kernel takes for one variable.
    setenv("CHOIR_TEST_LONG", std::string(1 << 20, 'x').c_str(), 1);
    RunLauncher(1);
  }
  Report report = Launch();
  EXPECT_EQ(LineAfter(report.process.output, "STATUS="),
            "launch: cannot start rank 0: Argument list too long");
}

// The launcher's process has changed what becomes of its children: the guard
// leaves no status behind.
TEST(LaunchTest, AKilledGuardIsToldWhoeverReapsIt) {
  if (choir_launch_is_worker()) {
    usleep(500000);
    if (!strcmp(getenv("CHOIR_RANK"), "0")) kill(getppid(), SIGKILL);
    for (;;) pause();
  }
  if (IsLauncher()) {
    std::thread([] {
      for (;; usleep(1000)) signal(SIGCHLD, SIG_IGN);
    }).detach();
    RunLauncher(2);
  }
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_TRUE(choir_testing::Matches(
      report.message,
      "the guard of the workers \\(host .+, pid \\d+\\) was killed; all "
      "workers were ended"))
      << report.message;
}

int32_t OwnRank() { return atoi(getenv("CHOIR_RANK")); }

// Rank 1 fails in its own work; the others only hear of its end, and say so
// first.
TEST(LaunchTest, NotedCauseIsTold) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    for (int step = 0;; ++step) {
      choir_launch_note_progress(0, step);
      if (step == 17 && choir_comm_rank(comm) == 1) {
        choir_launch_note_failure(CHOIR_STATUS_INVALID_ARGUMENT,
                                  "loss: it is not finite");
        choir_launch_note_failure(CHOIR_STATUS_INTERNAL, "comes too late");
        choir_comm_abort(comm, "loss: it is not finite");
        usleep(200000);
        _exit(1);
      }
      float data = 1;
      choir_status_t status = choir_comm_all_reduce(
          comm, &data, &data, 1, CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "bucket 0");
      if (!status) continue;
      choir_launch_note_failure(choir_status_code(status),
                                choir_status_message(status));
      _exit(1);
    }
  }
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 1);
  std::string pattern(
      "rank 1 \\(host .+, pid \\d+\\) failed in epoch 0 step 17: loss: it is "
      "not finite(; rank 0 .+ waiting for it in all_reduce 'bucket 0' "
      "\\(operation 18\\))?; all workers were ended");
  EXPECT_TRUE(choir_testing::Matches(report.message, pattern))
      << report.message;
}

// One that is slow to end after its note is the cause all the same.
TEST(LaunchTest, NotedCauseThatHangsIsTold) {
  if (choir_launch_is_worker()) {
    if (OwnRank() == 2) {
      choir_launch_note_failure(CHOIR_STATUS_OUT_OF_MEMORY, "no memory");
      for (;;) pause();
    }
    usleep(100000);
    choir_launch_note_failure(CHOIR_STATUS_ABORTED, "rank 2 is gone");
    _exit(1);
  }
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 2);
  EXPECT_TRUE(choir_testing::Matches(
      report.message,
      "rank 2 \\(host .+, pid \\d+\\) failed: no memory; all workers were "
      "ended"))
      << report.message;
}

TEST(LaunchTest, SameFailureIsToldOnce) {
  if (choir_launch_is_worker()) {
    Reduce(Join(20));  // all come here together
    choir_launch_note_failure(CHOIR_STATUS_NOT_FOUND, "data: no file x");
    _exit(1);
  }
  if (IsLauncher()) RunLauncher(4);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 0);
  EXPECT_EQ(report.message, "data: no file x");
}

TEST(LaunchTest, SameUsageErrorGivesTwo) {
  if (choir_launch_is_worker()) {
    Reduce(Join(20));
    choir_launch_note_failure(CHOIR_STATUS_INVALID_ARGUMENT, "--lr: no number");
    _exit(2);
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 2);
  EXPECT_EQ(report.message, "--lr: no number");
}

// Nobody noted a cause of its own: the first that noted speaks. A long text is
// cut, not overrun.
TEST(LaunchTest, OnlyConsequencesAreTold) {
  if (choir_launch_is_worker()) {
    std::string text(5000, 'x');
    text[0] = static_cast<char>('a' + OwnRank());
    choir_launch_note_failure(CHOIR_STATUS_TIMEOUT, text.c_str());
    _exit(1);
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 0);
  EXPECT_TRUE(choir_testing::Matches(
      report.message,
      "rank 0 \\(host .+, pid \\d+\\) failed: ax+; all workers were ended"))
      << report.message;
  EXPECT_NE(report.message.find(std::string(1022, 'x') + ";"),
            std::string::npos);
}

// A signal comes before what peers noted, and a worker that ended without a
// word before those that only heard of it.
TEST(LaunchTest, SilentEndIsTheCause) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    if (OwnRank() == 2) _exit(1);
    float data = 1;
    choir_status_t status = choir_comm_all_reduce(
        comm, &data, &data, 1, CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "bucket 0");
    choir_launch_note_failure(choir_status_code(status),
                              choir_status_message(status));
    _exit(1);
  }
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 2);
  EXPECT_TRUE(choir_testing::Contains(
      report.message,
      "^rank 2 \\(host .+, pid \\d+\\) ended with exit status 1(; .+)?; all "
      "workers were ended$"))
      << report.message;
}

TEST(LaunchTest, KilledWorkerComesBeforeNotes) {
  if (choir_launch_is_worker()) {
    if (OwnRank() == 1) {
      choir_launch_note_failure(CHOIR_STATUS_INTERNAL, "dies anyway");
      raise(SIGKILL);
    }
    usleep(50000);
    choir_launch_note_failure(CHOIR_STATUS_INTERNAL, "something else");
    _exit(1);
  }
  if (IsLauncher()) RunLauncher(2);
  Report report = Launch();
  EXPECT_EQ(report.failed_rank, 1);
  EXPECT_EQ(report.exit_status, 128 + SIGKILL);
}

TEST(LaunchTest, StoppedWorkerIsNamed) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(4);
    Reduce(comm);
    if (choir_comm_rank(comm) == 1) raise(SIGSTOP);
    Reduce(comm);
    Leave(comm);
  }
  if (IsLauncher()) RunLauncher(3);
  Report report = Launch();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_EQ(report.failed_rank, 1);
  std::string pattern(
      "rank 1 \\(host .+, pid \\d+\\) was stopped by a signal; rank 0 \\(host "
      ".+, pid \\d+\\)( and 1 more were| was) waiting for it in all_reduce "
      "'bucket 0' \\(operation 2\\); all workers were ended");
  EXPECT_TRUE(choir_testing::Matches(report.message, pattern))
      << report.message;
  EXPECT_NE(report.process.output.find("no sign of life"), std::string::npos);
  EXPECT_LT(report.process.seconds, Patience(30));
}

TEST(LaunchTest, CtrlCEndsAll) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    Reduce(comm);
    TellPid();
    for (;;) pause();
  }
  if (IsLauncher()) RunLauncher(3);
  ProcessGroup group;
  StartLauncher(&group);
  ASSERT_TRUE(group.WaitForOutput(0, "WORKER=", Patience(20)));
  usleep(50000);
  double start = choir_clock_seconds();
  group.Signal(0, SIGINT);
  Report report = Finish(&group);
  EXPECT_LT(choir_clock_seconds() - start, Patience(15));
  EXPECT_EQ(report.exit_status, 130);
  EXPECT_EQ(report.message,
            "interrupted by signal 2 (Interrupt); all workers were ended");
  EXPECT_TRUE(AllGone(WorkerPids(report.process.output), 0.1));
}

TEST(LaunchTest, WorkersDieWithTheLauncher) {
  if (choir_launch_is_worker()) {
    choir_comm_t* comm = Join(20);
    TellPid();
    Reduce(comm);
    if (choir_comm_rank(comm) == 0) {
      printf("REDUCED\n");
      fflush(stdout);
    }
    for (;;) pause();
  }
  if (IsLauncher()) RunLauncher(2);
  ProcessGroup group;
  StartLauncher(&group);
  // Both came to the all-reduce, so both have told their pid.
  ASSERT_TRUE(group.WaitForOutput(0, "REDUCED", Patience(20)));
  group.Signal(0, SIGKILL);
  std::vector<ProcessResult> results = group.Wait(Patience(10));
  EXPECT_EQ(results[0].exit_status, 137);
  std::vector<pid_t> pids = WorkerPids(results[0].output);
  EXPECT_EQ(pids.size(), 2u) << results[0].output;
  EXPECT_TRUE(AllGone(pids, Patience(10)));
}

// ---- Workers that leave an elastic run ----

// A worker as a member of it.
class Member {
 public:
  Member() : comm_(Join(Patience(20))) {
    TellPid();
    Check(choir__membership_create(comm_, 7, &membership_));
    // Whoever ends after this knows that all have come to it.
    choir_status_free(choir_comm_barrier(comm_, "members"));
  }

  [[noreturn]] void LeaveRun(int left_by, int exit_status = 0) {
    choir__membership_leave(membership_, left_by);
    choir_comm_abort(comm_, "it leaves");
    _exit(exit_status);
  }

  // Until it is alone, or one of so few.
  void GoOn(int size = 1) {
    while (choir_comm_size(comm_) > size) {
      choir_status_t status = choir_comm_barrier(comm_, "all");
      choir_status_free(status);
      if (!status) continue;
      choir_comm_t* next = nullptr;
      choir__change_t change;
      while (!next)
        Check(choir__membership_change(membership_, comm_, &next, &change));
      choir_comm_release(comm_);
      comm_ = next;
    }
  }

  bool is_newcomer() const { return choir_comm_is_newcomer(comm_); }

 private:
  static void Check(choir_status_t status) {
    if (status) _exit(9);
  }
  choir_comm_t* comm_;
  choir__membership_t* membership_ = nullptr;
};

Report LaunchElastic(size_t started = 3) {
  Report report = Launch();
  EXPECT_EQ(report.failed_rank, -1);
  EXPECT_EQ(LineAfter(report.process.output, "STATUS="), "ok");
  EXPECT_EQ(WorkerPids(report.process.output).size(), started)
      << report.process.output;
  return report;
}

// SIGTERM asks it to go, whether it says a word or not.
TEST(LaunchTest, NobodyComesForOneThatLeft) {
  if (choir_launch_is_worker()) {
    Member member;
    const int rank = atoi(getenv("CHOIR_RANK"));
    if (rank == 1) raise(SIGTERM);
    if (rank == 2) member.LeaveRun(SIGTERM, 1);
    member.GoOn();
    usleep(100000);  // in which another would come
    _exit(0);
  }
  if (IsLauncher()) RunLauncher(3, 1, true);
  const Report report = LaunchElastic();
  EXPECT_EQ(report.exit_status, 0);
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, OneComesForOneThatIsKilledLater) {
  if (choir_launch_is_worker()) {
    Member member;
    const int rank = atoi(getenv("CHOIR_RANK"));
    if (rank == 2) member.LeaveRun(SIGTERM);
    // The newcomer is alone at once.
    if (rank == 1 && !member.is_newcomer()) {
      member.GoOn(2);
      usleep(200000);  // in which the launcher sees the end of the other
      raise(SIGKILL);
    }
    member.GoOn();
    usleep(100000);
    _exit(0);
  }
  if (IsLauncher()) RunLauncher(3, 1, true);
  const Report report = LaunchElastic(4);
  EXPECT_EQ(report.exit_status, 0);
  EXPECT_EQ(report.message, "");
}

TEST(LaunchTest, AllHaveLeft) {
  if (choir_launch_is_worker()) {
    Member member;
    member.LeaveRun(strcmp(getenv("CHOIR_RANK"), "1") != 0 ? 0 : SIGTERM);
  }
  if (IsLauncher()) RunLauncher(3, 1, true);
  const Report report = LaunchElastic();
  EXPECT_EQ(report.exit_status, 128 + SIGTERM);
  EXPECT_EQ(report.message,
            "all workers have left the run: signal 15 (Terminated)");
}

TEST(LaunchTest, AllHaveLeftByThemselves) {
  if (choir_launch_is_worker()) {
    Member member;
    member.LeaveRun(0);
  }
  if (IsLauncher()) RunLauncher(3, 1, true);
  const Report report = LaunchElastic();
  EXPECT_EQ(report.exit_status, 0);
  EXPECT_EQ(report.message, "all workers have left the run");
}

// ---- Trees of processes ----

struct End {
  const char* name;
  const char* who;  // "rank", "launcher", "guard", "group" or nobody: ""
  int signal_number;
  int exit_status;
  const char* message;  // of the report; NULL: nobody is left to print it
  size_t survivors;     // at most
};

// Names of the cases in the output of a test that failed.
void PrintTo(const End& end, std::ostream* out) { *out << end.name; }

class TreeTest : public ::testing::TestWithParam<End> {
 protected:
  void SetUp() override {
    const char* given = getenv("CHOIR_TEST_TREE");
    mark_ = given ? given : "tree-" + choir_testing::MakeId();
  }
  std::string family() const { return mark_ + "-family"; }

  // Each worker has a family, and tells its pid when that is complete.
  [[noreturn]] void Work() {
    choir_testing::StartFamily(family());
    choir_comm_t* comm = Join(30);
    Reduce(comm);
    constexpr size_t kAll = kRanks * choir_testing::kFamilySize;
    EXPECT_TRUE(choir_testing::WaitForProcesses(family(), kAll, kAll, 20));
    std::string text = "RANK" + std::to_string(OwnRank()) + "=" +
                       std::to_string(getpid()) + "\n";
    EXPECT_GT(write(1, text.data(), text.size()), 0);
    if (!strcmp(GetParam().who, "")) Leave(comm);
    for (;;) {
      Reduce(comm);
      usleep(1000);
    }
  }

  static constexpr size_t kRanks = 2;
  std::string mark_;
};

TEST_P(TreeTest, EndsWithAllItsProcesses) {
  if (choir_launch_is_worker()) Work();
  if (IsLauncher()) RunLauncher(kRanks, 0.3);
  const End& end = GetParam();
  ProcessGroup group;
  group.Start({std::filesystem::read_symlink("/proc/self/exe"), Filter()},
              {"CHOIR_TEST_LAUNCHER=1", "CHOIR_TEST_TREE=" + mark_});
  ASSERT_TRUE(group.WaitForOutput(0, "RANK0=", Patience(30)));
  ASSERT_TRUE(group.WaitForOutput(0, "RANK1=", Patience(30)));
  pid_t rank = atoi(LineAfter(group.output(0), "RANK1=").c_str());
  pid_t launcher = group.pid(0);
  const std::string who = end.who;
  if (who == "rank") kill(rank, end.signal_number);
  if (who == "launcher") kill(launcher, end.signal_number);
  if (who == "guard") kill(StateOf(rank).parent, end.signal_number);
  if (who == "group") kill(-launcher, end.signal_number);
  Report report = Finish(&group);
  EXPECT_EQ(report.process.exit_status, end.exit_status)
      << report.process.output;
  if (end.message) {
    EXPECT_TRUE(choir_testing::Contains(report.message, end.message))
        << report.message;
    EXPECT_EQ(LineAfter(report.process.output, "ZOMBIES="), "0");
  }
  // When the launcher is gone its guard has still to do.
  double patience = end.message ? 0 : Patience(10);
  EXPECT_TRUE(
      choir_testing::WaitForProcesses(mark_, 0, end.survivors, patience))
      << choir_testing::ProcessesWith(mark_).size() << " survivors";
  for (pid_t pid : choir_testing::ProcessesWith(mark_)) kill(pid, SIGKILL);
}

const End kEnds[] = {
    {"well", "", 0, 0, "^$"},
    {"rank_killed", "rank", SIGKILL, 137, "^rank 1 .* killed by signal 9 "},
    {"rank_terminated", "rank", SIGTERM, 143,
     "^rank 1 .* killed by signal 15 "},
    {"launcher_killed", "launcher", SIGKILL, 137, nullptr},
    {"launcher_terminated", "launcher", SIGTERM, 143,
     "^interrupted by signal 15 \\(Terminated\\); all workers were ended$"},
    {"launcher_interrupted", "launcher", SIGINT, 130, "^interrupted by "},
    {"guard_killed", "guard", SIGKILL, 1,
     "^the guard of the workers \\(host .+, pid \\d+\\) was killed; all "
     "workers were ended$",
     // Those without an environment, which the guard alone would find.
     2},
    {"group_killed", "group", SIGKILL, 137, nullptr},
    {"group_interrupted", "group", SIGINT, 130, "^interrupted by "},
};

INSTANTIATE_TEST_SUITE_P(Ends, TreeTest, ::testing::ValuesIn(kEnds),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(LaunchTest, RefusesBadConfigs) {
  choir_launch_report_t report;
  choir_launch_config_t config = CHOIR_LAUNCH_CONFIG_INIT;
  auto expect = [&](const std::string& text) {
    choir_status_t status = choir_launch_run(&config, &report);
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), text);
    choir_status_free(status);
  };
  expect("launch: argv is empty");
  char name[] = "x";
  char* argv[] = {name, nullptr};
  config.argv = argv;
  config.workers = 0;
  expect("launch: workers is 0; it must be in 1 .. 1024");
  config.workers = 1;
  config.grace = -1;
  expect("launch: grace is -1 s; it must be in 0 .. 3600");
  EXPECT_FALSE(choir_launch_is_worker());
  choir_launch_note_progress(1, 1);  // no board: nothing happens
  choir_launch_note_failure(CHOIR_STATUS_INTERNAL, "nobody listens");
}

}  // namespace
