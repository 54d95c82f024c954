// SPDX-License-Identifier: Apache-2.0
// Updates that are shared out (dist/dist_opt_shards.c), by messages.
#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dist/training.h"
#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::IsExchange;
using choir_testing::Must;
using choir_testing::NoteStage;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;
using choir_testing::TrainUnevenly;

#ifdef CHOIR_TEST_MPI
constexpr char kBackend[] = "mpi";
#else
constexpr char kBackend[] = "shm";
#endif

Training::Options Sharded() {
  Training::Options options;
  options.optimizer = "adam";
  options.bucket_bytes = 2000;
  options.shard = true;
  options.peer_memory = false;
  return options;
}

// Samples of a step in parts of another size for each rank: the last of many
// has none.
choir_status_t Train(Training* training, const Comm& comm, int64_t step) {
  constexpr int64_t kAll = 64;
  const int64_t size = comm.size();
  const int64_t parts = size * (size - 1) / 2;
  if (size == 1) return training->TrainOn(step, 0, kAll, kAll);
  const auto start = [&](int64_t rank) {
    return kAll * (parts - (size - rank) * (size - rank - 1) / 2) / parts;
  };
  const int64_t first = start(comm.rank());
  return training->TrainOn(step, first, start(comm.rank() + 1) - first, kAll);
}

// Parameters and states after a few steps.
struct Outcome {
  uint64_t params;
  uint64_t states;
  bool operator==(const Outcome& other) const {
    return params == other.params && states == other.states;
  }
};

Outcome RunSteps(const Comm& comm, const Training::Options& options,
                 int64_t passes = 1) {
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  for (int64_t step = 0; step < 4 * passes; ++step)
    Must(Train(&training, comm, step));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  uint64_t optimizer = 0;
  std::vector<choir_named_tensor_t> states;
  for (const choir_named_tensor_t& state : training.WholeStates())
    if (std::string(state.name).find('/') != std::string::npos &&
        std::string(state.name).find("residual") == std::string::npos)
      states.push_back(state);
  Must(choir_tensor_digest(states.data(), states.size(), &optimizer));
  return {training.Digest(), optimizer};
}

void ExpectBitsOfWholeUpdates() {
  Comm comm;
  for (const char* optimizer : {"adam", "sgd"}) {
    Training::Options options = Sharded();
    options.optimizer = optimizer;
    options.group = "*.W";
    const Outcome sharded = RunSteps(comm, options);
    options.shard = false;
    EXPECT_TRUE(RunSteps(comm, options) == sharded) << optimizer;
  }
}

TEST(DistOptShardsTest, OneRankHasAll) {
  if (!RunRanks(kBackend, 1)) ExpectBitsOfWholeUpdates();
}
TEST(DistOptShardsTest, TwoRanksHaveTheBitsOfWholeUpdates) {
  if (!RunRanks(kBackend, 2)) ExpectBitsOfWholeUpdates();
}
TEST(DistOptShardsTest, ThreeRanksHaveTheBitsOfWholeUpdates) {
  if (!RunRanks(kBackend, 3)) ExpectBitsOfWholeUpdates();
}
TEST(DistOptShardsTest, FourRanksHaveTheBitsOfWholeUpdates) {
  if (!RunRanks(kBackend, 4)) ExpectBitsOfWholeUpdates();
}
TEST(DistOptShardsTest, SevenRanksHaveTheBitsOfWholeUpdates) {
  if (!RunRanks(kBackend, 7)) ExpectBitsOfWholeUpdates();
}

// Gradients travel once, and parameters once.
TEST(DistOptShardsTest, EachRankKeepsAndUpdatesAPart) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), Sharded());
  Must(training.Attach());
  std::vector<std::string> notes;
  uint64_t updated = 0;
  NoteStage stages[2];
  choir_stream_t* streams[] = {choir_device_stream(training.device()),
                               choir__dist_opt_background(training.dist())};
  for (int i = 0; i < 2; ++i) {
    stages[i].notes = &notes;
    stages[i].before = [&](const choir_record_t* record) -> choir_status_t {
      if (choir_testing::IsCalled(record, "adam_update"))
        updated += (uint64_t)choir_view_count(choir_record_dst(record, 0));
      return nullptr;
    };
    choir_stream_push_stage(streams[i], &stages[i].stage);
  }
  Must(training.TrainOn(0, comm.rank() * 16, 16, 48));
  for (int i = 0; i < 2; ++i)
    choir_stream_pop_stage(streams[i], &stages[i].stage);
  const auto scattered =
      std::count(notes.begin(), notes.end(), "reduce_scatter/comm");
  EXPECT_GT(scattered, 1);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "all_gather/comm"),
            scattered);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(), IsExchange), 0);
  // What it keeps is what it updates.
  int64_t kept = 0;
  int64_t all = 0;
  for (const choir_named_tensor_t& state : training.States()) {
    if (!state.shard) continue;
    kept += choir_tensor_count(state.tensor);
    all += choir_view_count(&state.shard->whole);
  }
  EXPECT_EQ(kept, 2 * static_cast<int64_t>(updated));
  uint64_t sum = 0;
  for (uint64_t part : comm.Gather(updated)) {
    // In whole cache lines of each bucket.
    EXPECT_LE(part, static_cast<uint64_t>(all / 2 / 3 + 16 * scattered));
    sum += part;
  }
  EXPECT_EQ(sum, static_cast<uint64_t>(all / 2));
}

// Every strategy that combines gradients, and those that do not are refused.
TEST(DistOptShardsTest, EveryExchangeIsShared) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  int shared = 0;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    const choir_strategy_def_t* strategy = choir_strategy_def_get(i);
    if (strategy == &choir_strategy_def_auto) continue;
    Training::Options options = Sharded();
    options.optimizer = "sgd";
    options.strategy = strategy;
    options.settings = {{"spars", "0.05"}, {"warmup_steps", "2"}};
    if (strategy->combine) {
      Training training(SmallLayers(), comm.get(), options);
      EXPECT_STATUS(FAILED_PRECONDITION,
                    "shard is set, and with " +
                        std::string(choir_strategy_def_option(strategy)) +
                        " each rank makes steps of its own",
                    training.Attach());
      continue;
    }
    ++shared;
    const Outcome sharded = RunSteps(comm, options);
    options.shard = false;
    EXPECT_TRUE(RunSteps(comm, options) == sharded)
        << choir_strategy_def_option(strategy);
  }
  EXPECT_EQ(shared, 7);
}

TEST(DistOptShardsTest, AChangeThatIsRefusedChangesNothing) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), Sharded());
  Must(training.Attach());
  Must(TrainUnevenly(&training, comm, 0));
  const uint64_t before = training.StatesDigest();
  EXPECT_STATUS(FAILED_PRECONDITION, "shard is set, and with localSGD",
                choir_dist_opt_use(training.dist(),
                                   &choir_strategy_def_local_sgd, nullptr));
  EXPECT_EQ(training.StatesDigest(), before);
  EXPECT_OK(TrainUnevenly(&training, comm, 1));
  EXPECT_OK(
      choir_dist_opt_use(training.dist(), &choir_strategy_def_fp16, nullptr));
  EXPECT_NE(training.States().back().shard, nullptr);
  EXPECT_OK(TrainUnevenly(&training, comm, 2));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

// They are updated one after the other, whole. Without `shard` that is done.
TEST(DistOptShardsTest, ParametersNeedMemoryOfTheirOwn) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  for (bool shard : {false, true}) {
    Training::Options options = Sharded();
    options.shard = shard;
    options.peer_memory = true;
    Training training(SmallLayers(), comm.get(), options);
    Must(choir_param_set_add(choir_model_params(training.model()), "again",
                             training.Param("fc2.W")->value,
                             /*trainable=*/true, nullptr));
    if (shard) {
      EXPECT_STATUS(FAILED_PRECONDITION,
                    "shard: some parameters have memory in common",
                    training.Attach());
      continue;
    }
    ASSERT_OK(training.Attach());
    ASSERT_OK(TrainUnevenly(&training, comm, 0));
    EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  }
}

TEST(DistOptShardsTest, PassesOfAStepAreAddedUp) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  Training::Options options = Sharded();
  options.passes = 3;
  const Outcome sharded = RunSteps(comm, options, 3);
  options.shard = false;
  EXPECT_TRUE(RunSteps(comm, options, 3) == sharded);
}

// A file has whole states, which only the rank that asks for them gets.
TEST(DistOptShardsTest, StatesAreGatheredForOneRank) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), Sharded());
  Must(training.Attach());
  Must(TrainUnevenly(&training, comm, 0));
  for (const choir_named_tensor_t& state : training.States()) {
    if (!state.shard) continue;
    choir_tensor_t* on_2 = nullptr;
    choir_tensor_t* on_all = nullptr;
    ASSERT_OK(choir_updater_gather(training.updater(), &state, 2, &on_2));
    ASSERT_OK(choir_updater_gather(training.updater(), &state, -1, &on_all));
    EXPECT_EQ(on_2 != nullptr, comm.rank() == 2);
    ASSERT_NE(on_all, nullptr);
    const choir_named_tensor_t named[] = {{"x", on_2, nullptr},
                                          {"x", on_all, nullptr}};
    uint64_t digests[2] = {};
    for (int i = comm.rank() == 2 ? 0 : 1; i < 2; ++i)
      ASSERT_OK(choir_tensor_digest(&named[i], 1, &digests[i]));
    if (comm.rank() == 2) {
      EXPECT_EQ(digests[0], digests[1]);
    }
    choir_tensor_release(on_2);
    choir_tensor_release(on_all);
  }
  EXPECT_TRUE(choir_dist_opt_ranks_differ(training.dist()));
  std::vector<choir_named_tensor_t> states = training.States();
  EXPECT_STATUS(FAILED_PRECONDITION, "is a shard; needs whole ones",
                choir_checkpoint_save("/nowhere/file", states.data(),
                                      states.size(), nullptr, 0));
}

std::string PathOf(const char* what) {
  const char* folder = getenv("TEST_TMPDIR");
  return std::string(folder ? folder : "/tmp") + "/shards." + what;
}

// Saves at step 2 where told, and goes on: what the digests are at step 4, with
// the batches of one rank on rank 0 alone.
void TrainOnRankZero(Training* training, const Comm& comm, int64_t from,
                     int64_t to) {
  for (int64_t step = from; step < to; ++step)
    Must(training->TrainOn(step, comm.rank() == 0 ? 0 : 32,
                           comm.rank() == 0 ? 32 : 0, 32));
}

// One file, resumed at any number of ranks.
TEST(DistOptShardsTest, AFileServesAnyNumberOfRanks) {
  if (choir_testing::InRank()) {
    Comm comm;
    Training training(SmallLayers(), comm.get(), Sharded());
    Must(training.Attach());
    const std::string path = PathOf("file");
    const bool saves = access(path.c_str(), F_OK) != 0;
    Must(choir_comm_barrier(comm.get(), "looked"));
    if (saves) {
      TrainOnRankZero(&training, comm, 0, 2);
      Must(choir_training_save(training.model(), nullptr,
                               comm.rank() == 0 ? path.c_str() : nullptr,
                               nullptr, 0));
    } else {
      Must(choir_training_resume(training.model(), nullptr,
                                 comm.rank() == 0 ? path.c_str() : "nowhere",
                                 nullptr, 0));
      EXPECT_EQ(choir_model_step(training.model()), 2);
    }
    TrainOnRankZero(&training, comm, 2, 4);
    char text[64];
    snprintf(text, sizeof text, "%016llx",
             static_cast<unsigned long long>(training.StatesDigest()));
    if (comm.rank() == 0) choir_testing::Say(text);
    return;
  }
  unlink(PathOf("file").c_str());
  std::string first;
  for (int size : {3, 1, 2, 3, 4}) {
    choir_testing::ProcessGroup group;
    choir_testing::StartRanks(&group, kBackend, size);
    const auto results = group.Wait(choir_testing::Patience(60));
    for (const auto& result : results)
      EXPECT_EQ(result.exit_status, 0) << size << " " << result.output;
    const std::string heard = choir_testing::Heard(results, 0);
    if (first.empty()) first = heard;
    EXPECT_TRUE(choir_testing::Matches(heard, "[0-9a-f]{16}")) << heard;
    EXPECT_EQ(heard, first) << size;
  }
  unlink(PathOf("file").c_str());
}

}  // namespace
