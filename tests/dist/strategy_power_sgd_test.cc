// SPDX-License-Identifier: Apache-2.0
// PowerSGD beside the same algorithm in double, for all ranks at once.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/dist/strategy_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Floats;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::SameBits;
using choir_testing::Share;
using choir_testing::SomeGradient;
using choir_testing::StrategyRig;

using Doubles = std::vector<double>;

constexpr int64_t kRows = 20;
constexpr int64_t kColumns = 33;
constexpr int64_t kMatrix = kRows * kColumns;
constexpr int64_t kVector = 41;
const std::vector<int64_t> kSamples = {16, 48, 7};

// A matrix and a vector in one bucket, and a bucket without a matrix.
StrategyRig::Options RigOptions(int rank) {
  StrategyRig::Options options;
  options.settings = {{"rank", std::to_string(rank)}};
  options.buckets = {{kMatrix, kVector}, {7}};
  options.rows = kRows;
  return options;
}

int64_t VectorAt() { return choir_testing::Padded(kMatrix); }

std::vector<int64_t> SamplesOf(const Comm& comm, int64_t step) {
  std::vector<int64_t> samples = kSamples;
  samples.resize(static_cast<size_t>(comm.size()));
  if (step == 1 && comm.size() == 3) samples[2] = 0;
  return samples;
}

double Norm(const Doubles& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

// One step of the algorithm: M of all ranks, with what they kept, to the mean's
// approximation. q: [rank][columns], the start and then the end.
Doubles Approximate(const std::vector<Doubles>& matrices, const Doubles& shares,
                    int rank, Doubles* q) {
  Doubles mean(kMatrix);
  for (size_t r = 0; r < matrices.size(); ++r)
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += shares[r] * matrices[r][i];
  const auto at = [](int64_t i, int64_t j) {
    return static_cast<size_t>(i * kColumns + j);
  };
  const auto p_at = [](int64_t k, int64_t i) {
    return static_cast<size_t>(k * kRows + i);
  };
  const auto q_at = [](int64_t k, int64_t j) {
    return static_cast<size_t>(k * kColumns + j);
  };
  Doubles p(static_cast<size_t>(rank * kRows));
  for (int64_t k = 0; k < rank; ++k) {
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kColumns; ++j)
        p[p_at(k, i)] += mean[at(i, j)] * (*q)[q_at(k, j)];
    for (int64_t l = 0; l < k; ++l) {
      double product = 0;
      for (int64_t i = 0; i < kRows; ++i)
        product += p[p_at(k, i)] * p[p_at(l, i)];
      for (int64_t i = 0; i < kRows; ++i)
        p[p_at(k, i)] -= product * p[p_at(l, i)];
    }
    double norm = 0;
    for (int64_t i = 0; i < kRows; ++i) norm += p[p_at(k, i)] * p[p_at(k, i)];
    for (int64_t i = 0; i < kRows; ++i) p[p_at(k, i)] /= std::sqrt(norm);
  }
  Doubles result(kMatrix);
  for (int64_t k = 0; k < rank; ++k)
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < kRows; ++i) sum += mean[at(i, j)] * p[p_at(k, i)];
      (*q)[q_at(k, j)] = sum;
      for (int64_t i = 0; i < kRows; ++i)
        result[at(i, j)] += p[p_at(k, i)] * sum;
    }
  return result;
}

void SetGradients(StrategyRig* rig, int rank, int64_t step) {
  for (size_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < rig->count(b); ++i)
      rig->grads(b)[i] =
          SomeGradient(rank, step, i + 5000 * static_cast<int64_t>(b));
}

// Of elements that are sent whole.
float Mean(const Comm& comm, const std::vector<int64_t>& samples, int64_t step,
           int64_t i) {
  float mean = 0;
  bool is_first = true;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (samples[static_cast<size_t>(rank)] == 0) continue;
    const float share = Share(samples, static_cast<size_t>(rank));
    const float gradient = SomeGradient(rank, step, i);
    mean = is_first ? share * gradient : std::fma(share, gradient, mean);
    is_first = false;
  }
  return mean;
}

void ExpectTheAlgorithm(int rank) {
  Comm comm;
  StrategyRig rig(&choir_strategy_def_power_sgd, comm.get(), RigOptions(rank));
  const size_t size = static_cast<size_t>(comm.size());
  const size_t own = static_cast<size_t>(comm.rank());
  const Floats start = rig.State("powerSGD/q/0");
  ASSERT_EQ(start.size(), static_cast<size_t>(rank * kColumns));
  Doubles q(start.begin(), start.end());
  std::vector<Doubles> kept(size, Doubles(kMatrix));
  for (int64_t step = 0; step < 4; ++step) {
    const std::vector<int64_t> samples = SamplesOf(comm, step);
    SetGradients(&rig, comm.rank(), step);
    ASSERT_OK(rig.Exchange(step, samples[own]));
    Doubles shares;
    std::vector<Doubles> matrices = kept;
    for (size_t r = 0; r < size; ++r) {
      shares.push_back(samples[r] ? Share(samples, r) : 0);
      for (int64_t i = 0; i < kMatrix; ++i)
        matrices[r][static_cast<size_t>(i)] +=
            SomeGradient(static_cast<int>(r), step, i);
    }
    const Doubles expected = Approximate(matrices, shares, rank, &q);
    for (size_t r = 0; r < size; ++r)
      for (size_t i = 0; i < expected.size(); ++i)
        kept[r][i] = matrices[r][i] - (samples[r] ? expected[i] : 0);
    const Floats grads = rig.Grads(0);
    Doubles difference;
    for (size_t i = 0; i < expected.size(); ++i)
      difference.push_back(grads[i] - expected[i]);
    EXPECT_LT(Norm(difference), 1e-4 * Norm(expected)) << step;
    const Floats residual = rig.State("powerSGD/residual/0");
    for (size_t i = 0; i < expected.size(); ++i)
      difference[i] = residual[i] - kept[own][i];
    EXPECT_LT(Norm(difference), 1e-4 * Norm(kept[own])) << step;
    for (int64_t i = VectorAt(); i < VectorAt() + kVector; ++i)
      EXPECT_EQ(grads[static_cast<size_t>(i)], Mean(comm, samples, step, i));
    for (int64_t i = 0; i < 7; ++i)
      EXPECT_EQ(rig.grads(1)[i], Mean(comm, samples, step, i + 5000));
  }
}

TEST(StrategyPowerSgdTest, OneRank) {
  if (!RunRanks("shm", 1)) ExpectTheAlgorithm(2);
}
TEST(StrategyPowerSgdTest, TwoRanks) {
  if (!RunRanks("shm", 2)) ExpectTheAlgorithm(1);
}
TEST(StrategyPowerSgdTest, ThreeRanks) {
  if (!RunRanks("shm", 3)) ExpectTheAlgorithm(3);
}

// A mean that has the rank, or less, is all there, whatever its parts are.
TEST(StrategyPowerSgdTest, AThinMeanIsExact) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  StrategyRig rig(&choir_strategy_def_power_sgd, comm.get(), RigOptions(2));
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t i = 0; i < kMatrix; ++i) {
      const double row = static_cast<double>(i / kColumns);
      const double column = static_cast<double>(i % kColumns);
      // What the ranks add to the mean and what they do not.
      const double thin = (row + 1) * (column - 7);
      const double thick = std::sin(row * column + static_cast<double>(step));
      rig.grads(0)[i] =
          static_cast<float>(thin + (comm.rank() ? -thick : thick));
    }
    for (int64_t i = kMatrix; i < rig.count(0); ++i) rig.grads(0)[i] = 0;
    ASSERT_OK(rig.Exchange(step, 32));
    for (int64_t i = 0; i < kMatrix; ++i)
      ASSERT_NEAR(rig.grads(0)[i],
                  static_cast<double>(i / kColumns + 1) *
                      static_cast<double>(i % kColumns - 7),
                  2e-3)
          << i;
  }
}

// A diverged run is seen.
TEST(StrategyPowerSgdTest, ANanStays) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  StrategyRig rig(&choir_strategy_def_power_sgd, comm.get(), RigOptions(2));
  SetGradients(&rig, comm.rank(), 0);
  if (comm.rank() == 1) rig.grads(0)[kColumns + 2] = std::nanf("");
  ASSERT_OK(rig.Exchange(0, 32));
  EXPECT_TRUE(std::isnan(rig.grads(0)[kColumns + 2]));
}

// A matrix that is too small to gain by it is sent whole, and has no states.
TEST(StrategyPowerSgdTest, SmallMatricesAreWhole) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  StrategyRig rig(&choir_strategy_def_power_sgd, comm.get(), RigOptions(7));
  EXPECT_EQ(choir__strategy_states(rig.strategy(), nullptr), 0u);
  SetGradients(&rig, comm.rank(), 0);
  const std::vector<int64_t> samples = SamplesOf(comm, 0);
  ASSERT_OK(rig.Exchange(0, samples[static_cast<size_t>(comm.rank())]));
  for (int64_t i = 0; i < kMatrix; ++i)
    ASSERT_EQ(rig.grads(0)[i], Mean(comm, samples, 0, i)) << i;
}

}  // namespace
