// SPDX-License-Identifier: Apache-2.0
// Every strategy of CHOIR_STRATEGY_LIST on every backend and world size: the
// replicas are equal in the end, and the bits are the same every time, eagerly
// and as graphs, on streams that are threads, over every backend.
#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/gpu.h"
#include "tests/dist/compress_on_host.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/fake_cuda.h"
#include "tests/testing/sanitized.h"

namespace {

using choir_testing::Comm;
using choir_testing::Must;
using choir_testing::RelativeError;
using choir_testing::Settings;
using choir_testing::SmallLayers;
using choir_testing::Training;

struct Case {
  std::string backend;
  int size;
  const choir_strategy_def_t* strategy;
};

std::vector<std::string> Backends() {
  std::vector<std::string> backends;
#define CHOIR_COMM_BACKEND(name) backends.push_back(#name);
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
  return backends;
}

std::vector<Case> Cases(const std::vector<int>& sizes) {
  std::vector<Case> cases;
  for (const std::string& backend : Backends())
    for (int size : sizes)
      for (int32_t i = 0; choir_strategy_def_get(i); ++i)
        if ((size == 1 || backend != "self") &&
            (size < 7 || !choir::testing::kSanitized))
          cases.push_back({backend, size, choir_strategy_def_get(i)});
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return info.param.backend + "_" + std::to_string(info.param.size) + "_" +
         choir_strategy_def_option(info.param.strategy);
}

// So that each strategy does all that it can within a few steps; each takes
// what it has.
const Settings& BusySettings() {
  static const Settings settings = {
      {"spars", "0.01"},     {"chunk", "1000"},
      {"warmup_steps", "6"}, {"ranks", "2"},
      {"bandwidth", "100"},  // auto measures no link
      {"period", "3"},       {"delay", "1"},
      {"outer_lr", "0.7"},   {"outer_momentum", "0.9"},
      {"nesterov", "true"},  {"decay", "0.9"},
      {"clip", "0.5"}};
  return settings;
}

constexpr int64_t kSteps = 7;  // of which the last one is no round's end

// Uneven shares; with more than one rank some have no sample in some steps.
choir_status_t TrainStep(Training* training, const Comm& comm, int64_t step) {
  const int64_t counts[] = {32, 16, 0, 16, 48, 16, 16};
  if (comm.size() == 1) return training->TrainOn(step, 0, 48, 48);
  const int period = std::max(comm.size(), 3);
  int64_t first = 0;
  int64_t global = 0;
  int64_t own = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t count = counts[(rank + step) % period];
    if (rank < comm.rank()) first += count;
    if (rank == comm.rank()) own = count;
    global += count;
  }
  return training->TrainOn(step, first, own, global);
}

Training::Options BusyOptions(const choir_strategy_def_t* strategy) {
  Training::Options options;
  options.strategy = strategy;
  options.settings = BusySettings();
  options.bucket_bytes = 2000;  // three buckets
  options.lr = 0.05;
  return options;
}

// The digest of this rank's states in the end; the parameters are equal.
uint64_t Train(const Comm& comm, const Training::Options& options) {
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  const uint64_t before = training.Digest();
  for (int64_t step = 0; step < kSteps; ++step)
    EXPECT_OK(TrainStep(&training, comm, step));
  EXPECT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  EXPECT_NE(training.Digest(), before) << "it learnt something";
  return training.StatesDigest();
}

// The states after one step.
std::map<std::string, std::vector<float>> Learn(
    const Comm& comm, const Training::Options& options) {
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  EXPECT_OK(TrainStep(&training, comm, 0));
  std::map<std::string, std::vector<float>> values;
  for (const auto& value : training.Values()) values.insert(value);
  return values;
}

class StrategySuite : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    int32_t gpus = 0;
    choir_status_free(choir_gpu_count(&gpus));
    // Two ranks may share one.
    if (GetParam().backend == "nccl" && std::max(gpus, 2) < GetParam().size)
      GTEST_SKIP() << "this machine has no " << GetParam().size << " GPUs";
    if (GetParam().backend == "nccl" && gpus == 0)
      GTEST_SKIP() << "this machine has no GPU";
  }

  // Whether this process is the parent, whose part is done.
  bool Start() {
    const Case& own = GetParam();
    if (own.backend == "self") return false;
    return choir_testing::RunRanksTogether(
        own.backend, own.size,
        "*/" + own.backend + "_" + std::to_string(own.size) + "_*");
  }

  Training::Options Options() const { return BusyOptions(GetParam().strategy); }
};

// What more ranks would add nothing to.
class StrategyModes : public StrategySuite {};

TEST_P(StrategySuite, SameBitsInEveryMode) {
  if (Start()) return;
  Comm comm;
  for (int64_t bytes : {2000, 1000000}) {
    Training::Options options = Options();
    options.bucket_bytes = bytes;
    const uint64_t expected = Train(comm, options);
    EXPECT_EQ(Train(comm, options), expected) << "again, " << bytes;
    options.use_graph = true;
    EXPECT_EQ(Train(comm, options), expected) << "as a graph, " << bytes;
    options.peer_memory = false;
    EXPECT_EQ(Train(comm, options), expected) << "everything, " << bytes;
  }
}

// Streams are threads that walk unevenly, on each rank in its own way.
TEST_P(StrategyModes, SameBitsOnThreadedStreams) {
  if (Start()) return;
  Comm comm;
  Training::Options options = Options();
  const uint64_t expected = Train(comm, options);
  options.device = "cpu_async";
  for (bool use_graph : {false, true}) {
    options.use_graph = use_graph;
    options.device_seed = static_cast<uint64_t>(comm.rank());
    EXPECT_EQ(Train(comm, options), expected) << use_graph;
  }
}

// Gradients and parameters of a GPU go over the host, as they are or, by
// strategies that have kernels there, as what is sent. Its ops are the
// reference's here, whose bits the device `null` has as well; the CPU's are
// close.
TEST_P(StrategyModes, SameBitsOnAGpu) {
  const Case& own = GetParam();
  if (choir::testing::kSanitized && own.backend != "self")
    GTEST_SKIP() << "the same code as with self";
  if (own.backend == "nccl") GTEST_SKIP() << "NCCL knows no script of a GPU";
  if (Start()) return;
  Comm comm;
  choir::testing::CudaKernelsOnHost(false);
  choir::testing::CompressKernelsOnHost(false);
  choir::testing::FakeCuda gpu;
  Training::Options options = Options();
  const std::map<std::string, std::vector<float>> near = Learn(comm, options);
  for (int64_t passes : {1, 2}) {
    options.passes = passes;
    options.device = "null";
    const uint64_t expected = Train(comm, options);
    options.device = "cuda";
    for (bool use_graph : {false, true}) {
      options.use_graph = use_graph;
      EXPECT_EQ(Train(comm, options), expected) << passes << use_graph;
      // Passes are added up on the host; sanitizers see kernels in the tests of
      // DistOpt.
      if (passes > 1 || choir::testing::kSanitized) continue;
      choir::testing::CompressKernelsOnHost(true);
      EXPECT_EQ(Train(comm, options), expected) << "kernels" << use_graph;
      choir::testing::CompressKernelsOnHost(false);
    }
    options.use_graph = choir_testing::kUseGraph;
  }
  options.passes = 1;
  for (const auto& entry : Learn(comm, options))
    EXPECT_LE(RelativeError(near.at(entry.first), entry.second), 1e-3)
        << entry.first;
}

// The GPU of the machine: the same bits each time and as a graph, close to the
// CPU's.
TEST_P(StrategyModes, OnTheMachinesGpu) {
  int32_t gpus = 0;
  choir_status_free(choir_gpu_count(&gpus));
  if (gpus == 0) GTEST_SKIP() << "this machine has no GPU";
  if (Start()) return;
  Comm comm;
  Training::Options options = Options();
  const std::map<std::string, std::vector<float>> near = Learn(comm, options);
  options.device = "cuda";
  options.device_index = comm.rank() % gpus;
  for (const auto& entry : Learn(comm, options))
    EXPECT_LE(RelativeError(near.at(entry.first), entry.second), 1e-3)
        << entry.first;
  const uint64_t expected = Train(comm, options);
  EXPECT_EQ(Train(comm, options), expected) << "again";
  options.use_graph = true;
  EXPECT_EQ(Train(comm, options), expected) << "as a graph";
}

TEST_P(StrategyModes, WithAdam) {
  if (Start()) return;
  Comm comm;
  Training::Options options = Options();
  options.optimizer = "adam";
  const uint64_t expected = Train(comm, options);
  options.use_graph = true;
  EXPECT_EQ(Train(comm, options), expected);
}

TEST_P(StrategyModes, FrozenParametersStay) {
  if (Start()) return;
  Comm comm;
  Training::Options options = Options();
  options.frozen = "fc1.W";
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  const std::vector<float> frozen = training.Value("fc1.W");
  const uint64_t before = training.Digest();
  for (int64_t step = 0; step < kSteps; ++step)
    ASSERT_OK(TrainStep(&training, comm, step));
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  EXPECT_EQ(training.Value("fc1.W"), frozen);
  EXPECT_NE(training.Digest(), before);
}

// From another one in mid-run, and to another one: the replicas become equal,
// and what was kept is dropped.
TEST_P(StrategySuite, SwitchedInMidRun) {
  if (Start()) return;
  Comm comm;
  Training::Options options = Options();
  options.use_graph = true;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  int64_t step = 0;
  auto train = [&](int64_t until) {
    for (; step < until; ++step) ASSERT_OK(TrainStep(&training, comm, step));
  };
  train(4);
  const size_t own_states = training.States().size();
  const choir_update_options_t fp32 = {"fp32", 0, nullptr};
  ASSERT_OK(choir_model_set_update_options(training.model(), &fp32));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  EXPECT_EQ(training.States().size(), 12u);
  train(7);
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  Must(choir_dist_opt_use(
      training.dist(), GetParam().strategy,
      choir_testing::StrategyConfig(GetParam().strategy, BusySettings())
          .data()));
  EXPECT_EQ(training.States().size(), own_states);
  train(11);
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

// Where nothing is left out or rounded, a strategy that combines gradients is
// fp32: to the bit with one rank, within a rounding of sums with more. Those
// with local steps have no such settings.
TEST_P(StrategySuite, FullShareIsFp32) {
  if (Start()) return;
  const std::string option = choir_strategy_def_option(GetParam().strategy);
  Comm comm;
  Training::Options options = Options();
  // dgc applies no momentum to what is sent at once.
  options.optimizer = "adam";
  options.settings = {{"spars", option == "sparseThreshold" ? "0" : "1"},
                      {"values", "fp32"},
                      {"warmup_steps", "0"}};
  Training same(SmallLayers(), comm.get(), options);
  options.strategy = &choir_strategy_def_fp32;
  Training plain(SmallLayers(), comm.get(), options);
  Must(same.Attach());
  Must(plain.Attach());
  const choir_struct_def_t* fields =
      choir_strategy_def_config(GetParam().strategy);
  if (!choir_struct_find(fields, "spars") ||
      choir_struct_find(fields, "period"))
    return;
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_OK(TrainStep(&same, comm, step));
    ASSERT_OK(TrainStep(&plain, comm, step));
  }
  if (comm.size() == 1) {
    EXPECT_EQ(same.Digest(), plain.Digest());
  }
  for (const char* name : {"conv.W", "fc1.W", "fc2.b"})
    EXPECT_LE(RelativeError(plain.Value(name), same.Value(name)), 1e-5) << name;
}

INSTANTIATE_TEST_SUITE_P(Strategies, StrategySuite,
                         ::testing::ValuesIn(Cases({1, 2, 3, 4, 7})), CaseName);
INSTANTIATE_TEST_SUITE_P(Strategies, StrategyModes,
                         ::testing::ValuesIn(Cases({1, 2, 3})), CaseName);

// ---- Over all backends ----

class StrategyBackends : public ::testing::TestWithParam<Case> {};

// What rank 0 says over a backend: every strategy's digests of all ranks.
std::string DigestsOver(const std::string& backend, int size) {
  choir_testing::ProcessGroup group;
  choir_testing::StartRanks(&group, backend, size);
  std::vector<choir_testing::ProcessResult> results =
      group.Wait(choir_testing::Patience(100));
  for (const choir_testing::ProcessResult& result : results)
    EXPECT_EQ(result.exit_status, 0) << backend << " " << result.output;
  return choir_testing::Heard(results, 0);
}

TEST_P(StrategyBackends, SameBitsAsSharedMemory) {
  if (!choir_testing::InRank()) {
    const std::string shm = DigestsOver("shm", GetParam().size);
    EXPECT_NE(shm, "(nothing)");
    EXPECT_EQ(DigestsOver(GetParam().backend, GetParam().size), shm);
    return;
  }
  Comm comm;
  std::string text;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    const choir_strategy_def_t* strategy = choir_strategy_def_get(i);
    text += choir_strategy_def_option(strategy);
    for (uint64_t digest : comm.Gather(Train(comm, BusyOptions(strategy))))
      text += " " + std::to_string(digest);
    text += "; ";
  }
  if (comm.rank() == 0) choir_testing::Say(text);
}

std::vector<Case> OtherBackends() {
  std::vector<Case> cases;
  for (const std::string& backend : Backends())
    for (int size : {2, 3})
      // The order of sums is NCCL's own.
      if (backend != "self" && backend != "shm" && backend != "nccl")
        cases.push_back({backend, size, nullptr});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Strategies, StrategyBackends,
                         ::testing::ValuesIn(OtherBackends()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return info.param.backend + "_" +
                                  std::to_string(info.param.size);
                         });

}  // namespace
