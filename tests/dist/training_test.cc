// SPDX-License-Identifier: Apache-2.0
// Runs that go on from a file: the place in the samples, what is refused. What
// strategies keep on each rank: dist_opt_states_test.cc.
#include "dist/training.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;

using Lines = std::vector<choir_metadata_t>;

std::string Path() {
  return ::testing::TempDir() + "training." + std::to_string(getpid());
}

// A lone worker with its samples: 40, in 5 batches of 8.
class Job {
 public:
  explicit Job(int64_t seed = 3, int64_t batch = 8, int64_t samples = 40)
      : training_(SmallLayers(), nullptr, {}) {
    Must(training_.Attach());
    choir_dataset_synthetic_t images = {};
    images.count = samples;
    images.channels = 1;
    images.height = images.width = choir_testing::kSide;
    images.class_count = 10;
    Must(choir_dataset_create_synthetic(&images, &dataset_));
    choir_loader_config_t config;
    choir_struct_init(&choir_loader_config_def, &config);
    config.batch = batch;
    config.seed = seed;
    config.micro_shard = 1;
    Must(choir_loader_create(dataset_, training_.device(), 0, 1, &config,
                             &loader_));
  }
  ~Job() {
    choir_loader_destroy(loader_);
    choir_dataset_release(dataset_);
  }

  void Train(int batches) {
    while (batches > 0) {
      const choir_batch_t* batch = nullptr;
      Must(choir_loader_next(loader_, &batch));
      if (!batch) continue;
      Must(training_.Train(batch));
      --batches;
    }
  }
  choir_status_t Save(const Lines& lines = {}) {
    return choir_training_save(training_.model(), loader_, Path().c_str(),
                               lines.data(), lines.size());
  }
  choir_status_t Resume(const Lines& lines = {}) {
    return choir_training_resume(training_.model(), loader_, Path().c_str(),
                                 lines.data(), lines.size());
  }
  // A file with lines of any kind.
  void SaveLines(const Lines& lines) {
    std::vector<choir_named_tensor_t> states = training_.States();
    Must(choir_checkpoint_save(Path().c_str(), states.data(), states.size(),
                               lines.data(), lines.size()));
  }
  std::vector<int64_t> Place() {
    const choir_loader_position_t at = choir_loader_position(loader_);
    return {at.epoch, at.step, choir_model_step(training_.model())};
  }
  Training& training() { return training_; }

 private:
  Training training_;
  choir_dataset_t* dataset_ = nullptr;
  choir_loader_t* loader_ = nullptr;
};

class TrainingFile : public ::testing::Test {
 protected:
  void TearDown() override { unlink(Path().c_str()); }
};

TEST_F(TrainingFile, GoesOnInTheMiddleOfAnEpoch) {
  Job whole;
  whole.Train(7);
  ASSERT_OK(whole.Save({{"note", "mine"}}));
  Job rest;
  rest.Train(1);
  ASSERT_OK(rest.Resume({{"note", "mine"}}));
  EXPECT_EQ(rest.Place(), (std::vector<int64_t>{1, 2, 7}));
  EXPECT_EQ(rest.training().StatesDigest(), whole.training().StatesDigest());
  whole.Train(6);
  rest.Train(6);
  EXPECT_EQ(rest.Place(), whole.Place());
  EXPECT_EQ(rest.training().StatesDigest(), whole.training().StatesDigest());
}

// As the trainer of the examples wrote them.
TEST_F(TrainingFile, FilesOfEarlierVersionsAreRead) {
  Job run;
  run.SaveLines({{"epoch", "4"},
                 {"step", "20"},
                 {"workers", "1"},
                 {"model", "net"},
                 {"seed", "3"},
                 {"global batch", "8"},
                 {"training samples", "40"},
                 {"dist option", "fp32"}});
  run.Train(2);
  ASSERT_OK(run.Resume({{"model", "net"}, {"dist option", "fp32"}}));
  EXPECT_EQ(run.Place(), (std::vector<int64_t>{4, 0, 20}));
}

TEST_F(TrainingFile, AnotherRunIsRefused) {
  Job run;
  EXPECT_STATUS(NOT_FOUND, Path().c_str(), run.Resume());
  run.Train(1);
  const Lines lines = {{"model", "net"}};
  ASSERT_OK(run.Save(lines));
  const auto differs = [](const std::string& text) {
    return "resume: " + Path() + " was saved with " + text +
           "; both must be the same";
  };
  const auto refused = [&](Job* other, const std::string& text,
                           const Lines& own) {
    const uint64_t digest = other->training().StatesDigest();
    EXPECT_STATUS(FAILED_PRECONDITION, differs(text).c_str(),
                  other->Resume(own));
    EXPECT_EQ(other->training().StatesDigest(), digest);
    EXPECT_EQ(other->Place()[2], 1);
  };
  Job seed(4), batch(3, 4), samples(3, 8, 48);
  for (Job* one : {&seed, &batch, &samples}) one->Train(1);
  refused(&seed, "seed 3, this run has 4", lines);
  refused(&batch, "global batch 8, this run has 4", lines);
  refused(&samples, "training samples 40, this run has 48", lines);
  refused(&run, "model net, this run has cnn", {{"model", "cnn"}});
  refused(&run, "other (none), this run has x", {{"other", "x"}});
  EXPECT_STATUS(INVALID_ARGUMENT, "step", run.Save({{"step", "7"}}));
}

TEST_F(TrainingFile, NumbersAreNumbers) {
  Job run;
  Lines lines = {
      {"seed", "3"}, {"global batch", "8"}, {"training samples", "40"}};
  run.SaveLines(lines);
  EXPECT_STATUS(INVALID_ARGUMENT, "epoch '(none)'; a number from 0 is needed",
                run.Resume());
  for (const char* text :
       {"", "x", "1x", "-1", "4700000000000000000", "99999999999999999999"}) {
    lines.resize(3);
    lines.push_back({"epoch", text});
    run.SaveLines(lines);
    EXPECT_STATUS(INVALID_ARGUMENT, "a number from 0 is needed", run.Resume());
  }
  lines.back().value = "1";
  lines.push_back({"batch", "6"});
  run.SaveLines(lines);
  EXPECT_STATUS(OUT_OF_RANGE, "step 6", run.Resume());
}

// Without a loader, by as many ranks as the strategy's states are of.
TEST_F(TrainingFile, StatesOfAllRanksNeedAsManyRanks) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training::Options options;
  options.strategy = &choir_strategy_def_local_sgd;
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  for (int64_t step = 0; step < 3; ++step)
    Must(TrainUnevenly(&training, comm, step));
  // Rank 0 cannot write, and each rank hears why.
  Must(choir_updater_consolidate(training.updater()));
  EXPECT_STATUS(NOT_FOUND, "nowhere",
                choir_training_save(training.model(), nullptr, "/nowhere/file",
                                    nullptr, 0));
  EXPECT_STATUS(NOT_FOUND, "nowhere",
                choir_training_resume(training.model(), nullptr,
                                      "/nowhere/file", nullptr, 0));
  ASSERT_OK(choir_training_save(training.model(), nullptr, Path().c_str(),
                                nullptr, 0));
  ASSERT_OK(choir_training_resume(training.model(), nullptr, Path().c_str(),
                                  nullptr, 0));
  if (comm.rank() != 0) return;
  Job alone;
  EXPECT_STATUS(FAILED_PRECONDITION,
                "was saved for each of 2 workers and this run has 1",
                choir_training_resume(alone.training().model(), nullptr,
                                      Path().c_str(), nullptr, 0));
}

}  // namespace
