// SPDX-License-Identifier: Apache-2.0
// What ranks say when something goes wrong: each rank prints the failure it
// got, and the parent compares every rank's words.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/clock.h"
#include "dist/comm.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Heard;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Rank;

#define ASSERT_OK(expr)                                           \
  do {                                                            \
    choir_status_t status_ = (expr);                              \
    ASSERT_EQ(status_, nullptr) << choir_status_message(status_); \
  } while (0)

const char kPeer[] = "rank # \\(host [^ ]+, pid \\d+\\)";

// "@1" in a pattern stands for "rank 1 (host h, pid 4711)".
std::string Expand(std::string pattern) {
  for (size_t at; (at = pattern.find('@')) != std::string::npos;) {
    std::string peer = kPeer;
    peer.replace(peer.find('#'), 1, 1, pattern[at + 1]);
    pattern.replace(at, 2, peer);
  }
  return pattern;
}

choir_comm_config_t Config(double deadline) {
  choir_comm_config_t config;
  choir_status_t status = choir_comm_config_init(&config);
  EXPECT_EQ(status, nullptr) << choir_status_message(status);
  choir_status_free(status);
  config.deadline = deadline;
  return config;
}

void Say(choir_status_t status) {
  choir_testing::Say(
      std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status) + ".");
  choir_status_free(status);
}

// Ends a rank without gtest's words and without MPI_Finalize's wait. mpiexec
// then ends all others at once, so let them speak first.
[[noreturn]] void End() {
  if (getenv("OMPI_COMM_WORLD_SIZE")) usleep(1500000);
  _exit(0);
}

choir_comm_t* JoinOrEnd(double deadline, double silence = 0) {
  choir_comm_config_t config = Config(deadline);
  config.silence = silence;
  choir_comm_t* comm = nullptr;
  choir_status_t status = choir_comm_create(&config, &comm);
  if (!status) return comm;
  Say(status);
  End();
}

choir_status_t Reduce(choir_comm_t* comm, const char* name,
                      int64_t count = 1000) {
  std::vector<float> data(static_cast<size_t>(count), 1);
  return choir_comm_all_reduce(comm, data.data(), data.data(), count,
                               CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, name);
}

void ReduceOrEnd(choir_comm_t* comm, const char* name, int64_t count = 1000) {
  choir_status_t status = Reduce(comm, name, count);
  if (!status) return;
  Say(status);
  End();
}

// Runs `size` ranks and compares what those of `speakers` say.
class FaultTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string backend() const { return GetParam(); }
  bool IsMpi() const { return backend() == "mpi"; }

  void Expect(int size, const std::vector<int>& speakers,
              const std::string& pattern, double within) {
    ProcessGroup group;
    choir_testing::StartRanks(&group, backend(), size);
    Compare(&group, speakers, pattern, within);
  }

  void Compare(ProcessGroup* group, const std::vector<int>& speakers,
               const std::string& pattern, double within) {
    std::vector<ProcessResult> results = group->Wait(Patience(60));
    for (int rank : speakers)
      EXPECT_TRUE(choir_testing::Matches(Heard(results, rank), Expand(pattern)))
          << "rank " << rank << " said: " << Heard(results, rank)
          << "\nnot: " << Expand(pattern);
    for (const ProcessResult& result : results) {
      EXPECT_TRUE(result.ended) << result.output;
      EXPECT_LT(result.seconds, Patience(within)) << result.output;
    }
  }
};

TEST_P(FaultTest, MissingRankAtTheStart) {
  if (choir_testing::InRank()) {
    if (IsMpi()) {
      // MPI itself waits for all; it is the rank after it that is missed.
      choir_comm_t* comm = JoinOrEnd(60);
      choir_comm_release(comm);
      if (Rank() == 1) {
        sleep(4);
        End();
      }
    }
    if (Rank() == 1) End();
    JoinOrEnd(1.5);
    End();
  }
  // A backend that wraps another joins by it.
  std::string pattern = "deadline exceeded: comm " +
                        std::string(IsMpi() ? "mpi" : "[a-z_]+") +
                        ": rank [02] \\(host [^ ]+, pid \\d+\\) waited "
                        "\\d+\\.\\d s at the start; "
                        "rank 1 of 3 has not come\\.";
  Expect(3, {0, 2}, pattern, 20);
}

// mpiexec ends the other ranks at once when one was killed: comm_mpi_test.
#ifndef CHOIR_TEST_MPI

TEST_P(FaultTest, KilledRankIsNamed) {
  for (int64_t count : {1000, 3000000}) {
    if (choir_testing::InRank()) {
      count = getenv("CHOIR_TEST_LARGE") ? 3000000 : 1000;
      choir_comm_t* comm = JoinOrEnd(30);
      for (int step = 0; step < 1000; ++step) {
        if (step == 5) {
          printf("FIVE\n");
          fflush(stdout);
          if (Rank() == 1) pause();
        }
        ReduceOrEnd(comm, "grad", count);
      }
      End();
    }
    ProcessGroup group;
    std::vector<std::string> environment;
    if (count > 1000) environment.push_back("CHOIR_TEST_LARGE=1");
    choir_testing::StartRanks(&group, backend(), 3, environment);
    // A rank may be done with an operation before the others are, and its last
    // words are lost with it: it ends when all have made five.
    for (size_t rank = 0; rank < 3; ++rank)
      ASSERT_TRUE(group.WaitForOutput(rank, "FIVE", Patience(20)));
    group.Signal(1, SIGKILL);
    Compare(&group, {0, 2},
            "aborted: all_reduce 'grad' \\(operation 6\\): @1 is gone: its "
            "process was killed or ended too early\\.",
            5);
  }
}

// In the middle of a transfer, from outside, at any point of it.
TEST_P(FaultTest, KillAtAnyMoment) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(30);
    printf("JOINED\n");
    fflush(stdout);
    for (;;) ReduceOrEnd(comm, "grad", 400000);
  }
  for (int round = 0; round < 4; ++round) {
    ProcessGroup group;
    choir_testing::StartRanks(&group, backend(), 3);
    ASSERT_TRUE(group.WaitForOutput(2, "JOINED", Patience(20)));
    usleep(static_cast<useconds_t>(3000 + round * 7919));
    double start = choir_clock_seconds();
    group.Signal(2, SIGKILL);
    Compare(&group, {0, 1},
            "aborted: all_reduce 'grad' \\(operation \\d+\\): @2 is gone: its "
            "process was killed or ended too early\\.",
            30);
    EXPECT_LT(choir_clock_seconds() - start, Patience(5));
  }
}

#endif  // CHOIR_TEST_MPI

TEST_P(FaultTest, ReceiveWaitsUntilTheDeadline) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(1.5);
    ReduceOrEnd(comm, "first");
    if (Rank() == 1) usleep(3000000);
    float data = 0;
    if (Rank() == 0)
      Say(choir_comm_receive(comm, &data, 1, CHOIR_DTYPE_F32, 1, "p"));
    End();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend(), 2);
  Compare(&group, {0},
          "deadline exceeded: receive 'p' \\(after operation 1\\): @0 waited "
          "\\d+\\.\\d s for @1, which is alive but has not come to this "
          "operation; it computes since operation 1\\.",
          20);
}

#ifndef CHOIR_TEST_MPI

// In the middle of a large message.
TEST_P(FaultTest, KilledSenderIsNamed) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(30);
    ReduceOrEnd(comm, "first");
    std::vector<float> data(1000000, 1);
    for (int step = 0; step < 100; ++step) {
      if (Rank() == 1 && step == 3) raise(SIGKILL);
      choir_status_t status =
          Rank() ? choir_comm_send(comm, data.data(), 1000000, CHOIR_DTYPE_F32,
                                   0, "p")
                 : choir_comm_receive(comm, data.data(), 1000000,
                                      CHOIR_DTYPE_F32, 1, "p");
      if (!status) continue;
      Say(status);
      End();
    }
    End();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend(), 2);
  Compare(&group, {0},
          "aborted: receive 'p' \\(after operation 1\\): @1 is gone: its "
          "process was killed or ended too early\\.",
          10);
}

#endif  // CHOIR_TEST_MPI

TEST_P(FaultTest, StoppedRankIsSilent) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(2);
    ReduceOrEnd(comm, "first");
    if (Rank() == 1) raise(SIGSTOP);
    ReduceOrEnd(comm, "second");
    End();
  }
  std::string pattern =
      "deadline exceeded: all_reduce 'second' \\(operation 2\\): rank [02] "
      "\\(host [^ ]+, pid \\d+\\) waited \\d+\\.\\d s for @1, which has given "
      "no "
      "sign of life for \\d+\\.\\d s \\(stopped, or its host or the link to it "
      "is down\\)\\.";
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend(), 3);
  if (!IsMpi()) {  // mpiexec ends it when the others have ended
    std::thread([&group] {
      sleep(static_cast<unsigned>(Patience(5)));
      group.Signal(1, SIGKILL);
    }).join();
  }
  Compare(&group, {0, 2}, pattern, 20);
}

TEST_P(FaultTest, SilenceHasItsOwnLimit) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(50, 1);
    ReduceOrEnd(comm, "first");
    if (Rank() == 0) raise(SIGSTOP);
    ReduceOrEnd(comm, "second");
    End();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend(), 2);
  if (!IsMpi()) {
    ASSERT_TRUE(group.WaitForOutput(1, "SAYS", Patience(20)));
    group.Signal(0, SIGKILL);
  }
  Compare(
      &group, {1},
      "deadline exceeded: all_reduce 'second' \\(operation 2\\): @1 waited "
      "\\d+\\.\\d s for @0, which has given no sign of life for \\d+\\.\\d s "
      "\\(stopped, or its host or the link to it is down\\)\\.",
      20);
}

TEST_P(FaultTest, BusyRankIsAlive) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(2.5);
    ReduceOrEnd(comm, "first");
    if (Rank() == 1) usleep(5000000);
    Say(Reduce(comm, "second"));
    // mpiexec ends the others when one has ended.
    if (IsMpi() && Rank() != 1) usleep(4000000);
    End();
  }
  // The late rank gets the same sentence when it comes.
  Expect(
      3, {0, 1, 2},
      "deadline exceeded: all_reduce 'second' \\(operation 2\\): rank [02] "
      "\\(host [^ ]+, pid \\d+\\) waited \\d+\\.\\d s for @1, which is alive "
      "but has not come to this operation; it computes since operation "
      "1\\.",
      15);
}

TEST_P(FaultTest, RankThatNeverStarts) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(2.5);
    if (Rank() == 0) {
      // Until the other has given up.
      for (choir_status_t status = nullptr; !status; usleep(10000))
        status = choir_comm_poll_error(comm);
      End();
    }
    ReduceOrEnd(comm, nullptr);
    End();
  }
  Expect(
      2, {1},
      "deadline exceeded: all_reduce \\(operation 1\\): @1 waited \\d+\\.\\d s "
      "for @0, which is alive but has not come to this operation; it has "
      "run no operation yet\\.",
      15);
}

TEST_P(FaultTest, AbortIsHeardAtOnce) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(50);
    ReduceOrEnd(comm, "first");
    if (Rank() == 1) {
      usleep(200000);
      choir_comm_abort(comm, "no data left");
      choir_status_t status = Reduce(comm, "mine");
      EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_ABORTED);
      Say(status);
      usleep(300000);
      End();
    }
    choir_status_t status = Reduce(comm, "second");
    // Every later call says the same.
    choir_status_t later = choir_comm_barrier(comm, "later");
    choir_status_t polled = choir_comm_poll_error(comm);
    EXPECT_STREQ(choir_status_message(status), choir_status_message(later));
    EXPECT_STREQ(choir_status_message(status), choir_status_message(polled));
    choir_status_free(later);
    choir_status_free(polled);
    if (HasFailure()) End();
    Say(status);
    End();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend(), 3);
  Compare(&group, {0, 2},
          "aborted: all_reduce 'second' \\(operation 2\\): @1 aborted: no data "
          "left\\.",
          15);
}

TEST_P(FaultTest, LeavingWithoutFinalizeIsTold) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(50);
    ReduceOrEnd(comm, "first");
    if (Rank() == 0) {
      choir_comm_release(comm);
      usleep(500000);
      End();
    }
    ReduceOrEnd(comm, "second");
    End();
  }
  Expect(2, {1},
         "aborted: all_reduce 'second' \\(operation 2\\): @0 left the "
         "communicator without finalize\\.",
         15);
}

// A program that returns from main and does not say so to anybody.
TEST_P(FaultTest, EndingWithoutFinalizeIsTold) {
  for (int size : {2, 3, 4}) {
    if (choir_testing::InRank()) {
      choir_comm_t* comm = JoinOrEnd(50);
      ReduceOrEnd(comm, "first");
      if (Rank() == 1) {
        usleep(200000);
        exit(0);
      }
      ReduceOrEnd(comm, "second");
      End();
    }
    std::vector<int> others;
    for (int rank = 0; rank < size; ++rank)
      if (rank != 1) others.push_back(rank);
    Expect(size, others,
           "aborted: all_reduce 'second' \\(operation 2\\): @1 " +
               std::string(IsMpi() ? "left the communicator without finalize"
                                   : "is gone: its process was killed or ended "
                                     "too early") +
               "\\.",
           20);
  }
}

// What an operation needs beside what it was given, asked for before ranks
// agree on it: the error of one rank is that of all, and they can go on.
TEST_P(FaultTest, NoMemoryForAnOperationIsHeardByAll) {
  const std::pair<choir_collective_kind_t, const char*> kinds[] = {
      {CHOIR_COLLECTIVE_ALL_REDUCE, "all_reduce"},
      {CHOIR_COLLECTIVE_REDUCE_SCATTER, "reduce_scatter"}};
  for (int size : {2, 3, 4}) {
    if (choir_testing::InRank()) {
      // For the rest of the process.
      auto* allocator = new choir::testing::FailingAllocator;
      ASSERT_OK(choir_allocator_set_default(allocator->get()));
      choir_comm_t* comm = JoinOrEnd(50);
      const int last = choir_comm_size(comm) - 1;
      const int64_t count = 120000;
      std::vector<float> data(static_cast<size_t>(count * (last + 1)), 1);
      std::string said;
      for (const auto& kind : kinds) {
        choir_comm_tensor_t tensor = {data.data(), data.data(), count};
        choir_collective_t c = {};
        c.kind = kind.first;
        c.dtype = CHOIR_DTYPE_F32;
        c.weight = 1;
        c.name = kind.second;
        // A group is packed.
        c.tensors = &tensor;
        c.tensor_count = 1;
        if (Rank() == last) allocator->FailLarge(100000);
        choir_status_t status = choir_comm_run(comm, &c);
        allocator->FailLarge(SIZE_MAX);
        said += std::string(choir_status_code_text(choir_status_code(status))) +
                ": " + choir_status_message(status) + "; ";
        choir_status_free(status);
      }
      ReduceOrEnd(comm, "after");
      // Nobody goes before all have come from there.
      ASSERT_OK(choir_comm_finalize(comm));
      Say(CHOIR_ERROR(INTERNAL, "%s", said.c_str()));
      End();
    }
    std::string pattern = "internal error: ";
    for (const auto& kind : kinds)
      pattern += std::string("out of memory: ") + kind.second + " '" +
                 kind.second + "' \\(operation \\d\\): rank " +
                 std::to_string(size - 1) +
                 ": [a-z ]+: \\d+ bytes asked for; the allocator has none "
                 "left; ";
    std::vector<int> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(rank);
    Expect(size, all, pattern + "\\.", 20);
  }
}

TEST_P(FaultTest, AsynchronousWorkFails) {
  if (choir_testing::InRank()) {
    choir_comm_t* comm = JoinOrEnd(2.5);
    if (Rank() == 0) {
      usleep(5000000);
      End();
    }
    float data = 1;
    choir_collective_t collective = {};
    collective.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
    collective.dtype = CHOIR_DTYPE_F32;
    collective.count = 1;
    collective.src = collective.dst = &data;
    collective.weight = 1;
    collective.name = "in the back";
    choir_work_t* first = nullptr;
    choir_work_t* second = nullptr;
    ASSERT_OK(choir_comm_start(comm, &collective, &first));
    ASSERT_OK(choir_comm_start(comm, &collective, &second));
    EXPECT_FALSE(choir_work_is_done(first));
    // What a signal handler would tell meanwhile.
    std::string activity;
    for (int i = 0; i < 100 && activity.find("waiting") == std::string::npos;
         ++i) {
      usleep(10000);
      activity = choir_comm_activity(comm);
    }
    EXPECT_TRUE(choir_testing::Matches(
        activity, Expand("all_reduce 'in the back' \\(operation "
                         "1\\), waiting for @0")))
        << activity;
    choir_status_t status = choir_work_wait(first);
    choir_status_t after = choir_work_wait(second);
    EXPECT_STREQ(choir_status_message(status), choir_status_message(after));
    choir_status_free(after);
    if (HasFailure()) End();
    Say(status);
    choir_comm_release(comm);
    End();
  }
  Expect(2, {1},
         "deadline exceeded: all_reduce 'in the back' \\(operation 1\\): @1 "
         "waited \\d+\\.\\d s for @0, which is alive but has not come to this "
         "operation; it has run no operation yet\\.",
         15);
}

// Every line of dist/backends/backends.def that has peers. "mpi" is a test of
// its own, as no sanitizer takes it; "nccl" has its faults on the host from
// those it stands beside, and its own in comm_nccl_test.
std::vector<const char*> Backends() {
#ifdef CHOIR_TEST_MPI
  const bool wants_mpi = true;
#else
  const bool wants_mpi = false;
#endif
  std::vector<const char*> backends;
  for (const char* name : {
#define CHOIR_COMM_BACKEND(name) #name,
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
       }) {
    if (std::string(name) == "self" || std::string(name) == "nccl") continue;
    if ((std::string(name) == "mpi") == wants_mpi) backends.push_back(name);
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, FaultTest, ::testing::ValuesIn(Backends()),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
