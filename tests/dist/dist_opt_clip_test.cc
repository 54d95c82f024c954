// SPDX-License-Identifier: Apache-2.0
// Limits of combined gradients (dist/dist_opt_clip.c).
#include <gtest/gtest.h>
#include <math.h>

#include <string>
#include <vector>

#include "tests/dist/dist_opt_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Must;
using choir_testing::RelativeError;
using choir_testing::RunRanks;
using choir_testing::SmallLayers;
using choir_testing::Training;

constexpr int64_t kAll = 60;    // samples of a step
constexpr double kNorm = 0.02;  // far below that of the gradients

// Parts of another size for each rank; the last of many has none.
choir_status_t Train(Training* training, int32_t rank, int32_t size,
                     int64_t step) {
  if (size == 1) return training->TrainOn(step, 0, kAll, kAll);
  const int64_t parts = static_cast<int64_t>(size) * (size - 1) / 2;
  const auto start = [&](int64_t r) {
    return kAll * (parts - (size - r) * (size - r - 1) / 2) / parts;
  };
  return training->TrainOn(step, start(rank), start(rank + 1) - start(rank),
                           kAll);
}

struct Layout {
  bool shard;
  bool peer_memory;
};
constexpr Layout kLayouts[] = {{false, false}, {false, true}, {true, false}};

Training::Options Clipped() {
  Training::Options options;
  options.clip_norm = kNorm;
  options.momentum = 0;
  options.bucket_bytes = 2000;
  return options;
}

std::vector<float> AllParams(Training* training) {
  std::vector<float> all;
  for (const auto& value : training->Values())
    if (value.first.find('/') == std::string::npos)
      all.insert(all.end(), value.second.begin(), value.second.end());
  return all;
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return sqrt(sum);
}

std::vector<float> Minus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

// The step of one process on all samples, whose norm is the limit's; the same
// bits in each layout.
void ExpectTheStepOfOne() {
  Comm comm;
  Training::Options options = Clipped();
  Training alone(SmallLayers(), nullptr, options);
  Must(alone.Attach());
  const std::vector<float> start = AllParams(&alone);
  Must(Train(&alone, 0, 1, 0));
  const std::vector<float> step = Minus(AllParams(&alone), start);
  // Beside the weight decay, which is small.
  EXPECT_NEAR(Norm(step) / (options.lr * kNorm), 1, 0.05);
  uint64_t first = 0;
  for (const Layout& layout : kLayouts) {
    options.shard = layout.shard;
    options.peer_memory = layout.peer_memory;
    Training training(SmallLayers(), comm.get(), options);
    Must(training.Attach());
    Must(Train(&training, comm.rank(), comm.size(), 0));
    EXPECT_LT(RelativeError(step, Minus(AllParams(&training), start)), 2e-4);
    for (int64_t i = 1; i < 3; ++i)
      Must(Train(&training, comm.rank(), comm.size(), i));
    EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
    if (!first) first = training.StatesDigest();
    EXPECT_EQ(training.StatesDigest(), first)
        << layout.shard << layout.peer_memory;
  }
}

TEST(DistOptClipTest, OneRank) {
  if (!RunRanks("shm", 1)) ExpectTheStepOfOne();
}
TEST(DistOptClipTest, TwoRanks) {
  if (!RunRanks("shm", 2)) ExpectTheStepOfOne();
}
TEST(DistOptClipTest, ThreeRanks) {
  if (!RunRanks("shm", 3)) ExpectTheStepOfOne();
}
TEST(DistOptClipTest, FourRanks) {
  if (!RunRanks("shm", 4)) ExpectTheStepOfOne();
}
TEST(DistOptClipTest, SevenRanks) {
  if (!RunRanks("shm", 7)) ExpectTheStepOfOne();
}

// What a strategy has combined is limited, in each layout alike; local steps
// are limited on each rank.
TEST(DistOptClipTest, EveryStrategyIsLimited) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (const choir_strategy_def_t* strategy :
       {&choir_strategy_def_fp16, &choir_strategy_def_bf16,
        &choir_strategy_def_sparse_top_k, &choir_strategy_def_dgc,
        &choir_strategy_def_local_sgd, &choir_strategy_def_partial_update}) {
    SCOPED_TRACE(choir_strategy_def_option(strategy));
    Training::Options options = Clipped();
    options.strategy = strategy;
    uint64_t first = 0;
    for (const Layout& layout : kLayouts) {
      if (layout.shard && strategy->combine) continue;
      options.shard = layout.shard;
      options.peer_memory = layout.peer_memory;
      Training training(SmallLayers(), comm.get(), options);
      Must(training.Attach());
      const std::vector<float> start = AllParams(&training);
      Must(training.TrainOn(0, comm.rank() * 16, 16, 48));
      const double norm = Norm(Minus(AllParams(&training), start));
      EXPECT_LT(norm, 1.05 * options.lr * kNorm);
      EXPECT_GT(norm, 0.2 * options.lr * kNorm);
      Must(training.TrainOn(1, comm.rank() * 16, 16, 48));
      if (!first) first = training.Digest();
      EXPECT_EQ(training.Digest(), first);
    }
  }
}

// A frozen parameter adds nothing to the norm.
TEST(DistOptClipTest, FrozenParametersDoNotCount) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  for (const Layout& layout : kLayouts) {
    Training::Options options = Clipped();
    options.frozen_group = "fc1.W,conv.*";
    Training alone(SmallLayers(), nullptr, options);
    Must(alone.Attach());
    const std::vector<float> start = AllParams(&alone);
    Must(Train(&alone, 0, 1, 0));
    options.shard = layout.shard;
    options.peer_memory = layout.peer_memory;
    Training training(SmallLayers(), comm.get(), options);
    Must(training.Attach());
    Must(Train(&training, comm.rank(), comm.size(), 0));
    EXPECT_LT(RelativeError(Minus(AllParams(&alone), start),
                            Minus(AllParams(&training), start)),
              2e-4);
  }
}

// Of each element, before the norm.
TEST(DistOptClipTest, ValuesAreLimitedToo) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  uint64_t first = 0;
  for (const Layout& layout : kLayouts) {
    Training::Options options = Clipped();
    options.clip_norm = 0;
    options.clip_value = 1e-4;
    options.shard = layout.shard;
    options.peer_memory = layout.peer_memory;
    Training training(SmallLayers(), comm.get(), options);
    Must(training.Attach());
    const std::vector<float> start = AllParams(&training);
    Must(Train(&training, comm.rank(), comm.size(), 0));
    int at_limit = 0;
    for (float change : Minus(AllParams(&training), start)) {
      EXPECT_LT(fabs(change), options.lr * (1e-4 + 1e-5));
      at_limit += fabs(change) > options.lr * 0.9e-4;
    }
    EXPECT_GT(at_limit, 100);
    if (!first) first = training.Digest();
    EXPECT_EQ(training.Digest(), first);
  }
}

}  // namespace
