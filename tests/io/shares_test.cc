// SPDX-License-Identifier: Apache-2.0
#include "io/shares.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/io/io_testing.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Shares = std::vector<int64_t>;

Shares FromSpeeds(const std::vector<double>& speeds, int64_t batch,
                  int64_t micro_shard) {
  Shares shares(speeds.size(), -1);
  EXPECT_OK(choir_shares_from_speeds(speeds.data(), (int32_t)speeds.size(),
                                     batch, micro_shard, shares.data()));
  return shares;
}

int64_t InShards(int64_t samples, int64_t micro_shard) {
  return (samples + micro_shard - 1) / micro_shard;
}

TEST(SharesFromSpeeds, AreWhatOneWouldSay) {
  EXPECT_EQ(FromSpeeds({7}, 100, 16), Shares({100}));
  EXPECT_EQ(FromSpeeds({5, 5}, 128, 16), Shares({64, 64}));
  EXPECT_EQ(FromSpeeds({3, 1}, 128, 16), Shares({96, 32}));
  EXPECT_EQ(FromSpeeds({1, 3}, 128, 16), Shares({32, 96}));
  EXPECT_EQ(FromSpeeds({1000, 2000, 1000}, 64, 16), Shares({16, 32, 16}));
  // 7 and 1 of 8 take 7 / 4, while 6 and 2 would take 2.
  EXPECT_EQ(FromSpeeds({4, 1}, 128, 16), Shares({112, 16}));
  // Of equal ones the first get more.
  EXPECT_EQ(FromSpeeds({2, 2, 2, 2}, 96, 16), Shares({32, 32, 16, 16}));
  // The slowest has one all the same.
  EXPECT_EQ(FromSpeeds({1e6, 1e-6, 1e6}, 64, 16), Shares({32, 16, 16}));
  // The step's last micro-shard is short.
  EXPECT_EQ(FromSpeeds({3, 1}, 100, 16), Shares({80, 20}));
  EXPECT_EQ(FromSpeeds({5, 5}, 100, 16), Shares({48, 52}));
  // Fewer than ranks: the fastest get them.
  EXPECT_EQ(FromSpeeds({1, 4, 2}, 30, 16), Shares({0, 16, 14}));
  EXPECT_EQ(FromSpeeds({1, 9, 2}, 30, 16), Shares({0, 30, 0}));
  EXPECT_EQ(FromSpeeds({1, 3, 2}, 32, 16), Shares({0, 16, 16}));
}

// All ways to share `shards` out, each rank at least `least`: the earliest end.
double BestEnd(const std::vector<double>& speeds, size_t rank, int64_t shards,
               int64_t least) {
  if (rank + 1 == speeds.size()) {
    return shards < least ? INFINITY : (double)shards / speeds[rank];
  }
  double best = INFINITY;
  for (int64_t own = least; own <= shards; ++own) {
    best = std::min(best,
                    std::max((double)own / speeds[rank],
                             BestEnd(speeds, rank + 1, shards - own, least)));
  }
  return best;
}

TEST(SharesFromSpeeds, NoOtherSharesEndEarlier) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> speed(1, 20);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> speeds(1 + random() % 4);
    for (double& one : speeds) one = speed(random);
    const int64_t shards = 1 + (int64_t)(random() % 14);
    const int64_t least = shards >= (int64_t)speeds.size() ? 1 : 0;
    const Shares shares = FromSpeeds(speeds, shards * 16, 16);
    double end = 0;
    for (size_t i = 0; i < speeds.size(); ++i) {
      EXPECT_GE(shares[i], 16 * least);
      end = std::max(end, (double)shares[i] / 16 / speeds[i]);
    }
    EXPECT_EQ(end, BestEnd(speeds, 0, shards, least));
  }
}

TEST(SharesFromSpeeds, AreWholeMicroShardsOfTheGlobalBatch) {
  for (size_t size : {1u, 2u, 3u, 4u, 7u}) {
    std::vector<double> speeds;
    for (size_t i = 0; i < size; ++i) speeds.push_back(100.0 + 37 * (i % 3));
    for (int64_t batch : {1, 15, 16, 17, 100, 112, 1000, 4099}) {
      for (int64_t micro_shard : {1, 5, 16, 5000}) {
        SCOPED_TRACE(testing::Message()
                     << size << " " << batch << " " << micro_shard);
        const Shares shares = FromSpeeds(speeds, batch, micro_shard);
        int64_t end = 0;
        for (int64_t share : shares) {
          EXPECT_GE(share, 0);
          end += share;
          EXPECT_TRUE(end % micro_shard == 0 || end == batch);
          if (InShards(batch, micro_shard) >= (int64_t)size) {
            EXPECT_GT(share, 0);
          }
        }
        EXPECT_EQ(end, batch);
      }
    }
  }
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(FromSpeeds({1, 2}, huge, huge), Shares({0, huge}));
  EXPECT_EQ(FromSpeeds({1, 2}, huge, huge - 1), Shares({huge - 1, 1}));
}

TEST(SharesFromSpeeds, WrongNumbersAreNamed) {
  int64_t shares[2];
  const auto fails = [&](double speed, int32_t size, int64_t batch,
                         int64_t micro_shard, const std::string& why) {
    const double speeds[] = {1, speed};
    IO_EXPECT_FAILS(
        choir_shares_from_speeds(speeds, size, batch, micro_shard, shares),
        INVALID_ARGUMENT, HasSubstr(why));
  };
  for (double speed : {0.0, -1.0, (double)INFINITY, (double)NAN})
    fails(speed, 2, 32, 16, "rank 1 does ");
  fails(1, 0, 32, 16, "0 ranks");
  fails(1, 2, 0, 16, "a global batch of 0");
  fails(1, 2, 32, 0, "micro-shards of 0");
}

TEST(Shares, TextThereAndBack) {
  for (const Shares& shares :
       {Shares{7}, Shares{96, 32}, Shares{0, INT64_MAX, 10}}) {
    std::string text(21 * shares.size(), '?');
    choir_shares_print(shares.data(), (int32_t)shares.size(), &text[0],
                       text.size());
    Shares back(shares.size(), -1);
    EXPECT_OK(
        choir_shares_parse(text.c_str(), (int32_t)back.size(), back.data()));
    EXPECT_EQ(back, shares) << text;
  }
  const int64_t shares[] = {96, 32, 16};
  char text[8];
  EXPECT_STREQ(choir_shares_print(shares, 3, text, sizeof(text)), "96,32,1");
  EXPECT_STREQ(choir_shares_print(shares, 3, text, 3), "96");
  EXPECT_STREQ(choir_shares_print(shares, 1, text, sizeof(text)), "96");
  text[0] = 'x';
  choir_shares_print(shares, 3, text, 0);
  EXPECT_EQ(text[0], 'x');
}

TEST(Shares, OtherTextsAreRefused) {
  for (const char* text :
       {"", "96", "96,", ",32", "96,32,", "96,32,16", "96;32", "96,-32",
        "96, 32", "+96,32", "96,32x", "x", "96,99999999999999999999"}) {
    int64_t shares[2];
    IO_EXPECT_FAILS(
        choir_shares_parse(text, 2, shares), INVALID_ARGUMENT,
        AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr("2 ranks")));
  }
}

}  // namespace
