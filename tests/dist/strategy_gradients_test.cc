// SPDX-License-Identifier: Apache-2.0
// Strategies that combine gradients, against the same arithmetic written
// plainly: every rank knows all ranks' gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/dist/strategy_testing.h"

namespace {

using choir_testing::Comm;
using choir_testing::Floats;
using choir_testing::Largest;
using choir_testing::Must;
using choir_testing::RoundBf16;
using choir_testing::RoundF16;
using choir_testing::RunRanks;
using choir_testing::SameBits;
using choir_testing::Settings;
using choir_testing::Share;
using choir_testing::SomeGradient;
using choir_testing::StrategyRig;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<int64_t> kSamples = {16, 48, 7};  // of the ranks

StrategyRig::Options RigOptions(const Settings& settings) {
  StrategyRig::Options options;
  options.settings = settings;
  options.buckets = {{1000}, {250, 3}};
  return options;
}

void SetGradients(StrategyRig* rig, int rank, int64_t step) {
  for (size_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < rig->count(b); ++i)
      rig->grads(b)[i] =
          SomeGradient(rank, step, i + 5000 * static_cast<int64_t>(b));
}

Floats GradientsOf(const StrategyRig& rig, size_t bucket, int rank,
                   int64_t step) {
  Floats grads(static_cast<size_t>(rig.count(bucket)));
  for (size_t i = 0; i < grads.size(); ++i)
    grads[i] =
        SomeGradient(rank, step, static_cast<int64_t>(i + 5000 * bucket));
  return grads;
}

// ---- 16 bits ----

void ExpectHalf(const choir_strategy_def_t* def, const Settings& settings,
                int exponent, double (*round)(double), float clip = kInfinity) {
  Comm comm;
  StrategyRig rig(def, comm.get(), RigOptions(settings));
  // What no 16 bits hold, on one rank; and on all.
  const float special[] = {1e6f,   -1e6f,   kInfinity, -kInfinity,
                           NAN,    1e-9f,   -1e-30f,   0.0f,
                           511.9f, 3.4e38f, 65519.0f};
  constexpr size_t kSpecial = sizeof special / sizeof special[0];
  std::vector<Floats> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    all.push_back(GradientsOf(rig, 0, rank, 3));
    for (size_t i = 0; i < kSpecial; ++i) {
      if (rank == 1) all.back()[i] = special[i];
      all.back()[20 + i] = special[i];
    }
  }
  SetGradients(&rig, comm.rank(), 3);
  const Floats& own = all[static_cast<size_t>(comm.rank())];
  std::copy(own.begin(), own.end(), rig.grads(0));
  ASSERT_OK(rig.Exchange(3, kSamples[static_cast<size_t>(comm.rank())]));
  Floats expected(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    float sum = -0.0f;  // to which -0 adds up
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const float x = all[rank][i];
      const double limited = std::isfinite(x) ? std::clamp(x, -clip, clip) : x;
      sum = std::fma(Share(kSamples, rank),
                     static_cast<float>(round(std::ldexp(limited, exponent))),
                     sum);
    }
    expected[i] = static_cast<float>(
        std::ldexp(round(static_cast<double>(sum)), -exponent));
  }
  EXPECT_TRUE(SameBits(rig.Grads(0), expected));
}

TEST(StrategyGradientsTest, Fp16IsClippedAndScaled) {
  if (RunRanks("shm", 3)) return;
  ExpectHalf(&choir_strategy_def_fp16, {{"exponent", "7"}}, 7, RoundF16);
}

TEST(StrategyGradientsTest, Fp16WithoutScale) {
  if (RunRanks("shm", 3)) return;
  ExpectHalf(&choir_strategy_def_fp16, {{"exponent", "0"}}, 0, RoundF16);
}

TEST(StrategyGradientsTest, Fp16LimitsGradientsToClip) {
  if (RunRanks("shm", 3)) return;
  // 0.3 is no f16.
  ExpectHalf(&choir_strategy_def_fp16, {{"exponent", "7"}, {"clip", "0.3"}}, 7,
             RoundF16, 0.3f);
}

TEST(StrategyGradientsTest, Bf16IsRounded) {
  if (RunRanks("shm", 3)) return;
  ExpectHalf(&choir_strategy_def_bf16, {}, 0, RoundBf16);
}

// ---- Sparse ----

// What every rank keeps, and what its k chosen become on the way.
struct Plain {
  Floats residual;
  Floats velocity;
};

float Sent(float value, bool is_f16) {
  return is_f16 ? static_cast<float>(
                      std::ldexp(RoundF16(std::ldexp(value, 7)), -7))
                : value;
}

using Choose = std::vector<size_t> (*)(const Floats& values);

// Several steps of `option` beside the plain arithmetic. Rank 2 has no samples
// in step 1, so it keeps all.
void ExpectSparse(const choir_strategy_def_t* def, Settings settings,
                  bool is_f16, bool feedback, double momentum, Choose choose) {
  Comm comm;
  settings.push_back({"values", is_f16 ? "fp16" : "fp32"});
  settings.push_back({"feedback", feedback ? "true" : "false"});
  StrategyRig rig(def, comm.get(), RigOptions(settings));
  const std::string option = choir_strategy_def_option(def);
  std::vector<Plain> plain[2];
  for (size_t b = 0; b < 2; ++b)
    plain[b].resize(static_cast<size_t>(comm.size()),
                    {Floats(static_cast<size_t>(rig.count(b))),
                     Floats(static_cast<size_t>(rig.count(b)))});
  for (int64_t step = 0; step < 4; ++step) {
    std::vector<int64_t> samples = kSamples;
    samples.resize(static_cast<size_t>(comm.size()));
    if (step == 1 && comm.size() == 3) samples[2] = 0;
    SetGradients(&rig, comm.rank(), step);
    ASSERT_OK(rig.Exchange(step, samples[static_cast<size_t>(comm.rank())]));
    for (size_t b = 0; b < 2; ++b) {
      Floats dense(static_cast<size_t>(rig.count(b)));
      for (int rank = 0; rank < comm.size(); ++rank) {
        Plain& own = plain[b][static_cast<size_t>(rank)];
        Floats grads = GradientsOf(rig, b, rank, step);
        Floats before = own.residual;
        for (size_t i = 0; i < grads.size(); ++i) {
          own.velocity[i] =
              std::fma(static_cast<float>(momentum), own.velocity[i], grads[i]);
          own.residual[i] += own.velocity[i];
          if (momentum == 0) own.velocity[i] = 0;
          if (!feedback) own.residual[i] = grads[i];
        }
        if (samples[static_cast<size_t>(rank)] == 0) continue;
        for (size_t i : choose(own.residual)) {
          const float value = own.residual[i];
          const float sent = Sent(value, is_f16);
          dense[i] = std::fma(Share(samples, static_cast<size_t>(rank)), sent,
                              dense[i]);
          own.residual[i] = value - sent;
          own.velocity[i] = 0;
          // Nothing is lost on the way.
          EXPECT_EQ(static_cast<double>(sent) + own.residual[i],
                    static_cast<double>(value));
        }
      }
      EXPECT_TRUE(SameBits(rig.Grads(b), dense)) << step << " " << b;
      const Plain& own = plain[b][static_cast<size_t>(comm.rank())];
      const std::string bucket = "/" + std::to_string(b);
      if (feedback) {
        EXPECT_TRUE(
            SameBits(rig.State(option + "/residual" + bucket), own.residual))
            << step;
      }
      if (momentum > 0) {
        EXPECT_TRUE(
            SameBits(rig.State(option + "/velocity" + bucket), own.velocity))
            << step;
      }
    }
  }
}

// A tenth, rounded up: of 1008 and 272 elements.
std::vector<size_t> TenthOf(const Floats& values) {
  return Largest(
      values,
      static_cast<size_t>(std::ceil(0.1 * static_cast<double>(values.size()))));
}

std::vector<size_t> AboveThreshold(const Floats& values) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < values.size(); ++i)
    if (std::fabs(values[i]) >= 4e-6f) chosen.push_back(i);
  return chosen;
}

TEST(StrategyGradientsTest, TopKWithFeedback) {
  if (RunRanks("shm", 3)) return;
  for (bool is_f16 : {false, true})
    ExpectSparse(&choir_strategy_def_sparse_top_k, {{"spars", "0.1"}}, is_f16,
                 true, 0, TenthOf);
}

TEST(StrategyGradientsTest, TopKWithoutFeedback) {
  if (RunRanks("shm", 2)) return;
  ExpectSparse(&choir_strategy_def_sparse_top_k, {{"spars", "0.1"}}, false,
               false, 0, TenthOf);
}

TEST(StrategyGradientsTest, ThresholdWithFeedback) {
  if (RunRanks("shm", 3)) return;
  for (bool is_f16 : {false, true})
    ExpectSparse(&choir_strategy_def_sparse_threshold, {{"spars", "4e-6"}},
                 is_f16, true, 0, AboveThreshold);
}

TEST(StrategyGradientsTest, ThresholdWithoutFeedback) {
  if (RunRanks("shm", 2)) return;
  ExpectSparse(&choir_strategy_def_sparse_threshold, {{"spars", "4e-6"}}, false,
               false, 0, AboveThreshold);
}

TEST(StrategyGradientsTest, ThresholdThatNothingReaches) {
  Comm comm;
  StrategyRig rig(&choir_strategy_def_sparse_threshold, comm.get(),
                  RigOptions({{"spars", "1"}}));
  SetGradients(&rig, 0, 0);
  ASSERT_OK(rig.Exchange(0, 16));
  EXPECT_TRUE(SameBits(rig.Grads(0), Floats(1008)));
  EXPECT_TRUE(SameBits(rig.State("sparseThreshold/residual/0"),
                       GradientsOf(rig, 0, 0, 0)));
}

// ---- Deep gradient compression ----

TEST(StrategyGradientsTest, DgcCorrectsAndMasksMomentum) {
  if (RunRanks("shm", 3)) return;
  ExpectSparse(&choir_strategy_def_dgc,
               {{"spars", "0.1"}, {"warmup_steps", "0"}}, false, true, 0.9,
               TenthOf);
}

TEST(StrategyGradientsTest, DgcTakesTheOptimizersMomentum) {
  Comm comm;
  choir_optimizer_t* optimizer = nullptr;
  char text[256];
  {
    StrategyRig rig(&choir_strategy_def_dgc, comm.get(), {});
    optimizer = rig.optimizer();
    choir_optimizer_retain(optimizer);
    EXPECT_TRUE(choir_testing::Contains(
        choir_optimizer_print(optimizer, text, sizeof text), " momentum=0 "))
        << text;
  }
  EXPECT_TRUE(choir_testing::Contains(
      choir_optimizer_print(optimizer, text, sizeof text), " momentum=0\\.9 "))
      << text;
  choir_optimizer_release(optimizer);
}

// 25 %, 6.25 %, 1.5625 %, 0.39 %, then what was asked for.
TEST(StrategyGradientsTest, DgcWarmsUp) {
  Comm comm;
  StrategyRig::Options options;
  options.buckets = {{4096}};
  options.settings = {{"spars", "0.001"}, {"warmup_steps", "8"}};
  StrategyRig rig(&choir_strategy_def_dgc, comm.get(), options);
  const int64_t expected[] = {1024, 1024, 256, 256, 64, 64, 16, 16, 5, 5};
  for (int64_t step = 0; step < 10; ++step) {
    for (int64_t i = 0; i < 4096; ++i)
      rig.grads(0)[i] = 1e3f * SomeGradient(0, step, i);
    ASSERT_OK(rig.Exchange(step, 16));
    const Floats dense = rig.Grads(0);
    EXPECT_EQ(4096 - std::count(dense.begin(), dense.end(), 0.0f),
              expected[step])
        << step;
  }
}

// The norm of a bucket's gradient, of which each of N ranks has a part of
// N^-1/2.
TEST(StrategyGradientsTest, DgcClips) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  StrategyRig rig(&choir_strategy_def_dgc, comm.get(),
                  RigOptions({{"spars", "1e-9"},
                              {"warmup_steps", "0"},
                              {"clip", "1e-5"},
                              {"values", "fp32"}}));
  SetGradients(&rig, comm.rank(), 0);
  // The second bucket's norm is below the limit.
  for (int64_t i = 0; i < rig.count(1); ++i) rig.grads(1)[i] *= 1e-3f;
  const Floats grads[] = {rig.Grads(0), rig.Grads(1)};
  ASSERT_OK(rig.Exchange(0, 16));
  for (size_t b = 0; b < 2; ++b) {
    double square = 0;
    for (float grad : grads[b]) square += static_cast<double>(grad) * grad;
    const double most = 1e-5 / std::sqrt(3.0);
    const double factor = std::min(1.0, most / std::sqrt(square));
    EXPECT_EQ(factor < 1, b == 0);
    const Floats kept = rig.State("dgc/residual/" + std::to_string(b));
    const size_t sent = Largest(grads[b], 1)[0];
    for (size_t i = 0; i < kept.size(); ++i)
      EXPECT_NEAR(kept[i], i == sent ? 0 : factor * grads[b][i],
                  1e-6 * std::fabs(grads[b][i]))
          << b << " " << i;
  }
}

// ---- SINGA's numbers ----

// lr 0.1, a parameter 10, a gradient 1: 9.9 after one step of anything.
TEST(StrategyGradientsTest, TenBecomesNinePointNine) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  for (int32_t s = 0; choir_strategy_def_get(s); ++s) {
    const choir_strategy_def_t* def = choir_strategy_def_get(s);
    const std::string option = choir_strategy_def_option(def);
    StrategyRig::Options options;
    options.buckets = {{16}};
    options.momentum = 0;
    options.settings = {{"spars", option == "sparseThreshold" ? "0.05" : "1"},
                        {"period", "1"},
                        {"delay", "0"},
                        {"chunk", "16"}};
    StrategyRig rig(def, comm.get(), options);
    for (int i = 0; i < 16; ++i) {
      rig.value(0)[i] = 10;
      rig.grads(0)[i] = 1;
    }
    rig.TakeParams();
    if (def->exchange) {
      ASSERT_OK(rig.Exchange(0, 16));
    }
    ASSERT_OK(rig.Update(0));
    if (def->combine) {
      ASSERT_OK(rig.Combine(0, 16));
    }
    for (int i = 0; i < 16; ++i)
      EXPECT_NEAR(rig.value(0)[i], 9.9, 5e-6) << option;
  }
}

}  // namespace
