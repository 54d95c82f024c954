// SPDX-License-Identifier: Apache-2.0
// Every collective on every backend and world size. Data differs per rank and
// per element, and each rank knows all ranks' data, so the expected result is
// computed here, element by element in rank order, and compared bit for bit:
// which also makes all backends equal to each other.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {

TEST_P(CommSuite, AllReduce) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  int64_t most = kCounts[3];
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  for (choir_dtype_t dtype : kDtypes) {
    size_t e = choir_dtype_bytes(dtype);
    auto all = AllData(most, dtype);
    Memory private_src(comm_, device_, false, static_cast<size_t>(most) * e);
    Memory private_dst(comm_, device_, false, static_cast<size_t>(most) * e);
    Memory shared_src(comm_, device_, true, static_cast<size_t>(most) * e);
    Memory shared_dst(comm_, device_, true, static_cast<size_t>(most) * e);
    for (choir_reduce_t op : kOps) {
      if (dtype == CHOIR_DTYPE_BOOL && op == CHOIR_REDUCE_AVERAGE) continue;
      std::vector<unsigned char> expected(static_cast<size_t>(most) * e);
      for (int64_t i = 0; i < most; ++i)
        Expect(all, weights, dtype, op, i,
               &expected[static_cast<size_t>(i) * e]);
      for (int64_t count : kCounts) {
        for (Mode mode : kModes) {
          SCOPED_TRACE(Describe(dtype, op, count, mode));
          size_t bytes = static_cast<size_t>(count) * e;
          Memory& src = mode.shared ? shared_src : private_src;
          Memory& other = mode.shared ? shared_dst : private_dst;
          Memory& dst = mode.in_place ? src : other;
          other.Clear();
          src.Clear();
          const auto& own = all[static_cast<size_t>(rank_)];
          memcpy(src.data(), own.data(), bytes);
          ASSERT_OK(choir_comm_all_reduce(comm_, src.data(), dst.data(), count,
                                          dtype, op, "data"));
          ASSERT_EQ(FirstDifference(dst.data(), expected.data(), count, e), -1);
          if (!mode.in_place) {
            ASSERT_EQ(memcmp(src.data(), own.data(), bytes), 0);
          }
          ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
          ASSERT_EQ(dst.data()[bytes], kGuardByte);
        }
      }
    }
  }
}

// Several rounds of every path, with sizes that no part divides.
TEST_P(CommSuite, LargeAllReduce) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int64_t count = 300007;  // three rounds
  auto all = AllData(count, CHOIR_DTYPE_F32);
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  std::vector<unsigned char> expected(static_cast<size_t>(count) * 4);
  for (choir_reduce_t op : {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE}) {
    for (int64_t i = 0; i < count; ++i)
      Expect(all, weights, CHOIR_DTYPE_F32, op, i,
             &expected[static_cast<size_t>(i) * 4]);
    for (Mode mode : kModes) {
      SCOPED_TRACE(Describe(CHOIR_DTYPE_F32, op, count, mode));
      Memory src(comm_, device_, mode.shared, expected.size());
      Memory other(comm_, device_, mode.shared, expected.size());
      Memory& dst = mode.in_place ? src : other;
      memcpy(src.data(), all[static_cast<size_t>(rank_)].data(),
             expected.size());
      ASSERT_OK(choir_comm_all_reduce(comm_, src.data(), dst.data(), count,
                                      CHOIR_DTYPE_F32, op, nullptr));
      ASSERT_EQ(FirstDifference(dst.data(), expected.data(), count, 4), -1);
      ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
    }
  }
}

TEST_P(CommSuite, OneSideShared) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int64_t most = 20011;
  auto all = AllData(most, CHOIR_DTYPE_F32);
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  std::vector<unsigned char> expected(static_cast<size_t>(most) * 4);
  for (int64_t i = 0; i < most; ++i)
    Expect(all, weights, CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, i,
           &expected[static_cast<size_t>(i) * 4]);
  Memory shared(comm_, device_, true, expected.size());
  Memory ordinary(comm_, device_, false, expected.size());
  // Ranks differ in what they use: rank 0 shared, the others private memory;
  // then as source alone, or for both.
  Memory& src = rank_ == 0 ? shared : ordinary;
  for (int64_t count : {most, int64_t{1000}, int64_t{100}, int64_t{1}}) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(count);
      Memory& dst = in_place ? src : ordinary;
      size_t bytes = static_cast<size_t>(count) * 4;
      memcpy(src.data(), all[static_cast<size_t>(rank_)].data(), bytes);
      ASSERT_OK(choir_comm_all_reduce(comm_, src.data(), dst.data(), count,
                                      CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM,
                                      "mixed"));
      EXPECT_EQ(FirstDifference(dst.data(), expected.data(), count, 4), -1);
      EXPECT_TRUE(src.GuardsHold() && dst.GuardsHold());
    }
  }
}

TEST_P(CommSuite, WeightedAverage) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int64_t most = 20011;
  std::vector<double> weights;
  for (int r = 0; r < size_; ++r) weights.push_back(r % 3 == 1 ? 0 : 16 - r);
  if (size_ == 1) weights[0] = 5;
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64, CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
    size_t e = choir_dtype_bytes(dtype);
    auto all = AllData(most, dtype);
    // A rank of weight 0 adds nothing, whatever it has.
    for (int r = 0; r < size_; ++r)
      if (weights[static_cast<size_t>(r)] == 0)
        choir_element_store(all[static_cast<size_t>(r)].data(), dtype, NAN);
    for (int64_t count : {int64_t{1}, int64_t{33}, most}) {
      for (bool shared : {false, true}) {
        size_t bytes = static_cast<size_t>(count) * e;
        Memory data(comm_, device_, shared, bytes);
        memcpy(data.data(), all[static_cast<size_t>(rank_)].data(), bytes);
        choir_collective_t collective = {};
        collective.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
        collective.op = CHOIR_REDUCE_AVERAGE;
        collective.dtype = dtype;
        collective.count = count;
        collective.src = collective.dst = data.data();
        collective.weight = weights[static_cast<size_t>(rank_)];
        collective.name = "grad";
        ASSERT_OK(choir_comm_run(comm_, &collective));
        std::vector<unsigned char> expected(bytes);
        for (int64_t i = 0; i < count; ++i)
          Expect(all, weights, dtype, CHOIR_REDUCE_AVERAGE, i,
                 &expected[static_cast<size_t>(i) * e]);
        ASSERT_EQ(FirstDifference(data.data(), expected.data(), count, e), -1)
            << choir_dtype_name(dtype) << " " << count << " " << shared;
        ASSERT_TRUE(data.GuardsHold());
      }
    }
  }
}

TEST_P(CommSuite, Broadcast) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_U8}) {
    size_t e = choir_dtype_bytes(dtype);
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{20011},
                          int64_t{300007}}) {
      size_t bytes = static_cast<size_t>(count) * e;
      auto all = AllData(count, dtype);
      for (bool shared : {false, true}) {
        Memory data(comm_, device_, shared, bytes + e);
        for (int root = 0; root < size_; ++root) {
          const auto& own = all[static_cast<size_t>(rank_)];
          const auto& theirs = all[static_cast<size_t>(root)];
          memcpy(data.data(), own.data(), bytes);
          ASSERT_OK(choir_comm_broadcast(comm_, data.data(), count, dtype, root,
                                         "weights"));
          ASSERT_EQ(FirstDifference(data.data(), theirs.data(), count, e), -1)
              << "count " << count << " root " << root << " shared " << shared;
          ASSERT_TRUE(data.GuardsHold());
          ASSERT_EQ(data.data()[bytes], kGuardByte);
        }
      }
    }
  }
}

TEST_P(CommSuite, AllGather) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  for (choir_dtype_t dtype : {CHOIR_DTYPE_F64, CHOIR_DTYPE_F16}) {
    size_t e = choir_dtype_bytes(dtype);
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{20011},
                          int64_t{300007}}) {
      size_t bytes = static_cast<size_t>(count) * e;
      auto all = AllData(count, dtype);
      for (Mode mode : kModes) {
        SCOPED_TRACE(Describe(dtype, CHOIR_REDUCE_SUM, count, mode));
        Memory src(comm_, device_, mode.shared, bytes + e);
        Memory dst(comm_, device_, mode.shared,
                   bytes * static_cast<size_t>(size_) + e);
        unsigned char* at =
            mode.in_place ? dst.data() + bytes * static_cast<size_t>(rank_)
                          : src.data();
        memcpy(at, all[static_cast<size_t>(rank_)].data(), bytes);
        ASSERT_OK(choir_comm_all_gather(comm_, at, dst.data(), count, dtype,
                                        "parts"));
        for (int r = 0; r < size_; ++r)
          ASSERT_EQ(
              FirstDifference(dst.data() + bytes * static_cast<size_t>(r),
                              all[static_cast<size_t>(r)].data(), count, e),
              -1);
        ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
        ASSERT_EQ(dst.data()[bytes * static_cast<size_t>(size_)], kGuardByte);
      }
    }
  }
}

// What rank `rank` gives: none, few, many; sizes that travel with the header
// beside some that do not.
int64_t GivenCount(int rank, int round) {
  const int64_t counts[] = {33, 0, 150001, 1, 20011, 1000, 4096};
  return counts[(rank + round) % 7];
}

TEST_P(CommSuite, AllGatherV) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  for (choir_dtype_t dtype : kDtypes) {
    size_t e = choir_dtype_bytes(dtype);
    for (int round = 0; round < (dtype == CHOIR_DTYPE_F64 ? 7 : 1); ++round) {
      int64_t total = 0;
      std::vector<std::vector<unsigned char>> all;
      for (int r = 0; r < size_; ++r) {
        total += GivenCount(r, round);
        all.push_back(Data(r, GivenCount(r, round), dtype));
      }
      int64_t own = GivenCount(rank_, round);
      const auto& given = all[static_cast<size_t>(rank_)];
      size_t bytes = static_cast<size_t>(own) * e;
      // Ranks differ in whether their memory is shared.
      for (int which = 0; which < 2; ++which) {
        SCOPED_TRACE(
            Describe(dtype, CHOIR_REDUCE_SUM, own, {false, which == 0}));
        Memory shared(comm_, device_, true, 150002 * e);
        Memory ordinary(comm_, device_, false, bytes + e);
        Memory& src = (rank_ + which) % 2 ? shared : ordinary;
        Memory dst(comm_, device_, false, static_cast<size_t>(total) * e + e);
        if (bytes) memcpy(src.data(), given.data(), bytes);
        std::vector<int64_t> counts(static_cast<size_t>(size_), -1);
        ASSERT_OK(choir_comm_all_gather_v(comm_, bytes ? src.data() : nullptr,
                                          own, dst.data(), total + (rank_ == 1),
                                          which ? counts.data() : nullptr,
                                          dtype, "parts"));
        int64_t at = 0;
        for (int r = 0; r < size_; ++r) {
          int64_t count = GivenCount(r, round);
          if (which) {
            ASSERT_EQ(counts[static_cast<size_t>(r)], count);
          }
          ASSERT_EQ(
              FirstDifference(dst.data() + static_cast<size_t>(at) * e,
                              all[static_cast<size_t>(r)].data(), count, e),
              -1)
              << "rank " << r;
          at += count;
        }
        ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
        ASSERT_EQ(dst.data()[static_cast<size_t>(total) * e], kGuardByte);
      }
    }
  }
}

choir_status_t CountUp(const choir_record_t* record, choir_stream_t*) {
  ++**static_cast<int64_t* const*>(record->attrs);
  return nullptr;
}
const choir_kernel_t kCountUp = {"count_up/test", CountUp, nullptr,
                                 nullptr,         nullptr, false};

// A record before it on the stream says how much there is to give.
TEST_P(CommSuite, AllGatherVReadsItsCountWhenItRuns) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &stream));
  const int kRounds = 5;
  int64_t count = 100 * rank_;
  int64_t* count_at = &count;
  size_t size = static_cast<size_t>(size_);
  std::vector<int32_t> src(1000, rank_ + 1);
  std::vector<std::vector<int32_t>> dst(kRounds,
                                        std::vector<int32_t>(1000 * size, -1));
  std::vector<std::vector<int64_t>> counts(kRounds, std::vector<int64_t>(size));
  for (size_t i = 0; i < kRounds; ++i) {
    choir_record_t record = {};
    record.kernel = &kCountUp;
    record.attrs = &count_at;
    record.attrs_bytes = sizeof(count_at);
    ASSERT_OK(choir_stream_submit(stream, &record));
    choir_collective_t collective = {};
    collective.kind = CHOIR_COLLECTIVE_ALL_GATHER_V;
    collective.dtype = CHOIR_DTYPE_I32;
    collective.count = 77;  // not looked at
    collective.count_at = &count;
    collective.capacity = static_cast<int64_t>(1000 * size);
    collective.src = src.data();
    collective.dst = dst[i].data();
    collective.counts = counts[i].data();
    collective.name = "coded";
    ASSERT_OK(choir_comm_submit(comm_, stream, &collective));
  }
  ASSERT_OK(choir_stream_synchronize(stream));
  for (size_t i = 0; i < kRounds; ++i) {
    size_t at = 0;
    for (size_t r = 0; r < size; ++r) {
      ASSERT_EQ(counts[i][r], static_cast<int64_t>(100 * r + i + 1));
      for (int64_t k = 0; k < counts[i][r]; ++k)
        ASSERT_EQ(dst[i][at++], static_cast<int32_t>(r) + 1);
    }
    ASSERT_EQ(dst[i][at], -1);
  }
  choir_stream_release(stream);
}

TEST_P(CommSuite, ReduceScatter) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<double> weights(static_cast<size_t>(size_), 1.0);
  for (choir_dtype_t dtype :
       {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16, CHOIR_DTYPE_I32}) {
    size_t e = choir_dtype_bytes(dtype);
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{20011},
                          int64_t{100003}}) {
      if (count == 100003 && dtype != CHOIR_DTYPE_F32) continue;
      int64_t total = count * size_;
      size_t bytes = static_cast<size_t>(total) * e;
      auto all = AllData(total, dtype);
      std::vector<unsigned char> expected(static_cast<size_t>(count) * e + 1);
      for (choir_reduce_t op : {CHOIR_REDUCE_SUM, CHOIR_REDUCE_AVERAGE}) {
        for (int64_t i = 0; i < count; ++i)
          Expect(all, weights, dtype, op, rank_ * count + i,
                 &expected[static_cast<size_t>(i) * e]);
        for (Mode mode : kModes) {
          SCOPED_TRACE(Describe(dtype, op, count, mode));
          Memory src(comm_, device_, mode.shared, bytes + e);
          Memory dst(comm_, device_, mode.shared,
                     static_cast<size_t>(count) * e + e);
          memcpy(src.data(), all[static_cast<size_t>(rank_)].data(), bytes);
          unsigned char* at =
              mode.in_place
                  ? src.data() + static_cast<size_t>(rank_ * count) * e
                  : dst.data();
          ASSERT_OK(choir_comm_reduce_scatter(comm_, src.data(), at, count,
                                              dtype, op, "grads"));
          ASSERT_EQ(FirstDifference(at, expected.data(), count, e), -1);
          ASSERT_TRUE(src.GuardsHold() && dst.GuardsHold());
        }
      }
    }
  }
}

// Many operations of mixed sizes in a row: banks and phases are reused.
TEST_P(CommSuite, ManySmallOperations) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  for (int step = 0; step < 300; ++step) {
    int64_t count = 1 + (step * 37) % 200;
    std::vector<int64_t> data(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      data[static_cast<size_t>(i)] = (rank_ + 1) * (i + step);
    ASSERT_OK(choir_comm_all_reduce(comm_, data.data(), data.data(), count,
                                    CHOIR_DTYPE_I64, CHOIR_REDUCE_SUM, "a"));
    int64_t sum = static_cast<int64_t>(size_) * (size_ + 1) / 2;
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(data[static_cast<size_t>(i)], sum * (i + step));
    if (step % 3 == 0) {
      ASSERT_OK(choir_comm_barrier(comm_, nullptr));
    }
  }
}

// Each handle gets its own result; a blocking call comes after all of them.
TEST_P(CommSuite, AsynchronousHandles) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int kHandles = 20;
  std::vector<std::vector<float>> data;
  std::vector<choir_work_t*> works;
  for (int h = 0; h < kHandles; ++h)
    data.emplace_back(static_cast<size_t>(1 + h * h * 100),
                      static_cast<float>(rank_ + h));
  for (int h = 0; h < kHandles; ++h) {
    auto& values = data[static_cast<size_t>(h)];
    choir_collective_t collective = {};
    collective.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
    collective.op = CHOIR_REDUCE_SUM;
    collective.dtype = CHOIR_DTYPE_F32;
    collective.count = static_cast<int64_t>(values.size());
    collective.src = collective.dst = values.data();
    collective.weight = 1;
    collective.name = "bucket";
    choir_work_t* work = nullptr;
    ASSERT_OK(choir_comm_start(comm_, &collective, &work));
    works.push_back(work);
  }
  float mine = 1;
  ASSERT_OK(choir_comm_all_reduce(comm_, &mine, &mine, 1, CHOIR_DTYPE_F32,
                                  CHOIR_REDUCE_SUM, "after"));
  EXPECT_EQ(mine, static_cast<float>(size_));
  for (int h = 0; h < kHandles; ++h) {
    EXPECT_TRUE(choir_work_is_done(works[static_cast<size_t>(h)]));
    if (h % 2) {
      ASSERT_OK(choir_work_wait(works[static_cast<size_t>(h)]));
    } else {
      choir_work_release(works[static_cast<size_t>(h)]);
    }
    float expected = static_cast<float>(size_ * (size_ - 1) / 2 + size_ * h);
    for (float value : data[static_cast<size_t>(h)]) ASSERT_EQ(value, expected);
  }
}

TEST_P(CommSuite, RecordsOnStreams) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_stream_t* stream = nullptr;
  ASSERT_OK(choir_stream_create(device_, CHOIR_STREAM_BACKGROUND, &stream));
  std::vector<float> data(50000, static_cast<float>(rank_ + 1));
  for (int i = 0; i < 3; ++i) {
    choir_collective_t collective = {};
    collective.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
    collective.op = CHOIR_REDUCE_MAX;
    collective.dtype = CHOIR_DTYPE_F32;
    collective.count = static_cast<int64_t>(data.size());
    collective.src = collective.dst = data.data();
    collective.name = "on a stream";
    ASSERT_OK(choir_comm_submit(comm_, stream, &collective));
  }
  ASSERT_OK(choir_stream_synchronize(stream));
  for (float value : data) ASSERT_EQ(value, static_cast<float>(size_));
  choir_stream_release(stream);
}

// A difference is an error on all ranks that names both sides, and the
// communicator works on.
TEST_P(CommSuite, DifferencesAreToldOnAllRanks) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  std::vector<double> data(30000, 1.0);
  void* at = data.data();
  bool odd = rank_ == 1;
  std::string rest = size_ == 2   ? "rank 0"
                     : size_ == 3 ? "ranks 0 and 2"
                     : size_ == 4 ? "ranks 0, 2 and 3"
                                  : "ranks 0, 2, 3, 4, 5 and 6";
  std::string has = size_ == 2 ? " has " : " have ";
  std::string wants = size_ == 2 ? " wants " : " want ";
  int operation = 0;
  auto expect = [&](choir_status_t status, const std::string& text) {
    ++operation;
    std::string full = text;
    size_t at_number = full.find('#');
    if (at_number != std::string::npos)
      full.replace(at_number, 1, std::to_string(operation));
    ASSERT_NE(status, nullptr) << full;
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), full);
    choir_status_free(status);
  };
  expect(choir_comm_all_reduce(comm_, at, at, odd ? 1000 : 1024,
                               CHOIR_DTYPE_F32, CHOIR_REDUCE_SUM, "x"),
         "all_reduce 'x' (operation #): " + rest + has +
             "1024 f32, rank 1 has 1000 f32; all ranks need the same");
  expect(choir_comm_all_reduce(comm_, at, at, odd ? 20000 : 20001,
                               CHOIR_DTYPE_F64, CHOIR_REDUCE_SUM, "large"),
         "all_reduce 'large' (operation #): " + rest + has +
             "20001 f64, rank 1 has 20000 f64; all ranks need the same");
  expect(choir_comm_all_reduce(comm_, at, at, 100,
                               odd ? CHOIR_DTYPE_I32 : CHOIR_DTYPE_F32,
                               CHOIR_REDUCE_SUM, nullptr),
         "all_reduce (operation #): " + rest + has +
             "100 f32, rank 1 has 100 i32; all ranks need the same");
  expect(
      choir_comm_all_reduce(comm_, at, at, 100, CHOIR_DTYPE_F32,
                            odd ? CHOIR_REDUCE_MAX : CHOIR_REDUCE_AVERAGE, "x"),
      "all_reduce 'x' (operation #): " + rest + wants +
          "average, rank 1 wants max; all ranks need the same reduction");
  expect(
      choir_comm_broadcast(comm_, at, 100, CHOIR_DTYPE_F32, odd ? 1 : 0, "w"),
      "broadcast 'w' (operation #): " + rest + wants +
          "root 0, rank 1 wants root 1; all ranks need the same root");
  expect(choir_comm_all_reduce(comm_, at, at, 100, CHOIR_DTYPE_F32,
                               CHOIR_REDUCE_SUM, odd ? "b" : "a"),
         "operation #: " + rest + wants +
             "all_reduce 'a', rank 1 wants all_reduce 'b'; all ranks must "
             "call the same operations in the same order");
  expect(odd ? choir_comm_barrier(comm_, "end")
             : choir_comm_all_reduce(comm_, at, at, 100, CHOIR_DTYPE_F32,
                                     CHOIR_REDUCE_SUM, "loss"),
         "operation #: " + rest + wants +
             "all_reduce 'loss', rank 1 wants barrier 'end'; all ranks must "
             "call the same operations in the same order");
  // A wrong argument of one rank.
  expect(choir_comm_all_reduce(comm_, at, at, odd ? -3 : 100, CHOIR_DTYPE_F32,
                               CHOIR_REDUCE_SUM, "y"),
         "all_reduce 'y' (operation #): rank 1: count is -3; it must be 0 or "
         "more");
  expect(
      choir_comm_broadcast(comm_, at, 100, CHOIR_DTYPE_F32, odd ? 77 : 0, "w"),
      "broadcast 'w' (operation #): rank 1: root is 77; ranks are 0 .. " +
          std::to_string(size_ - 1));
  expect(choir_comm_all_gather(comm_, odd ? nullptr : at, at, 10,
                               CHOIR_DTYPE_F32, "g"),
         "all_gather 'g' (operation #): rank 1: src is NULL");
  expect(choir_comm_all_gather_v(comm_, at, 10, at, odd ? -1 : 100, nullptr,
                                 CHOIR_DTYPE_F32, "v"),
         "all_gather_v 'v' (operation #): rank 1: capacity is -1; it must be 0 "
         "or more");
  expect(choir_comm_all_gather_v(comm_, at, odd ? 20 : 10, at, 100, nullptr,
                                 odd ? CHOIR_DTYPE_F16 : CHOIR_DTYPE_F32, "v"),
         "all_gather_v 'v' (operation #): " + rest + has +
             "f32, rank 1 has f16; all ranks need the same");
  std::string gives = size_ == 2 ? " gives " : " give ";
  expect(choir_comm_all_gather_v(comm_, at, odd ? 20 : 10, data.data() + 100,
                                 rank_ == 0 ? 25 : 100, nullptr,
                                 CHOIR_DTYPE_F32, "v"),
         "all_gather_v 'v' (operation #): " + rest + gives +
             "10 f32, rank 1 gives 20 f32: " + std::to_string(10 * size_ + 10) +
             " in all for rank 0, which has room for 25");
  choir_collective_t collective = {};
  collective.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  collective.op = CHOIR_REDUCE_AVERAGE;
  collective.dtype = CHOIR_DTYPE_F32;
  collective.count = 10;
  collective.src = collective.dst = at;
  collective.name = "none";
  expect(choir_comm_run(comm_, &collective),
         "all_reduce 'none' (operation #): the weights of all ranks add to 0; "
         "one must be above 0");
  // Still works.
  float one = 1;
  ASSERT_OK(choir_comm_all_reduce(comm_, &one, &one, 1, CHOIR_DTYPE_F32,
                                  CHOIR_REDUCE_SUM, "ok"));
  EXPECT_EQ(one, static_cast<float>(size_));
}

TEST_P(CommSuite, SettingsAreCompared) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  ASSERT_OK(choir_comm_check_same(comm_, "shares", ""));
  ASSERT_OK(choir_comm_check_same(comm_, "shares", "96,32"));
  const std::string end(1000, 'x');
  ASSERT_OK(choir_comm_check_same(comm_, "long", end.c_str()));
  if (size_ == 1) return;
  const auto expect = [&](const std::string& own, const std::string& why) {
    choir_status_t status = choir_comm_check_same(comm_, "it", own.c_str());
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), why);
    choir_status_free(status);
  };
  const int last = size_ - 1;
  const std::string number = std::to_string(last);
  expect(rank_ == last ? "b" : "a", "it: rank 0 has 'a', rank " + number +
                                        " has 'b'; all ranks need the same");
  expect(std::to_string(rank_),
         "it: rank 0 has '0', rank 1 has '1'; all ranks need the same");
  // What differs may be more than a message shows.
  expect(end + (rank_ == last ? "b" : "a"),
         "it: rank 0 has '" + end.substr(0, 119) + "', rank " + number +
             " has '" + end.substr(0, 119) + "'; all ranks need the same");
}

TEST_P(CommSuite, BuffersComeAndGo) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<choir_buffer_t*> buffers;
  for (int i = 0; i < 12; ++i) {
    choir_buffer_t* buffer = nullptr;
    size_t bytes = static_cast<size_t>(1000 + i * 40000);
    ASSERT_OK(choir_comm_buffer_create(comm_, device_, bytes, &buffer));
    auto* data = static_cast<unsigned char*>(choir_buffer_data(buffer));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    ASSERT_EQ(choir_buffer_bytes(buffer), bytes);
    for (size_t k = 0; k < bytes; ++k) ASSERT_EQ(data[k], 0);
    memset(data, rank_ + 1, bytes);
    buffers.push_back(buffer);
    // Ranks release at different times; each keeps its own place book.
    if (i % 3 == 2) {
      size_t which = static_cast<size_t>((i + rank_) % 3);
      choir_buffer_release(buffers[which]);
      buffers.erase(buffers.begin() + static_cast<int64_t>(which));
    }
  }
  for (choir_buffer_t* buffer : buffers) {
    const auto* data =
        static_cast<const unsigned char*>(choir_buffer_data(buffer));
    for (size_t k = 0; k < choir_buffer_bytes(buffer); ++k)
      ASSERT_EQ(data[k], rank_ + 1);
    choir_buffer_release(buffer);
  }
  choir_buffer_t* buffer = nullptr;
  choir_status_t status = choir_comm_buffer_create(comm_, device_, 0, &buffer);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
  choir_status_free(status);
}

TEST_P(CommSuite, KnowsItsHosts) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  EXPECT_EQ(choir_comm_local_rank(comm_), rank_);
  EXPECT_EQ(choir_comm_local_size(comm_), size_);
  EXPECT_EQ(choir_comm_host_index(comm_), 0);
  EXPECT_EQ(choir_comm_host_count(comm_), 1);
  std::string peer = choir_comm_peer(comm_, size_ - 1);
  EXPECT_EQ(peer.find("rank " + std::to_string(size_ - 1) + " (host "), 0u);
  EXPECT_NE(peer.find(", pid "), std::string::npos);
  const std::string host = choir_comm_host(comm_, size_ - 1);
  EXPECT_NE(peer.find("(host " + host + ", pid "), std::string::npos);
  EXPECT_STREQ(choir_comm_host(comm_, size_), "no such rank");
  EXPECT_STREQ(choir_comm_activity(comm_), "");
  choir_status_t status = choir_comm_poll_error(comm_);
  EXPECT_EQ(status, nullptr);
  ASSERT_OK(choir_comm_finalize(comm_));
  status = choir_comm_barrier(comm_, "late");
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_FAILED_PRECONDITION);
  choir_status_free(status);
}

INSTANTIATE_TEST_SUITE_P(Backends, CommSuite, ::testing::ValuesIn(AllCases()),
                         CaseName);

}  // namespace comm_suite
