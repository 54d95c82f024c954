// SPDX-License-Identifier: Apache-2.0
// Models that come, go and share: whose parameters DistOpt works on, and when.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;

// Settings under which DistOpt keeps different things of a model.
std::vector<Training::Options> Kinds() {
  std::vector<Training::Options> kinds;
  for (const char* device : {"cpu", "cpu_async", "null"}) {
    for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
      Training::Options options;
      options.device = device;
      options.strategy = choir_strategy_def_get(i);
      options.settings = {{"period", "2"}, {"delay", "1"}};
      options.bucket_bytes = 2000;
      kinds.push_back(options);
      options.optimizer = "adam";
      if (options.strategy == &choir_strategy_def_fp32) {
        kinds.push_back(options);
        options.peer_memory = false;
        kinds.push_back(options);
        options.passes = 2;
        kinds.push_back(options);
      }
    }
  }
  return kinds;
}

std::string Describe(const Training::Options& options) {
  return options.device + " " + options.optimizer + " " +
         choir_strategy_def_option(options.strategy) + " passes " +
         std::to_string(options.passes) +
         (options.peer_memory ? "" : " not sharded");
}

void StartSteps(Training* training, const Comm& comm) {
  for (int64_t step = 0; step < 4; ++step)
    Must(training->TrainOn(step, comm.rank() * 16, 16, 16 * comm.size()));
}

// The same, and their end: before another model's operations.
void TrainSteps(Training* training, const Comm& comm) {
  StartSteps(training, comm);
  Must(choir_stream_synchronize(choir_device_stream(training->device())));
}

// What DistOpt keeps for longer than its model.
struct Updater {
  explicit Updater(const Training& training) : dist(training.dist()) {
    choir_dist_opt_retain(dist);
  }
  ~Updater() { choir_dist_opt_release(dist); }
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;
  choir_updater_t* get() const { return choir_dist_opt_updater(dist); }
  choir_dist_opt_t* dist;
};

// Without a wait for the last step's work: it ends before its memory goes.
TEST(DistOptModelsTest, NothingReachesAModelThatIsGone) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (const Training::Options& options : Kinds()) {
    SCOPED_TRACE(Describe(options));
    auto training =
        std::make_unique<Training>(SmallLayers(), comm.get(), options);
    Must(training->Attach());
    StartSteps(training.get(), comm);
    Updater updater(*training);
    training.reset();
    const char* sentence = " without a model: its own was released";
    EXPECT_STATUS(FAILED_PRECONDITION, sentence,
                  choir_updater_consolidate(updater.get()));
    EXPECT_STATUS(FAILED_PRECONDITION, sentence,
                  choir_dist_opt_broadcast(updater.dist));
    EXPECT_EQ(choir__dist_opt_background(updater.dist), nullptr);
    choir_dist_opt_ranks_differ(updater.dist);
    // Of the next model's.
    ASSERT_OK(
        choir_dist_opt_use(updater.dist, &choir_strategy_def_fp16, nullptr));
    EXPECT_EQ(choir_dist_opt_strategy(updater.dist), &choir_strategy_def_fp16);
  }
}

// With the bits of one that never had another model.
TEST(DistOptModelsTest, GoesOnWithAnotherModel) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (Training::Options options : Kinds()) {
    if (options.strategy == &choir_strategy_def_auto) continue;  // measures
    SCOPED_TRACE(Describe(options));
    options.seed = 2;
    Training expected(SmallLayers(), comm.get(), options);
    Must(expected.Attach());
    TrainSteps(&expected, comm);
    auto first = std::make_unique<Training>(SmallLayers(), comm.get(), options);
    Must(first->Attach());
    TrainSteps(first.get(), comm);
    Updater updater(*first);
    first.reset();
    Training second(SmallLayers(), nullptr, options);
    ASSERT_OK(choir_model_set_updater(second.model(), updater.get()));
    TrainSteps(&second, comm);
    EXPECT_EQ(second.StatesDigest(), expected.StatesDigest());
    Must(choir_updater_consolidate(updater.get()));
    ASSERT_OK(choir_dist_opt_check_digest(updater.dist, second.Digest()));
  }
}

// DistOpt and the optimizer in it are one updater.
TEST(DistOptModelsTest, ServesOneModelAtATime) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training first(SmallLayers(), comm.get(), {});
  Must(first.Attach());
  Training expected(SmallLayers(), comm.get(), {});
  Must(expected.Attach());
  Training second(SmallLayers(), nullptr, {});
  Must(second.Attach());
  for (choir_updater_t* updater : {first.updater(), first.inner_updater()})
    EXPECT_STATUS(FAILED_PRECONDITION,
                  "model net: the updater is that of model net; make one for "
                  "each model",
                  choir_model_set_updater(second.model(), updater));
  // Nor is the optimizer attached by itself, or in another DistOpt.
  for (const Training* whose : {&first, &second})
    EXPECT_STATUS(FAILED_PRECONDITION, "the updater is that of model net",
                  choir_optimizer_attach(first.optimizer(), whose->device(),
                                         choir_model_params(whose->model())));
  choir_dist_opt_t* another = nullptr;
  Must(choir_dist_opt_create(first.optimizer(), comm.get(), nullptr, &another));
  Training none(SmallLayers(), nullptr, {});
  EXPECT_STATUS(
      FAILED_PRECONDITION, "the updater is that of model net",
      choir_model_set_updater(none.model(), choir_dist_opt_updater(another)));
  EXPECT_STATUS(FAILED_PRECONDITION, "training without an updater",
                none.TrainOn(0, 0, 16, 16));
  choir_dist_opt_release(another);
  TrainSteps(&first, comm);
  TrainSteps(&expected, comm);
  EXPECT_EQ(first.StatesDigest(), expected.StatesDigest());
  Must(second.TrainOn(0, 0, 16, 16));
  // The same around an optimizer that a model has by itself.
  choir_dist_opt_t* dist = nullptr;
  Must(choir_dist_opt_create(second.optimizer(), comm.get(), nullptr, &dist));
  Training third(SmallLayers(), nullptr, {});
  EXPECT_STATUS(
      FAILED_PRECONDITION, "the updater is that of model net",
      choir_model_set_updater(third.model(), choir_dist_opt_updater(dist)));
  Must(second.TrainOn(1, 0, 16, 16));
  // Its own model may change from the one to the other, and back.
  ASSERT_OK(
      choir_model_set_updater(second.model(), choir_dist_opt_updater(dist)));
  Must(second.TrainOn(2, comm.rank() * 16, 16, 32));
  ASSERT_OK(choir_dist_opt_check_digest(dist, second.Digest()));
  ASSERT_OK(choir_model_set_updater(second.model(), second.updater()));
  Must(second.TrainOn(3, 0, 16, 16));
  choir_dist_opt_release(dist);
}

}  // namespace
