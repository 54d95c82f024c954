// SPDX-License-Identifier: Apache-2.0
// Wrong settings and dead ranks: one sentence on every rank, and a training
// that goes on where nothing is broken.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/dist/strategy_testing.h"
#include "tests/testing/config_text.h"

namespace {

using choir::testing::ConfigFromText;
using choir_testing::Comm;
using choir_testing::ExpectWords;
using choir_testing::Must;
using choir_testing::RunRanks;
using choir_testing::Settings;
using choir_testing::SmallLayers;
using choir_testing::StrategyConfig;
using choir_testing::Training;

void ExpectSentence(choir_status_t status, choir_status_code_t code,
                    const std::string& pattern) {
  EXPECT_EQ(choir_status_code(status), code);
  EXPECT_TRUE(choir_testing::Matches(choir_status_message(status), pattern))
      << choir_status_message(status);
  choir_status_free(status);
}

// ---- Settings of one rank ----

TEST(StrategyMistakesTest, SettingsOutOfRange) {
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  struct {
    const choir_strategy_def_t* def;
    const char* settings;
    const char* sentence;
  } cases[] = {
      {&choir_strategy_def_sparse_top_k, "spars=0", "spars is 0; needs"},
      {&choir_strategy_def_sparse_top_k, "spars=1.5", "spars is 1.5; needs"},
      {&choir_strategy_def_sparse_top_k, "spars=nan", "spars is nan; needs"},
      {&choir_strategy_def_sparse_top_k, "values=2", "values is 2"},
      {&choir_strategy_def_sparse_threshold, "spars=-1", "spars is -1; needs"},
      {&choir_strategy_def_dgc, "clip=-1", "clip is -1; needs"},
      {&choir_strategy_def_dgc, "warmup_steps=-1", "warmup_steps is -1; needs"},
      {&choir_strategy_def_fp16, "exponent=25", "exponent is 25; needs"},
      {&choir_strategy_def_partial_update, "chunk=0", "chunk is 0; needs"},
      {&choir_strategy_def_local_sgd, "period=0", "period is 0; needs"},
      {&choir_strategy_def_local_sgd, "period=4 delay=4",
       "delay is 4 steps and period 4; a round must end before the next one "
       "begins"},
      {&choir_strategy_def_sparse_local, "period=4 delay=9",
       "delay is 9 steps and period 4"},
      {&choir_strategy_def_local_sgd, "nesterov=true",
       "nesterov is set and outer_momentum is 0; it needs some"},
      {&choir_strategy_def_sparse_local, "nesterov=true",
       "nesterov is set and outer_momentum is 0"},
      {&choir_strategy_def_sparse_local, "spars=0", "spars is 0; needs"},
      {&choir_strategy_def_sparse_local, "decay=1.5", "decay is 1.5; needs"},
  };
  for (const auto& one : cases)
    EXPECT_STATUS(
        INVALID_ARGUMENT, one.sentence,
        choir_dist_opt_use(
            training.dist(), one.def,
            ConfigFromText(choir_strategy_def_config(one.def), one.settings)
                .data()));
  EXPECT_EQ(choir_dist_opt_strategy(training.dist()), &choir_strategy_def_fp32);
  Must(training.Attach());
  const choir_update_options_t far = {"sparseTopK", 7, nullptr};
  EXPECT_STATUS(INVALID_ARGUMENT, "spars is 7; needs",
                choir_model_set_update_options(training.model(), &far));
  EXPECT_OK(training.TrainOn(0, 0, 16, 16));
}

// In training, where the others make the change: they hear of it, nobody makes
// it, and all go on.
TEST(StrategyMistakesTest, AWrongChoiceOfOneRankIsHeardByAll) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  const bool is_odd = comm.rank() == 2;
  const choir_strategy_def_t* def = &choir_strategy_def_local_sgd;
  const auto right = StrategyConfig(def, {{"period", "6"}, {"delay", "2"}});
  const auto wrong = StrategyConfig(def, {{"period", "6"}, {"delay", "7"}});
  const choir_update_options_t fits = {"sparseTopK", 0, nullptr};
  const choir_update_options_t unknown = {"fp8", 0, nullptr};
  const std::pair<std::string, std::function<choir_status_t()>> cases[] = {
      {"delay is 7 steps and period 6",
       [&] {
         return choir_dist_opt_use(training.dist(), def,
                                   (is_odd ? wrong : right).data());
       }},
      {"dist_opt_use: def is NULL",
       [&] {
         return choir_dist_opt_use(training.dist(), is_odd ? nullptr : def,
                                   right.data());
       }},
      {"dist_option is \"fp8\"", [&] {
         return choir_model_set_update_options(training.model(),
                                               is_odd ? &unknown : &fits);
       }}};
  int64_t step = 0;
  for (const auto& one : cases) {
    // Work on its way comes before it.
    ASSERT_OK(training.TrainOn(step++, comm.rank() * 16, 16, 48));
    choir_status_t status = one.second();
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    const std::string said = choir_status_message(status);
    EXPECT_NE(said.find(one.first), std::string::npos) << said;
    EXPECT_EQ(said.find(": rank 2: ") != std::string::npos, !is_odd) << said;
    choir_status_free(status);
    EXPECT_EQ(choir_dist_opt_strategy(training.dist()),
              &choir_strategy_def_fp32);
    ASSERT_OK(training.TrainOn(step++, comm.rank() * 16, 16, 48));
  }
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

TEST(StrategyMistakesTest, SettingsFromText) {
  const choir_strategy_def_t* def = nullptr;
  choir_strategy_config_t config;
  ASSERT_OK(choir_strategy_config_read(
      "localSGD", 0, "period=6,delay=2,outer-lr=0.5", &def, &config));
  EXPECT_EQ(def, &choir_strategy_def_local_sgd);
  EXPECT_EQ(config.as_local_sgd.period, 6);
  EXPECT_EQ(config.as_local_sgd.delay, 2);
  EXPECT_EQ(config.as_local_sgd.outer_lr, 0.5);
  EXPECT_EQ(config.as_local_sgd.outer_momentum, 0);
  ASSERT_OK(choir_strategy_config_read("sparseTopK", 0.25, "values=fp32", &def,
                                       &config));
  EXPECT_EQ(def, &choir_strategy_def_sparse_top_k);
  EXPECT_EQ(config.as_sparse_top_k.spars, 0.25);
  EXPECT_EQ(config.as_sparse_top_k.values, 0);
  EXPECT_TRUE(config.as_sparse_top_k.feedback);
  // All of the list, each with its defaults.
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    const char* option = choir_strategy_def_option(choir_strategy_def_get(i));
    ASSERT_OK(choir_strategy_config_read(option, 0, nullptr, &def, &config));
    EXPECT_EQ(def, choir_strategy_def_get(i));
    const choir_struct_def_t* fields = choir_strategy_def_config(def);
    EXPECT_LE(fields->bytes, sizeof config);
    EXPECT_EQ(choir_struct_hash(fields, &config),
              choir_struct_hash(fields, ConfigFromText(fields, "").data()));
  }
  ASSERT_OK(choir_strategy_config_read("half", 0, nullptr, &def, &config));
  EXPECT_EQ(def, &choir_strategy_def_fp16);
}

TEST(StrategyMistakesTest, WrongSettingsFromText) {
  struct {
    const char* option;
    double spars;
    const char* settings;
    choir_status_code_t code;
    const char* sentence;
  } cases[] = {
      {"fp8", 0, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "dist_option is \"fp8\"; known are: fp32, .+, auto"},
      {nullptr, 0, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "dist_option is \"\\(NULL\\)\"; known are: fp32, .+"},
      {"fp32", 0.5, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "fp32: spars is 0.5; only these have such a setting: sparseTopK, "
       "sparseThreshold, dgc, sparseLocal"},
      {"plain", 0.5, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "fp32: spars is 0.5; .+"},
      {"sparseTopK", 2, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "sparseTopK: spars is 2; needs a number from 1e-09 to 1 .+"},
      {"sparseTopK", -1, "spars=0.5", CHOIR_STATUS_INVALID_ARGUMENT,
       "sparseTopK: spars is -1; needs .+"},
      {"sparseLocal", NAN, nullptr, CHOIR_STATUS_INVALID_ARGUMENT,
       "sparseLocal: spars is nan; needs .+"},
      {"localSGD", 0, "period=8,delay=9", CHOIR_STATUS_INVALID_ARGUMENT,
       "localSGD: delay is 9 steps and period 8; a round must end before the "
       "next one begins"},
      {"localSGD", 0, "perod=8", CHOIR_STATUS_NOT_FOUND,
       "localSGD: no field is called 'perod'; known are period, .+"},
      {"localSGD", 0, "period=many", CHOIR_STATUS_INVALID_ARGUMENT,
       "localSGD: period is 'many'; needs a whole number from 1 .+"},
      {"localSGD", 0, "period", CHOIR_STATUS_INVALID_ARGUMENT,
       "localSGD: 'period' in a list of settings; name=value is needed"},
      {"dgc", 0, "values=fp64", CHOIR_STATUS_INVALID_ARGUMENT,
       "dgc: values is 'fp64'; needs one of .+"},
      {"auto", 0, "ranks=4", CHOIR_STATUS_INVALID_ARGUMENT,
       "auto: ranks is 4 and bandwidth is 0; .+"},
  };
  for (const auto& one : cases) {
    const choir_strategy_def_t* def = &choir_strategy_def_fp32;
    choir_strategy_config_t config;
    ExpectSentence(choir_strategy_config_read(one.option, one.spars,
                                              one.settings, &def, &config),
                   one.code, one.sentence);
    EXPECT_EQ(def, nullptr);
  }
}

// Of a model's updater: what they do not name stays in use, or is the default
// of a strategy that was not in use.
TEST(StrategyMistakesTest, OptionsWithSettings) {
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  char text[256];
  const auto uses = [&](const char* option, double spars,
                        const char* settings) {
    const choir_update_options_t options = {option, spars, settings};
    EXPECT_OK(choir_model_set_update_options(training.model(), &options));
    return std::string(
        choir_dist_opt_print_strategy(training.dist(), text, sizeof text));
  };
  const std::string local = uses("localSGD", 0, "period=6,delay=2");
  EXPECT_TRUE(choir_testing::Contains(local, "localSGD period=6 delay=2 "))
      << local;
  EXPECT_EQ(uses("localSGD", 0, nullptr), local);
  EXPECT_EQ(uses(nullptr, 0.5, nullptr), local);  // has no spars
  EXPECT_TRUE(choir_testing::Contains(uses(nullptr, 0, "delay=3"),
                                      "localSGD period=6 delay=3 "));
  const choir_update_options_t late = {nullptr, 0, "delay=6"};
  EXPECT_STATUS(INVALID_ARGUMENT,
                "dist_opt: localSGD: delay is 6 steps and period 6",
                choir_model_set_update_options(training.model(), &late));
  const choir_update_options_t odd = {"fp32", 0, "period=6"};
  EXPECT_STATUS(NOT_FOUND, "dist_opt: fp32: no field is called 'period'",
                choir_model_set_update_options(training.model(), &odd));
  EXPECT_TRUE(choir_testing::Contains(uses(nullptr, 0, nullptr),
                                      "localSGD period=6 delay=3 "));
  EXPECT_TRUE(choir_testing::Contains(uses("sparseTopK", 0.5, "values=fp32"),
                                      "sparseTopK spars=0.5 "));
  EXPECT_TRUE(choir_testing::Contains(uses("localSGD", 0, nullptr),
                                      "localSGD period=16 delay=8 "));
  EXPECT_OK(training.TrainOn(0, 0, 16, 16));
}

// Only fp32 takes other types than f32.
TEST(StrategyMistakesTest, ParametersOfF64) {
  Comm comm;
  choir_testing::StrategyRig rig(&choir_strategy_def_fp32, comm.get(), {});
  std::vector<double> grads(16);
  const choir_strategy_bucket_t bucket = {
      "gradient bucket 0", CHOIR_DTYPE_F64, 16, grads.data(), nullptr, 0};
  for (int32_t i = 0; choir_strategy_def_get(i); ++i) {
    const choir_strategy_def_t* def = choir_strategy_def_get(i);
    choir_strategy_t* strategy = nullptr;
    Must(choir__strategy_create(def, nullptr, &strategy));
    choir_status_t status = choir__strategy_attach(
        strategy, comm.get(), rig.strategy()->device, rig.strategy()->host,
        rig.optimizer(), &bucket, 1);
    if (def == &choir_strategy_def_fp32) {
      EXPECT_OK(status);
    } else {
      EXPECT_STATUS(INVALID_ARGUMENT,
                    std::string("dist_option ") +
                        choir_strategy_def_option(def) +
                        ": gradient bucket 0 has parameters of f64; this "
                        "strategy is for f32 ones",
                    status);
    }
    choir__strategy_destroy(strategy);
  }
}

// ---- Ranks that do not agree ----

TEST(StrategyMistakesTest, AnotherStrategyOnOneRank) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.strategy = comm.rank() == 2 ? &choir_strategy_def_dgc
                                      : &choir_strategy_def_sparse_top_k;
  Training training(SmallLayers(), comm.get(), options);
  ExpectSentence(
      training.Attach(), CHOIR_STATUS_FAILED_PRECONDITION,
      std::string("dist_opt: the dist_option of rank 2 \\(host .+, pid \\d+\\) "
                  "is not that of rank 0 \\(here it is ") +
          (comm.rank() == 2 ? "dgc" : "sparseTopK") +
          " spars=.+\\); every rank must have the same one, with the same "
          "settings");
}

// In mid-run, in both ways to say it; what was in use stays so.
TEST(StrategyMistakesTest, OtherSettingsOnOneRankChangeNothing) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training::Options options;
  options.strategy = &choir_strategy_def_sparse_top_k;
  options.settings = {{"spars", "0.1"}};
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  Must(choir_testing::TrainUnevenly(&training, comm, 0));
  const uint64_t digest = training.StatesDigest();
  const bool is_1 = comm.rank() == 1;
  const Settings period = {{"period", is_1 ? "32" : "64"}};
  ExpectSentence(
      choir_dist_opt_use(
          training.dist(), &choir_strategy_def_local_sgd,
          StrategyConfig(&choir_strategy_def_local_sgd, period).data()),
      CHOIR_STATUS_FAILED_PRECONDITION,
      std::string("dist_opt: the dist_option of rank 1 .+ is not that of rank "
                  "0 \\(here it is localSGD period=") +
          (is_1 ? "32" : "64") + " .+\\); every rank .+");
  const choir_update_options_t update = {"sparseTopK", is_1 ? 0.5 : 0.25,
                                         nullptr};
  ExpectSentence(
      choir_model_set_update_options(training.model(), &update),
      CHOIR_STATUS_FAILED_PRECONDITION,
      std::string("dist_opt: the dist_option of rank 1 .+ is not that of rank "
                  "0 \\(here it is sparseTopK spars=") +
          (is_1 ? "0.5" : "0.25") + " .+\\); every rank .+");
  char text[256];
  EXPECT_TRUE(choir_testing::Contains(
      choir_dist_opt_print_strategy(training.dist(), text, sizeof text),
      "sparseTopK spars=0.1 "))
      << text;
  EXPECT_EQ(training.StatesDigest(), digest);
  for (int64_t step = 1; step < 4; ++step)
    ASSERT_OK(choir_testing::TrainUnevenly(&training, comm, step));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

// One that does not fit the optimizer: the one before goes on.
TEST(StrategyMistakesTest, DgcWithNesterov) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  const std::string sentence =
      "dist_option dgc: sgd: nesterov is set; momentum outside the optimizer "
      "is plain momentum only";
  Training::Options options;
  options.nesterov = true;
  options.strategy = &choir_strategy_def_dgc;
  {
    Training training(SmallLayers(), comm.get(), options);
    ExpectSentence(training.Attach(), CHOIR_STATUS_UNIMPLEMENTED, sentence);
  }
  options.strategy = &choir_strategy_def_local_sgd;
  options.settings = {{"period", "2"}, {"delay", "1"}};
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  Must(training.TrainOn(0, comm.rank() * 16, 16, 32));
  ExpectSentence(
      choir_dist_opt_use(training.dist(), &choir_strategy_def_dgc, nullptr),
      CHOIR_STATUS_UNIMPLEMENTED, sentence);
  EXPECT_EQ(choir_dist_opt_strategy(training.dist()),
            &choir_strategy_def_local_sgd);
  for (int64_t step = 1; step < 6; ++step)
    ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 32));
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  ASSERT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

// A step after an attach that failed is refused.
TEST(StrategyMistakesTest, StepWithoutAStrategy) {
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  Must(training.Attach());
  Must(training.TrainOn(0, 0, 16, 16));
  const choir_param_set_t* params = choir_model_params(training.model());
  for (size_t i = 0; i < params->count; ++i)
    params->params[i]->trainable = false;
  EXPECT_STATUS(FAILED_PRECONDITION, "no trainable parameter",
                training.Attach());
  EXPECT_STATUS(FAILED_PRECONDITION, "training without an updater",
                training.TrainOn(1, 0, 16, 16));
}

// ---- A rank that dies ----

// Exchanges of sparseLocal go on beside the next steps: one that is under way
// when a rank dies is told by the step at which it should end, or by the next.
TEST(StrategyMistakesTest, KilledWhileChangesAreExchanged) {
  if (!choir_testing::InRank()) {
    const std::string told =
        "aborted: training step \\d+: .*rank 1 \\(host .+, pid \\d+\\) is "
        "gone: its process was killed or ended too early";
    ExpectWords("shm", 3, {told, "\\(nothing\\)", told});
    return;
  }
  Comm comm(8);
  comm.ExpectBroken();
  Training::Options options;
  options.strategy = &choir_strategy_def_sparse_local;
  options.settings = {{"period", "4"}, {"delay", "3"}, {"spars", "1"}};
  Training training(SmallLayers(), comm.get(), options);
  Must(training.Attach());
  choir_status_t status = nullptr;
  for (int64_t step = 0; !status && step < 50; ++step) {
    status = training.TrainOn(step, comm.rank() * 16, 16, 48);
    // Step 7 has begun the second round.
    if (comm.rank() == 1 && step == 7) raise(SIGKILL);
  }
  choir_testing::Say(
      std::string(choir_status_code_text(choir_status_code(status))) + ": " +
      choir_status_message(status));
  choir_status_free(status);
}

}  // namespace
