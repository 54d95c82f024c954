// SPDX-License-Identifier: Apache-2.0
// What DistOpt tells when a rank dies or fails in a step.
#include <gtest/gtest.h>

#include <string>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::DieInStep3;
using choir_testing::ExpectWords;
using choir_testing::InRank;
using choir_testing::Killed;
using choir_testing::kUseGraph;
using choir_testing::Must;
using choir_testing::Rank;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::TrainAndSay;
using choir_testing::Training;

// Gradients of each parameter are exchanged by themselves, beside backward.
Training::Options WithAnExchangeEach() {
  Training::Options options;
  options.bucket_bytes = 1;
  options.peer_memory = false;
  return options;
}

TEST(DistOptFaultTest, KilledInTheMiddleOfBackward) {
  if (!InRank()) {
    const std::string killed =
        Killed("training step [23]: ", "all_reduce 'gradient bucket \\d'");
    ExpectWords("shm", 3, {killed, "\\(nothing\\)", killed});
    return;
  }
  TrainAndSay(WithAnExchangeEach(), "all_reduce/", DieInStep3);
}

TEST(DistOptFaultTest, KilledWithThreadedStreams) {
  if (!InRank()) {
    // The last bucket's failure is the compute stream's, told by the next step.
    const std::string killed = Killed(
        "(training step \\d: )?"
        "(submitted earlier, all_reduce/comm of gradient bucket \\d: )?",
        "all_reduce 'gradient bucket \\d'");
    ExpectWords("shm", 3, {killed, "\\(nothing\\)", killed});
    return;
  }
  Training::Options options = WithAnExchangeEach();
  options.device = "cpu_async";
  TrainAndSay(options, "all_reduce/", DieInStep3);
}

TEST(DistOptFaultTest, KilledBeforeAShardedUpdate) {
  if (!InRank()) {
    const std::string killed =
        Killed("training step 3: ", "all_gather 'gradients'");
    ExpectWords("shm", 3, {killed, "\\(nothing\\)", killed});
    return;
  }
  TrainAndSay({}, "softmax_cross_entropy_grad",
              [](int64_t step, int) { return DieInStep3(step, 2); });
}

TEST(DistOptFaultTest, KilledInTheMiddleOfAShardedUpdate) {
  if (!InRank()) {
    const std::string killed =
        Killed("training step 3: ", "barrier 'updated parameters'");
    ExpectWords("shm", 3, {killed, "\\(nothing\\)", killed});
    return;
  }
  Training::Options options;
  options.bucket_bytes = 1;
  TrainAndSay(options, "give/", DieInStep3);
}

choir_status_t FailInStep3(int64_t step, int number) {
  if (Rank() == 2 && step == 3 && number == 2)
    return CHOIR_ERROR(INTERNAL, "broken");
  return nullptr;
}

// A rank that fails by itself, and does not end, tells the others.
void ExpectTold(const std::string& operation, const std::string& in) {
  const std::string told =
      "aborted: training step [23]: " + operation +
      " \\(operation \\d+\\): rank 2 \\(host .+, pid \\d+\\) aborted: "
      "training step 3: " +
      in + "broken";
  ExpectWords(
      "shm", 3,
      {told, told, "internal error: training step 3: " + in + "broken"});
}

TEST(DistOptFaultTest, FailedInTheMiddleOfBackward) {
  if (!InRank()) {
    ExpectTold("all_reduce 'gradient bucket \\d'", "");
    return;
  }
  TrainAndSay(WithAnExchangeEach(), "all_reduce/", FailInStep3);
}

TEST(DistOptFaultTest, FailedBeforeAShardedUpdate) {
  if (!InRank()) {
    ExpectTold("all_gather 'gradients'",
               kUseGraph ? "" : "gradient of softmax_cross_entropy: ");
    return;
  }
  TrainAndSay({}, "softmax_cross_entropy_grad",
              [](int64_t step, int) { return FailInStep3(step, 2); });
}

// One rank takes a step that the others do not, or skips a batch: the next step
// tells all of them, and updates nothing.
void ExpectOutOfStep(const Training::Options& options, bool skips,
                     const std::string& words) {
  Comm comm;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  const int64_t first = comm.rank() * 16;
  const int64_t all = comm.size() * 16;
  for (int64_t step = 0; step < 3; ++step)
    Must(training.TrainOn(step, first, 16, all));
  const bool is_odd = comm.rank() == comm.size() - 1;
  // As a step that was applied here alone.
  if (is_odd && !skips) choir_model_set_step(training.model(), 4);
  const uint64_t digest = training.Digest();
  EXPECT_STATUS(INVALID_ARGUMENT, words,
                training.TrainOn(is_odd && skips ? 4 : 3, first, 16, all));
  EXPECT_EQ(training.Digest(), digest);
  // The communicator is in order.
  Must(choir_comm_barrier(comm.get(), "after"));
}

TEST(DistOptFaultTest, ASkippedBatchIsToldAtTheNextStep) {
  for (int size : {2, 3, 4}) {
    if (!InRank()) {
      RunRanks("shm", size);
      continue;
    }
    const std::string odd = std::to_string(choir_testing::Size() - 1);
    ExpectOutOfStep({}, true,
                    "at step 3 (batch 4), rank " + odd +
                        " is at step 3 (batch 5); all ranks must take the "
                        "same steps");
    return;
  }
}

TEST(DistOptFaultTest, AStepTooManyIsToldAtTheNextStep) {
  for (int size : {2, 3, 4}) {
    if (!InRank()) {
      RunRanks("shm", size);
      continue;
    }
    Training::Options options;
    options.peer_memory = false;
    options.bucket_bytes = 1;
    const std::string odd = std::to_string(choir_testing::Size() - 1);
    ExpectOutOfStep(options, false,
                    "at step 3 (batch 4), rank " + odd +
                        " is at step 4 (batch 4); all ranks must take the "
                        "same steps");
    return;
  }
}

// All ranks hear of a step that one of them runs with other options, and the
// optimizer does not run on gradients that were never exchanged.
TEST(DistOptFaultTest, FailedExchangeUpdatesNothing) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  comm.ExpectBroken();
  Training::Options options;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  uint64_t digest = training.StatesDigest();
  // No rank has a sample, so there is no average.
  EXPECT_STATUS(INVALID_ARGUMENT, "the weights of all ranks add to 0",
                training.TrainOn(0, 0, 0, 0));
  EXPECT_EQ(training.StatesDigest(), digest);
}

}  // namespace
