// SPDX-License-Identifier: Apache-2.0
// What strategies copy from a GPU and to it in a step: what they send, and not
// the gradients. And how many launches update all parameters.
#include <gtest/gtest.h>

#include <string>

#include "tests/dist/compress_on_host.h"
#include "tests/dist/dist_opt_testing.h"
#include "tests/tensor/cuda_on_host.h"
#include "tests/testing/fake_cuda.h"

namespace {

using choir::testing::CompressKernelsOnHost;
using choir::testing::Copied;
using choir::testing::CopiedBytes;
using choir::testing::CudaKernelsOnHost;
using choir::testing::FakeCuda;
using choir_testing::Must;
using choir_testing::Settings;
using choir_testing::SmallLayers;
using choir_testing::Training;

constexpr size_t kSteps = 3;

class DistOptGpu : public ::testing::Test {
 protected:
  struct Run {
    Copied copied;     // in all steps
    size_t count = 0;  // elements of all gradients, with what is between them
    uint64_t digest = 0;
  };

  void SetUp() override {
    // Ops run on the host: what is copied for them is always the same.
    CudaKernelsOnHost(false);
    choir_comm_config_t config;
    Must(choir_comm_config_init(&config));
    config.backend = "self";
    Must(choir_comm_create(&config, &comm_));
  }
  void TearDown() override {
    CompressKernelsOnHost(false);
    choir_comm_release(comm_);
  }

  Run Train(const Training::Options& options, bool has_kernels) {
    CompressKernelsOnHost(has_kernels);
    FakeCuda gpu;
    Run run;
    Training::Options mine = options;
    mine.device = "cuda";
    Training training(SmallLayers(), comm_, mine);
    Must(training.Attach());
    const choir_param_set_t* params = choir_model_params(training.model());
    for (size_t i = 0; i < params->count; ++i)
      run.count +=
          (static_cast<size_t>(choir_tensor_count(params->params[i]->value)) +
           15) /
          16 * 16;
    gpu.ClearLog();
    for (size_t step = 0; step < kSteps; ++step)
      EXPECT_OK(training.TrainOn(static_cast<int64_t>(step), 0, 32, 32));
    run.copied = CopiedBytes(gpu.TakeLog());
    run.digest = training.StatesDigest();
    return run;
  }

  // Of one bucket, fewer by so many bytes in each step than with copies of the
  // gradients; the same states.
  void ExpectSaved(const choir_strategy_def_t* strategy,
                   const Settings& settings, size_t down, size_t up) {
    for (bool use_graph : {false, true}) {
      Training::Options options;
      options.strategy = strategy;
      options.settings = settings;
      options.use_graph = use_graph;
      const Run copies = Train(options, false);
      const Run there = Train(options, true);
      EXPECT_EQ(there.digest, copies.digest);
      EXPECT_EQ(copies.copied.down - there.copied.down, kSteps * down);
      EXPECT_EQ(copies.copied.up - there.copied.up, kSteps * up);
    }
  }

  choir_comm_t* comm_ = nullptr;
};

TEST_F(DistOptGpu, SixteenBitsGoDownAndUp) {
  const size_t count = Train({}, false).count;
  for (const choir_strategy_def_t* strategy :
       {&choir_strategy_def_fp16, &choir_strategy_def_bf16})
    // How many were clipped comes down too.
    ExpectSaved(strategy, {}, 2 * count - 4, 2 * count);
}

// What is chosen goes down, what of it others see up, and all ranks' up again:
// here one rank's.
TEST_F(DistOptGpu, TheLargestGoDownAndUp) {
  const size_t count = Train({}, false).count;
  const size_t k = (count + 99) / 100;
  for (const char* feedback : {"true", "false"}) {
    const bool has_feedback = std::string(feedback) == "true";
    const Settings common = {{"spars", "0.01"}, {"feedback", feedback}};
    for (const char* values : {"fp16", "fp32"}) {
      Settings settings = common;
      settings.emplace_back("values", values);
      const bool is_rounded = std::string(values) == "fp16";
      ExpectSaved(&choir_strategy_def_sparse_top_k, settings, 4 * count - 8 * k,
                  4 * count - 8 * k - (is_rounded && has_feedback ? 4 * k : 0));
    }
  }
}

// None, of how many only the number comes down; or all: their sum goes up as
// gradients do, indices and values come down.
TEST_F(DistOptGpu, ThoseAboveAThresholdGoDownAndUp) {
  const size_t count = Train({}, false).count;
  ExpectSaved(&choir_strategy_def_sparse_threshold, {{"spars", "1e30"}},
              4 * count - 20, 4 * count);
  ExpectSaved(&choir_strategy_def_sparse_threshold,
              {{"spars", "0"}, {"values", "fp32"}}, 4 * count - 8 * count - 20,
              0);
}

TEST_F(DistOptGpu, TheLargestMomentaGoDownAndUp) {
  const size_t count = Train({}, false).count;
  const size_t k = (count + 99) / 100;
  const Settings settings = {{"spars", "0.01"}, {"warmup_steps", "0"}};
  ExpectSaved(&choir_strategy_def_dgc, settings, 4 * count - 8 * k,
              4 * count - 12 * k);
  // Norms are sums in the host's order.
  Settings clipped = settings;
  clipped.emplace_back("clip", "0.5");
  ExpectSaved(&choir_strategy_def_dgc, clipped, 0, 0);
}

// Passes of a step are added up on the host, where gradients are then.
TEST_F(DistOptGpu, PassesTakeCopies) {
  Training::Options options;
  options.strategy = &choir_strategy_def_fp16;
  options.passes = 2;
  const Run copies = Train(options, false);
  const Run also = Train(options, true);
  EXPECT_EQ(also.digest, copies.digest);
  EXPECT_EQ(also.copied.down, copies.copied.down);
  EXPECT_EQ(also.copied.up, copies.copied.up);
}

// The gradients of one launch lie in several buckets.
TEST_F(DistOptGpu, AllBucketsAreUpdatedTogether) {
  CudaKernelsOnHost(true);
  uint64_t digest = 0;
  for (int64_t bucket_bytes : {1, 2000, 1048576}) {
    FakeCuda gpu;
    Training::Options options;
    options.device = "cuda";
    options.bucket_bytes = bucket_bytes;
    options.use_graph = false;
    Training training(SmallLayers(), comm_, options);
    Must(training.Attach());
    gpu.ClearLog();
    for (size_t step = 0; step < kSteps; ++step)
      EXPECT_OK(training.TrainOn(static_cast<int64_t>(step), 0, 32, 32));
    size_t launches = 0;
    for (const std::string& line : gpu.TakeLog())
      launches += line.find("_update_") != std::string::npos;
    EXPECT_EQ(launches, kSteps);
    if (digest == 0) digest = training.StatesDigest();
    EXPECT_EQ(training.StatesDigest(), digest);
  }
}

}  // namespace
