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

// Of rank and element, so that no two are alike.
int64_t Value(int64_t rank, int64_t i) { return rank * 100003 + i * i; }

Longs Values(int64_t rank, int64_t count) {
  Longs values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Value(rank, i));
  return values;
}

int64_t Sum(choir_comm_t* comm, int64_t i) {
  const int64_t ranks = choir_comm_size(comm);
  return ranks * (ranks - 1) / 2 * 100003 + ranks * i * i;
}

void AddUp(choir_comm_t* comm, int64_t count) {
  Longs values = Values(choir_comm_rank(comm), count);
  ASSERT_OK(choir_comm_all_reduce(comm, values.data(), values.data(), count,
                                  CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM, "sums"));
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(values[static_cast<size_t>(i)], Sum(comm, i))
        << i << " of " << count;
}

void Scatter(choir_comm_t* comm, int64_t count) {
  const int64_t rank = choir_comm_rank(comm);
  const Longs values = Values(rank, count * choir_comm_size(comm));
  Longs own(static_cast<size_t>(count));
  ASSERT_OK(choir_comm_reduce_scatter(comm, values.data(), own.data(), count,
                                      CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM,
                                      "parts"));
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(own[static_cast<size_t>(i)], Sum(comm, rank * count + i)) << i;
}

void Gather(choir_comm_t* comm, int64_t count) {
  const Longs own = Values(choir_comm_rank(comm), count);
  const int64_t total = choir_comm_size(comm) * count;
  Longs all(static_cast<size_t>(total));
  ASSERT_OK(choir_comm_all_gather(comm, own.data(), all.data(), count,
                                  CHOIR_DTYPE_I64, "all"));
  for (int64_t k = 0; k < total; ++k)
    ASSERT_EQ(all[static_cast<size_t>(k)], Value(k / count, k % count)) << k;
}

void Exchange(choir_comm_t* comm, int64_t count) {
  const int64_t rank = choir_comm_rank(comm);
  const int64_t total = choir_comm_size(comm) * count;
  const Longs own = Values(rank, total);
  Longs from(own.size());
  ASSERT_OK(choir_comm_all_to_all(comm, own.data(), from.data(), count,
                                  CHOIR_DTYPE_I64, "each to each"));
  for (int64_t k = 0; k < total; ++k)
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

struct Many {
  const char* backend;
  int32_t ranks;
};

class CommManyTest : public ::testing::TestWithParam<Many> {};

TEST_P(CommManyTest, ExchangeAsFewDo) {
  const int32_t ranks = GetParam().ranks;
  if (choir_testing::RunRanks(GetParam().backend, ranks)) return;
  choir_comm_config_t config;
  choir_comm_t* comm = nullptr;
  ASSERT_OK(choir_comm_config_init(&config));
  config.deadline = choir_testing::Patience(60);
  ASSERT_OK(choir_comm_create(&config, &comm));
  ASSERT_EQ(choir_comm_size(comm), ranks);
  for (int64_t count : {1, 63, 64, 65, 5000}) AddUp(comm, count);
  for (int64_t count : {1, 17}) {
    Scatter(comm, count);
    Gather(comm, count);
    Exchange(comm, count);
  }
  for (int32_t root : {0, 2 * ranks / 3, ranks - 1})
    Broadcast(comm, root, 1000);
  // A difference is told, and breaks nothing.
  int64_t values[2] = {};
  const int32_t rank = choir_comm_rank(comm);
  EXPECT_STATUS(
      INVALID_ARGUMENT, "have 1 i64, rank 5 has 2 i64; all ranks need the same",
      choir_comm_all_reduce(comm, values, values, rank == 5 ? 2 : 1,
                            CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM, "other"));
  AddUp(comm, 3);
  EXPECT_OK(choir_comm_finalize(comm));
  choir_comm_release(comm);
}

INSTANTIATE_TEST_SUITE_P(Backends, CommManyTest,
                         ::testing::Values(Many{"shm", 64}, Many{"tcp", 9},
                                           Many{"tcp", 13}, Many{"tcp", 16},
                                           Many{"tcp", 64}),
                         [](const ::testing::TestParamInfo<Many>& info) {
                           return info.param.backend +
                                  ("_" + std::to_string(info.param.ranks));
                         });

}  // namespace
