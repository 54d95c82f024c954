// SPDX-License-Identifier: Apache-2.0
#include "io/partition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kCounts[] = {1,  2,  15,  16,  17,  31,   63,   64,
                               65, 97, 100, 127, 255, 1000, 1023, 4099};
constexpr int64_t kBatches[] = {1, 3, 16, 17, 33, 64, 100, 256, 1000, 5000};
constexpr int64_t kShards[] = {1, 5, 16, 64};
constexpr int32_t kSizes[] = {1, 2, 3, 4, 7, 16};

template <typename Body>
void ForAll(Body body) {
  for (int64_t count : kCounts) {
    for (int64_t batch : kBatches) {
      for (int64_t shard : kShards) {
        for (int32_t size : kSizes) body(count, batch, shard, size);
      }
    }
  }
}

// Every position once, in rank order, without gap or overlap.
TEST(Partition, RanksCoverEveryStepExactlyOnce) {
  ForAll([](int64_t count, int64_t batch, int64_t shard, int32_t size) {
    SCOPED_TRACE(testing::Message() << count << " samples, " << batch << ", "
                                    << shard << ", " << size << " ranks");
    choir_partition_t partition = {count, batch, shard, 0, size};
    const int64_t steps = choir_partition_steps(&partition);
    int64_t position = 0;
    for (int64_t step = 0; step < steps; ++step) {
      int64_t step_count = -1;
      const int64_t step_first = position;
      for (int32_t rank = 0; rank < size; ++rank) {
        partition.rank = rank;
        ASSERT_EQ(choir_partition_steps(&partition), steps);
        choir_partition_part_t part = choir_partition_step(&partition, step);
        ASSERT_EQ(part.step_first, step_first);
        if (rank == 0) step_count = part.step_count;
        ASSERT_EQ(part.step_count, step_count);
        ASSERT_EQ(part.step_first + part.first_in_step, position);
        ASSERT_GE(part.count, 0);
        position += part.count;
      }
      ASSERT_EQ(position, step_first + step_count);
      ASSERT_LE(step_count, batch);
      if (step < steps - 1) {
        ASSERT_EQ(step_count, batch);
      }
    }
    ASSERT_EQ(position, count);
  });
}

// Cuts fall on micro-shards, and no rank has two shards more than another.
TEST(Partition, RanksOwnWholeMicroShardsEvenly) {
  ForAll([](int64_t count, int64_t batch, int64_t shard, int32_t size) {
    SCOPED_TRACE(testing::Message() << count << " samples, " << batch << ", "
                                    << shard << ", " << size << " ranks");
    choir_partition_t partition = {count, batch, shard, 0, size};
    for (int64_t step = 0; step < choir_partition_steps(&partition); ++step) {
      int64_t most = 0;
      int64_t least = std::numeric_limits<int64_t>::max();
      int64_t before = std::numeric_limits<int64_t>::max();
      for (partition.rank = 0; partition.rank < size; ++partition.rank) {
        choir_partition_part_t part = choir_partition_step(&partition, step);
        ASSERT_TRUE(part.first_in_step % shard == 0 ||
                    part.first_in_step == part.step_count);
        const int64_t shards = (part.count + shard - 1) / shard;
        ASSERT_LE(shards, before);
        before = shards;
        most = std::max(most, shards);
        least = std::min(least, shards);
      }
      ASSERT_LE(most - least, 1);
      partition.rank = 0;
    }
  });
}

TEST(Partition, CapacityIsTheLargestPart) {
  ForAll([](int64_t count, int64_t batch, int64_t shard, int32_t size) {
    choir_partition_t partition = {count, batch, shard, 0, size};
    const int64_t steps = choir_partition_steps(&partition);
    for (partition.rank = 0; partition.rank < size; ++partition.rank) {
      int64_t largest = 0;
      for (int64_t step = 0; step < steps; ++step) {
        largest =
            std::max(largest, choir_partition_step(&partition, step).count);
      }
      ASSERT_EQ(choir_partition_capacity(&partition), largest)
          << count << " " << batch << " " << shard << " " << partition.rank
          << " of " << size;
    }
  });
}

// Of an epoch whose first steps had another global batch: those to come take
// the rest of it, like an epoch of so many samples.
TEST(Partition, AnEpochGoesOnWithAnotherGlobalBatch) {
  ForAll([](int64_t count, int64_t batch, int64_t shard, int32_t size) {
    for (int64_t first : {int64_t{1}, count / 3, count}) {
      if (first < 1 || first > count) continue;
      choir_partition_t begun = {count, batch, shard, 0, size, nullptr};
      begun.first_sample = first;
      begun.first_step = (first + 1) / 2;
      ASSERT_OK(choir_partition_check(&begun));
      choir_partition_t rest = {count - first, batch, shard, 0, size};
      const int64_t steps =
          count > first ? choir_partition_steps(&rest) : int64_t{0};
      ASSERT_EQ(choir_partition_steps(&begun), begun.first_step + steps);
      EXPECT_EQ(choir_partition_step(&begun, begun.first_step - 1).count, 0);
      for (begun.rank = 0; begun.rank < size; ++begun.rank) {
        rest.rank = begun.rank;
        ASSERT_EQ(choir_partition_capacity(&begun),
                  steps ? choir_partition_capacity(&rest) : 0);
        for (int64_t step = 0; step <= steps; ++step) {
          const choir_partition_part_t part =
              choir_partition_step(&begun, begun.first_step + step);
          const choir_partition_part_t want =
              steps ? choir_partition_step(&rest, step)
                    : choir_partition_part_t{};
          ASSERT_EQ(part.count, want.count);
          ASSERT_EQ(part.step_count, want.step_count);
          ASSERT_EQ(part.first_in_step, want.first_in_step);
          if (part.step_count) {
            ASSERT_EQ(part.step_first, first + want.step_first);
          }
        }
      }
    }
  });
}

TEST(Partition, TheExampleOfTheHeader) {
  choir_partition_t partition = {60000, 256, 16, 0, 4};
  EXPECT_EQ(choir_partition_steps(&partition), 235);
  const int64_t last[] = {32, 32, 16, 16};
  for (int32_t rank = 0; rank < 4; ++rank) {
    partition.rank = rank;
    EXPECT_EQ(choir_partition_step(&partition, 0).count, 64);
    EXPECT_EQ(choir_partition_step(&partition, 234).count, last[rank]);
  }
}

// With more ranks than micro-shards the last ones get nothing.
TEST(Partition, ARankMayGetNothing) {
  choir_partition_t partition = {20, 20, 16, 2, 3};
  choir_partition_part_t part = choir_partition_step(&partition, 0);
  EXPECT_EQ(part.count, 0);
  EXPECT_EQ(part.first_in_step, 20);
  EXPECT_EQ(choir_partition_capacity(&partition), 0);
}

TEST(Partition, NoSuchStepIsEmpty) {
  choir_partition_t partition = {100, 10, 16, 0, 1};
  for (int64_t step : {INT64_MIN, (int64_t)-1, (int64_t)10, INT64_MAX}) {
    choir_partition_part_t part = choir_partition_step(&partition, step);
    EXPECT_EQ(part.count, 0);
    EXPECT_EQ(part.step_count, 0);
  }
}

TEST(Partition, HugeNumbersDoNotOverflow) {
  const int64_t huge = INT64_MAX;
  choir_partition_t partition = {huge, huge, huge, 0, INT32_MAX};
  EXPECT_EQ(choir_partition_steps(&partition), 1);
  EXPECT_EQ(choir_partition_step(&partition, 0).count, huge);
  partition = {huge, huge - 1, 3, INT32_MAX - 1, INT32_MAX};
  EXPECT_EQ(choir_partition_steps(&partition), 2);
  EXPECT_EQ(choir_partition_step(&partition, 1).count, 0);
  partition = {huge, 1, 1, 0, 1};
  EXPECT_EQ(choir_partition_step(&partition, huge - 1).step_first, huge - 1);
}

// ---- Shares ----

choir_partition_t WithShares(int64_t count, int64_t batch, int64_t shard,
                             const std::vector<int64_t>& shares) {
  return {count, batch, shard, 0, (int32_t)shares.size(), shares.data()};
}

// Shares of `batch` in the proportion of `weights`, cut on micro-shards.
std::vector<int64_t> SharesOf(int64_t batch, int64_t shard,
                              const std::vector<int64_t>& weights) {
  const int64_t sum =
      std::accumulate(weights.begin(), weights.end(), (int64_t)0);
  std::vector<int64_t> shares;
  int64_t weight = 0;
  int64_t begin = 0;
  for (int64_t one : weights) {
    weight += one;
    const int64_t end =
        weight == sum ? batch : batch * weight / sum / shard * shard;
    shares.push_back(end - begin);
    begin = end;
  }
  return shares;
}

template <typename Body>
void ForAllShares(Body body) {
  const std::vector<std::vector<int64_t>> weights = {
      {1},
      {2, 1},
      {1, 3},
      {0, 1},
      {1, 0},
      {1, 2, 3},
      {5, 0, 1},
      {1, 1, 1, 13},
      {12, 6, 6, 1},
      {3, 1, 4, 1, 5, 9, 2},
      {0, 0, 7, 0, 1, 0, 0},
  };
  for (int64_t count : kCounts) {
    for (int64_t batch : kBatches) {
      for (int64_t shard : kShards) {
        for (const std::vector<int64_t>& some : weights) {
          const std::vector<int64_t> shares = SharesOf(batch, shard, some);
          SCOPED_TRACE(testing::Message()
                       << count << " samples, " << batch << ", " << shard
                       << ", shares " << testing::PrintToString(shares));
          body(count, batch, shard, shares);
        }
      }
    }
  }
}

TEST(PartitionShares, CoverEveryStepExactlyOnce) {
  ForAllShares([](int64_t count, int64_t batch, int64_t shard,
                  const std::vector<int64_t>& shares) {
    choir_partition_t partition = WithShares(count, batch, shard, shares);
    ASSERT_OK(choir_partition_check(&partition));
    choir_partition_t even = partition;
    even.shares = nullptr;
    const int64_t steps = choir_partition_steps(&partition);
    ASSERT_EQ(steps, choir_partition_steps(&even));
    for (int64_t step = 0; step < steps; ++step) {
      const choir_partition_part_t all = choir_partition_step(&even, step);
      int64_t position = 0;
      for (partition.rank = 0; partition.rank < partition.size;
           ++partition.rank) {
        const choir_partition_part_t part =
            choir_partition_step(&partition, step);
        const int64_t share = shares[(size_t)partition.rank];
        ASSERT_EQ(part.step_first, all.step_first);
        ASSERT_EQ(part.step_count, all.step_count);
        ASSERT_EQ(part.first_in_step, position);
        ASSERT_TRUE(position % shard == 0 || position == part.step_count);
        if (part.step_count == batch) {
          ASSERT_EQ(part.count, share);
        }
        // In a shorter step: its part, to the micro-shard.
        const int64_t whole = (batch + shard - 1) / shard;
        const int64_t some = (part.step_count + shard - 1) / shard;
        const double exact = (double)((share + shard - 1) / shard) *
                             (double)some / (double)whole;
        ASSERT_LT(std::fabs((double)((part.count + shard - 1) / shard) - exact),
                  1.0);
        position += part.count;
      }
      partition.rank = 0;
      ASSERT_EQ(position, all.step_count);
    }
    for (; partition.rank < partition.size; ++partition.rank) {
      ASSERT_EQ(choir_partition_capacity(&partition),
                std::max(choir_partition_step(&partition, 0).count,
                         choir_partition_step(&partition, steps - 1).count));
    }
  });
}

// Said in words or not, alike is alike.
TEST(PartitionShares, EqualOnesAreTheDefault) {
  ForAll([](int64_t count, int64_t batch, int64_t shard, int32_t size) {
    choir_partition_t even = {count, batch, shard, 0, size, nullptr};
    std::vector<int64_t> shares;
    for (; even.rank < size; ++even.rank) {
      // A first step of a data set that is large enough is a full one.
      choir_partition_t full = even;
      full.sample_count = batch;
      shares.push_back(choir_partition_step(&full, 0).count);
    }
    choir_partition_t said = WithShares(count, batch, shard, shares);
    ASSERT_OK(choir_partition_check(&said));
    // Unless some have a micro-shard more already.
    if ((batch + shard - 1) / shard % size != 0) return;
    const int64_t step = choir_partition_steps(&even) - 1;
    for (even.rank = 0; even.rank < size; ++even.rank) {
      said.rank = even.rank;
      ASSERT_EQ(choir_partition_step(&said, step).count,
                choir_partition_step(&even, step).count)
          << count << " " << batch << " " << shard << " " << size;
    }
  });
}

TEST(PartitionShares, TheExampleOfTheHeader) {
  const int64_t last[] = {48, 32, 16, 0};
  const std::vector<int64_t> shares = {128, 64, 48, 16};
  choir_partition_t partition = WithShares(60000, 256, 16, shares);
  for (partition.rank = 0; partition.rank < 4; ++partition.rank) {
    EXPECT_EQ(choir_partition_step(&partition, 234).count,
              last[partition.rank]);
  }
}

TEST(PartitionShares, CheckNamesTheWrongOne) {
  const auto refused = [](const std::vector<int64_t>& shares,
                          const std::string& why) {
    choir_partition_t partition = WithShares(1000, 100, 16, shares);
    IO_EXPECT_FAILS(choir_partition_check(&partition), INVALID_ARGUMENT,
                    HasSubstr(why));
  };
  refused({64, 32},
          "the shares are 96 samples together; the global batch is "
          "100");
  refused({64, 48},
          "the share of rank 1 is 48; the global batch of 100 "
          "samples has 0 to 36 for it");
  refused({-16, 116}, "the share of rank 0 is -16");
  refused({50, 50},
          "the share of rank 0 is 50; it must be a multiple of the "
          "micro-shard, 16");
  refused({INT64_MAX, INT64_MAX}, "the share of rank 0 is 9223372036854775807");
  // The short micro-shard at the end, wherever it ends.
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{64, 36}, {100, 0}, {0, 100}}) {
    choir_partition_t partition = WithShares(1000, 100, 16, shares);
    EXPECT_OK(choir_partition_check(&partition));
  }
  const std::vector<int64_t> many = {INT64_MAX, 0};
  choir_partition_t partition = WithShares(1000, INT64_MAX, 16, many);
  IO_EXPECT_FAILS(choir_partition_check(&partition), INVALID_ARGUMENT,
                  HasSubstr("more than 2147483647"));
  partition.micro_shard = INT64_MAX / 2;
  EXPECT_OK(choir_partition_check(&partition));
  partition.sample_count = INT64_MAX;
  EXPECT_EQ(choir_partition_step(&partition, 0).count, INT64_MAX);
}

TEST(Partition, CheckNamesTheWrongNumber) {
  choir_partition_t good = {10, 4, 16, 1, 2};
  EXPECT_OK(choir_partition_check(&good));
  choir_partition_t bad = good;
  bad.sample_count = 0;
  IO_EXPECT_FAILS(choir_partition_check(&bad), INVALID_ARGUMENT,
                  HasSubstr("sample_count is 0"));
  bad = good;
  bad.global_batch = -3;
  IO_EXPECT_FAILS(choir_partition_check(&bad), INVALID_ARGUMENT,
                  HasSubstr("global_batch is -3"));
  bad = good;
  bad.micro_shard = 0;
  IO_EXPECT_FAILS(choir_partition_check(&bad), INVALID_ARGUMENT,
                  HasSubstr("micro_shard is 0"));
  bad = good;
  bad.size = 0;
  IO_EXPECT_FAILS(choir_partition_check(&bad), INVALID_ARGUMENT,
                  HasSubstr("size is 0"));
  for (int32_t rank : {-1, 2}) {
    bad = good;
    bad.rank = rank;
    IO_EXPECT_FAILS(choir_partition_check(&bad), INVALID_ARGUMENT,
                    AllOf(HasSubstr("rank is " + std::to_string(rank)),
                          HasSubstr("0 to 1")));
  }
}

}  // namespace
