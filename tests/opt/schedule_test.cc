// SPDX-License-Identifier: Apache-2.0
#include "opt/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "tests/testing/status_matchers.h"

namespace {

choir_schedule_config_t Config(const char* kind, int64_t period, double factor,
                               int64_t warmup = 0) {
  choir_schedule_config_t config;
  choir_struct_init(&choir_schedule_config_def, &config);
  EXPECT_OK(
      choir_struct_set(&choir_schedule_config_def, &config, "kind", kind));
  config.period = period;
  config.factor = factor;
  config.warmup = warmup;
  EXPECT_OK(choir_struct_check(&choir_schedule_config_def, &config));
  return config;
}

// The factor at every step against `formula`, without warm-up and with.
void ExpectFollows(const char* kind, int64_t period, double factor,
                   const std::function<double(double)>& formula) {
  for (int64_t warmup : {0, 1, 5, 40}) {
    choir_schedule_config_t config = Config(kind, period, factor, warmup);
    for (int64_t step = 0; step < 50; ++step) {
      double expected = formula(static_cast<double>(step));
      if (step < warmup)
        expected *=
            static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
      EXPECT_NEAR(choir_schedule_factor(&config, step), expected, 1e-13)
          << kind << ", step " << step << ", warmup " << warmup;
    }
  }
}

// By name, so that a new line of the list needs a formula here.
const std::map<std::string, std::function<void()>>& Formulas() {
  static const std::map<std::string, std::function<void()>> formulas = {
      {"constant",
       [] { ExpectFollows("constant", 3, 0.5, [](double) { return 1.0; }); }},
      {"step",
       [] {
         ExpectFollows("step", 7, 0.3, [](double step) {
           double value = 1;
           for (int k = 7; k <= step; k += 7) value *= 0.3;
           return value;
         });
         ExpectFollows("step", 1, 0.9,
                       [](double step) { return std::pow(0.9, step); });
       }},
      {"exponential",
       [] {
         ExpectFollows("exponential", 10, 0.2, [](double step) {
           return std::exp(step / 10 * std::log(0.2));
         });
         ExpectFollows("exponential", 20, 3, [](double step) {
           return std::exp(step / 20 * std::log(3.0));
         });
       }},
      {"cosine",
       [] {
         ExpectFollows("cosine", 30, 0.1, [](double step) {
           if (step >= 30) return 0.1;
           // 0.1 + 0.9 (1 + cos x) / 2, by the half angle
           double half = std::cos(step / 30 * std::acos(-1.0) / 2);
           return 0.1 + 0.9 * half * half;
         });
         ExpectFollows("cosine", 1, 0,
                       [](double step) { return step < 1 ? 1.0 : 0.0; });
       }},
  };
  return formulas;
}

TEST(ScheduleTest, EveryCurveFollowsItsFormula) {
  size_t count = 0;
  for (; choir_schedule_names[count]; ++count) {
    auto found = Formulas().find(choir_schedule_names[count]);
    ASSERT_NE(found, Formulas().end())
        << "no formula for schedule " << choir_schedule_names[count];
    found->second();
  }
  EXPECT_EQ(count, Formulas().size());
}

TEST(ScheduleTest, PassesThroughItsCorners) {
  choir_schedule_config_t cosine = Config("cosine", 100, 0.25);
  EXPECT_EQ(choir_schedule_factor(&cosine, 0), 1.0);
  EXPECT_DOUBLE_EQ(choir_schedule_factor(&cosine, 50), 0.625);
  EXPECT_EQ(choir_schedule_factor(&cosine, 100), 0.25);
  EXPECT_EQ(choir_schedule_factor(&cosine, 1000000), 0.25);
  choir_schedule_config_t step = Config("step", 3, 0.5);
  EXPECT_EQ(choir_schedule_factor(&step, 2), 1.0);
  EXPECT_EQ(choir_schedule_factor(&step, 3), 0.5);
  EXPECT_EQ(choir_schedule_factor(&step, 11), 0.125);
  // The last step of the warm-up is below the curve, the next on it.
  choir_schedule_config_t warm = Config("constant", 1, 1, 4);
  EXPECT_DOUBLE_EQ(choir_schedule_factor(&warm, 0), 0.2);
  EXPECT_DOUBLE_EQ(choir_schedule_factor(&warm, 3), 0.8);
  EXPECT_EQ(choir_schedule_factor(&warm, 4), 1.0);
}

TEST(ScheduleTest, StaysFiniteFarOut) {
  for (int k = 0; choir_schedule_names[k]; ++k) {
    choir_schedule_config_t config =
        Config(choir_schedule_names[k], 1000, 0.5, INT64_C(1000000000000));
    for (int64_t step : {INT64_C(0), INT64_C(1) << 40, INT64_C(1) << 62}) {
      double factor = choir_schedule_factor(&config, step);
      EXPECT_TRUE(factor >= 0 && factor <= 1) << factor;
    }
  }
}

TEST(ScheduleTest, DefaultsChangeNothing) {
  choir_schedule_config_t config = {
      CHOIR_CONFIG_DEFAULTS(CHOIR_SCHEDULE_FIELDS)};
  for (int64_t step : {0, 1, 1000})
    EXPECT_EQ(choir_schedule_factor(&config, step), 1.0);
}

TEST(ScheduleTest, RefusesWhatIsOutOfRange) {
  choir_schedule_config_t config = Config("step", 1, 1);
  config.period = 0;
  EXPECT_STATUS(INVALID_ARGUMENT, "schedule: period is 0; needs",
                choir_struct_check(&choir_schedule_config_def, &config));
  config = Config("step", 1, 1);
  config.factor = -0.5;
  EXPECT_STATUS(INVALID_ARGUMENT, "schedule: factor is -0.5; needs",
                choir_struct_check(&choir_schedule_config_def, &config));
  config = Config("step", 1, 1);
  config.warmup = -1;
  EXPECT_STATUS(INVALID_ARGUMENT, "schedule: warmup is -1; needs",
                choir_struct_check(&choir_schedule_config_def, &config));
  config = Config("step", 1, 1);
  config.kind = 99;
  EXPECT_STATUS(INVALID_ARGUMENT,
                "schedule: kind is 99; needs one of constant, step",
                choir_struct_check(&choir_schedule_config_def, &config));
}

}  // namespace
