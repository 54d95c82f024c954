// SPDX-License-Identifier: Apache-2.0
// Strategies that combine parameters, against the same arithmetic written
// plainly: every rank works out all ranks' replicas.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/dist/strategy_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Floats;
using choir_testing::Largest;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::Settings;
using choir_testing::Share;
using choir_testing::SomeGradient;
using choir_testing::StrategyRig;

// Parameters and the zeros between them, bucket after bucket.
constexpr size_t kFlat = 96;
const std::vector<std::vector<int64_t>> kBuckets = {{40}, {24, 8}};
const size_t kFirst[] = {0, 48, 80};
const size_t kCounts[] = {40, 24, 8};

// What a local step changes.
float Change(int rank, int64_t step, size_t i) {
  return 1e4f * SomeGradient(rank, step, static_cast<int64_t>(i));
}

StrategyRig::Options RigOptions(const Settings& settings) {
  StrategyRig::Options options;
  options.settings = settings;
  options.buckets = kBuckets;
  return options;
}

// Calls visit(flat index, element) for all elements of all parameters.
template <typename Visit>
void ForEach(StrategyRig* rig, Visit visit) {
  for (size_t p = 0; p < 3; ++p)
    for (size_t i = 0; i < kCounts[p]; ++i)
      visit(kFirst[p] + i, &rig->value(p)[i]);
}

void ExpectNear(StrategyRig* rig, const Floats& expected, int64_t step) {
  ForEach(rig, [&](size_t i, float* value) {
    EXPECT_NEAR(*value, expected[i], 2e-6) << "step " << step << ", " << i;
  });
}

// Replicas have the same bits.
void ExpectEqualReplicas(StrategyRig* rig, Comm* comm) {
  uint64_t hash = 0;
  ForEach(rig, [&](size_t, float* value) {
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    hash = hash * 1099511628211u + bits;
  });
  for (uint64_t other : comm->Gather(hash)) EXPECT_EQ(other, hash);
}

// ---- partialUpdate ----

TEST(StrategyLocalTest, PartialUpdateAveragesOneChunkInTurn) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  // Five chunks, the last one shorter than the others.
  StrategyRig rig(&choir_strategy_def_partial_update, comm.get(),
                  RigOptions({{"chunk", "20"}}));
  std::vector<Floats> all(3, Floats(kFlat));
  for (int rank = 0; rank < 3; ++rank)
    for (size_t i = 0; i < kFlat; ++i)
      all[static_cast<size_t>(rank)][i] = Change(rank, 0, i);
  const Floats own = all[static_cast<size_t>(comm.rank())];
  ForEach(&rig, [&](size_t i, float* value) { *value = own[i]; });
  std::vector<int> touched(kFlat);
  for (int64_t step = 0; step < 5; ++step) {
    ASSERT_OK(rig.Combine(step, 16));
    const size_t begin = static_cast<size_t>(step) * 20;
    ForEach(&rig, [&](size_t i, float* value) {
      const double mean =
          (static_cast<double>(all[0][i]) + all[1][i] + all[2][i]) / 3;
      if (i >= begin && i < begin + 20) {
        ++touched[i];
        EXPECT_NEAR(*value, mean, 1e-8) << i;
      } else if (i >= begin + 20) {
        EXPECT_EQ(*value, own[i]) << "not yet, " << i;
      } else {
        EXPECT_NEAR(*value, mean, 1e-8) << "since then, " << i;
      }
    });
  }
  ForEach(&rig, [&](size_t i, float*) { EXPECT_EQ(touched[i], 1) << i; });
  ExpectEqualReplicas(&rig, &comm);
  // The next one is the first chunk again; consolidate averages all.
  ForEach(&rig, [&](size_t i, float* value) { *value = own[i]; });
  ASSERT_OK(rig.Combine(5, 16));
  EXPECT_NE(rig.value(0)[1], own[1]);
  EXPECT_EQ(rig.value(1)[1], own[49]);
  ASSERT_OK(rig.strategy()->def->consolidate(rig.strategy()));
  ExpectEqualReplicas(&rig, &comm);
}

// ---- Rounds of local steps ----

struct Round {
  int64_t period;
  int64_t delay;
  float lr;
  float momentum;
  bool nesterov;
  double spars;  // 0: all of it
  float decay;

  Settings settings() const {
    return {{"period", std::to_string(period)},
            {"delay", std::to_string(delay)},
            {"outer_lr", std::to_string(lr)},
            {"outer_momentum", std::to_string(momentum)},
            {"nesterov", nesterov ? "true" : "false"},
            {"spars", std::to_string(spars > 0 ? spars : 1)},
            {"decay", std::to_string(decay)},
            {"values", "fp32"}};
  }
};

// All ranks' replicas, as docs in local_shared.h say.
class PlainRounds {
 public:
  PlainRounds(const Round& round, size_t ranks)
      : round_(round),
        replicas_(ranks, Start()),
        deltas_(ranks, Floats(kFlat)),
        residuals_(ranks, Floats(kFlat)),
        samples_(ranks) {}

  static Floats Start() {
    Floats values(kFlat);
    for (size_t p = 0; p < 3; ++p)
      for (size_t i = kFirst[p]; i < kFirst[p] + kCounts[p]; ++i)
        values[i] = 1 + 0.01f * static_cast<float>(i);
    return values;
  }

  void Step(int64_t step, const std::vector<int64_t>& samples) {
    for (size_t r = 0; r < replicas_.size(); ++r) {
      samples_[r] += samples[r];
      for (size_t p = 0; p < 3; ++p)
        for (size_t i = kFirst[p]; i < kFirst[p] + kCounts[p]; ++i)
          replicas_[r][i] += Change(static_cast<int>(r), step, i);
    }
    ++since_;
    if (under_way_ && step + 1 >= started_ + round_.delay) End();
    if ((step + 1) % round_.period != 0) return;
    Begin();
    started_ = step + 1;
    if (round_.delay == 0) End();
  }

  void Consolidate() {
    if (under_way_) End();
    if (since_ == 0) return;
    Begin();
    End();
  }

  const Floats& replica(int rank) const {
    return replicas_[static_cast<size_t>(rank)];
  }
  const Floats& residual(int rank) const {
    return residuals_[static_cast<size_t>(rank)];
  }

 private:
  void Begin() {
    average_ = Floats(kFlat);
    for (size_t r = 0; r < replicas_.size(); ++r) {
      for (size_t i = 0; i < kFlat; ++i)
        deltas_[r][i] = anchor_[i] - replicas_[r][i];
      Floats sent = deltas_[r];
      if (round_.spars > 0) sent = Choose(r);
      for (size_t i = 0; i < kFlat; ++i)
        average_[i] = std::fma(Share(samples_, r), sent[i], average_[i]);
    }
    samples_.assign(samples_.size(), 0);
    since_ = 0;
    under_way_ = true;
  }

  // What a rank without samples sent would be lost.
  Floats Choose(size_t r) {
    Floats& kept = residuals_[r];
    Floats sent(kFlat);
    for (size_t i = 0; i < kFlat; ++i)
      kept[i] = std::fma(round_.decay, kept[i], deltas_[r][i]);
    if (samples_[r] == 0) return sent;
    for (size_t i :
         Largest(kept, static_cast<size_t>(std::ceil(round_.spars * kFlat)))) {
      sent[i] = kept[i];
      kept[i] = 0;
    }
    return sent;
  }

  void End() {
    under_way_ = false;
    const Floats before = anchor_;
    for (size_t i = 0; i < kFlat; ++i) {
      velocity_[i] = round_.momentum * velocity_[i] + average_[i];
      const float step = round_.nesterov
                             ? average_[i] + round_.momentum * velocity_[i]
                             : velocity_[i];
      anchor_[i] -= round_.lr * step;
    }
    for (size_t r = 0; r < replicas_.size(); ++r)
      for (size_t i = 0; i < kFlat; ++i)
        replicas_[r][i] =
            anchor_[i] + (replicas_[r][i] - (before[i] - deltas_[r][i]));
  }

  Round round_;
  Floats anchor_ = Start();
  Floats velocity_ = Floats(kFlat);
  Floats average_;
  std::vector<Floats> replicas_;
  std::vector<Floats> deltas_;
  std::vector<Floats> residuals_;
  std::vector<int64_t> samples_;  // in the round
  int64_t since_ = 0;
  int64_t started_ = 0;
  bool under_way_ = false;
};

void ExpectRounds(const choir_strategy_def_t* def, const Round& round) {
  Comm comm;
  StrategyRig rig(def, comm.get(), RigOptions(round.settings()));
  PlainRounds plain(round, static_cast<size_t>(comm.size()));
  const Floats start = PlainRounds::Start();
  ForEach(&rig, [&](size_t i, float* value) { *value = start[i]; });
  rig.TakeParams();
  for (int64_t step = 0; step < 11; ++step) {
    // Rank 2 has no samples in the first round.
    const std::vector<int64_t> samples = {16, 48, step < round.period ? 0 : 7};
    ForEach(&rig, [&](size_t i, float* value) {
      *value += Change(comm.rank(), step, i);
    });
    ASSERT_OK(rig.Combine(step, samples[static_cast<size_t>(comm.rank())]));
    plain.Step(step, samples);
    ExpectNear(&rig, plain.replica(comm.rank()), step);
  }
  ASSERT_OK(rig.strategy()->def->consolidate(rig.strategy()));
  plain.Consolidate();
  ExpectNear(&rig, plain.replica(comm.rank()), -1);
  ExpectEqualReplicas(&rig, &comm);
  if (round.spars == 0) return;
  const Floats kept = rig.State("sparseLocal/residual");
  for (size_t i = 0; i < kFlat; ++i)
    EXPECT_NEAR(kept[i], plain.residual(comm.rank())[i], 2e-6) << i;
}

TEST(StrategyLocalTest, LocalSgdAveragesReplicas) {
  if (RunRanks("shm", 3)) return;
  ExpectRounds(&choir_strategy_def_local_sgd, {4, 0, 1, 0, false, 0, 1});
}

TEST(StrategyLocalTest, LocalSgdTakesOuterSteps) {
  if (RunRanks("shm", 3)) return;
  ExpectRounds(&choir_strategy_def_local_sgd, {4, 0, 0.75f, 0.5f, false, 0, 1});
}

TEST(StrategyLocalTest, LocalSgdWithDelayAndNesterov) {
  if (RunRanks("shm", 3)) return;
  ExpectRounds(&choir_strategy_def_local_sgd,
               {4, 2, 0.75f, 0.875f, true, 0, 1});
}

TEST(StrategyLocalTest, SparseLocalKeepsWhatItDoesNotSend) {
  if (RunRanks("shm", 3)) return;
  ExpectRounds(&choir_strategy_def_sparse_local, {3, 0, 1, 0, false, 0.125, 1});
}

TEST(StrategyLocalTest, SparseLocalWithDelayDecayAndNesterov) {
  if (RunRanks("shm", 3)) return;
  ExpectRounds(&choir_strategy_def_sparse_local,
               {4, 3, 0.75f, 0.875f, true, 0.125, 0.5f});
}

// However few bits: what was applied and what is kept make the change.
TEST(StrategyLocalTest, SparseLocalLosesNothingToFewBits) {
  Comm comm;
  for (const char* const* values = choir_sparse_local_value_names; *values;
       ++values) {
    StrategyRig rig(&choir_strategy_def_sparse_local, comm.get(),
                    RigOptions({{"period", "1"},
                                {"delay", "0"},
                                {"spars", "0.25"},
                                {"values", *values}}));
    Floats anchor = PlainRounds::Start();
    ForEach(&rig, [&](size_t i, float* value) { *value = anchor[i]; });
    rig.TakeParams();
    for (int64_t step = 0; step < 5; ++step) {
      const Floats before = rig.State("sparseLocal/residual");
      ForEach(&rig, [&](size_t i, float* value) {
        *value = anchor[i] + Change(0, step, i);
      });
      ASSERT_OK(rig.Combine(step, 16));
      const Floats kept = rig.State("sparseLocal/residual");
      int sent_count = 0;
      ForEach(&rig, [&](size_t i, float* value) {
        const float sent = anchor[i] - *value;
        sent_count += sent != 0;
        EXPECT_NEAR(sent + kept[i], before[i] - Change(0, step, i), 5e-7)
            << *values << " step " << step << ", " << i;
        anchor[i] = *value;
      });
      EXPECT_EQ(sent_count, 24) << *values;
    }
  }
}

}  // namespace
