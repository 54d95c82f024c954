// SPDX-License-Identifier: Apache-2.0
#include "dist/plan.h"

#include "tests/dist/dist_opt_testing.h"
#include "tests/testing/failing_allocator.h"

namespace choir_testing {
namespace {

const choir_plan_row_t* Row(const choir_plan_t& plan,
                            const std::string& option) {
  for (int32_t i = 0; i < plan.row_count; ++i)
    if (option == plan.rows[i].option) return &plan.rows[i];
  ADD_FAILURE() << "no row " << option;
  return &plan.rows[0];
}

choir_auto_config_t Defaults() {
  choir_auto_config_t config;
  choir_struct_init(choir_strategy_def_config(&choir_strategy_def_auto),
                    &config);
  return config;
}

TEST(PlanTest, PredictsFromLatencyBandwidthAndStep) {
  // 1 ms, 1 MB/s; 10 ms to compute; a million parameters in 4 buckets.
  const choir_link_t link = {2, 1e-3, 1e6};
  choir_plan_t plan;
  const choir_workload_t workload = {1000000, 4, 0.01, 0.002, 0.01};
  choir_plan_make(&link, &workload, &plan);
  const choir_plan_row_t* fp32 = Row(plan, "fp32");
  EXPECT_DOUBLE_EQ(fp32->bytes, 4e6);
  // Four times three messages that wait for each other and 4 s for the bytes,
  // half of the 10 ms beside backward.
  EXPECT_NEAR(fp32->seconds, 0.01 + 0.012 + 4 - 0.005, 1e-9);
  EXPECT_NEAR(fp32->speed_up, 2 * 0.01 / fp32->seconds, 1e-12);
  // Half of the bytes and three passes of 2 ms.
  const choir_plan_row_t* fp16 = Row(plan, "fp16");
  EXPECT_NEAR(fp16->seconds, 0.01 + 0.012 + 2 - 0.005 + 0.006, 1e-9);
  // 1.3 % of 4 MB in 16 steps, of which 8 hide it.
  const choir_plan_row_t* local = Row(plan, "sparseLocal");
  EXPECT_LT(local->bytes, 2500);
  EXPECT_NEAR(local->seconds, 0.01 + 0.002, 1e-9);
  EXPECT_STREQ(plan.rows[plan.chosen].option, "sparseLocal");
  // One gradient in a hundred, two bytes for its value, one for the gap: so
  // little goes while ranks agree.
  const choir_plan_row_t* threshold = Row(plan, "sparseThreshold");
  EXPECT_NEAR(threshold->bytes, 30000, 1500);
  EXPECT_NEAR(threshold->seconds,
              0.01 + 5 * 0.002 + 0.004 + threshold->bytes / 1e6 - 0.005, 1e-9);
}

TEST(PlanTest, WhatDependsOnTheSizeOfGradientsNeedsIt) {
  const choir_link_t link = {2, 1e-3, 1e6};
  const choir_workload_t workload = {1000000, 4, 0.01, 0.002, -1};
  choir_plan_t plan;
  choir_plan_make(&link, &workload, &plan);
  for (int32_t i = 0; i < plan.row_count; ++i)
    EXPECT_STRNE(plan.rows[i].option, "sparseThreshold");
}

TEST(PlanTest, MoreRanksSendMore) {
  const choir_link_t link = {4, 0, 1e6};
  choir_plan_t plan;
  const choir_workload_t workload = {1000000, 1, 0.01, 0, -1};
  choir_plan_make(&link, &workload, &plan);
  EXPECT_DOUBLE_EQ(Row(plan, "fp32")->bytes, 2 * 4e6 * 3 / 4);
  const choir_link_t two = {2, 0, 1e6};
  choir_plan_t plan_of_two;
  choir_plan_make(&two, &workload, &plan_of_two);
  EXPECT_NEAR(Row(plan, "sparseTopK")->bytes,
              3 * Row(plan_of_two, "sparseTopK")->bytes, 1e-6);
}

TEST(PlanTest, RanksOfAHostShareItsLink) {
  // Four ranks on each of two hosts.
  const choir_link_t link = {8, 0, 1e6, 2};
  choir_plan_t plan, plan_of_two;
  const choir_workload_t workload = {1000000, 1, 0.01, 0, -1};
  choir_plan_make(&link, &workload, &plan);
  const choir_link_t two = {2, 0, 1e6};
  choir_plan_make(&two, &workload, &plan_of_two);
  EXPECT_DOUBLE_EQ(Row(plan, "fp32")->bytes, 4e6);
  EXPECT_NEAR(Row(plan, "sparseTopK")->bytes,
              4 * Row(plan_of_two, "sparseTopK")->bytes, 1e-6);
  EXPECT_NEAR(Row(plan, "fp32")->speed_up,
              4 * Row(plan_of_two, "fp32")->speed_up, 1e-9);
}

TEST(PlanTest, ExactOnesAreTakenWhereNothingIsGained) {
  const choir_link_t fast = {2, 1e-6, 1e10};
  choir_plan_t plan;
  const choir_workload_t workload = {1000000, 4, 0.01, 0.0001, 0.01};
  choir_plan_make(&fast, &workload, &plan);
  EXPECT_STREQ(plan.rows[plan.chosen].option, "fp32");
  const choir_link_t none = {1, 0, 0};
  choir_plan_make(&none, &workload, &plan);
  EXPECT_STREQ(plan.rows[plan.chosen].option, "fp32");
  EXPECT_DOUBLE_EQ(plan.rows[plan.chosen].speed_up, 1);
}

TEST(PlanTest, PrintsATableAndASentence) {
  const choir_link_t link = {2, 5e-4, 1.25e6};
  choir_plan_t plan;
  const choir_workload_t workload = {431080, 2, 0.006, 0.0001, 0.01};
  choir_plan_make(&link, &workload, &plan);
  char text[2048];
  const std::string all = choir_plan_print(&plan, text, sizeof text);
  EXPECT_TRUE(Contains(all,
                       "2 workers, 431080 parameters, 6.00 ms to compute "
                       "a step; link: 0.500 ms, 1.25 MB/s"))
      << all;
  EXPECT_TRUE(Contains(all, "\n\\* sparseLocal "));
  EXPECT_TRUE(Contains(all,
                       "fp32 would take 13\\d\\d ms a step, 11\\d\\.\\d times "
                       "slower than one worker alone; sparseLocal .* ms, "
                       "\\d\\.\\d times faster"))
      << all;
  for (size_t bytes = 1; bytes < all.size(); bytes += 7)
    EXPECT_EQ(std::string(choir_plan_print(&plan, text, bytes)),
              all.substr(0, bytes - 1));
}

TEST(PlanTest, TheLinkIsTheSameOnAllRanks) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  choir_link_t link;
  ASSERT_OK(choir_link_measure(comm.get(), &link));
  EXPECT_EQ(link.ranks, 3);
  EXPECT_GT(link.latency, 0);
  EXPECT_GT(link.bytes_per_second, 0);
  uint64_t bits;
  memcpy(&bits, &link.bytes_per_second, sizeof bits);
  for (uint64_t other : comm.Gather(bits)) EXPECT_EQ(other, bits);
}

// Every rank holds a message of each.
TEST(PlanTest, MeasuringTheLinkTakesLittleMemory) {
  if (RunRanks("shm", 6)) return;
  // For the rest of the process.
  auto* failing = new choir::testing::FailingAllocator;
  Must(choir_allocator_set_default(failing->get()));
  Comm comm;
  choir_link_t link;
  failing->FailLarge(8 << 20);
  ASSERT_OK(choir_link_measure(comm.get(), &link));
  // Where one rank lacks it, all hear of it, and go on in order.
  if (comm.rank() == 4) failing->FailLarge(1 << 20);
  choir_status_t status = choir_link_measure(comm.get(), &link);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY);
  const std::string said = choir_status_message(status);
  EXPECT_TRUE(Contains(said, "bytes asked for; the allocator has none left"));
  if (comm.rank() != 4) {
    EXPECT_TRUE(Contains(said, "barrier 'link' .*rank 4: ")) << said;
  }
  choir_status_free(status);
  failing->FailLarge(SIZE_MAX);
  EXPECT_EQ(comm.Gather(static_cast<uint64_t>(comm.rank())).back(), 5u);
}

// Chooses after 8 steps, for a link that is so slow that only one of the later
// strategies can be chosen.
choir_auto_config_t SlowLink() {
  choir_auto_config_t config = Defaults();
  config.steps = 8;
  config.ranks = 2;
  config.latency = 1;
  config.bandwidth = 1e-4;
  return config;
}

TEST(PlanTest, AutoGoesOnWithWhatItChose) {
  if (RunRanks("shm", 2)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  const choir_auto_config_t config = SlowLink();
  Must(choir_dist_opt_use(training.dist(), &choir_strategy_def_auto, &config));
  Must(training.Attach());
  for (int64_t step = 0; step < 30; ++step) {
    if (step < 8) {
      EXPECT_EQ(choir_dist_opt_plan(training.dist()), nullptr);
    }
    ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 32));
  }
  const choir_plan_t* plan = choir_dist_opt_plan(training.dist());
  ASSERT_NE(plan, nullptr);
  char text[256];
  const std::string option = plan->rows[plan->chosen].option;
  EXPECT_NE(option, "fp32");
  // Gradients were looked at: some are large, not all.
  const double share = plan->workload.large_share;
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 1);
  EXPECT_GT(Row(*plan, "sparseThreshold")->bytes, 32);
  EXPECT_EQ(std::string(choir_dist_opt_print_strategy(training.dist(), text,
                                                      sizeof text))
                .substr(0, option.size() + 1),
            option + " ");
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

// All ranks find that they cannot change their strategy: a step that none of
// them makes, and after which all can go on.
TEST(PlanTest, AutoThatCannotGoOnBreaksNothing) {
  if (RunRanks("shm", 3)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  const choir_auto_config_t config = SlowLink();
  Must(choir_dist_opt_use(training.dist(), &choir_strategy_def_auto, &config));
  Must(training.Attach());
  for (int64_t step = 0; step < 8; ++step)
    ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 48));
  const double lr = training.lr();
  if (comm.rank() == 2)
    Must(choir_optimizer_set_lr(training.optimizer(), 2 * lr));
  EXPECT_STATUS(FAILED_PRECONDITION, "the optimizers differ",
                training.TrainOn(8, comm.rank() * 16, 16, 48));
  ASSERT_OK(choir_comm_poll_error(comm.get()));
  Must(choir_optimizer_set_lr(training.optimizer(), lr));
  for (int64_t step = 8; step < 12; ++step)
    ASSERT_OK(training.TrainOn(step, comm.rank() * 16, 16, 48));
  EXPECT_NE(choir_dist_opt_plan(training.dist()), nullptr);
  ASSERT_OK(choir_updater_consolidate(training.updater()));
  EXPECT_OK(choir_dist_opt_check_digest(training.dist(), training.Digest()));
}

TEST(PlanTest, AGivenLinkNeedsABandwidth) {
  if (RunRanks("shm", 1)) return;
  Comm comm;
  Training training(SmallLayers(), comm.get(), {});
  choir_auto_config_t config = Defaults();
  config.ranks = 2;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "auto: ranks is 2 and bandwidth is 0",
      choir_dist_opt_use(training.dist(), &choir_strategy_def_auto, &config));
}

}  // namespace
}  // namespace choir_testing
