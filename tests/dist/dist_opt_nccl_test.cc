// SPDX-License-Identifier: Apache-2.0
// DistOpt over communicator nccl, against the same steps by copies over the
// host.
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/dist/compress_on_host.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/dist/nccl_testing.h"
#include "tests/tensor/cuda_on_host.h"

namespace {

using choir_testing::Must;
using choir_testing::NcclRanks;
using choir_testing::RelativeError;
using choir_testing::SmallLayers;
using choir_testing::Training;
using Own = NcclRanks::Own;
using Values = std::map<std::string, std::vector<float>>;

constexpr int64_t kSteps = 4;

// Shares of 48 samples, of which the second rank has none in the third step.
choir_status_t Step(Training* training, int rank, int size, int64_t step) {
  if (size == 1) return training->TrainOn(step, 0, 48, 48);
  const int64_t skipped = step == 2 ? 1 : -1;
  const int64_t sharing = size - (skipped < 0 ? 0 : 1);
  int64_t first = 0;
  for (int r = 0; r < rank; ++r)
    if (r != skipped) first += 48 / sharing;
  const int64_t count = rank == skipped ? 0 : 48 / sharing;
  return training->TrainOn(step, first, count, 48);
}

// Rank 0's states after some steps; all ranks' are equal.
Values Train(int size, const char* backend, Training::Options options,
             uint64_t* staged_bytes, int64_t steps = kSteps,
             choir_graph_stats_t* graph = nullptr,
             const choir_testing::Layers& layers = SmallLayers()) {
  choir::testing::CudaKernelsOnHost(true);
  choir::testing::CompressKernelsOnHost(true);
  NcclRanks ranks(size);
  std::mutex lock;
  Values values;
  options.device = "cuda";
  options.bucket_bytes = 2000;  // three buckets
  options.lr = 0.05;
  ranks.Run(
      [&](Own* own) {
        Training::Options mine = options;
        mine.device_index = own->rank;
        Training training(layers, own->comm, mine);
        ASSERT_OK(training.Attach());
        for (int64_t step = 0; step < steps; ++step)
          ASSERT_OK(Step(&training, own->rank, size, step));
        ASSERT_OK(choir_updater_consolidate(training.updater()));
        ASSERT_OK(
            choir_dist_opt_check_digest(training.dist(), training.Digest()));
        if (own->rank > 0) return;
        const std::lock_guard<std::mutex> guard(lock);
        *staged_bytes = choir_comm_staged_bytes(own->comm);
        for (const auto& value : training.Values()) values.insert(value);
        if (graph) *graph = choir_model_graph_stats(training.model());
      },
      20, backend);
  return values;
}

void ExpectNear(const Values& a, const Values& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& entry : a)
    EXPECT_LE(RelativeError(entry.second, b.at(entry.first)), tolerance)
        << entry.first;
}

class DistOptNccl : public ::testing::TestWithParam<int> {};

TEST_P(DistOptNccl, LearnsWhatCopiesOverTheHostLearn) {
  const int size = GetParam();
  for (bool use_graph : {false, true}) {
    Training::Options options;
    options.use_graph = use_graph;
    uint64_t staged = 0;
    const Values over_host =
        Train(size, size == 1 ? "self" : "shm", options, &staged);
    EXPECT_EQ(staged > 0, size > 1);  // alone there is nothing to exchange
    const Values by_nccl = Train(size, "nccl", options, &staged);
    EXPECT_EQ(staged, 0u) << "gradients went over the host";
    ExpectNear(over_host, by_nccl, 1e-5);
  }
}

// Between the exchanges of buckets, records are launched together.
TEST_P(DistOptNccl, CudaGraphsChangeNoBit) {
  Training::Options options;
  options.use_graph = true;
  uint64_t staged = 0;
  choir_graph_stats_t stats = {};
  setenv("CHOIR_CUDA_GRAPHS", "0", 1);
  const Values apart = Train(GetParam(), "nccl", options, &staged, 9, &stats);
  EXPECT_EQ(stats.launches, 0);
  unsetenv("CHOIR_CUDA_GRAPHS");
  EXPECT_EQ(Train(GetParam(), "nccl", options, &staged, 9, &stats), apart);
  EXPECT_GT(stats.launches, 1);
  EXPECT_EQ(stats.refused_launches, 0);
}

TEST_P(DistOptNccl, LearnsWhatOneRankLearns) {
  Training::Options options;
  uint64_t staged = 0;
  ExpectNear(Train(1, "self", options, &staged),
             Train(GetParam(), "nccl", options, &staged), 1e-3);
}

// Also beside the rank that has no samples in a step, and buckets that are
// exchanged in the middle of backward.
TEST_P(DistOptNccl, BatchNormOverRanksIsThatOfOneRank) {
  choir_testing::Layers layers = SmallLayers();
  layers.insert(layers.begin() + 1,
                {"batch_norm2d", "norm", {{"sync", "true"}}});
  for (bool use_graph : {false, true}) {
    Training::Options options;
    options.use_graph = use_graph;
    uint64_t staged = 0;
    const int size = GetParam();
    const Values one =
        Train(1, "self", options, &staged, kSteps, nullptr, layers);
    for (const char* backend : {"nccl", size == 1 ? "self" : "shm"})
      ExpectNear(
          one, Train(size, backend, options, &staged, kSteps, nullptr, layers),
          1e-3);
  }
}

// Those that compute on the host get copies, and exchange those; others
// exchange what came down from the GPU. Nothing of it is NCCL's.
TEST_P(DistOptNccl, EveryStrategyWorks) {
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    Training::Options options;
    options.strategy = choir_strategy_def_get(i);
    options.settings = {
        {"period", "2"}, {"delay", "1"}, {"ranks", "2"}, {"bandwidth", "100"}};
    SCOPED_TRACE(choir_strategy_def_option(options.strategy));
    uint64_t staged = 0;
    const int size = GetParam();
    ExpectNear(Train(size, size == 1 ? "self" : "shm", options, &staged),
               Train(size, "nccl", options, &staged), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DistOptNccl, ::testing::Values(1, 2, 3));

// The step that waits for the GPU of a rank that is gone ends, with its cause.
TEST(DistOptNcclFaults, AGpuThatNeverComes) {
  choir::testing::CudaKernelsOnHost(true);
  NcclRanks ranks(2);
  ranks.Run(
      [&](Own* own) {
        own->ends_well = false;
        Training::Options options;
        options.device = "cuda";
        options.device_index = own->rank;
        Training training(SmallLayers(), own->comm, options);
        ASSERT_OK(training.Attach());
        ASSERT_OK(Step(&training, own->rank, 2, 0));
        ASSERT_OK(choir_comm_barrier(own->comm, nullptr));
        ranks.nccl().Hold(1);
        choir_status_t status = Step(&training, own->rank, 2, 1);
        if (!status) status = choir_updater_consolidate(training.updater());
        EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_TIMEOUT);
        EXPECT_TRUE(choir_testing::Contains(choir_status_message(status),
                                            "waited .* in all_reduce"))
            << choir_status_message(status);
        choir_status_free(status);
      },
      1);
}

}  // namespace
