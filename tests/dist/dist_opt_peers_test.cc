// SPDX-License-Identifier: Apache-2.0
// The update of ranks that see each other's memory (dist/dist_opt_peers.c).
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::IsCalled;
using choir_testing::IsExchange;
using choir_testing::Layers;
using choir_testing::Must;
using choir_testing::NoteStage;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::TrainAndDigest;
using choir_testing::Training;
using choir_testing::TrainUnevenly;
using choir_testing::Values;

// Each rank steps a part of the parameters, and the parts are all of them; two
// waits for each other are all that ranks have of it.
TEST(DistOptPeersTest, EachRankUpdatesAPart) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.optimizer = "adam";
  options.bucket_bytes = 2000;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  std::vector<std::string> notes;
  uint64_t updated = 0;
  NoteStage stage;
  stage.notes = &notes;
  stage.before = [&](const choir_record_t* record) -> choir_status_t {
    if (IsCalled(record, "adam_update"))
      updated += (uint64_t)choir_view_count(choir_record_dst(record, 0));
    return nullptr;
  };
  choir_stream_t* stream = choir_device_stream(training.device());
  choir_stream_push_stage(stream, &stage.stage);
  Must(training.TrainOn(0, comm.rank() * 16, 16, 48));
  choir_stream_pop_stage(stream, &stage.stage);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "all_gather/comm"), 1);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "barrier/comm"), 1);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(), IsExchange), 0);
  uint64_t all = 0;
  for (const char* name :
       {"conv.W", "conv.b", "fc1.W", "fc1.b", "fc2.W", "fc2.b"})
    all += training.Value(name).size();
  uint64_t sum = 0;
  for (uint64_t part : comm.Gather(updated)) {
    EXPECT_GT(part, all / 4);
    sum += part;
  }
  EXPECT_EQ(sum, all);
  EXPECT_OK(
      choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
}

// Parameters that no cache holds go past the caches, beside the next average.
void UpdateManyParameters() {
  Comm comm;
  const Layers layers = {
      {"flatten", "flat", {}},
      {"linear", "fc1", {{"out_features", "1531"}, {"activation", "relu"}}},
      {"linear", "fc2", {{"out_features", "1409"}, {"activation", "relu"}}},
      {"linear", "fc3", {{"out_features", "10"}}},
  };
  Training::Options options;
  options.optimizer = "adam";
  options.lr = 1e-4;
  const uint64_t sharded = TrainAndDigest(&comm, options, layers);
  options.peer_memory = false;
  EXPECT_EQ(TrainAndDigest(&comm, options, layers), sharded);
}

// A parameter's group goes with its shards.
TEST(DistOptPeersTest, GroupsHaveTheirSettings) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (const char* optimizer : {"sgd", "adam"}) {
    Training::Options options;
    options.optimizer = optimizer;
    const uint64_t none = TrainAndDigest(&comm, options);
    options.group = "*.W";
    const uint64_t grouped = TrainAndDigest(&comm, options);
    EXPECT_NE(grouped, none);
    options.frozen_group = "*.b";
    const uint64_t frozen = TrainAndDigest(&comm, options);
    EXPECT_NE(frozen, grouped);
    options.peer_memory = false;
    EXPECT_EQ(TrainAndDigest(&comm, options), frozen);
    options.use_graph = !options.use_graph;
    EXPECT_EQ(TrainAndDigest(&comm, options), frozen);
  }
}

TEST(DistOptPeersTest, GroupsOfAllRanksAreCompared) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training::Options options;
  if (comm.rank() == 1) options.group = "*.W";
  Training training(SmallLayers(), comm.get(), options);
  EXPECT_STATUS(FAILED_PRECONDITION, "dist_opt: the optimizers differ",
                training.Attach());
}

TEST(DistOptPeersTest, ManyParametersOfTwoRanksAreSharedOut) {
  if (!RunRanks("shm", 2)) UpdateManyParameters();
}

TEST(DistOptPeersTest, ManyParametersOfThreeRanksAreSharedOut) {
  if (!RunRanks("shm", 3)) UpdateManyParameters();
}

// A few steps with made-up gradients: those of backward follow the number of
// threads.
uint64_t UpdateWithThreads(Comm* comm, int threads) {
  Training::Options options;
  options.optimizer = "adam";
  options.threads = threads;
  options.use_graph = false;
  const Layers layers = {
      {"flatten", "flat", {}},
      {"linear", "fc1", {{"out_features", "1531"}, {"activation", "relu"}}},
      {"linear", "fc2", {{"out_features", "10"}}},
  };
  Training training(layers, comm->get(), options);
  Must(training.Attach());
  int gives = 0;
  NoteStage stage;
  stage.before = [&](const choir_record_t* record) -> choir_status_t {
    EXPECT_FALSE(IsExchange(choir_record_name(record)));
    gives += IsCalled(record, "give/dist_opt");
    if (!IsCalled(record, "count/dist_opt")) return nullptr;
    for (const char* name : {"fc1.W", "fc1.b", "fc2.W", "fc2.b"}) {
      const choir_tensor_t* grad = training.Param(name)->grad;
      const choir_view_t* view = choir_tensor_view(grad);
      float* data = static_cast<float*>(choir_buffer_data(view->buffer));
      for (int64_t i = 0; i < choir_view_count(view); ++i)
        data[view->offset + i] =
            static_cast<float>((i * 37 + comm->rank() * 11) % 101 - 50) / 128;
    }
    return nullptr;
  };
  choir_stream_t* stream = choir_device_stream(training.device());
  choir_stream_push_stage(stream, &stage.stage);
  for (int64_t step = 0; step < 3; ++step)
    Must(TrainUnevenly(&training, *comm, step));
  choir_stream_pop_stage(stream, &stage.stage);
  EXPECT_GT(gives, 0);
  EXPECT_OK(
      choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
  return training.StatesDigest();
}

// Ranks share the update out whatever number of threads each has.
TEST(DistOptPeersTest, RanksMayHaveSeveralThreads) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  const uint64_t expected = UpdateWithThreads(&comm, 1);
  for (int threads : {2, 3})
    EXPECT_EQ(UpdateWithThreads(&comm, comm.rank() == 1 ? threads : 1),
              expected)
        << threads;
}

uint64_t DigestOfParams(Comm* comm, const Training::Options& options) {
  Training training(SmallLayers(), comm->get(), options);
  Must(training.Attach());
  for (int64_t step = 0; step < 4; ++step)
    Must(TrainUnevenly(&training, *comm, step));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  return training.Digest();
}

// A strategy that combines gradients itself: the update of its result is shared
// out, and states stay where they are while strategies change.
TEST(DistOptPeersTest, StrategiesThatExchangeShareOutToo) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (const choir_strategy_def_t* strategy :
       {&choir_strategy_def_fp16, &choir_strategy_def_bf16,
        &choir_strategy_def_sparse_top_k}) {
    Training::Options options;
    options.optimizer = "adam";
    options.strategy = strategy;
    const uint64_t expected = DigestOfParams(&comm, options);
    Training training(SmallLayers(), comm.get(), options);
    Must(training.Attach());
    std::vector<std::string> notes;
    NoteStage stage;
    stage.notes = &notes;
    choir_stream_t* stream = choir_device_stream(training.device());
    choir_stream_push_stage(stream, &stage.stage);
    Must(training.TrainOn(0, comm.rank() * 16, 16, 48));
    choir_stream_pop_stage(stream, &stage.stage);
    EXPECT_GT(std::count(notes.begin(), notes.end(), "give/dist_opt"), 0);
    EXPECT_EQ(std::count(notes.begin(), notes.end(), "average/dist_opt"), 0);
    options.peer_memory = false;
    EXPECT_EQ(DigestOfParams(&comm, options), expected);
  }
}

// From shards to whole states, which local steps need, and back.
TEST(DistOptPeersTest, StatesGoWithChangesOfStrategy) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.optimizer = "adam";
  uint64_t digests[2];
  for (bool peer_memory : {true, false}) {
    options.peer_memory = peer_memory;
    Training training(SmallLayers(), comm.get(), options);
    Must(training.Attach());
    int64_t step = 0;
    for (const choir_strategy_def_t* strategy :
         {&choir_strategy_def_fp32, &choir_strategy_def_local_sgd,
          &choir_strategy_def_fp16, &choir_strategy_def_partial_update,
          &choir_strategy_def_fp32}) {
      const uint64_t before = training.StatesDigest();
      Must(choir_dist_opt_use(training.dist(), strategy, nullptr));
      const bool had_shards = training.States().back().shard != nullptr;
      EXPECT_EQ(had_shards, peer_memory &&
                                strategy != &choir_strategy_def_local_sgd &&
                                strategy != &choir_strategy_def_partial_update);
      if (strategy == &choir_strategy_def_local_sgd) {
        EXPECT_EQ(training.StatesDigest(), before);
      }
      for (int i = 0; i < 2; ++i, ++step)
        Must(TrainUnevenly(&training, comm, step));
    }
    EXPECT_OK(
        choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
    digests[peer_memory] = training.StatesDigest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// The model outlives DistOpt in the memory that ranks saw of each other, where
// it belongs to its own rank alone.
TEST(DistOptPeersTest, ModelGoesOnAfterShardedUpdates) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  Must(training.TrainOn(0, comm.rank() * 16, 16, 32));
  const uint64_t digest = training.Digest();
  choir_sgd_config_t config;
  choir_struct_init(choir_optimizer_def_config(&choir_optimizer_def_sgd),
                    &config);
  choir_optimizer_t* sgd = nullptr;
  Must(choir_optimizer_create(&choir_optimizer_def_sgd, &config, &sgd));
  Must(choir_model_set_updater(training.model(), choir_optimizer_updater(sgd)));
  choir_optimizer_release(sgd);
  EXPECT_EQ(training.Digest(), digest);
  if (comm.rank() == 1) Must(training.TrainOn(1, 0, 16, 16));
  Must(choir_comm_barrier(comm.get(), "one of two went on"));
  EXPECT_EQ(training.Digest() == digest, comm.rank() == 0);
  // And back again, from rank 0's, whose steps count.
  choir_model_set_step(training.model(), 1);
  Must(training.Attach());
  EXPECT_EQ(training.Digest(), comm.Gather(training.Digest())[0]);
  EXPECT_EQ(training.Digest(), digest);
  Must(training.TrainOn(2, comm.rank() * 16, 16, 32));
  EXPECT_NE(training.Digest(), digest);
}

// Names and elements of the optimizer's states alone.
Values OptimizerStates(Training* training) {
  Values states;
  for (auto& value : training->Values())
    if (value.first.find('/') != std::string::npos) states.push_back(value);
  return states;
}

// The same training twice: with sharded updates, and the long way.
struct Twins {
  Twins(const Comm& comm, Training::Options options)
      : rank(comm.rank()), size(comm.size()) {
    sharded = std::make_unique<Training>(SmallLayers(), comm.get(), options);
    options.peer_memory = false;
    plain = std::make_unique<Training>(SmallLayers(), comm.get(), options);
    Must(sharded->Attach());
    Must(plain->Attach());
  }

  // Two steps of all ranks, each with samples of its own, and their end.
  void Train() {
    for (Training* training : {sharded.get(), plain.get()}) {
      for (int64_t i = step; i < step + 2; ++i)
        Must(training->TrainOn(i, rank * 16, 16, 16 * size));
      Must(choir_stream_synchronize(choir_device_stream(training->device())));
    }
    step += 2;
  }
  void ExpectSameStates() {
    EXPECT_EQ(OptimizerStates(sharded.get()), OptimizerStates(plain.get()));
  }

  int32_t rank;
  int32_t size;
  int64_t step = 0;
  std::unique_ptr<Training> sharded;
  std::unique_ptr<Training> plain;
};

// Each rank keeps the states of its part alone; whoever asks for all of them,
// when and as often as it likes, gets them without the others.
TEST(DistOptPeersTest, AnyRankGathersStates) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (const char* device : {"cpu", "cpu_async"}) {
    Training::Options options;
    options.optimizer = "adam";
    options.bucket_bytes = 2000;
    options.device = device;
    Twins twins(comm, options);
    const Values start = OptimizerStates(twins.sharded.get());
    ASSERT_EQ(start.size(), 12u);
    for (int32_t looking = 1; looking <= 3; ++looking) {
      twins.Train();
      // One rank more each time, and nobody else takes part.
      if (comm.rank() >= looking) continue;
      EXPECT_NE(OptimizerStates(twins.sharded.get()), start);
      twins.ExpectSameStates();
    }
    EXPECT_EQ(twins.sharded->StatesDigest(), twins.plain->StatesDigest());
    // Not where it belongs to another rank.
    const choir_named_tensor_t last = twins.sharded->States().back();
    choir_tensor_t* whole = nullptr;
    ASSERT_OK(choir_updater_gather(twins.sharded->updater(), &last, 1, &whole));
    EXPECT_EQ(whole != nullptr, comm.rank() == 1);
    choir_tensor_release(whole);
  }
}

void HalveOptimizerStates(Training* training) {
  for (const choir_named_tensor_t& state : training->States()) {
    if (!strchr(state.name, '/')) continue;
    std::vector<float> data(
        static_cast<size_t>(choir_tensor_count(state.tensor)));
    const size_t bytes = data.size() * sizeof(float);
    Must(choir_tensor_read(state.tensor, data.data(), bytes));
    for (float& value : data) value /= 2;
    Must(choir_tensor_write(state.tensor, data.data(), bytes));
  }
}

// What every rank does to its own counts from the next step on.
TEST(DistOptPeersTest, StatesMayBeChanged) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (const char* device : {"cpu", "cpu_async"}) {
    Training::Options options;
    options.device = device;
    Twins twins(comm, options);
    twins.Train();
    HalveOptimizerStates(twins.sharded.get());
    HalveOptimizerStates(twins.plain.get());
    Must(choir_comm_barrier(comm.get(), "all have changed theirs"));
    twins.ExpectSameStates();
    twins.Train();
    EXPECT_EQ(twins.sharded->StatesDigest(), twins.plain->StatesDigest());
    EXPECT_OK(choir_dist_opt_check_digest(twins.sharded->dist(),
                                          twins.sharded->Digest()));
  }
}

// Rank 1 has done with training. What it kept is there until the memory of its
// part is used again, and then it is told.
TEST(DistOptPeersTest, StatesOutliveTheOtherRanks) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Twins twins(comm, {});
  twins.Train();
  if (comm.rank() == 1) twins.sharded.reset();
  Must(choir_comm_barrier(comm.get(), "rank 1 has done"));
  if (comm.rank() == 0) {
    twins.ExpectSameStates();
    EXPECT_EQ(twins.sharded->StatesDigest(), twins.plain->StatesDigest());
  }
  Must(choir_comm_barrier(comm.get(), "rank 0 has looked"));
  choir_buffer_t* buffer = nullptr;
  Must(choir_comm_buffer_create(comm.get(), twins.plain->device(), 1 << 16,
                                &buffer));
  memset(choir_buffer_data(buffer), 0x55, 1 << 16);
  Must(choir_comm_barrier(comm.get(), "memory is used again"));
  if (comm.rank() == 0) {
    // Buckets begin with the last parameters.
    choir_named_tensor_t of_rank_1 = {};
    for (const choir_named_tensor_t& state : twins.sharded->States())
      if (state.shard && !of_rank_1.shard) of_rank_1 = state;
    ASSERT_NE(of_rank_1.shard, nullptr);
    choir_tensor_t* whole = nullptr;
    EXPECT_STATUS(
        FAILED_PRECONDITION,
        "has let go of its DistOpt, and the memory of its states is "
        "used again",
        choir_updater_gather(twins.sharded->updater(), &of_rank_1, -1, &whole));
    EXPECT_EQ(whole, nullptr);
  }
  choir_buffer_release(buffer);
}

}  // namespace
