// SPDX-License-Identifier: Apache-2.0
#include "io/partition.h"

#include <algorithm>
#include <cstdint>
#include <limits>
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
