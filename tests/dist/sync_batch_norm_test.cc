// SPDX-License-Identifier: Apache-2.0
// Batch norm over the samples of all ranks: N ranks against one that has the
// whole batch and the op of one rank.
#include "tests/dist/dist_opt_testing.h"

using choir_testing::Comm;
using choir_testing::InRank;
using choir_testing::Label;
using choir_testing::Layers;
using choir_testing::Must;
using choir_testing::Pixels;
using choir_testing::Rank;
using choir_testing::RelativeError;
using choir_testing::RunRanks;
using choir_testing::Training;

namespace {

constexpr int64_t kSamples = 12;

// A bias in front of one has a gradient of 0, of which only rounding is seen.
choir_testing::LayerText Conv(const std::string& name, const char* channels) {
  return {
      "conv2d",
      name,
      {{"out_channels", channels}, {"kernel_size", "3"}, {"bias", "false"}}};
}

Layers Net(const std::string& sync) {
  return {
      Conv("conv1", "5"),
      {"batch_norm2d", "norm1", {{"sync", sync}, {"momentum", "0.3"}}},
      {"relu", "act1", {}},
      Conv("conv2", "4"),
      {"batch_norm2d", "norm2", {{"sync", sync}, {"epsilon", "0.001"}}},
      {"flatten", "flat", {}},
      {"linear", "fc", {{"out_features", "10"}}},
  };
}

// Mean and spread grow with the sample, so that ranks have unlike moments.
choir_status_t TrainOn(Training* training, int64_t step, int64_t first,
                       int64_t count) {
  std::vector<float> pixels = Pixels(step, first, count);
  const size_t image = pixels.size() / static_cast<size_t>(count ? count : 1);
  for (size_t i = 0; i < pixels.size(); ++i) {
    const float sample =
        static_cast<float>(first) + static_cast<float>(i / image);
    pixels[i] = (1 + sample / 4) * pixels[i] + 2 * sample - 5;
  }
  return training->TrainOn(pixels, step, first, count, kSamples);
}

// Uneven batches; from three ranks on one of them has no samples, each time
// another one.
int64_t CountOf(int64_t step, int rank, int size) {
  const int64_t of_2[] = {7, 5};
  const int64_t of_3[] = {4, 0, 8};
  const int64_t of_4[] = {5, 1, 0, 6};
  const int64_t place = (rank + step) % size;
  if (size == 1) return kSamples;
  return size == 2 ? of_2[place] : size == 3 ? of_3[place] : of_4[place];
}

choir_status_t TrainPart(Training* training, int64_t step, int rank, int size) {
  int64_t first = 0;
  for (int r = 0; r < rank; ++r) first += CountOf(step, r, size);
  return TrainOn(training, step, first, CountOf(step, rank, size));
}

void ExpectNear(const choir_testing::Values& expected,
                const choir_testing::Values& values, double tolerance) {
  ASSERT_EQ(expected.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_LT(RelativeError(expected[i].second, values[i].second), tolerance)
        << values[i].first;
}

// One that has the whole batch.
class Whole {
 public:
  explicit Whole(const Training::Options& options) {
    choir_comm_config_t config;
    Must(choir_comm_config_init(&config));
    config.backend = "self";
    config.rank = 0;
    config.size = 1;
    Must(choir_comm_create(&config, &comm_));
    training_ = new Training(Net("false"), comm_, options);
    Must(training_->Attach());
  }
  ~Whole() {
    delete training_;
    choir_comm_release(comm_);
  }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  Training* operator->() { return training_; }
  Training* get() { return training_; }

 private:
  choir_comm_t* comm_ = nullptr;
  Training* training_ = nullptr;
};

void ExpectAsOneRank(const Training::Options& options, int64_t steps,
                     double tolerance) {
  Comm comm;
  Training training(Net("true"), comm.get(), options);
  Must(training.Attach());
  Whole whole(options);
  ExpectNear(whole->Values(), training.Values(), 0.0001 * tolerance);
  for (int64_t step = 0; step < steps; ++step) {
    ASSERT_OK(TrainPart(&training, step, comm.rank(), comm.size()));
    ASSERT_OK(TrainOn(whole.get(), step, 0, kSamples));
  }
  ExpectNear(whole->Values(), training.Values(), tolerance);
  // Bit for bit the same on all ranks, running averages too, which consolidate
  // need not average.
  EXPECT_OK(
      choir_dist_opt_check_digest(training.dist(), training.StatesDigest()));
}

#define CHOIR_TEST_SIZES(name, options, steps, tolerance) \
  TEST(SyncBatchNormTest, name##OfOneRank) {              \
    if (RunRanks("self", 1)) return;                      \
    ExpectAsOneRank(options, steps, tolerance);           \
  }                                                       \
  TEST(SyncBatchNormTest, name##OfTwoRanks) {             \
    if (RunRanks("shm", 2)) return;                       \
    ExpectAsOneRank(options, steps, tolerance);           \
  }                                                       \
  TEST(SyncBatchNormTest, name##OfThreeRanks) {           \
    if (RunRanks("tcp", 3)) return;                       \
    ExpectAsOneRank(options, steps, tolerance);           \
  }                                                       \
  TEST(SyncBatchNormTest, name##OfFourRanks) {            \
    if (RunRanks("shm", 4)) return;                       \
    ExpectAsOneRank(options, steps, tolerance);           \
  }

Training::Options Steps() {
  Training::Options options;
  options.lr = 0.01;
  options.bucket_bytes = 256;  // so that buckets are exchanged in backward
  return options;
}
CHOIR_TEST_SIZES(Steps, Steps(), 6, 2e-5)

// Their first step moves parameters by the gradients alone.
Training::Options Gradients() {
  Training::Options options = Steps();
  options.momentum = 0;
  options.lr = 1;
  return options;
}
CHOIR_TEST_SIZES(Gradients, Gradients(), 1, 1e-5)

Training::Options Passes() {
  Training::Options options = Steps();
  options.passes = 2;
  return options;
}
CHOIR_TEST_SIZES(Passes, Passes(), 6, 2e-5)

// The convolution and the first norm learn nothing, so that no backward goes
// through them; what a rank without samples cannot know by itself.
Training::Options Frozen() {
  Training::Options options = Steps();
  options.frozen_group = "*1.*";
  return options;
}
CHOIR_TEST_SIZES(Frozen, Frozen(), 6, 2e-5)

TEST(SyncBatchNormTest, RunsOnStreamsThatAreThreads) {
  if (RunRanks("shm", 3)) return;
  Training::Options options = Steps();
  options.device = "cpu_async";
  ExpectAsOneRank(options, 6, 2e-5);
}

TEST(SyncBatchNormTest, RunsWithShards) {
  if (RunRanks("shm", 3)) return;
  Training::Options options = Steps();
  options.shard = true;
  ExpectAsOneRank(options, 6, 2e-5);
}

// Also those that take local steps, where gradients are of each rank alone.
TEST(SyncBatchNormTest, RunsWithEveryStrategy) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    Training::Options options = Steps();
    options.strategy = choir_strategy_def_get(i);
    options.settings = {
        {"period", "2"}, {"delay", "1"}, {"ranks", "2"}, {"bandwidth", "100"}};
    SCOPED_TRACE(choir_strategy_def_option(options.strategy));
    Training training(Net("true"), comm.get(), options);
    ASSERT_OK(training.Attach());
    for (int64_t step = 0; step < 5; ++step)
      ASSERT_OK(TrainPart(&training, step, comm.rank(), comm.size()));
    ASSERT_OK(choir_updater_consolidate(training.updater()));
    EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
  }
}

// Ranks time forward and backward before each step: layers exchange, gradients
// do not, and the run sees nothing of it.
TEST(SyncBatchNormTest, RunsInRehearsals) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    Training::Options options = Steps();
    options.strategy = choir_strategy_def_get(i);
    SCOPED_TRACE(choir_strategy_def_option(options.strategy));
    for (int64_t passes : {1, 2}) {
      options.passes = passes;
      std::vector<uint64_t> digests;
      for (bool rehearses : {false, true}) {
        options.rehearses = rehearses;
        Training training(Net("true"), comm.get(), options);
        ASSERT_OK(training.Attach());
        for (int64_t step = 0; step < 4; ++step)
          ASSERT_OK(TrainPart(&training, step, comm.rank(), comm.size()));
        digests.push_back(training.StatesDigest());
      }
      EXPECT_EQ(digests[0], digests[1]);
    }
  }
}

// Without the setting ranks have unlike averages, so the tests above see it.
TEST(SyncBatchNormTest, IsAnotherThingThanEachRankAlone) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training training(Net("false"), comm.get(), Steps());
  Must(training.Attach());
  Whole whole(Steps());
  Must(TrainPart(&training, 0, comm.rank(), comm.size()));
  Must(TrainOn(whole.get(), 0, 0, kSamples));
  EXPECT_GT(RelativeError(whole->Value("norm1.running_mean"),
                          training.Value("norm1.running_mean")),
            0.1);
}

TEST(SyncBatchNormTest, NeedsAnUpdaterThatKnowsRanks) {
  Training training(Net("true"), nullptr, Steps());
  EXPECT_STATUS(
      FAILED_PRECONDITION,
      "model net: norm1 has the setting sync, and the model's updater "
      "knows of no other ranks; needs a DistOpt",
      training.Attach());
  EXPECT_EQ(choir_model_updater(training.model()), nullptr);
}

TEST(SyncBatchNormTest, IsASettingOfAllRanks) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  comm.ExpectBroken();
  Training training(Net(Rank() == 0 ? "true" : "false"), comm.get(), Steps());
  choir_status_t status = training.Attach();
  if (!status) status = TrainPart(&training, 0, comm.rank(), comm.size());
  ASSERT_NE(status, nullptr);
  EXPECT_NE(choir_status_code(status), CHOIR_STATUS_TIMEOUT)
      << choir_status_message(status);
  choir_status_free(status);
}

// Others wait for it in forward, on a communicator that the program does not
// know.
TEST(SyncBatchNormTest, ARankThatFailsTellsTheOthers) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  comm.ExpectBroken();
  Training training(Net("true"), comm.get(), Steps());
  Must(training.Attach());
  choir_testing::NoteStage stage;
  stage.before = [&](const choir_record_t* record) -> choir_status_t {
    if (comm.rank() == 0 && choir_testing::IsCalled(record, "relu"))
      return CHOIR_ERROR(INTERNAL, "on purpose");
    return nullptr;
  };
  choir_stream_t* stream = choir_device_stream(training.device());
  choir_stream_push_stage(stream, &stage.stage);
  choir_status_t status = TrainPart(&training, 0, comm.rank(), comm.size());
  choir_stream_pop_stage(stream, &stage.stage);
  ASSERT_NE(status, nullptr);
  EXPECT_NE(strstr(choir_status_message(status), "on purpose"), nullptr)
      << choir_status_message(status);
  EXPECT_NE(choir_status_code(status), CHOIR_STATUS_TIMEOUT);
  choir_status_free(status);
}

// Also when ranks run other layers, nobody waits for ever.
TEST(SyncBatchNormTest, NamesALayerThatOneRankLeavesOut) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  comm.ExpectBroken();
  Training training(Net("true"), comm.get(), Steps());
  Must(training.Attach());
  if (Rank() == 1) training.Skip("norm1");
  choir_status_t status = TrainPart(&training, 0, comm.rank(), comm.size());
  ASSERT_NE(status, nullptr);
  EXPECT_NE(strstr(choir_status_message(status), "norm1"), nullptr)
      << choir_status_message(status);
  EXPECT_NE(strstr(choir_status_message(status), "norm2"), nullptr)
      << choir_status_message(status);
  choir_status_free(status);
}

}  // namespace
