// SPDX-License-Identifier: Apache-2.0
// MPI that fails while ranks join: who is named, and that nothing is left that
// MPI would write into later. Each case is a process of its own, as MPI starts
// once in one.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "dist/comm.h"
#include "tests/dist/fake_mpi_plugin.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/ranks.h"

namespace {

using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;

const char kPlugin[] = "tests/dist/fake_mpi_plugin.so";

void StartScript(ProcessGroup* group, const std::string& script,
                 const std::string& runtime = "PMIX_RANK") {
  group->Start(
      {choir_testing::OwnPath(), choir_testing::OwnFilter()},
      {"CHOIR_TEST_SIZE=2", "CHOIR_TEST_SCRIPT=" + script,
       "CHOIR_MPI_LIBRARY=" + std::filesystem::absolute(kPlugin).string(),
       "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "CHOIR_RANK",
       "CHOIR_SIZE", "CHOIR_COMM_ID", runtime});
}

ProcessResult RunScript(const std::string& script) {
  ProcessGroup group;
  StartScript(&group, script);
  return group.Wait(Patience(30))[0];
}

std::string Script() { return getenv("CHOIR_TEST_SCRIPT"); }

fake_mpi_t* Fake() {
  void* library = dlopen(getenv("CHOIR_MPI_LIBRARY"), RTLD_NOW);
  EXPECT_NE(library, nullptr) << dlerror();
  return static_cast<fake_mpi_t*>(dlsym(library, FAKE_MPI_SYMBOL));
}

std::string Join() {
  choir_comm_config_t config;
  choir_status_t status = choir_comm_config_init(&config);
  choir_comm_t* comm = nullptr;
  config.backend = "mpi";
  config.deadline = 1;
  if (!status) status = choir_comm_create(&config, &comm);
  std::string said = choir_status_message(status);
  choir_status_free(status);
  choir_comm_release(comm);
  return said;
}

TEST(MpiLostTest, TheLostRankIsNamedAndItsReceivesAreCancelled) {
  if (choir_testing::InRank()) {
    fake_mpi_t* fake = Fake();
    if (Script() == "send") fake->send_code = 7;
    if (Script() == "receive") fake->receive_code = 8;
    if (Script() == "silence") fake->never_receives = 1;
    const std::string said = Join();
    printf("SAYS %s; %d open\n", said.c_str(), fake->open_receives);
    fflush(stdout);
    _exit(0);
  }
  const std::pair<const char*, const char*> cases[] = {
      {"send", "SAYS comm mpi: MPI lost rank 1: code 7; 0 open\n"},
      {"receive", "SAYS comm mpi: MPI lost rank 1: code 8; 0 open\n"},
      {"silence", "rank 1 of 2 has not come; 0 open\n"}};
  for (const auto& one : cases) {
    const ProcessResult result = RunScript(one.first);
    EXPECT_NE(result.output.find(one.second), std::string::npos)
        << one.first << ": " << result.output;
  }
}

// The runtime tells how the first rank ended, which must be the one that was
// lost: the others wait for it with their failure, not with a good end.
TEST(MpiLostTest, ARankThatLostAnotherWaitsForTheRuntimeToEndIt) {
  if (choir_testing::InRank()) {
    atexit([] {
      printf("OVER\n");
      fflush(stdout);
    });
    Fake()->receive_code = 8;
    printf("SAYS %s\n", Join().c_str());
    fflush(stdout);
    exit(std::stoi(Script()));
  }
  ProcessGroup failing;
  StartScript(&failing, "1", "PMIX_RANK=0");
  EXPECT_TRUE(failing.WaitForOutput(0, "MPI lost rank 1", Patience(30)));
  EXPECT_FALSE(failing.WaitForOutput(0, "OVER", 0.3));
  failing.Signal(0, SIGTERM);
  EXPECT_EQ(failing.Wait(Patience(30))[0].exit_status, 128 + SIGTERM);

  ProcessGroup good;
  StartScript(&good, "0", "PMIX_RANK=0");
  EXPECT_TRUE(good.WaitForOutput(0, "OVER", Patience(30)));
  EXPECT_EQ(good.Wait(Patience(30))[0].exit_status, 0);
}

// A world for which there was no memory is not half there afterwards.
TEST(MpiLostTest, WithoutMemoryTheWorldIsNotUsed) {
  if (choir_testing::InRank()) {
    auto* allocator = new choir::testing::FailingAllocator;
    choir_status_t status = choir_allocator_set_default(allocator->get());
    choir_status_free(status);
    allocator->FailAt(std::stoi(Script()));
    printf("SAYS %s\n", Join().c_str());
    allocator->FailAt(-1);
    printf("THEN %s\n", Join().c_str());
    fflush(stdout);
    _exit(0);
  }
  int failed = 0;
  for (int nth = 0; nth < 12; ++nth) {
    const ProcessResult result = RunScript(std::to_string(nth));
    EXPECT_EQ(result.exit_status, 0) << nth << ": " << result.output;
    const bool is_failed =
        result.output.find("THEN comm mpi: MPI failed to start\n") !=
        std::string::npos;
    EXPECT_TRUE(is_failed ||
                result.output.find("THEN ok\n") != std::string::npos)
        << nth << ": " << result.output;
    failed += is_failed;
  }
  EXPECT_EQ(failed, 2);  // the lists of the world's peers
}

}  // namespace
