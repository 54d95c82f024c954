// SPDX-License-Identifier: Apache-2.0
// Operations of two ranks.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {

choir_collective_t Pair(choir_collective_kind_t kind, void* data, int64_t count,
                        choir_dtype_t dtype, int peer, const char* name) {
  choir_collective_t c = {};
  c.kind = kind;
  c.dtype = dtype;
  c.root = peer;
  c.count = count;
  c.src = c.dst = data;
  c.name = name;
  return c;
}

// Each pair of ranks in turn, both ways; the others know nothing of it.
TEST_P(CommSuite, SendAndReceive) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  int number = 0;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (from == to) continue;
      choir_dtype_t dtype = kDtypes[number++ % 8];
      size_t e = choir_dtype_bytes(dtype);
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{20011}}) {
        if (rank_ != from && rank_ != to) continue;
        std::vector<unsigned char> data = Data(from, count, dtype);
        size_t bytes = static_cast<size_t>(count) * e;
        if (rank_ == from) {
          ASSERT_OK(choir_comm_send(comm_, data.data(), count, dtype, to, "p"));
        } else {
          Memory dst(comm_, device_, false, bytes + e);
          ASSERT_OK(
              choir_comm_receive(comm_, dst.data(), count, dtype, from, "p"));
          ASSERT_EQ(FirstDifference(dst.data(), data.data(), count, e), -1);
          ASSERT_EQ(dst.data()[bytes], kGuardByte);
          ASSERT_TRUE(dst.GuardsHold());
        }
      }
    }
  }
  ASSERT_OK(choir_comm_barrier(comm_, "after"));
}

// Larger than any buffer on the way, between collectives of all.
TEST_P(CommSuite, SendsMuch) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const int64_t count = 150001;
  for (int from = 0; from + 1 < size_; ++from) {
    std::vector<unsigned char> data;
    if (rank_ == from || rank_ == from + 1)
      data = Data(from, count, CHOIR_DTYPE_F64);
    std::vector<double> dst(static_cast<size_t>(count));
    if (rank_ == from) {
      ASSERT_OK(choir_comm_send(comm_, data.data(), count, CHOIR_DTYPE_F64,
                                from + 1, nullptr));
    }
    if (rank_ == from + 1) {
      ASSERT_OK(choir_comm_receive(comm_, dst.data(), count, CHOIR_DTYPE_F64,
                                   from, nullptr));
      ASSERT_EQ(memcmp(dst.data(), data.data(), dst.size() * 8), 0);
    }
    int32_t one = 1;
    ASSERT_OK(choir_comm_all_reduce(comm_, &one, &one, 1, CHOIR_DTYPE_I32,
                                    CHOIR_REDUCE_SUM, "all"));
    ASSERT_EQ(one, size_);
  }
}

// Around a ring as work beside other work: even ranks send first.
TEST_P(CommSuite, SendsAsWork) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ % 2) return;
  std::vector<int32_t> mine(5000, rank_ + 1), theirs(5000, 0), sum(5000, 1);
  int next = (rank_ + 1) % size_;
  int before = (rank_ + size_ - 1) % size_;
  choir_collective_t sends = Pair(CHOIR_COLLECTIVE_SEND, mine.data(), 5000,
                                  CHOIR_DTYPE_I32, next, "ring");
  choir_collective_t receives = Pair(CHOIR_COLLECTIVE_RECEIVE, theirs.data(),
                                     5000, CHOIR_DTYPE_I32, before, "ring");
  choir_collective_t reduces = {};
  reduces.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
  reduces.dtype = CHOIR_DTYPE_I32;
  reduces.count = 5000;
  reduces.src = reduces.dst = sum.data();
  reduces.weight = 1;
  reduces.name = "sum";
  const choir_collective_t* order[3] = {&sends, &receives, &reduces};
  if (rank_ % 2) std::swap(order[0], order[1]);
  choir_work_t* works[3] = {};
  for (int i = 0; i < 3; ++i)
    ASSERT_OK(choir_comm_start(comm_, order[i], &works[i]));
  for (choir_work_t* work : works) ASSERT_OK(choir_work_wait(work));
  for (size_t i = 0; i < theirs.size(); ++i) {
    ASSERT_EQ(theirs[i], before + 1);
    ASSERT_EQ(sum[i], size_);
  }
}

TEST_P(CommSuite, WrongPairsAreToldOnBoth) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  std::vector<float> data(100, 1);
  auto expect = [&](choir_status_t status, const std::string& text) {
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(choir_status_message(status)), text);
    choir_status_free(status);
  };
  for (int peer : {rank_, -1, size_})
    expect(choir_comm_send(comm_, data.data(), 1, CHOIR_DTYPE_F32, peer, "p"),
           "send 'p' (after operation 0): rank " + std::to_string(rank_) +
               ": the other rank is " + std::to_string(peer) +
               "; it must be another one of 0 .. " + std::to_string(size_ - 1));
  ASSERT_OK(choir_comm_barrier(comm_, "first"));
  if (size_ == 1) return;
  // Ranks 1 and 0.
  auto run = [&](choir_collective_kind_t kind, int64_t count,
                 choir_dtype_t dtype, const char* name,
                 const std::string& text) {
    choir_collective_t c =
        Pair(kind, data.data(), count, dtype, 1 - rank_, name);
    std::string verb = kind == CHOIR_COLLECTIVE_SEND ? "send '" : "receive '";
    expect(choir_comm_run(comm_, &c),
           verb + name + "' (after operation 1): " + text);
  };
  const auto send = CHOIR_COLLECTIVE_SEND;
  const auto receive = CHOIR_COLLECTIVE_RECEIVE;
  const choir_dtype_t f32 = CHOIR_DTYPE_F32;
  if (rank_ < 2) {
    bool sends = rank_ == 1;
    run(sends ? send : receive, sends ? 10 : 12, f32, "p",
        "rank 1 sends 10 f32 as 'p', rank 0 receives 12 f32 as 'p'; both need "
        "the same");
    run(sends ? send : receive, 10, sends ? f32 : CHOIR_DTYPE_I32, "p",
        "rank 1 sends 10 f32 as 'p', rank 0 receives 10 i32 as 'p'; both need "
        "the same");
    run(sends ? send : receive, 10, f32, sends ? "a" : "b",
        "rank 1 sends 10 f32 as 'a', rank 0 receives 10 f32 as 'b'; both need "
        "the same");
    run(send, 10, f32, "p",
        "ranks 0 and 1 both send; one of them must receive");
    run(receive, 10, f32, "p",
        "ranks 0 and 1 both receive; one of them must send");
    run(sends ? send : receive, sends ? -1 : 10, f32, "p",
        "rank 1: count is -1; it must be 0 or more");
    // Still works.
    if (sends) {
      ASSERT_OK(choir_comm_send(comm_, data.data(), 9, f32, 0, "p"));
    } else {
      ASSERT_OK(choir_comm_receive(comm_, data.data(), 9, f32, 1, "p"));
    }
  }
  ASSERT_OK(choir_comm_barrier(comm_, "last"));
}

}  // namespace comm_suite
