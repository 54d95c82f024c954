// SPDX-License-Identifier: Apache-2.0
// Collectives that hand elements on, reductions to one rank or in unequal
// shares, and scaled ones.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {

// How many elements one rank gives to another; the rest follows from it.
using Given = int64_t (*)(int from, int to, int size, int root);

bool IsScatter(choir_collective_kind_t kind) {
  return kind == CHOIR_COLLECTIVE_SCATTER || kind == CHOIR_COLLECTIVE_SCATTER_V;
}
bool IsGather(choir_collective_kind_t kind) {
  return kind == CHOIR_COLLECTIVE_GATHER || kind == CHOIR_COLLECTIVE_GATHER_V;
}

// Runs one kind with what `given` says, from memory that is shared on every
// other rank, and looks at all of dst and at the counts.
void CheckMove(choir_comm_t* comm, choir_device_t* device,
               choir_collective_kind_t kind, choir_dtype_t dtype, int root,
               Given given, bool odd_is_shared) {
  const int rank = choir_comm_rank(comm);
  const int size = choir_comm_size(comm);
  const size_t e = choir_dtype_bytes(dtype);
  std::vector<unsigned char> give, expected;
  std::vector<int64_t> splits, counts, came(static_cast<size_t>(size), -1);
  int64_t total = 0;
  int64_t expected_total = 0;
  for (int r = 0; r < size; ++r) {
    int64_t out = given(rank, r, size, root);
    int64_t in = given(r, rank, size, root);
    std::vector<unsigned char> part = Data(8 * rank + r, out, dtype);
    give.insert(give.end(), part.begin(),
                part.begin() + out * static_cast<int64_t>(e));
    part = Data(8 * r + rank, in, dtype);
    expected.insert(expected.end(), part.begin(),
                    part.begin() + in * static_cast<int64_t>(e));
    splits.push_back(out);
    counts.push_back(in);
    total += out;
    expected_total += in;
  }
  // Collective: all ranks have the buffer, every other one uses it.
  size_t most = 0;
  for (int r = 0; r < size; ++r) {
    size_t sum = 0;
    for (int to = 0; to < size; ++to)
      sum += static_cast<size_t>(given(r, to, size, root));
    most = sum > most ? sum : most;
  }
  Memory shared(comm, device, true, most * e + e);
  Memory ordinary(comm, device, false, give.size() + e);
  Memory& src = (rank % 2 == 1) == odd_is_shared ? shared : ordinary;
  Memory dst(comm, device, false, expected.size() + e);
  if (!give.empty()) memcpy(src.data(), give.data(), give.size());
  choir_collective_t c = {};
  c.kind = kind;
  c.dtype = dtype;
  c.root = root;
  c.count = total;
  c.src = give.empty() ? nullptr : src.data();
  c.dst = expected.empty() ? nullptr : dst.data();
  c.splits = splits.data();
  c.capacity = expected_total + (c.dst && rank % 2);
  c.counts = came.data();
  c.name = "parts";
  if (kind == CHOIR_COLLECTIVE_GATHER || kind == CHOIR_COLLECTIVE_SCATTER ||
      kind == CHOIR_COLLECTIVE_ALL_TO_ALL) {
    c.count = given(IsScatter(kind) ? root : rank, root, size, root);
    c.splits = nullptr;
  }
  if (IsScatter(kind) && rank != root) {
    c.src = &c;  // not looked at
    if (kind == CHOIR_COLLECTIVE_SCATTER_V) c.count = -5;
    c.splits = nullptr;
  }
  if (IsGather(kind) && rank != root) {
    c.dst = &c;
    c.capacity = -3;
  }
  ASSERT_OK(choir_comm_run(comm, &c));
  ASSERT_EQ(FirstDifference(dst.data(), expected.data(), expected_total, e),
            -1);
  ASSERT_EQ(dst.data()[expected.size()], kGuardByte);
  ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
  if (!give.empty()) {
    ASSERT_EQ(memcmp(src.data(), give.data(), give.size()), 0);
  }
  if (kind == CHOIR_COLLECTIVE_SCATTER_V) {
    ASSERT_EQ(came[0], counts[static_cast<size_t>(root)]);
  } else {
    ASSERT_EQ(came, counts);
  }
}

int64_t Uneven(int i) {
  const int64_t counts[] = {33, 0, 5000, 1, 260, 0, 90};
  return counts[i % 7];
}
int64_t GivesLittle(int, int, int, int) { return 5; }
int64_t GivesMuch(int, int, int, int) { return 12001; }
int64_t GivesToAll(int from, int to, int, int) { return Uneven(from + 2 * to); }
// Rank 0 sends nothing; the last one gets nothing.
int64_t GivesHoles(int from, int to, int size, int) {
  return from == 0 || to == size - 1 ? 0 : 40 + from + 10 * to;
}
int64_t GivesNothing(int, int, int, int) { return 0; }
int64_t RootTakes(int from, int to, int, int root) {
  return to == root ? Uneven(from + root) : 0;
}
int64_t RootTakesMuch(int, int to, int, int root) {
  return to == root ? 70001 : 0;
}
int64_t RootTakesLittle(int, int to, int, int root) {
  return to == root ? 7 : 0;
}
int64_t RootGives(int from, int to, int, int root) {
  return from == root ? Uneven(to + root) : 0;
}
int64_t RootGivesMuch(int from, int, int, int root) {
  return from == root ? 12001 : 0;
}
int64_t RootGivesLittle(int from, int, int, int root) {
  return from == root ? 7 : 0;
}

struct MoveCase {
  choir_collective_kind_t kind;
  Given given;
};
const MoveCase kMoves[] = {
    {CHOIR_COLLECTIVE_ALL_TO_ALL, GivesLittle},
    {CHOIR_COLLECTIVE_ALL_TO_ALL, GivesMuch},
    {CHOIR_COLLECTIVE_ALL_TO_ALL, GivesNothing},
    {CHOIR_COLLECTIVE_ALL_TO_ALL_V, GivesToAll},
    {CHOIR_COLLECTIVE_ALL_TO_ALL_V, GivesHoles},
    {CHOIR_COLLECTIVE_ALL_TO_ALL_V, GivesNothing},
    {CHOIR_COLLECTIVE_ALL_TO_ALL_V, GivesMuch},
    {CHOIR_COLLECTIVE_GATHER, RootTakesLittle},
    {CHOIR_COLLECTIVE_GATHER, RootTakesMuch},
    {CHOIR_COLLECTIVE_GATHER_V, RootTakes},
    {CHOIR_COLLECTIVE_GATHER_V, GivesNothing},
    {CHOIR_COLLECTIVE_SCATTER, RootGivesLittle},
    {CHOIR_COLLECTIVE_SCATTER, RootGivesMuch},
    {CHOIR_COLLECTIVE_SCATTER_V, RootGives},
    {CHOIR_COLLECTIVE_SCATTER_V, GivesNothing},
};

TEST_P(CommSuite, Moves) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  int number = 0;
  for (choir_dtype_t dtype : kDtypes) {
    int which = 0;
    for (const MoveCase& move : kMoves) {
      // All in one wide type; of the others the two with most corners.
      if (dtype != CHOIR_DTYPE_F64 && move.given != GivesHoles &&
          move.given != RootTakes)
        continue;
      int root = number++ % size_;
      SCOPED_TRACE(std::string(choir_dtype_name(dtype)) + " case " +
                   std::to_string(which++) + " root " + std::to_string(root));
      ASSERT_NO_FATAL_FAILURE(CheckMove(comm_, device_, move.kind, dtype, root,
                                        move.given, number % 2 == 0));
      if (dtype != CHOIR_DTYPE_F64) continue;
      ASSERT_NO_FATAL_FAILURE(CheckMove(comm_, device_, move.kind, dtype,
                                        size_ - 1 - root, move.given,
                                        number % 2 == 1));
    }
  }
}

// The calls hand their arguments on as they say.
TEST_P(CommSuite, MoveCalls) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  size_t size = static_cast<size_t>(size_);
  int root = size_ - 1;
  int32_t own = 100 + rank_;
  std::vector<int32_t> all(size, -1), expected, parts(size);
  for (int r = 0; r < size_; ++r) expected.push_back(100 + r);
  for (size_t r = 0; r < size; ++r)
    parts[r] = static_cast<int32_t>(1000 * rank_ + static_cast<int>(r));
  ASSERT_OK(choir_comm_gather(comm_, &own, all.data(), 1, CHOIR_DTYPE_I32, root,
                              "g"));
  EXPECT_EQ(all, rank_ == root ? expected : std::vector<int32_t>(size, -1));
  std::vector<int64_t> counts(size, -1), ones(size, 1), none(size, 0);
  all.assign(size, -1);
  ASSERT_OK(choir_comm_gather_v(comm_, &own, 1, all.data(), size_,
                                counts.data(), CHOIR_DTYPE_I32, root, "gv"));
  EXPECT_EQ(all, rank_ == root ? expected : std::vector<int32_t>(size, -1));
  EXPECT_EQ(counts, rank_ == root ? ones : none);
  int32_t got = -1;
  int64_t count = -1;
  ASSERT_OK(choir_comm_scatter(comm_, parts.data(), &got, 1, CHOIR_DTYPE_I32,
                               root, "s"));
  EXPECT_EQ(got, 1000 * root + rank_);
  got = -1;
  ASSERT_OK(choir_comm_scatter_v(comm_, parts.data(), size_, ones.data(), &got,
                                 1, &count, CHOIR_DTYPE_I32, root, "sv"));
  EXPECT_EQ(got, 1000 * root + rank_);
  EXPECT_EQ(count, 1);
  expected.clear();
  for (int r = 0; r < size_; ++r) expected.push_back(1000 * r + rank_);
  ASSERT_OK(choir_comm_all_to_all(comm_, parts.data(), all.data(), 1,
                                  CHOIR_DTYPE_I32, "a"));
  EXPECT_EQ(all, expected);
  all.assign(size, -1);
  counts = none;
  ASSERT_OK(choir_comm_all_to_all_v(comm_, parts.data(), size_, ones.data(),
                                    all.data(), size_, counts.data(),
                                    CHOIR_DTYPE_I32, "av"));
  EXPECT_EQ(all, expected);
  EXPECT_EQ(counts, ones);
}

TEST_P(CommSuite, ReduceToARoot) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  int number = 0;
  for (choir_dtype_t dtype : kDtypes) {
    size_t e = choir_dtype_bytes(dtype);
    const int64_t most = dtype == CHOIR_DTYPE_F64 ? 70001 : 5003;
    auto all = AllData(most, dtype);
    std::vector<unsigned char> expected(static_cast<size_t>(most) * e);
    for (choir_reduce_t op :
         {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE, CHOIR_REDUCE_MAX}) {
      if (dtype == CHOIR_DTYPE_BOOL && op == CHOIR_REDUCE_AVERAGE) continue;
      for (int64_t i = 0; i < most; ++i)
        Expect(all, weights, dtype, op, i,
               &expected[static_cast<size_t>(i) * e]);
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{33}, most}) {
        for (Mode mode : kModes) {
          int root = number++ % size_;
          SCOPED_TRACE(Describe(dtype, op, count, mode));
          size_t bytes = static_cast<size_t>(count) * e;
          Memory src(comm_, device_, mode.shared, bytes + e);
          Memory other(comm_, device_, mode.shared, bytes + e);
          Memory& dst = mode.in_place ? src : other;
          memcpy(src.data(), all[static_cast<size_t>(rank_)].data(), bytes);
          bool is_root = rank_ == root;
          ASSERT_OK(choir_comm_reduce(comm_, src.data(),
                                      is_root ? dst.data() : nullptr, count,
                                      dtype, op, root, "to root"));
          if (is_root) {
            ASSERT_EQ(FirstDifference(dst.data(), expected.data(), count, e),
                      -1);
          }
          ASSERT_TRUE(src.GuardsHold() && other.GuardsHold());
          ASSERT_EQ(other.data()[is_root && !mode.in_place ? bytes : 0],
                    kGuardByte);
        }
      }
    }
  }
}

TEST_P(CommSuite, ReduceScatterInUnequalShares) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  for (choir_dtype_t dtype : kDtypes) {
    size_t e = choir_dtype_bytes(dtype);
    for (int64_t total :
         {int64_t{0}, int64_t{1}, int64_t{size_ - 1},
          int64_t{4 * size_ + size_ / 2}, int64_t{20013}, int64_t{150001}}) {
      if (total > 5000 && dtype != CHOIR_DTYPE_F32 && dtype != CHOIR_DTYPE_U8)
        continue;
      // The first total % size ranks have one more.
      int64_t own = total / size_ + (rank_ < total % size_);
      int64_t start = 0;
      for (int r = 0; r < rank_; ++r)
        start += total / size_ + (r < total % size_);
      int64_t told_start = -1, told_count = -1;
      choir_comm_share(total, rank_, size_, &told_start, &told_count);
      ASSERT_EQ(told_start, start);
      ASSERT_EQ(told_count, own);
      auto all = AllData(total, dtype);
      std::vector<unsigned char> expected(static_cast<size_t>(own) * e + 1);
      choir_reduce_t op =
          dtype == CHOIR_DTYPE_BOOL ? CHOIR_REDUCE_MAX : CHOIR_REDUCE_AVERAGE;
      for (int64_t i = 0; i < own; ++i)
        Expect(all, weights, dtype, op, start + i,
               &expected[static_cast<size_t>(i) * e]);
      for (Mode mode : kModes) {
        SCOPED_TRACE(Describe(dtype, op, total, mode));
        size_t bytes = static_cast<size_t>(total) * e;
        Memory src(comm_, device_, mode.shared, bytes + e);
        Memory dst(comm_, device_, mode.shared,
                   static_cast<size_t>(total / size_ + 1) * e + e);
        memcpy(src.data(), all[static_cast<size_t>(rank_)].data(), bytes);
        unsigned char* at = mode.in_place
                                ? src.data() + static_cast<size_t>(start) * e
                                : dst.data();
        ASSERT_OK(choir_comm_reduce_scatter_v(comm_, src.data(), at, total,
                                              dtype, op, "shares"));
        ASSERT_EQ(FirstDifference(at, expected.data(), own, e), -1);
        ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
        ASSERT_EQ(dst.data()[mode.in_place ? 0 : static_cast<size_t>(own) * e],
                  kGuardByte);
      }
    }
  }
}

// dst = post * reduction of (pre * x), by the documented rules.
int64_t ScaledInteger(choir_dtype_t dtype, double factor, int64_t value) {
  double product = trunc(factor * static_cast<double>(value));
  if (dtype == CHOIR_DTYPE_U8)
    return product > 255 ? 255
           : product < 0 ? 0
                         : static_cast<int64_t>(product);
  return static_cast<int64_t>(product);
}

void ExpectScaled(const std::vector<std::vector<unsigned char>>& all,
                  const std::vector<double>& weights, choir_dtype_t dtype,
                  choir_reduce_t op, double pre, double post, int64_t i,
                  unsigned char* out) {
  size_t at = static_cast<size_t>(i) * choir_dtype_bytes(dtype);
  PerRank<float> f32;
  PerRank<double> f64;
  PerRank<int64_t> integers;
  for (const auto& data : all) {
    double value = choir_element_load(&data[at], dtype);
    f64.push_back(pre * value);
    f32.push_back(static_cast<float>(pre) * static_cast<float>(value));
    integers.push_back(
        choir_dtype_is_float(dtype)
            ? 0
            : ScaledInteger(dtype, pre, static_cast<int64_t>(value)));
  }
  if (dtype == CHOIR_DTYPE_F64) {
    double value = post * ReduceFloats(op, f64, weights);
    memcpy(out, &value, sizeof(value));
  } else if (choir_dtype_is_float(dtype)) {
    choir_element_store(
        out, dtype, static_cast<float>(post) * ReduceFloats(op, f32, weights));
  } else {
    int64_t value = dtype == CHOIR_DTYPE_U8
                        ? ReduceIntegers<uint8_t, uint8_t>(op, integers)
                    : dtype == CHOIR_DTYPE_I32
                        ? ReduceIntegers<uint32_t, int32_t>(op, integers)
                        : ReduceIntegers<uint64_t, int64_t>(op, integers);
    choir_element_store(out, dtype,
                        static_cast<double>(ScaledInteger(dtype, post, value)));
  }
}

TEST_P(CommSuite, ScaledReductions) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  const double pre = 0.3, post = 1.7;
  for (choir_dtype_t dtype : kDtypes) {
    if (dtype == CHOIR_DTYPE_BOOL) continue;
    size_t e = choir_dtype_bytes(dtype);
    for (int64_t count : {int64_t{1}, int64_t{700}, int64_t{9001}}) {
      auto all = AllData(count, dtype);
      size_t bytes = static_cast<size_t>(count) * e;
      std::vector<unsigned char> expected(bytes);
      for (choir_reduce_t op :
           {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE, CHOIR_REDUCE_MIN}) {
        for (int64_t i = 0; i < count; ++i)
          ExpectScaled(all, weights, dtype, op, pre, post, i,
                       &expected[static_cast<size_t>(i) * e]);
        for (int which = 0; which < 4; ++which) {
          SCOPED_TRACE(Describe(dtype, op, count, {false, which == 1}));
          Memory data(comm_, device_, which == 1, bytes + e);
          memcpy(data.data(), all[static_cast<size_t>(rank_)].data(), bytes);
          choir_collective_t c = {};
          c.kind = which == 2   ? CHOIR_COLLECTIVE_REDUCE
                   : which == 3 ? CHOIR_COLLECTIVE_REDUCE_SCATTER_V
                                : CHOIR_COLLECTIVE_ALL_REDUCE;
          c.op = op;
          c.dtype = dtype;
          c.root = size_ - 1;
          c.count = count;
          c.src = data.data();
          int64_t start = 0;
          int64_t own = count;
          if (which == 3) choir_comm_share(count, rank_, size_, &start, &own);
          unsigned char* at = data.data() + static_cast<size_t>(start) * e;
          c.dst = at;
          c.weight = 1;
          c.scales = true;
          c.prescale = pre;
          c.postscale = post;
          c.name = "scaled";
          ASSERT_OK(choir_comm_run(comm_, &c));
          if (which == 2 && rank_ != c.root) continue;
          ASSERT_EQ(
              FirstDifference(
                  at, expected.data() + static_cast<size_t>(start) * e, own, e),
              -1);
          ASSERT_TRUE(data.GuardsHold());
        }
      }
    }
  }
}

// Clamped, not wrapped: the product is no sum.
TEST_P(CommSuite, ScaledIntegersAreClamped) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_collective_t c = {};
  c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  c.op = CHOIR_REDUCE_MAX;
  c.count = 2;
  c.weight = 1;
  c.scales = true;
  c.prescale = 1;
  c.postscale = 1e30;
  c.name = "clamped";
  int32_t i32[2] = {rank_ + 1, -rank_ - 1};
  c.dtype = CHOIR_DTYPE_I32;
  c.src = c.dst = i32;
  ASSERT_OK(choir_comm_run(comm_, &c));
  EXPECT_EQ(i32[0], INT32_MAX);
  EXPECT_EQ(i32[1], INT32_MIN);
  int64_t i64[2] = {INT64_MAX, -1};
  c.dtype = CHOIR_DTYPE_I64;
  c.src = c.dst = i64;
  ASSERT_OK(choir_comm_run(comm_, &c));
  EXPECT_EQ(i64[0], INT64_MAX);
  EXPECT_EQ(i64[1], INT64_MIN);
  // A factor of 1 leaves values alone that f64 cannot hold.
  i64[0] = INT64_MAX - 1;
  c.postscale = 1;
  ASSERT_OK(choir_comm_run(comm_, &c));
  EXPECT_EQ(i64[0], INT64_MAX - 1);
  uint8_t u8[2] = {200, 3};
  c.dtype = CHOIR_DTYPE_U8;
  c.postscale = -2;
  c.src = c.dst = u8;
  ASSERT_OK(choir_comm_run(comm_, &c));
  EXPECT_EQ(u8[0], 0);
}

TEST_P(CommSuite, WrongMovesAreToldOnAllRanks) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  std::vector<float> src(100, 1), dst(100, 0);
  bool odd = rank_ == 1;
  int operation = 0;
  auto expect = [&](choir_status_t status, std::string text) {
    text.replace(text.find('#'), 1, std::to_string(++operation));
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), text);
    choir_status_free(status);
  };
  std::string rest = size_ == 2   ? "rank 0"
                     : size_ == 3 ? "ranks 0 and 2"
                     : size_ == 4 ? "ranks 0, 2 and 3"
                                  : "ranks 0, 2, 3, 4, 5 and 6";
  std::string has = size_ == 2 ? " has " : " have ";
  std::string wants = size_ == 2 ? " wants " : " want ";
  std::string gives = size_ == 2 ? " gives " : " give ";
  const choir_dtype_t f32 = CHOIR_DTYPE_F32;
  expect(choir_comm_gather(comm_, src.data(), dst.data(), odd ? 3 : 2, f32, 0,
                           "g"),
         "gather 'g' (operation #): " + rest + has +
             "2 f32, rank 1 has 3 f32; all ranks need the same");
  expect(choir_comm_reduce(comm_, src.data(), dst.data(), 9, f32,
                           CHOIR_REDUCE_SUM, odd, "r"),
         "reduce 'r' (operation #): " + rest + wants +
             "root 0, rank 1 wants root 1; all ranks need the same root");
  expect(choir_comm_gather_v(comm_, src.data(), odd ? 9 : 4, dst.data(),
                             rank_ == 0 ? 10 : 0, nullptr, f32, 0, "gv"),
         "gather_v 'gv' (operation #): " + rest + gives +
             "4 f32, rank 1 gives 9 f32: " + std::to_string(4 * size_ + 5) +
             " in all for rank 0, which has room for 10");
  std::vector<int64_t> splits(static_cast<size_t>(size_), 2);
  std::string others = size_ == 2   ? "rank 1 gives"
                       : size_ == 3 ? "ranks 1 and 2 give"
                       : size_ == 4 ? "ranks 1, 2 and 3 give"
                                    : "ranks 1, 2, 3, 4, 5 and 6 give";
  expect(choir_comm_scatter_v(comm_, src.data(), 2 * size_, splits.data(),
                              dst.data(), odd ? 1 : 5, nullptr, f32, 0, "sv"),
         "scatter_v 'sv' (operation #): rank 0 gives 2 f32, " + others +
             " 0 f32: 2 in all for rank 1, which has room for 1");
  expect(choir_comm_all_to_all_v(comm_, src.data(), 2 * size_, splits.data(),
                                 dst.data(), odd ? 3 : 50, nullptr, f32, "av"),
         "all_to_all_v 'av' (operation #): ranks 0" +
             (size_ == 2   ? std::string(" and 1")
              : size_ == 3 ? std::string(", 1 and 2")
              : size_ == 4 ? std::string(", 1, 2 and 3")
                           : std::string(", 1, 2, 3, 4, 5 and 6")) +
             " give 2 f32: " + std::to_string(2 * size_) +
             " in all for rank 1, which has room for 3");
  if (odd) splits[0] = 3;
  expect(choir_comm_all_to_all_v(comm_, src.data(), 2 * size_, splits.data(),
                                 dst.data(), 50, nullptr, f32, "av"),
         "all_to_all_v 'av' (operation #): rank 1: splits add to " +
             std::to_string(2 * size_ + 1) +
             "; count, the elements of src, is " + std::to_string(2 * size_));
  if (odd) splits[0] = -1;
  expect(choir_comm_all_to_all_v(comm_, src.data(), 2 * size_, splits.data(),
                                 dst.data(), 50, nullptr, f32, "av"),
         "all_to_all_v 'av' (operation #): rank 1: splits[0] is -1; it must be "
         "0 or more");
  expect(choir_comm_all_to_all_v(comm_, src.data(), 2 * size_,
                                 odd ? nullptr : splits.data(), dst.data(), 50,
                                 nullptr, f32, "av"),
         "all_to_all_v 'av' (operation #): rank 1: splits is NULL");
  expect(choir_comm_scatter(comm_, rank_ == 0 ? nullptr : src.data(),
                            dst.data(), 2, f32, 0, "s"),
         "scatter 's' (operation #): rank 0: src is NULL");
  choir_collective_t c = {};
  c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  c.op = CHOIR_REDUCE_SUM;
  c.dtype = f32;
  c.count = 5;
  c.src = c.dst = src.data();
  c.weight = 1;
  c.scales = true;
  c.prescale = odd ? 0.5 : 0.25;
  c.postscale = 2;
  c.name = "x";
  expect(choir_comm_run(comm_, &c),
         "all_reduce 'x' (operation #): " + rest + wants +
             "prescale 0.25 and postscale 2, rank 1 wants prescale 0.5 and "
             "postscale 2; all ranks need the same factors");
  c.scales = odd;
  expect(choir_comm_run(comm_, &c),
         "all_reduce 'x' (operation #): " + rest + wants +
             "prescale 1 and postscale 1, rank 1 wants prescale 0.5 and "
             "postscale 2; all ranks need the same factors");
  c.scales = true;
  c.prescale = odd ? NAN : 1;
  expect(choir_comm_run(comm_, &c),
         "all_reduce 'x' (operation #): rank 1: prescale is nan and postscale "
         "is 2; they must be finite");
  c.dtype = CHOIR_DTYPE_BOOL;
  expect(choir_comm_run(comm_, &c),
         "all_reduce 'x' (operation #): rank 0: bool cannot be scaled");
  float one = 1;
  ASSERT_OK(
      choir_comm_all_reduce(comm_, &one, &one, 1, f32, CHOIR_REDUCE_SUM, "ok"));
  EXPECT_EQ(one, static_cast<float>(size_));
}

// All kinds as asynchronous work, one beside the other.
TEST_P(CommSuite, MovesAsWork) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  size_t size = static_cast<size_t>(size_);
  std::vector<int64_t> splits(size, 3000), counts(size, -1);
  std::vector<int32_t> src(3000 * size), gathered(3000 * size),
      exchanged(3000 * size);
  for (size_t i = 0; i < src.size(); ++i)
    src[i] = rank_ * 1000000 + static_cast<int32_t>(i);
  choir_collective_t c = {};
  c.dtype = CHOIR_DTYPE_I32;
  c.src = src.data();
  c.name = "work";
  choir_work_t* works[2] = {};
  c.kind = CHOIR_COLLECTIVE_ALL_TO_ALL_V;
  c.count = c.capacity = 3000 * size_;
  c.splits = splits.data();
  c.counts = counts.data();
  c.dst = exchanged.data();
  ASSERT_OK(choir_comm_start(comm_, &c, &works[0]));
  c.kind = CHOIR_COLLECTIVE_GATHER;
  c.count = 3000;
  c.dst = gathered.data();
  c.counts = nullptr;
  ASSERT_OK(choir_comm_start(comm_, &c, &works[1]));
  ASSERT_OK(choir_work_wait(works[0]));
  ASSERT_OK(choir_work_wait(works[1]));
  EXPECT_EQ(counts, splits);
  for (int r = 0; r < size_; ++r) {
    for (int i = 0; i < 3000; ++i) {
      size_t at = static_cast<size_t>(r * 3000 + i);
      ASSERT_EQ(exchanged[at], r * 1000000 + rank_ * 3000 + i);
      if (rank_ == 0) {
        ASSERT_EQ(gathered[at], r * 1000000 + i);
      }
    }
  }
}

// Tensors of a group, each with its own memory; one has no elements.
struct Group {
  Group(int rank, int size, choir_dtype_t dtype, bool gathers, bool scatters,
        const std::vector<int64_t>& counts)
      : e(choir_dtype_bytes(dtype)) {
    for (size_t i = 0; i < counts.size(); ++i) {
      int64_t in = counts[i] * (scatters ? size : 1);
      int64_t out = counts[i] * (gathers ? size : 1);
      src.push_back(Data(rank + 8 * static_cast<int>(i), in, dtype));
      dst.emplace_back(static_cast<size_t>(out) * e + 1, kGuardByte);
    }
    for (size_t i = 0; i < counts.size(); ++i)
      tensors.push_back({src[i].data(), dst[i].data(), counts[i]});
  }
  size_t e;
  std::vector<std::vector<unsigned char>> src, dst;
  std::vector<choir_comm_tensor_t> tensors;
};

TEST_P(CommSuite, Groups) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  const std::vector<std::vector<int64_t>> sizes = {
      {7}, {3, 0, 100, 1}, {20011, 5, 70001}};
  int number = 0;
  for (const auto& counts : sizes) {
    for (choir_collective_kind_t kind :
         {CHOIR_COLLECTIVE_ALL_REDUCE, CHOIR_COLLECTIVE_BROADCAST,
          CHOIR_COLLECTIVE_ALL_GATHER, CHOIR_COLLECTIVE_REDUCE_SCATTER}) {
      choir_dtype_t dtype = number++ % 2 ? CHOIR_DTYPE_F32 : CHOIR_DTYPE_BF16;
      bool gathers = kind == CHOIR_COLLECTIVE_ALL_GATHER;
      bool scatters = kind == CHOIR_COLLECTIVE_REDUCE_SCATTER;
      bool broadcasts = kind == CHOIR_COLLECTIVE_BROADCAST;
      Group group(rank_, size_, dtype, gathers, scatters, counts);
      choir_collective_t c = {};
      c.kind = kind;
      c.op = CHOIR_REDUCE_AVERAGE;
      c.dtype = dtype;
      c.root = number % size_;
      c.weight = 1;
      c.tensors = group.tensors.data();
      c.tensor_count = static_cast<int32_t>(counts.size());
      c.name = "group";
      for (size_t i = 0; i < counts.size() && broadcasts; ++i)
        memcpy(group.dst[i].data(), group.src[i].data(),
               static_cast<size_t>(counts[i]) * group.e);
      ASSERT_OK(choir_comm_run(comm_, &c));
      for (size_t i = 0; i < counts.size(); ++i) {
        SCOPED_TRACE("kind " + std::to_string(kind) + " tensor " +
                     std::to_string(i));
        int64_t out = counts[i] * (gathers ? size_ : 1);
        std::vector<std::vector<unsigned char>> all;
        for (int r = 0; r < size_; ++r)
          all.push_back(Data(r + 8 * static_cast<int>(i),
                             counts[i] * (scatters ? size_ : 1), dtype));
        std::vector<unsigned char> expected(static_cast<size_t>(out) * group.e +
                                            1);
        for (int64_t k = 0; k < out; ++k) {
          unsigned char* at = &expected[static_cast<size_t>(k) * group.e];
          int64_t from = scatters ? rank_ * counts[i] + k : k;
          if (gathers || broadcasts)
            memcpy(at,
                   &all[static_cast<size_t>(gathers ? k / counts[i] : c.root)]
                       [static_cast<size_t>(gathers ? k % counts[i] : k) *
                        group.e],
                   group.e);
          else
            Expect(all, weights, dtype, c.op, from, at);
        }
        ASSERT_EQ(
            FirstDifference(group.dst[i].data(), expected.data(), out, group.e),
            -1);
        ASSERT_EQ(group.dst[i].back(), kGuardByte);
      }
    }
  }
}

TEST_P(CommSuite, WrongGroupsChangeNothing) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  float a[4] = {1, 2, 3, 4};
  float b[4] = {5, 6, 7, 8};
  bool odd = size_ > 1 && rank_ == 1;
  int operation = 0;
  choir_comm_tensor_t tensors[3] = {{a, a, 4}, {b, b, 4}, {b, b, 0}};
  auto expect = [&](choir_status_t status, std::string text) {
    text.replace(text.find('#'), 1, std::to_string(++operation));
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), text);
    choir_status_free(status);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(a[i], static_cast<float>(1 + i));
      EXPECT_EQ(b[i], static_cast<float>(5 + i));
    }
  };
  auto reduce = [&](int32_t count) {
    return choir_comm_all_reduce_group(comm_, tensors, count, CHOIR_DTYPE_F32,
                                       CHOIR_REDUCE_SUM, "g");
  };
  std::string who = size_ > 1 ? "rank 1" : "rank 0";
  bool wrong = odd || size_ == 1;
  // NCCL's ranks on one host meet as those of shm.
  const std::string backend = GetParam().backend;
  const bool is_nccl = backend == "nccl";
  const int most = backend == "self" || (is_nccl && size_ == 1) ? 2029
                   : backend == "shm" || is_nccl                ? 65533
                                                                : 2045;
  expect(reduce(wrong ? 0 : 2), "all_reduce 'g' (operation #): " + who +
                                    ": a group of 0 tensors; 1 .. " +
                                    std::to_string(most) + " are possible");
  tensors[1].count = wrong ? -4 : 4;
  expect(reduce(2), "all_reduce 'g' (operation #): " + who +
                        ": count of tensor 1 is -4; it must be 0 or more");
  tensors[1].count = 4;
  tensors[0].src = wrong ? nullptr : a;
  expect(reduce(2),
         "all_reduce 'g' (operation #): " + who + ": src of tensor 0 is NULL");
  tensors[0].src = a;
  if (size_ > 1) {
    std::string rest = size_ == 2   ? "rank 0 has "
                       : size_ == 3 ? "ranks 0 and 2 have "
                       : size_ == 4 ? "ranks 0, 2 and 3 have "
                                    : "ranks 0, 2, 3, 4, 5 and 6 have ";
    expect(reduce(odd ? 3 : 2),
           "all_reduce 'g' (operation #): " + rest +
               "a group of 2, rank 1 has a group of 3; all ranks need the "
               "same");
    tensors[0].count = odd ? 3 : 4;
    tensors[1].count = odd ? 4 : 3;
    expect(reduce(2), "all_reduce 'g' (operation #): " + rest +
                          "4 f32 in tensor 0, rank 1 has 3 f32 in tensor 0; "
                          "all ranks need the same");
    tensors[0].count = tensors[1].count = 4;
    expect(odd ? choir_comm_all_reduce(comm_, a, a, 4, CHOIR_DTYPE_F32,
                                       CHOIR_REDUCE_SUM, "g")
               : reduce(2),
           "all_reduce 'g' (operation #): " + rest +
               "a group of 2, rank 1 has no group; all ranks need the same");
  }
  choir_collective_t c = {};
  c.kind = CHOIR_COLLECTIVE_ALL_TO_ALL;
  c.tensors = tensors;
  c.tensor_count = 2;
  c.name = "g";
  expect(choir_comm_run(comm_, &c),
         "all_to_all 'g' (operation #): rank 0: all_to_all takes no group of "
         "tensors");
  ASSERT_OK(reduce(2));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(b[i], static_cast<float>(size_ * (5 + i)));
}

}  // namespace comm_suite
