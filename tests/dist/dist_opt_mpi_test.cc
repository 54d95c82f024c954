// SPDX-License-Identifier: Apache-2.0
// DistOpt over Open MPI: the same bits as over shared memory, the same words.
#include <gtest/gtest.h>
#include <stdio.h>

#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Heard;
using choir_testing::Killed;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Training;

std::string DigestOf(const std::string& backend, int size) {
  ProcessGroup group;
  choir_testing::StartRanks(&group, backend, size);
  std::vector<ProcessResult> results = group.Wait(choir_testing::Patience(60));
  for (const ProcessResult& result : results)
    EXPECT_EQ(result.exit_status, 0) << backend << " " << result.output;
  return Heard(results, 0);
}

// Many small buckets and one large one, so that data travel in both ways.
void TrainAndTell() {
  Comm comm;
  std::string digests = choir_comm_size(comm.get()) == 3 ? "3 ranks:" : "2:";
  for (int64_t bytes : {1, 1000000}) {
    Training::Options options;
    options.bucket_bytes = bytes;
    char text[32];
    snprintf(text, sizeof(text), " %016llx",
             static_cast<unsigned long long>(
                 choir_testing::TrainAndDigest(&comm, options)));
    digests += text;
  }
  if (comm.rank() == 0) choir_testing::Say(digests);
}

TEST(DistOptMpiTest, TwoRanksGiveTheBitsOfSharedMemory) {
  if (choir_testing::InRank()) {
    TrainAndTell();
    return;
  }
  std::string shm = DigestOf("shm", 2);
  EXPECT_TRUE(choir_testing::Matches(shm, "2: [0-9a-f]{16} [0-9a-f]{16}"))
      << shm;
  EXPECT_EQ(DigestOf("mpi", 2), shm);
}

TEST(DistOptMpiTest, ThreeRanksGiveTheBitsOfSharedMemory) {
  if (choir_testing::InRank()) {
    TrainAndTell();
    return;
  }
  std::string shm = DigestOf("shm", 3);
  EXPECT_TRUE(choir_testing::Matches(shm, "3 ranks: [0-9a-f]{16} [0-9a-f]{16}"))
      << shm;
  EXPECT_EQ(DigestOf("mpi", 3), shm);
}

}  // namespace
