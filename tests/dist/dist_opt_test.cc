// SPDX-License-Identifier: Apache-2.0
#include "dist/dist_opt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::IsExchange;
using choir_testing::Layers;
using choir_testing::Must;
using choir_testing::NoteStage;
using choir_testing::RelativeError;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::TrainAndDigest;
using choir_testing::Training;
using choir_testing::TrainUnevenly;
using choir_testing::Values;

// ---- Against one rank, on the same samples ----

// Averages are weighted by sample count, and dropout asks for the sample, not
// for the rank.
TEST(DistOptTest, UnevenSharesLikeOneRank) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training shared(SmallLayers(), comm.get(), {});
  Training alone(SmallLayers(), nullptr, {});
  Must(shared.Attach());
  Must(alone.Attach());
  for (int64_t step = 0; step < 5; ++step) {  // seen: at most 1.6e-7
    ASSERT_OK(TrainUnevenly(&shared, comm, step));
    ASSERT_OK(alone.TrainOn(step, 0, 64, 64));
    Values a = alone.Values();
    Values b = shared.Values();
    ASSERT_EQ(a.size(), 12u);
    for (size_t i = 0; i < a.size(); ++i) {
      double error = RelativeError(a[i].second, b[i].second);
      EXPECT_LE(error, 1e-6) << a[i].first << " after step " << step;
      EXPECT_EQ(a[i].first, b[i].first);
    }
  }
  ASSERT_OK(choir_dist_opt_check_digest(shared.dist(), shared.Digest()));
  // It learnt something, or the comparison would be worth nothing.
  EXPECT_NE(shared.Digest(), Training(SmallLayers(), nullptr, {}).Digest());
}

// One rank: nothing is rounded.
TEST(DistOptTest, AloneIsThePlainOptimizer) {
  for (const char* optimizer : {"sgd", "adam"}) {
    Training::Options options;
    options.optimizer = optimizer;
    Comm comm;
    ASSERT_STREQ(choir_comm_backend(comm.get()), "self");
    Training wrapped(SmallLayers(), comm.get(), options);
    Training plain(SmallLayers(), nullptr, options);
    Must(wrapped.Attach());
    Must(plain.Attach());
    for (int64_t step = 0; step < 5; ++step) {
      ASSERT_OK(wrapped.TrainOn(step, 0, 32, 32));
      ASSERT_OK(plain.TrainOn(step, 0, 32, 32));
      EXPECT_EQ(wrapped.StatesDigest(), plain.StatesDigest());
    }
  }
}

// ---- Same bits ----

TEST(DistOptTest, BucketSizeChangesNoBit) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  uint64_t expected = TrainAndDigest(&comm, options);
  for (int64_t bytes : {1, 1000, 20000, 1000000000}) {
    options.bucket_bytes = bytes;
    EXPECT_EQ(TrainAndDigest(&comm, options), expected) << bytes;
  }
}

// Streams are threads that walk unevenly, on each rank in its own way: a
// missing event would show as other bits.
TEST(DistOptTest, ThreadedStreamsGiveTheSameBits) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.bucket_bytes = 1000;
  uint64_t expected = TrainAndDigest(&comm, options);
  options.device = "cpu_async";
  for (uint64_t seed = 0; seed < 4; ++seed) {
    options.device_seed = seed * 3 + static_cast<uint64_t>(comm.rank());
    EXPECT_EQ(TrainAndDigest(&comm, options), expected) << seed;
  }
}

// ---- Start: compare and broadcast ----

TEST(DistOptTest, StartsWithRankZerosParameters) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.seed = 100 + comm.rank();
  Training training(SmallLayers(), comm.get(), options);
  std::vector<uint64_t> before = comm.Gather(training.Digest());
  EXPECT_NE(before[0], before[1]);
  EXPECT_NE(before[0], before[2]);
  Must(training.Attach());
  EXPECT_EQ(training.Digest(), before[0]);
}

// After every rank or only one of them restored something else.
TEST(DistOptTest, BroadcastSendsParametersAndStates) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.peer_memory = false;
  Training training(SmallLayers(), comm.get(), options);
  EXPECT_STATUS(FAILED_PRECONDITION, "broadcast before it has a model",
                choir_dist_opt_broadcast(training.dist()));
  Must(training.Attach());
  auto value = [](int rank, size_t tensor, size_t i) {
    return static_cast<float>(rank * 1000000 +
                              static_cast<int>(tensor) * 10000 +
                              static_cast<int>(i) % 9000);
  };
  std::vector<choir_named_tensor_t> states = training.States();
  ASSERT_EQ(states.size(), 12u);
  for (size_t t = 0; t < states.size(); ++t) {
    std::vector<float> data(
        static_cast<size_t>(choir_tensor_count(states[t].tensor)));
    for (size_t i = 0; i < data.size(); ++i) data[i] = value(comm.rank(), t, i);
    ASSERT_OK(choir_tensor_write(states[t].tensor, data.data(),
                                 data.size() * sizeof(float)));
  }
  ASSERT_OK(choir_dist_opt_broadcast(training.dist()));
  Values values = training.Values();
  for (size_t t = 0; t < values.size(); ++t)
    for (size_t i = 0; i < values[t].second.size(); ++i)
      ASSERT_EQ(values[t].second[i], value(0, t, i))
          << values[t].first << " " << i;
  // Of shards rank 0 has its own alone.
  options.peer_memory = true;
  Training sharded(SmallLayers(), comm.get(), options);
  Must(sharded.Attach());
  EXPECT_STATUS(FAILED_PRECONDITION,
                "broadcast: each rank keeps a shard of the optimizer's states",
                choir_dist_opt_broadcast(sharded.dist()));
}

void ExpectDifferentModels(Comm* comm, const Layers& layers,
                           const std::string& pattern) {
  Training training(layers, comm->get(), {});
  choir_status_t status = training.Attach();
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  EXPECT_TRUE(choir_testing::Matches(choir_status_message(status), pattern))
      << choir_status_message(status);
  choir_status_free(status);
}

TEST(DistOptTest, DifferentModelsAreToldOnEveryRank) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Layers layers = SmallLayers();
  if (comm.rank() == 2) layers.back().settings = {{"out_features", "11"}};
  std::string here = comm.rank() == 2 ? "20, 11" : "20, 10";
  ExpectDifferentModels(
      &comm, layers,
      "dist_opt: the models differ: parameter 4 of rank 2 \\(host .+, pid "
      "\\d+\\) is not that of rank 0 \\(here it is fc2.W, [^;]*" +
          here + "[^;]*\\); every rank must define the same model");
  // A layer more; another name.
  layers = SmallLayers();
  if (comm.rank() == 1)
    layers.push_back({"linear", "fc3", {{"out_features", "10"}}});
  ExpectDifferentModels(
      &comm, layers,
      "dist_opt: the models differ: rank 0 has 6 parameters, rank 1 \\(host "
      ".+, pid \\d+\\) has 8; every rank must define the same model");
  layers = SmallLayers();
  if (comm.rank() == 0) layers.front().name = "conv_";
  ExpectDifferentModels(&comm, layers,
                        "dist_opt: the models differ: parameter 0 of rank 1 .+"
                        "every rank must define the same model");
  // Nothing at all on one rank.
  layers = {{"flatten", "flat", {}}};
  if (comm.rank() != 1) layers = SmallLayers();
  ExpectDifferentModels(&comm, layers,
                        "dist_opt: the models differ: rank 0 has 6 parameters, "
                        "rank 1 .+ has 0; .+");
  // The communicator is as good as before.
  TrainAndDigest(&comm, {});
}

TEST(DistOptTest, DifferentSettingsAreToldOnEveryRank) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  struct {
    Training::Options rank_1;
    std::string sentence;
  } cases[3];
  const bool is_1 = comm.rank() == 1;
  cases[0].rank_1.lr = 0.25;
  cases[0].sentence =
      std::string(
          "dist_opt: the optimizers differ: that of rank 1 \\(host .+, pid "
          "\\d+\\) is not that of rank 0 \\(here it is sgd lr=") +
      (is_1 ? "0.25" : "0.005") + " .+\\); every rank must make the same one";
  cases[1].rank_1.optimizer = "adam";
  cases[1].sentence = std::string(
                          "dist_opt: the optimizers differ: .+here it "
                          "is ") +
                      (is_1 ? "adam" : "sgd") + " lr=.+";
  cases[2].rank_1.bucket_bytes = 4096;
  cases[2].sentence =
      "dist_opt: the settings of rank 1 \\(.+\\) are not those of rank 0 "
      "\\(here bucket_bytes=\\d+ backward_passes_per_step=1 "
      "shard=false peer_memory=true elastic=false keep_batch=false "
      "rate_rule=none\\); every rank must have the same ones";
  for (const auto& one : cases) {
    Training training(SmallLayers(), comm.get(),
                      is_1 ? one.rank_1 : Training::Options());
    choir_status_t status = training.Attach();
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
    EXPECT_TRUE(
        choir_testing::Matches(choir_status_message(status), one.sentence))
        << choir_status_message(status);
    choir_status_free(status);
  }
  // The communicator is as good as before.
  TrainAndDigest(&comm, {});
}

TEST(DistOptTest, FrozenOnOneRankIsADifferentModel) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training::Options options;
  if (comm.rank() == 1) options.frozen = "fc1.W";
  Training training(SmallLayers(), comm.get(), options);
  EXPECT_STATUS(FAILED_PRECONDITION, "parameter 2 of rank 1 (host",
                training.Attach());
}

TEST(DistOptTest, CheckDigestNamesTheDifferingRank) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), 0x123456789abcdef0));
  choir_status_t status = choir_dist_opt_check_digest(
      training.dist(), comm.rank() == 2 ? 0xfedc : 0x1234);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INTERNAL);
  EXPECT_TRUE(choir_testing::Matches(
      choir_status_message(status),
      "the replicas differ: rank 2 \\(host .+, pid \\d+\\) has digest "
      "000000000000fedc, rank 0 has 0000000000001234"))
      << choir_status_message(status);
  choir_status_free(status);
}

TEST(DistOptTest, RefusesNullsAndOddConfigs) {
  Comm comm;
  Training training(SmallLayers(), nullptr, {});
  choir_dist_opt_t* dist = nullptr;
  EXPECT_STATUS(INVALID_ARGUMENT, "dist_opt: optimizer is NULL",
                choir_dist_opt_create(nullptr, comm.get(), nullptr, &dist));
  choir_optimizer_t* optimizer = nullptr;
  choir_sgd_config_t sgd;
  choir_struct_init(choir_optimizer_def_config(&choir_optimizer_def_sgd), &sgd);
  Must(choir_optimizer_create(&choir_optimizer_def_sgd, &sgd, &optimizer));
  EXPECT_STATUS(INVALID_ARGUMENT, "dist_opt: comm is NULL",
                choir_dist_opt_create(optimizer, nullptr, nullptr, &dist));
  choir_dist_opt_config_t config;
  choir_struct_init(&choir_dist_opt_config_def, &config);
  config.bucket_bytes = 0;
  EXPECT_STATUS(INVALID_ARGUMENT, "bucket_bytes",
                choir_dist_opt_create(optimizer, comm.get(), &config, &dist));
  EXPECT_EQ(dist, nullptr);
  choir_optimizer_release(optimizer);
}

// ---- Consolidate ----

TEST(DistOptTest, ConsolidateAveragesRunningStates) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Layers layers = SmallLayers();
  layers.insert(layers.begin() + 1, {"batch_norm2d", "norm", {}});
  Training training(layers, comm.get(), {});
  ASSERT_OK(choir_updater_consolidate(nullptr));
  ASSERT_OK(choir_updater_consolidate(training.updater()));  // not yet at work
  Must(training.Attach());
  for (int64_t step = 0; step < 3; ++step)
    ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 48));
  std::vector<std::string> states;
  const choir_param_set_t* params = choir_model_params(training.model());
  for (size_t i = 0; i < params->count; ++i)
    if (!params->params[i]->trainable)
      states.push_back(params->params[i]->name);
  ASSERT_EQ(states.size(), 2u);
  std::vector<std::vector<float>> expected;
  for (const std::string& name : states) {
    std::vector<float> own = training.Value(name);
    std::vector<float> all(own.size() * 3);
    Must(choir_comm_all_gather(comm.get(), own.data(), all.data(),
                               static_cast<int64_t>(own.size()),
                               CHOIR_DTYPE_F32, "test"));
    EXPECT_NE(all[0], all[own.size()]) << "each rank has seen other samples";
    std::vector<float> mean(own.size());
    for (size_t i = 0; i < own.size(); ++i)
      mean[i] =
          static_cast<float>((static_cast<double>(all[i]) +
                              all[own.size() + i] + all[2 * own.size() + i]) /
                             3);
    expected.push_back(mean);
  }
  EXPECT_STATUS(
      INTERNAL, "the replicas differ",
      choir_dist_opt_check_digest(training.dist(), training.Digest()));
  std::vector<float> weights = training.Value("conv.W");
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  for (size_t s = 0; s < states.size(); ++s)
    EXPECT_LE(RelativeError(expected[s], training.Value(states[s])), 2e-7)
        << states[s];
  EXPECT_EQ(training.Value("conv.W"), weights);
  // Once more changes nothing, to the bit.
  const uint64_t digest = training.Digest();
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_EQ(training.Digest(), digest);
}

TEST(DistOptTest, ConsolidateLeavesFrozenWeightsAlone) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.frozen = "fc1.W";
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  const std::vector<float> frozen = training.Value("fc1.W");
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_EQ(training.Value("fc1.W"), frozen);
}

TEST(DistOptTest, ConsolidateOfALoneOptimizerDoesNothing) {
  Training training(SmallLayers(), nullptr, {});
  Must(training.Attach());
  uint64_t digest = training.StatesDigest();
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_EQ(training.StatesDigest(), digest);
}

// ---- Parameters without a gradient ----

TEST(DistOptTest, FrozenLayerHangsNobody) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.frozen = "fc1.W";
  options.bucket_bytes = 1;
  Training shared(SmallLayers(), comm.get(), options);
  Training alone(SmallLayers(), nullptr, options);
  Must(shared.Attach());
  Must(alone.Attach());
  std::vector<float> frozen = shared.Value("fc1.W");
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_OK(TrainUnevenly(&shared, comm, step));
    ASSERT_OK(alone.TrainOn(step, 0, 64, 64));
  }
  EXPECT_EQ(shared.Value("fc1.W"), frozen);
  for (const char* name : {"conv.W", "conv.b", "fc1.b", "fc2.W", "fc2.b"})
    EXPECT_LE(RelativeError(alone.Value(name), shared.Value(name)), 2e-6)
        << name;
}

// Frozen and thawed while training goes on; frozen parameters keep their
// value, the others are averaged as ever.
TEST(DistOptTest, LayerFrozenLaterHangsNobody) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.bucket_bytes = 1;
  Training shared(SmallLayers(), comm.get(), options);
  Training alone(SmallLayers(), nullptr, options);
  Must(shared.Attach());
  Must(alone.Attach());
  for (int64_t step = 0; step < 6; ++step) {
    for (Training* training : {&shared, &alone})
      for (const char* name : {"fc2.W", "fc2.b"})
        training->Param(name)->trainable = step % 3 == 0;
    std::vector<float> before = shared.Value("fc2.W");
    ASSERT_OK(TrainUnevenly(&shared, comm, step));
    ASSERT_OK(alone.TrainOn(step, 0, 64, 64));
    EXPECT_EQ(shared.Value("fc2.W") == before, step % 3 != 0) << step;
  }
  Values a = alone.Values();
  Values b = shared.Values();
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LE(RelativeError(a[i].second, b[i].second), 5e-6) << a[i].first;
}

TEST(DistOptTest, ThawedWithoutAnUpdaterIsTold) {
  Comm comm;
  Training::Options options;
  options.frozen = "fc1.W";
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  training.Param("fc1.W")->trainable = true;
  EXPECT_STATUS(FAILED_PRECONDITION,
                "parameter fc1.W was frozen when the model got its updater",
                training.TrainOn(0, 0, 16, 16));
  comm.ExpectBroken();  // in the middle of a step
}

// A layer that only some ranks run: the others' gradients are zeros.
TEST(DistOptTest, LayerUnusedOnOneRankHangsNobody) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Layers layers = SmallLayers();
  layers.push_back({"linear", "extra", {{"out_features", "10"}}});
  for (int64_t bytes : {1, 1000000}) {
    Training::Options options;
    options.bucket_bytes = bytes;
    Training training(layers, comm.get(), options);
    Must(training.Attach());
    std::vector<float> before = training.Value("extra.W");
    if (comm.rank() == 1) training.Skip("extra");
    for (int64_t step = 0; step < 3; ++step)
      ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 32));
    ASSERT_OK(
        choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
    EXPECT_NE(training.Value("extra.W"), before);
  }
}

// ---- Options ----

TEST(DistOptTest, UnknownOptionIsRefused) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  choir_update_options_t update = {"topK", 0.05, nullptr};
  EXPECT_STATUS(INVALID_ARGUMENT, "dist_option is \"topK\"; known are: fp32",
                choir_model_set_update_options(training.model(), &update));
  for (const char* known :
       {"fp32", "plain", static_cast<const char*>(nullptr)}) {
    update.dist_option = known;
    EXPECT_OK(choir_model_set_update_options(training.model(), &update));
    EXPECT_OK(training.TrainOn(0, comm.rank() * 16, 16, 32));
  }
}

// ---- Several passes per step ----

Training::Options WithPasses(int64_t passes) {
  Training::Options options;
  options.passes = passes;
  options.bucket_bytes = 2000;
  return options;
}

// Samples [48 part, 48 part + 48) of a step's 144: shares of three ranks, one
// of which has none in some passes.
choir_status_t TrainPass(Training* training, const Comm& comm, int64_t step,
                         int64_t part) {
  const int64_t counts[] = {32, 16, 0};
  int64_t first = 48 * part;
  for (int rank = 0; rank < comm.rank(); ++rank)
    first += counts[(rank + part) % 3];
  return training->TrainOn(step, first, counts[(comm.rank() + part) % 3], 144);
}

// Three passes are one step of one rank with all samples: the model has
// dropout, which asks for the sample.
TEST(DistOptTest, PassesLikeOneBatch) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (const char* optimizer : {"sgd", "adam"}) {
    Training::Options options = WithPasses(3);
    options.optimizer = optimizer;
    Training shared(SmallLayers(), comm.get(), options);
    Training alone(SmallLayers(), nullptr, options);
    Must(shared.Attach());
    Must(alone.Attach());
    for (int64_t step = 0; step < 5; ++step) {
      for (int64_t part = 0; part < 3; ++part) {
        EXPECT_EQ(choir_model_step(shared.model()), step);
        const uint64_t before = shared.Digest();
        ASSERT_OK(TrainPass(&shared, comm, step, part));
        EXPECT_EQ(shared.Digest() == before, part < 2);
      }
      ASSERT_OK(alone.TrainOn(step, 0, 144, 144));
      Values a = alone.Values();
      Values b = shared.Values();
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_LE(RelativeError(a[i].second, b[i].second), 2e-5)
            << a[i].first << " after step " << step;
    }
    ASSERT_OK(
        choir_dist_opt_check_digest(shared.dist(), shared.StatesDigest()));
  }
}

// With every strategy: as graphs the same bits, equal replicas, and local ones
// step once.
TEST(DistOptTest, PassesWithEveryStrategy) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    uint64_t digests[4];
    int done = 0;
    for (const char* device : {"cpu", "cpu_async"}) {
      for (bool use_graph : {false, true}) {
        Training::Options options = WithPasses(3);
        options.strategy = choir_strategy_def_get(i);
        options.settings = {{"period", "2"},
                            {"delay", "1"},
                            {"ranks", "2"},
                            {"bandwidth", "100"},
                            {"warmup_steps", "4"}};
        options.device = device;
        options.use_graph = use_graph;
        Training training(SmallLayers(), comm.get(), options);
        Must(training.Attach());
        for (int64_t step = 0; step < 4; ++step)
          for (int64_t part = 0; part < 3; ++part)
            ASSERT_OK(TrainPass(&training, comm, step, part));
        ASSERT_OK(choir_updater_consolidate(training.updater()));
        ASSERT_OK(
            choir_dist_opt_check_digest(training.dist(), training.Digest()));
        digests[done++] = training.StatesDigest();
      }
    }
    for (uint64_t digest : digests)
      EXPECT_EQ(digest, digests[0])
          << choir_strategy_def_option(choir_strategy_def_get(i));
  }
}

TEST(DistOptTest, OnePassIsNoPass) {
  Comm comm;
  Training::Options one = WithPasses(1);
  Training training(SmallLayers(), comm.get(), one);
  Training plain(SmallLayers(), nullptr, one);
  Must(training.Attach());
  Must(plain.Attach());
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_OK(training.TrainOn(step, 0, 32, 32));
    ASSERT_OK(plain.TrainOn(step, 0, 32, 32));
  }
  EXPECT_EQ(training.StatesDigest(), plain.StatesDigest());
}

// ---- Overlap ----

// A bucket's all-reduce is submitted while backward has more to do: between
// two buckets there is computing, and before the first one less than half.
TEST(DistOptTest, ExchangeStartsWhileBackwardGoesOn) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training::Options options;
  options.bucket_bytes = 1;  // one for each parameter
  options.peer_memory = false;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  std::vector<std::string> notes;
  NoteStage compute;
  NoteStage background;
  compute.notes = &notes;
  background.notes = &notes;
  choir_stream_t* streams[] = {choir_device_stream(training.device()),
                               choir__dist_opt_background(training.dist())};
  choir_stream_push_stage(streams[0], &compute.stage);
  choir_stream_push_stage(streams[1], &background.stage);
  Must(training.TrainOn(0, comm.rank() * 16, 16, 32));
  choir_stream_pop_stage(streams[0], &compute.stage);
  choir_stream_pop_stage(streams[1], &background.stage);
  std::string all;
  for (const std::string& name : notes) all += name + "\n";
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(), IsExchange), 6) << all;
  auto is_update = [](const std::string& name) {
    return name.find("sgd") == 0;
  };
  auto update = std::find_if(notes.begin(), notes.end(), is_update);
  auto first = std::find_if(notes.begin(), notes.end(), IsExchange);
  auto last = std::find_if(notes.rbegin(), notes.rend(), IsExchange).base();
  ASSERT_NE(update, notes.end()) << all;
  EXPECT_LE(last - notes.begin(), update - notes.begin()) << all;
  // Gradients of fc2 come first; those of fc1, pool and conv are still to be
  // computed when its buckets go.
  EXPECT_GE(
      std::count_if(first, last,
                    [](const std::string& name) { return !IsExchange(name); }),
      5)
      << all;
}

}  // namespace
