// SPDX-License-Identifier: Apache-2.0
// Ranks that run out of data before others.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {

// Steps before rank r joins: not in rank order, some the same.
int StepsOf(int rank) {
  const int steps[] = {3, 0, 5, 1, 5, 2, 4};
  return steps[rank];
}

// Sums over those that still have data; averages divide by all ranks.
TEST_P(CommSuite, JoinedRanksCountAsZeros) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  int last = 0;
  for (int r = 0; r < size_; ++r)
    if (StepsOf(r) >= StepsOf(last)) last = r;
  const std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  // Twice: it starts anew when all have joined.
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < StepsOf(rank_); ++step) {
      for (int64_t count : {int64_t{0}, int64_t{5}, int64_t{140001}}) {
        for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_I32}) {
          if (count > 1000 && (dtype == CHOIR_DTYPE_I32 || step % 2)) continue;
          size_t e = choir_dtype_bytes(dtype);
          std::vector<std::vector<unsigned char>> all;
          for (int r = 0; r < size_; ++r) {
            all.push_back(Data(r + step, count, dtype));
            if (StepsOf(r) <= step) memset(all.back().data(), 0, all[0].size());
          }
          const auto& own = all[static_cast<size_t>(rank_)];
          for (choir_reduce_t op : {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE}) {
            std::vector<unsigned char> expected(all[0].size());
            for (int64_t i = 0; i < count; ++i)
              Expect(all, weights, dtype, op, i,
                     &expected[static_cast<size_t>(i) * e]);
            std::vector<unsigned char> data = own;
            ASSERT_OK(choir_comm_all_reduce(comm_, data.data(), data.data(),
                                            count, dtype, op, "step"));
            ASSERT_EQ(FirstDifference(data.data(), expected.data(), count, e),
                      -1)
                << "step " << step << " count " << count << " op " << op;
          }
        }
      }
    }
    int32_t told = -1;
    ASSERT_OK(choir_comm_join(comm_, &told));
    EXPECT_EQ(told, last);
    ASSERT_OK(choir_comm_barrier(comm_, "epoch"));
  }
}

// With factors, in a group of tensors, and in memory that others share.
TEST_P(CommSuite, JoinedRanksTakePartInAllForms) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int64_t counts[2] = {30011, 7};
  Memory shared(comm_, device_, true, 30011 * 8);
  Memory small(comm_, device_, true, 7 * 8);
  if (rank_ > 0 || size_ == 1) {
    double* data[2] = {reinterpret_cast<double*>(shared.data()),
                       reinterpret_cast<double*>(small.data())};
    choir_comm_tensor_t tensors[2];
    for (int t = 0; t < 2; ++t) {
      tensors[t] = {data[t], data[t], counts[t]};
      for (int64_t i = 0; i < counts[t]; ++i)
        data[t][i] = static_cast<double>(rank_ + 1);
    }
    double sum = 0;
    for (int r = size_ == 1 ? 0 : 1; r < size_; ++r) sum += 0.5 * (r + 1);
    choir_collective_t c = {};
    c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
    c.dtype = CHOIR_DTYPE_F64;
    c.weight = 1;
    c.scales = true;
    c.prescale = 0.5;
    c.postscale = 4;
    c.name = "scaled";
    c.tensors = tensors;
    c.tensor_count = 2;
    ASSERT_OK(choir_comm_run(comm_, &c));
    for (int t = 0; t < 2; ++t)
      for (int64_t i = 0; i < counts[t]; ++i) ASSERT_EQ(data[t][i], 4 * sum);
    c.tensors = nullptr;
    c.scales = false;
    for (int t = 0; t < 2; ++t) {
      double before = data[t][0];
      c.count = counts[t];
      c.src = c.dst = data[t];
      ASSERT_OK(choir_comm_run(comm_, &c));
      int active = size_ == 1 ? 1 : size_ - 1;
      for (int64_t i = 0; i < counts[t]; ++i)
        ASSERT_EQ(data[t][i], active * before);
    }
  }
  int32_t last = -1;
  ASSERT_OK(choir_comm_join(comm_, &last));
  EXPECT_EQ(last, size_ - 1);
  EXPECT_TRUE(shared.GuardsHold() && small.GuardsHold());
}

// All else is an error that names who has joined; they wait on.
TEST_P(CommSuite, JoinedRanksAreNamed) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ < 2) return;
  // All but ranks 0 and size-1 join; of two, rank 1 alone.
  bool joins = size_ == 2 ? rank_ == 1 : rank_ > 0 && rank_ < size_ - 1;
  std::string who = size_ <= 3   ? "rank 1 has"
                    : size_ == 4 ? "ranks 1 and 2 have"
                                 : "ranks 1, 2, 3, 4 and 5 have";
  if (!joins) {
    int operation = 0;
    auto expect = [&](choir_status_t status, std::string text) {
      text.replace(text.find('#'), 1, std::to_string(++operation));
      EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(choir_status_message(status)), text);
      choir_status_free(status);
    };
    std::vector<float> data(5000, 1);
    void* at = data.data();
    const std::string only =
        " joined; until all ranks have, only sums and averages by all_reduce "
        "are possible";
    expect(choir_comm_broadcast(comm_, at, 5, CHOIR_DTYPE_F32, 0, "w"),
           "broadcast 'w' (operation #): " + who + only);
    expect(choir_comm_all_gather_v(comm_, at, 5, data.data() + 100, 4000,
                                   nullptr, CHOIR_DTYPE_F32, "g"),
           "all_gather_v 'g' (operation #): " + who + only);
    expect(choir_comm_barrier(comm_, "b"),
           "barrier 'b' (operation #): " + who + only);
    expect(choir_comm_all_reduce(comm_, at, at, 5000, CHOIR_DTYPE_F32,
                                 CHOIR_REDUCE_MAX, "m"),
           "all_reduce 'm' (operation #): " + who + only);
    choir_comm_t* group = nullptr;
    const int32_t ranks[] = {0};
    expect(choir_comm_group(comm_, ranks, 1, &group),
           "group (operation #): " + who + only);
    if (size_ > 2) {
      expect(choir_comm_all_reduce(comm_, at, at, rank_ == 0 ? 5 : 6,
                                   CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "d"),
             "all_reduce 'd' (operation #): rank 0 has 5 f32, rank " +
                 std::to_string(size_ - 1) +
                 " has 6 f32; all ranks need the same");
    }
    expect(choir_comm_all_reduce(comm_, at, at, -1, CHOIR_DTYPE_F32,
                                 CHOIR_REDUCE_SUM, "n"),
           "all_reduce 'n' (operation #): rank 0: count is -1; it must be 0 or "
           "more");
    ASSERT_OK(choir_comm_all_reduce(comm_, at, at, 5000, CHOIR_DTYPE_F32,
                                    CHOIR_REDUCE_SUM, "s"));
    EXPECT_EQ(data[4999], size_ == 2 ? 1 : 2);
  }
  int32_t last = -1;
  ASSERT_OK(choir_comm_join(comm_, &last));
  EXPECT_EQ(last, size_ == 2 ? 0 : size_ - 1);
  ASSERT_OK(choir_comm_barrier(comm_, "after"));
}

}  // namespace comm_suite
