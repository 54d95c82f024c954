// SPDX-License-Identifier: Apache-2.0
// Groups of ranks as communicators of their own.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {

// Sums over a group what only its members know.
void CheckGroup(choir_comm_t* group, const std::vector<int32_t>& ranks,
                int rank) {
  const int size = static_cast<int>(ranks.size());
  int own = -1;
  for (int i = 0; i < size; ++i)
    if (ranks[static_cast<size_t>(i)] == rank) own = i;
  if (own < 0) {
    ASSERT_EQ(group, nullptr);
    return;
  }
  ASSERT_NE(group, nullptr);
  ASSERT_EQ(choir_comm_rank(group), own);
  ASSERT_EQ(choir_comm_size(group), size);
  for (int64_t count : {int64_t{3}, int64_t{30011}}) {
    std::vector<double> data;
    for (int64_t i = 0; i < count; ++i)
      data.push_back(static_cast<double>((rank + 1) * (i + 1)));
    ASSERT_OK(choir_comm_all_reduce(group, data.data(), data.data(), count,
                                    CHOIR_DTYPE_F64, CHOIR_REDUCE_SUM, "sum"));
    double sum = 0;
    for (int32_t r : ranks) sum += r + 1;
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(data[static_cast<size_t>(i)], sum * static_cast<double>(i + 1));
    // Ranks of the group, in the order of the list.
    std::vector<int32_t> all(static_cast<size_t>(size), -1);
    int32_t world_rank = rank;
    ASSERT_OK(choir_comm_all_gather(group, &world_rank, all.data(), 1,
                                    CHOIR_DTYPE_I32, "who"));
    ASSERT_EQ(all, ranks);
  }
}

void MakeAndCheck(choir_comm_t* comm, const std::vector<int32_t>& ranks) {
  choir_comm_t* group = nullptr;
  ASSERT_OK(choir_comm_group(comm, ranks.data(),
                             static_cast<int32_t>(ranks.size()), &group));
  CheckGroup(group, ranks, choir_comm_rank(comm));
  if (group) {
    ASSERT_OK(choir_comm_finalize(group));
  }
  choir_comm_release(group);
}

TEST_P(CommSuite, GroupsOfRanks) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<int32_t> even, odd, backwards, last = {size_ - 1};
  for (int r = 0; r < size_; ++r) (r % 2 ? odd : even).push_back(r);
  for (int r = size_ - 1; r >= 0; --r) backwards.push_back(r);
  ASSERT_NO_FATAL_FAILURE(MakeAndCheck(comm_, even));
  if (!odd.empty()) {
    ASSERT_NO_FATAL_FAILURE(MakeAndCheck(comm_, odd));
  }
  ASSERT_NO_FATAL_FAILURE(MakeAndCheck(comm_, backwards));
  ASSERT_NO_FATAL_FAILURE(MakeAndCheck(comm_, last));
  // Two at a time, between operations of their parent, and a group of a group.
  choir_comm_t* a = nullptr;
  choir_comm_t* b = nullptr;
  ASSERT_OK(choir_comm_group(comm_, even.data(),
                             static_cast<int32_t>(even.size()), &a));
  ASSERT_OK(choir_comm_group(comm_, backwards.data(), size_, &b));
  CheckGroup(b, backwards, rank_);
  ASSERT_OK(choir_comm_barrier(comm_, "between"));
  CheckGroup(a, even, rank_);
  if (a) {
    choir_comm_t* inner = nullptr;
    const int32_t first = 0;
    ASSERT_OK(choir_comm_group(a, &first, 1, &inner));
    EXPECT_EQ(inner != nullptr, rank_ == 0);
    if (inner) {
      const std::string backend = GetParam().backend;
      EXPECT_EQ(choir_comm_backend(inner),
                backend == "nccl" ? backend : "self");
    }
    choir_comm_release(inner);
    ASSERT_OK(choir_comm_finalize(a));
  }
  ASSERT_OK(choir_comm_finalize(b));
  choir_comm_release(a);
  choir_comm_release(b);
}

// What breaks a group does not break its parent.
TEST_P(CommSuite, GroupsBreakAlone) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  // Open MPI takes a program that aborted for one that failed.
  if (size_ < 3 || !strcmp(GetParam().backend, "mpi")) return;
  const int32_t ranks[] = {2, 0};
  choir_comm_t* group = nullptr;
  ASSERT_OK(choir_comm_group(comm_, ranks, 2, &group));
  if (rank_ == 0) choir_comm_abort(group, "enough");
  if (rank_ == 2) {
    choir_status_t status = choir_comm_barrier(group, "never");
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_ABORTED);
    EXPECT_TRUE(choir_testing::Matches(
        choir_status_message(status),
        "barrier 'never' \\(operation 1\\): rank 1 \\(host [^ ]+, pid \\d+\\) "
        "aborted: enough"))
        << choir_status_message(status);
    choir_status_free(status);
  }
  ASSERT_OK(choir_comm_barrier(comm_, "parent"));
  choir_comm_release(group);
}

TEST_P(CommSuite, WrongGroupsOfRanksAreToldOnAllRanks) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  bool odd = rank_ == 1;
  int operation = 0;
  std::string rest = size_ == 2   ? "rank 0 wants"
                     : size_ == 3 ? "ranks 0 and 2 want"
                     : size_ == 4 ? "ranks 0, 2 and 3 want"
                                  : "ranks 0, 2, 3, 4, 5 and 6 want";
  auto expect = [&](const std::vector<int32_t>& ranks, std::string text) {
    choir_comm_t* group = nullptr;
    choir_status_t status =
        choir_comm_group(comm_, ranks.empty() ? nullptr : ranks.data(),
                         static_cast<int32_t>(ranks.size()), &group);
    text.replace(text.find('#'), 1, std::to_string(++operation));
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), text);
    EXPECT_EQ(group, nullptr);
    choir_status_free(status);
  };
  using List = std::vector<int32_t>;
  expect(odd ? List{1, 0} : List{0, 1},
         "group (operation #): " + rest +
             " ranks 0, 1, rank 1 wants ranks 1, 0; all ranks need the same "
             "list");
  expect(odd ? List{1} : List{0, 1},
         "group (operation #): " + rest +
             " ranks 0, 1, rank 1 wants ranks 1; all ranks need the same list");
  expect(odd ? List{1, 1} : List{0, 1},
         "group (operation #): rank 1: ranks[0] and ranks[1] are both 1");
  expect(odd ? List{0, 7} : List{0, 1},
         "group (operation #): rank 1: ranks[1] is 7; ranks are 0 .. " +
             std::to_string(size_ - 1));
  expect(odd ? List{-1} : List{0, 1},
         "group (operation #): rank 1: ranks[0] is -1; ranks are 0 .. " +
             std::to_string(size_ - 1));
  expect(odd ? List{} : List{0, 1},
         "group (operation #): rank 1: a group of 0 ranks; there are " +
             std::to_string(size_));
  ASSERT_OK(choir_comm_barrier(comm_, "works"));
}

}  // namespace comm_suite
