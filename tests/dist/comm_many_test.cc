// SPDX-License-Identifier: Apache-2.0
// More ranks than cores, by far.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

namespace {

using Longs = std::vector<int64_t>;

constexpr int32_t kRanks = 64;

// Of rank and element, so that no two are alike.
int64_t Value(int64_t rank, int64_t i) { return rank * 100003 + i * i; }

Longs Values(int64_t rank, int64_t count) {
  Longs values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Value(rank, i));
  return values;
}

int64_t Sum(int64_t i) {
  return int64_t{kRanks} * (kRanks - 1) / 2 * 100003 + kRanks * i * i;
}

void AddUp(choir_comm_t* comm, int64_t count) {
  Longs values = Values(choir_comm_rank(comm), count);
  ASSERT_OK(choir_comm_all_reduce(comm, values.data(), values.data(), count,
                                  CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM, "sums"));
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(values[static_cast<size_t>(i)], Sum(i)) << i << " of " << count;
}

void Scatter(choir_comm_t* comm, int64_t count) {
  const int64_t rank = choir_comm_rank(comm);
  const Longs values = Values(rank, count * kRanks);
  Longs own(static_cast<size_t>(count));
  ASSERT_OK(choir_comm_reduce_scatter(comm, values.data(), own.data(), count,
                                      CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM,
                                      "parts"));
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(own[static_cast<size_t>(i)], Sum(rank * count + i)) << i;
}

void Gather(choir_comm_t* comm, int64_t count) {
  const Longs own = Values(choir_comm_rank(comm), count);
  Longs all(static_cast<size_t>(kRanks * count));
  ASSERT_OK(choir_comm_all_gather(comm, own.data(), all.data(), count,
                                  CHOIR_DTYPE_I64, "all"));
  for (int64_t k = 0; k < kRanks * count; ++k)
    ASSERT_EQ(all[static_cast<size_t>(k)], Value(k / count, k % count)) << k;
}

void Exchange(choir_comm_t* comm, int64_t count) {
  const int64_t rank = choir_comm_rank(comm);
  const Longs own = Values(rank, count * kRanks);
  Longs from(own.size());
  ASSERT_OK(choir_comm_all_to_all(comm, own.data(), from.data(), count,
                                  CHOIR_DTYPE_I64, "each to each"));
  for (int64_t k = 0; k < kRanks * count; ++k)
    ASSERT_EQ(from[static_cast<size_t>(k)],
              Value(k / count, rank * count + k % count))
        << k;
}

void Broadcast(choir_comm_t* comm, int32_t root, int64_t count) {
  Longs values = Values(choir_comm_rank(comm), count);
  ASSERT_OK(choir_comm_broadcast(comm, values.data(), count, CHOIR_DTYPE_I64,
                                 root, "one's"));
  ASSERT_EQ(values, Values(root, count));
}

class CommManyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CommManyTest, ExchangeAsFewDo) {
  if (choir_testing::RunRanks(GetParam(), kRanks)) return;
  choir_comm_config_t config;
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_config_init(&config));
  config.deadline = choir_testing::Patience(60);
  ASSERT_OK(choir_comm_create(&config, &comm));
  ASSERT_EQ(choir_comm_size(comm), kRanks);
  for (int64_t count : {1, 63, 64, 65, 5000}) AddUp(comm, count);
  for (int64_t count : {1, 17}) {
    Scatter(comm, count);
    Gather(comm, count);
    Exchange(comm, count);
  }
  for (int32_t root : {0, 41, kRanks - 1}) Broadcast(comm, root, 1000);
  EXPECT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
}

INSTANTIATE_TEST_SUITE_P(Backends, CommManyTest,
                         ::testing::Values("shm", "tcp"),
                         [](const ::testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

}  // namespace
