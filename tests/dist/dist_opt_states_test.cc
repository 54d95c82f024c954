// SPDX-License-Identifier: Apache-2.0
// What strategies keep on each rank, into a file and out of it.
#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "dist/training.h"
#include "tests/dist/compress_on_host.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/fake_cuda.h"

namespace {

using choir_testing::Comm;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;
using choir_testing::TrainUnevenly;

#ifdef CHOIR_TEST_MPI
constexpr char kBackend[] = "mpi";
#else
constexpr char kBackend[] = "shm";
#endif

// So that in a few steps each strategy has something to keep.
const choir_testing::Settings& BusySettings() {
  static const choir_testing::Settings settings = {
      {"spars", "0.01"},     {"chunk", "1000"},
      {"warmup_steps", "6"}, {"ranks", "2"},
      {"bandwidth", "100"},  // auto measures no link
      {"period", "3"},       {"delay", "1"},
      {"outer_lr", "0.7"},   {"outer_momentum", "0.9"},
      {"nesterov", "true"},  {"decay", "0.9"}};
  return settings;
}

constexpr int64_t kSteps = 4;  // before the checkpoint, and after it

Training::Options OptionsOf(const choir_strategy_def_t* strategy) {
  Training::Options options;
  options.strategy = strategy;
  options.settings = BusySettings();
  options.bucket_bytes = 2000;
  options.lr = 0.05;
  return options;
}

void TrainPart(Training* training, const Comm& comm, int64_t first_step) {
  for (int64_t step = first_step; step < first_step + kSteps; ++step)
    ASSERT_OK(TrainUnevenly(training, comm, step));
  ASSERT_OK(choir_updater_consolidate(training->updater()));
}

std::string PathOfThis() {
  return ::testing::TempDir() + "states." + std::to_string(getpid());
}

// Returns how many tensors are another on other ranks.
size_t Save(Training* training, const Comm& comm, const std::string& path) {
  Must(choir_training_save(training->model(), nullptr,
                           comm.rank() == 0 ? path.c_str() : nullptr, nullptr,
                           0));
  if (comm.rank() != 0) return 0;
  choir_checkpoint_t* file = nullptr;
  Must(choir_checkpoint_open(path.c_str(), &file));
  const size_t count = choir_checkpoint_count(file);
  choir_checkpoint_destroy(file);
  return count - training->States().size();
}

// Only rank 0 has the file.
void Restore(Training* training, const Comm& comm, const std::string& path) {
  ASSERT_OK(choir_training_resume(training->model(), nullptr,
                                  comm.rank() == 0 ? path.c_str() : "nowhere",
                                  nullptr, 0));
  EXPECT_EQ(choir_model_step(training->model()), kSteps);
}

// A run that stops half-way goes on bit for bit. Returns how many tensors were
// another on other ranks.
size_t ExpectGoesOn(const Comm& comm, const Training::Options& options) {
  const std::string path = PathOfThis();
  Training whole(SmallLayers(), comm.get(), options);
  Must(whole.Attach());
  TrainPart(&whole, comm, 0);
  const uint64_t halfway = whole.StatesDigest();
  const size_t copies = Save(&whole, comm, path);
  EXPECT_EQ(whole.StatesDigest(), halfway);
  TrainPart(&whole, comm, kSteps);

  Training rest(SmallLayers(), comm.get(), options);
  Must(rest.Attach());
  Restore(&rest, comm, path);
  EXPECT_EQ(rest.StatesDigest(), halfway);
  TrainPart(&rest, comm, kSteps);
  EXPECT_EQ(rest.StatesDigest(), whole.StatesDigest());
  EXPECT_OK(choir_dist_opt_check_digest(rest.dist(), rest.Digest()));
  unlink(path.c_str());
  return copies;
}

TEST(DistOptStatesTest, EveryStrategyGoesOnBitForBit) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  std::map<std::string, size_t> copies;
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    const choir_strategy_def_t* strategy = choir_strategy_def_get(i);
    const std::string option = choir_strategy_def_option(strategy);
    SCOPED_TRACE(option);
    copies[option] = ExpectGoesOn(comm, OptionsOf(strategy));
  }
  if (comm.rank() != 0) return;
  // Nothing is written twice where all ranks have the same.
  for (const char* dense : {"fp32", "fp16", "bf16"})
    EXPECT_EQ(copies[dense], 0u) << dense;
  EXPECT_GT(copies["dgc"], copies["sparseTopK"]) << "velocities too";
  EXPECT_GT(copies["sparseTopK"], 0u);
  // The optimizer's velocities differ, the outer one does not.
  EXPECT_EQ(copies["localSGD"], 2u * 6);
  EXPECT_EQ(copies["sparseLocal"], 2u * 7);
}

// What is kept on a GPU.
TEST(DistOptStatesTest, AGpuGoesOnBitForBit) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  choir::testing::CudaKernelsOnHost(false);
  choir::testing::CompressKernelsOnHost(true);
  choir::testing::FakeCuda gpu;
  for (const choir_strategy_def_t* strategy :
       {&choir_strategy_def_sparse_top_k, &choir_strategy_def_sparse_threshold,
        &choir_strategy_def_dgc}) {
    SCOPED_TRACE(choir_strategy_def_option(strategy));
    Training::Options options = OptionsOf(strategy);
    options.device = "cuda";
    EXPECT_EQ(ExpectGoesOn(comm, options) > 0, comm.rank() == 0);
  }
}

// A file without copies sets any number of workers.
TEST(DistOptStatesTest, OneCopyIsForAll) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  const std::string path = PathOfThis();
  if (comm.rank() == 0) {
    Training alone(SmallLayers(), nullptr, {});
    Must(alone.Attach());
    for (const choir_named_tensor_t& state : alone.States()) {
      std::vector<float> data(
          static_cast<size_t>(choir_tensor_count(state.tensor)));
      for (size_t i = 0; i < data.size(); ++i)
        data[i] =
            static_cast<float>(i % 77) + static_cast<float>(state.name[0]);
      Must(choir_tensor_write(state.tensor, data.data(),
                              data.size() * sizeof(float)));
    }
    Must(choir_training_save(alone.model(), nullptr, path.c_str(), nullptr, 0));
  }
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  ASSERT_OK(choir_training_resume(training.model(), nullptr, path.c_str(),
                                  nullptr, 0));
  unlink(path.c_str());
  for (const auto& value : training.Values())
    for (size_t i = 0; i < value.second.size(); ++i)
      ASSERT_EQ(value.second[i],
                static_cast<float>(i % 77) + static_cast<float>(value.first[0]))
          << value.first << " " << i;
}

// ---- Refusals, told on every rank ----

// A file without one state, with copies of others, of which one has another
// shape.
struct FakeFile {
  std::string missing;
  std::vector<std::string> copies;
  std::string broken;
};

void ExpectRefusal(Training* training, const Comm& comm, const FakeFile& file,
                   choir_status_code_t code, const std::string& sentence) {
  const std::string path = PathOfThis();
  if (comm.rank() == 0) {
    std::vector<choir_named_tensor_t> saved;
    choir_tensor_t* any = training->States()[0].tensor;
    for (const choir_named_tensor_t& state : training->WholeStates()) {
      if (state.name != file.missing) saved.push_back(state);
      for (const std::string& copy : file.copies)
        if (copy.substr(copy.find('/') + 1) == state.name)
          saved.push_back({copy.c_str(),
                           copy == file.broken ? any : state.tensor, nullptr});
    }
    Must(choir_checkpoint_save(path.c_str(), saved.data(), saved.size(),
                               nullptr, 0));
  }
  choir_status_t status = choir_training_resume(training->model(), nullptr,
                                                path.c_str(), nullptr, 0);
  EXPECT_EQ(choir_status_code(status), code);
  const std::string said = choir_status_message(status);
  // The others hear it in the operation that they are in.
  EXPECT_EQ(said.find(": rank 0: ") != std::string::npos, comm.rank() != 0)
      << said;
  // They hear so much of a sentence with a long path.
  const size_t heard = comm.rank() == 0 ? sentence.size() : 20;
  EXPECT_TRUE(choir_testing::Contains(said, sentence.substr(0, heard))) << said;
  choir_status_free(status);
  unlink(path.c_str());
  ASSERT_OK(choir_comm_barrier(comm.get(), "in order"));
}

TEST(DistOptStatesTest, FilesThatDoNotFitAreToldOnEveryRank) {
  if (RunRanks(kBackend, 2)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(),
                    OptionsOf(&choir_strategy_def_sparse_top_k));
  Must(training.Attach());
  const uint64_t digest = training.StatesDigest();
  const std::string name = "sparseTopK/residual/0";
  ExpectRefusal(&training, comm, {name, {}, ""}, CHOIR_STATUS_NOT_FOUND,
                "there is no " + name);
  ExpectRefusal(&training, comm, {"", {"rank1/" + name, "rank2/" + name}, ""},
                CHOIR_STATUS_FAILED_PRECONDITION,
                name +
                    " was saved for each of 3 workers and this run "
                    "has 2; it needs as many as it was saved with");
  EXPECT_EQ(training.StatesDigest(), digest);
  ExpectRefusal(&training, comm, {"", {"rank1/" + name}, "rank1/" + name},
                CHOIR_STATUS_INVALID_ARGUMENT,
                "tensor 'rank1/" + name + "' is f32");
}

TEST(DistOptStatesTest, FilesOfFewerWorkersAreToldOnEveryRank) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(),
                    OptionsOf(&choir_strategy_def_sparse_local));
  Must(training.Attach());
  const std::string name = "sparseLocal/residual";
  ExpectRefusal(&training, comm, {"", {"rank1/" + name}, ""},
                CHOIR_STATUS_FAILED_PRECONDITION,
                name +
                    " was saved for each of 2 workers and this run has 3; "
                    "it needs as many as it was saved with");
}

TEST(DistOptStatesTest, ReplicasThatDifferAreNotGathered) {
  if (RunRanks(kBackend, 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(),
                    OptionsOf(&choir_strategy_def_local_sgd));
  Must(training.Attach());
  Must(TrainUnevenly(&training, comm, 0));
  choir_status_t status = choir_training_save(training.model(), nullptr,
                                              PathOfThis().c_str(), nullptr, 0);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  EXPECT_TRUE(choir_testing::Matches(
      choir_status_message(status),
      "dist_opt: parameter conv.W of rank 1 \\(host .+, pid \\d+\\) is not "
      "that of rank 0; choir_updater_consolidate makes them equal"))
      << choir_status_message(status);
  choir_status_free(status);
}

}  // namespace
