// SPDX-License-Identifier: Apache-2.0
// Calls of DistOpt that all ranks make, between steps, and that fail on one of
// them: all hear of it at once, and the communicator stays in order. On the
// last rank one allocation fails, or one copy to its GPU: the first, the second
// and so on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "dist/training.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/failing_allocator.h"
#include "tests/testing/fake_cuda.h"

namespace {

using choir::testing::FailingAllocator;
using choir_testing::Comm;
using choir_testing::Layers;
using choir_testing::Must;
using choir_testing::SmallLayers;
using choir_testing::Training;

// With states that training does not learn.
Layers LayersWithAverages() {
  Layers layers = SmallLayers();
  layers.insert(layers.begin() + 1, {"batch_norm2d", "norm", {}});
  return layers;
}

struct Call {
  const char* name;
  bool is_attached;
  std::function<choir_status_t(Training*)> run;
};

void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }

std::string Path() {
  return ::testing::TempDir() + "memory." + std::to_string(getpid());
}

choir_status_t Save(Training* training) {
  // Where they do not, each rank saves alone.
  if (!choir_dist_opt_ranks_differ(training->dist())) return nullptr;
  return choir_training_save(training->model(), nullptr, Path().c_str(),
                             nullptr, 0);
}

choir_status_t Resume(Training* training) {
  return choir_training_resume(training->model(), nullptr, Path().c_str(),
                               nullptr, 0);
}

choir_status_t Use(Training* training, const choir_strategy_def_t* def) {
  return choir_dist_opt_use(training->dist(), def,
                            choir_testing::StrategyConfig(def, {}).data());
}

const Call kCalls[] = {
    {"attach", false, [](Training* t) { return t->Attach(); }},
    {"consolidate", true,
     [](Training* t) { return choir_updater_consolidate(t->updater()); }},
    {"broadcast", true,
     [](Training* t) { return choir_dist_opt_broadcast(t->dist()); }},
    {"save", true, Save},
    {"resume", true, Resume},
    {"use", true, [](Training* t) { return Use(t, &choir_strategy_def_fp16); }},
    // From shards to whole states.
    {"use_local", true,
     [](Training* t) { return Use(t, &choir_strategy_def_local_sgd); }},
};

class DistOptMemoryTest : public ::testing::TestWithParam<Call> {};

struct Fault {
  std::function<void(int64_t nth)> arm;
  std::function<bool()> disarm;  // whether it happened
};

// Whether the call failed.
bool Attempt(const Call& call, const Training::Options& options, Comm* world,
             const Fault& fault, int64_t nth) {
  const std::vector<int32_t> all = {0, 1, 2};
  choir_comm_t* comm = nullptr;
  Must(choir_comm_group(world->get(), all.data(), 3, &comm));
  choir_status_code_t code;
  {
    Training training(LayersWithAverages(), comm, options);
    if (call.is_attached) {
      Must(training.Attach());
      Must(training.TrainOn(0, world->rank() * 16, 16, 48));
    }
    if (std::string(call.name) == "resume") {
      std::vector<choir_named_tensor_t> states = training.WholeStates();
      if (world->rank() == 0)
        Must(choir_checkpoint_save(Path().c_str(), states.data(), states.size(),
                                   nullptr, 0));
    }
    if (world->rank() == 2) fault.arm(nth);
    choir_status_t status = call.run(&training);
    const bool failed = world->rank() == 2 && fault.disarm();
    code = choir_status_code(status);
    if (world->rank() != 2 && status) {
      EXPECT_TRUE(
          choir_testing::Contains(choir_status_message(status), ": rank 2: "))
          << choir_status_message(status);
    }
    choir_status_free(status);
    for (uint64_t heard : world->Gather(static_cast<uint64_t>(code)))
      EXPECT_EQ(heard, static_cast<uint64_t>(code)) << "fault " << nth;
    EXPECT_TRUE(failed || code == CHOIR_STATUS_OK || world->rank() != 2);
    EXPECT_OK(choir_comm_barrier(comm, "in order"));
    unlink(Path().c_str());
  }
  EXPECT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
  return code != CHOIR_STATUS_OK;
}

// Whether the call failed at all.
bool AttemptAll(const Call& call, const Training::Options& options, Comm* world,
                const Fault& fault) {
  int failures = 0;
  // Some calls do without a part of what they ask for.
  int well = 0;
  for (int64_t nth = 0; well < 3; nth += 1 + nth / 8) {
    const bool failed = Attempt(call, options, world, fault, nth);
    failures += failed;
    well = failed ? 0 : well + 1;
  }
  return failures > 0;
}

TEST_P(DistOptMemoryTest, AllHearOfALackOnOneRank) {
  if (choir_testing::RunRanks("shm", 3)) return;
  // For the rest of the process.
  auto* allocator = new FailingAllocator;
  Must(choir_allocator_set_default(allocator->get()));
  choir::testing::CudaKernelsOnHost(false);
  choir::testing::FakeCuda gpu;
  const Fault no_memory = {[&](int64_t nth) { allocator->FailAt(nth); },
                           [&] {
                             const bool failed = allocator->failed();
                             allocator->FailAt(-1);
                             return failed;
                           }};
  Comm world;
  const bool is_broadcast = std::string(GetParam().name) == "broadcast";
  Training::Options options[4];
  options[1].strategy = &choir_strategy_def_sparse_top_k;  // has states
  options[2].device = "cuda";  // copies of what is on it
  options[3].shard =
      !is_broadcast && std::string(GetParam().name) != "use_local";
  options[3].peer_memory = false;
  bool failed = false;
  for (Training::Options& one : options) {
    if (is_broadcast) one.peer_memory = false;  // it refuses shards
    failed |= AttemptAll(GetParam(), one, &world, no_memory);
  }
  EXPECT_TRUE(failed);
}

TEST_P(DistOptMemoryTest, AllHearOfACopyThatFailsOnOneRank) {
  if (choir_testing::RunRanks("shm", 3)) return;
  choir::testing::CudaKernelsOnHost(false);
  choir::testing::FakeCuda gpu;
  const std::string copy = "cuMemcpyHtoDAsync";
  int last = 0;
  const Fault no_copy = {[&](int64_t nth) {
                           last = gpu.Calls(copy) + static_cast<int>(nth);
                           gpu.FailNext(copy, 2 /* no memory */,
                                        static_cast<int>(nth));
                         },
                         [&] {
                           gpu.FailNext(copy, 0);
                           return gpu.Calls(copy) > last;
                         }};
  Comm world;
  Training::Options options;
  options.device = "cuda";
  bool failed = AttemptAll(GetParam(), options, &world, no_copy);
  // Nothing is compared behind the last copy of an average.
  options.momentum = 0;
  failed |= AttemptAll(GetParam(), options, &world, no_copy);
  EXPECT_EQ(failed, std::string(GetParam().name) != "save");
}

INSTANTIATE_TEST_SUITE_P(Calls, DistOptMemoryTest, ::testing::ValuesIn(kCalls),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
