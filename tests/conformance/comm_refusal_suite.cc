// SPDX-License-Identifier: Apache-2.0
// A rank that cannot come to an operation, ranks at different steps, names that
// differ far on: errors of all ranks at once, after which they are in order.
#include "tests/conformance/comm_suite.h"

namespace comm_suite {
namespace {

class CommRefusalSuite : public CommSuite {
 protected:
  // The next operation, which all ranks run: its number is `operation_`.
  void ExpectOnAll(choir_status_t status, const std::string& text) {
    ++operation_;
    std::string full = text;
    const size_t at = full.find('#');
    if (at != std::string::npos)
      full.replace(at, 1, std::to_string(operation_));
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT) << full;
    EXPECT_EQ(std::string(choir_status_message(status)), full);
    choir_status_free(status);
  }

  // Each rank adds its own number: who is one operation off would have the sum
  // of another one, or an error.
  void ExpectInOrder() {
    ++operation_;
    int64_t value = 100 * operation_ + rank_;
    ASSERT_OK(choir_comm_all_reduce(comm_, &value, &value, 1, CHOIR_DTYPE_I64,
                                    CHOIR_REDUCE_SUM, "in order"));
    EXPECT_EQ(value, size_ * 100 * operation_ + size_ * (size_ - 1) / 2);
  }

  bool IsOdd() const { return rank_ == size_ - 1; }

  choir_collective_t Collective(int kind) {
    data_.resize(static_cast<size_t>(200 * size_), 1.0f);
    splits_.assign(static_cast<size_t>(size_), 3);
    choir_collective_t c = {};
    c.kind = static_cast<choir_collective_kind_t>(kind);
    c.dtype = CHOIR_DTYPE_F32;
    c.count = kind == CHOIR_COLLECTIVE_SCATTER_V ||
                      kind == CHOIR_COLLECTIVE_ALL_TO_ALL_V
                  ? 3 * size_
                  : 3;
    c.src = data_.data();
    c.dst = data_.data() + 100 * size_;
    c.weight = 1;
    c.capacity = 3 * size_;
    c.splits = splits_.data();
    c.name = "it";
    return c;
  }

  int64_t operation_ = 0;
  std::vector<float> data_;
  std::vector<int64_t> splits_;
};

TEST_P(CommRefusalSuite, EveryKindIsRefusedOnAllRanks) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const char* const names[] = {
#define CHOIR_NAME(ENUM, name) #name,
      CHOIR_COLLECTIVE_LIST(CHOIR_NAME)
#undef CHOIR_NAME
  };
  const std::string who = "rank " + std::to_string(size_ - 1);
  for (int kind = 0; kind < CHOIR_COLLECTIVE_COUNT; ++kind) {
    if (kind == CHOIR_COLLECTIVE_SEND || kind == CHOIR_COLLECTIVE_RECEIVE)
      continue;
    choir_collective_t c = Collective(kind);
    choir_collective_t refused = {};
    refused.kind = c.kind;
    refused.name = c.name;
    refused.refusal = "int16 is no dtype of Choir's";
    ExpectOnAll(choir_comm_run(comm_, IsOdd() ? &refused : &c),
                std::string(names[kind]) + " 'it' (operation #): " + who +
                    ": int16 is no dtype of Choir's");
    EXPECT_EQ(data_[0], 1.0f);
    ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
  }
}

// The code of a refusal is that of all ranks' failures.
TEST_P(CommRefusalSuite, CodesAreHanded) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  for (choir_status_code_t code :
       {CHOIR_STATUS_OUT_OF_MEMORY, CHOIR_STATUS_UNAVAILABLE}) {
    choir_collective_t c = Collective(CHOIR_COLLECTIVE_ALL_REDUCE);
    if (IsOdd()) {
      c.refusal = "it";
      c.refusal_code = code;
    }
    choir_status_t status = choir_comm_run(comm_, &c);
    ++operation_;
    EXPECT_EQ(choir_status_code(status), code);
    choir_status_free(status);
    // Of two that are wrong the lower one is told.
    if (rank_ == 0) {
      c.refusal = "another";
      c.refusal_code = CHOIR_STATUS_NOT_FOUND;
    }
    status = choir_comm_run(comm_, &c);
    ++operation_;
    EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_NOT_FOUND);
    choir_status_free(status);
    ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
  }
  if (size_ == 1 || rank_ > 1) return;
  float value = 1;
  choir_collective_t pair = {};
  pair.kind = rank_ ? CHOIR_COLLECTIVE_SEND : CHOIR_COLLECTIVE_RECEIVE;
  pair.root = 1 - rank_;
  pair.dtype = CHOIR_DTYPE_F32;
  pair.count = 1;
  pair.src = pair.dst = &value;
  if (rank_ == 0) {
    pair.refusal = "no room";
    pair.refusal_code = CHOIR_STATUS_OUT_OF_MEMORY;
  }
  choir_status_t status = choir_comm_run(comm_, &pair);
  EXPECT_EQ(choir_status_code(status), CHOIR_STATUS_OUT_OF_MEMORY);
  choir_status_free(status);
}

TEST_P(CommRefusalSuite, ALongReasonIsCutAndAnEmptyOneIsToldAsSuch) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const std::string who = "rank " + std::to_string(size_ - 1);
  const std::string longer(1000, 'r');
  for (const std::string& reason : {longer, std::string()}) {
    choir_collective_t c = Collective(CHOIR_COLLECTIVE_BARRIER);
    if (IsOdd()) c.refusal = reason.c_str();
    ExpectOnAll(
        choir_comm_run(comm_, &c),
        "barrier 'it' (operation #): " + who + ": " +
            (reason.empty() ? "no reason given" : longer.substr(0, 199)));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
}

TEST_P(CommRefusalSuite, AsynchronousWorkIsRefusedInItsPlace) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_work_t* works[3] = {};
  int64_t values[3] = {rank_, rank_, rank_};
  for (int i = 0; i < 3; ++i) {
    choir_collective_t c = {};
    c.kind = CHOIR_COLLECTIVE_ALL_REDUCE;
    c.dtype = CHOIR_DTYPE_I64;
    c.count = 1;
    c.src = c.dst = &values[i];
    c.weight = 1;
    c.name = "work";
    if (i == 1 && IsOdd()) c.refusal = "the array is read-only";
    ASSERT_OK(choir_comm_start(comm_, &c, &works[i]));
  }
  const int64_t sum = size_ * (size_ - 1) / 2;
  ++operation_;
  ASSERT_OK(choir_work_wait(works[0]));
  EXPECT_EQ(values[0], sum);
  ExpectOnAll(choir_work_wait(works[1]),
              "all_reduce 'work' (operation #): rank " +
                  std::to_string(size_ - 1) + ": the array is read-only");
  EXPECT_EQ(values[1], rank_);
  ++operation_;
  ASSERT_OK(choir_work_wait(works[2]));
  EXPECT_EQ(values[2], sum);
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
}

// What the library itself finds wrong on one rank before it says anything.
TEST_P(CommRefusalSuite, WrongCallsOfOneRankAreHeard) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  const std::string who = "rank " + std::to_string(size_ - 1);
  // The rank itself gets its own words; the others hear them.
  const auto expect = [&](choir_status_t status, const std::string& operation,
                          const std::string& why) {
    ExpectOnAll(
        status,
        IsOdd() ? why : operation + " (operation #): " + who + ": " + why);
    ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
  };
  choir_collective_t c = Collective(CHOIR_COLLECTIVE_ALL_REDUCE);
  choir_collective_t wrong = c;
  wrong.kind = static_cast<choir_collective_kind_t>(99);
  choir_status_t status = choir_comm_run(comm_, IsOdd() ? &wrong : &c);
  expect(status, "unknown operation 'it'",
         "comm_run: 99 is no kind of collective");
  if (IsOdd()) {
    status = choir_comm_start(comm_, &c, nullptr);
  } else {
    choir_work_t* work = nullptr;
    ASSERT_OK(choir_comm_start(comm_, &c, &work));
    status = choir_work_wait(work);
  }
  expect(status, "all_reduce 'it'", "comm_start: out_work is NULL");
  choir_stream_t* stream = choir_device_stream(device_);
  status = choir_comm_submit(comm_, stream, IsOdd() ? &wrong : &c);
  expect(choir_status_join(status, choir_stream_synchronize(stream)),
         "unknown operation 'it'", "comm_submit: 99 is no kind of collective");
  // The shared segment; what belongs to a rank alone concerns nobody.
  if (GetParam().backend == std::string("shm")) {
    choir_buffer_t* buffer = nullptr;
    expect(choir_comm_buffer_create(comm_, device_, IsOdd() ? 0 : 64, &buffer),
           "buffer_create", "buffer_create: 0 bytes; it must be above 0");
    EXPECT_EQ(buffer, nullptr);
  }
  std::vector<int32_t> all;
  for (int32_t r = 0; r < size_; ++r) all.push_back(r);
  choir_comm_t* group = nullptr;
  expect(choir_comm_group(comm_, all.data(), size_, IsOdd() ? nullptr : &group),
         "group", "group: out_group is NULL");
  EXPECT_EQ(group, nullptr);
}

TEST_P(CommRefusalSuite, PairsHearOfIt) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  if (rank_ < 2) {
    float value = 1;
    choir_collective_t c = {};
    c.kind = rank_ ? CHOIR_COLLECTIVE_SEND : CHOIR_COLLECTIVE_RECEIVE;
    c.root = 1 - rank_;
    c.dtype = CHOIR_DTYPE_F32;
    c.count = 1;
    c.src = c.dst = &value;
    c.name = "p";
    if (rank_ == 1) c.refusal = "it cannot be pickled";
    choir_status_t status = choir_comm_run(comm_, &c);
    EXPECT_EQ(std::string(choir_status_message(status)),
              std::string(rank_ ? "send" : "receive") +
                  " 'p' (after operation 0): rank 1: it cannot be pickled");
    choir_status_free(status);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
}

// A rank that skipped a batch is at an earlier step.
TEST_P(CommRefusalSuite, DifferentStepsAreNamed) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  choir_collective_t c = Collective(CHOIR_COLLECTIVE_ALL_REDUCE);
  c.name = "bucket";
  c.in_step = true;
  for (int64_t step = 0; step < 3; ++step, ++operation_) {
    c.step = step;
    ASSERT_OK(choir_comm_run(comm_, &c));
  }
  if (size_ == 1) return;
  c.step = IsOdd() ? 6 : 7;
  const std::string odd = std::to_string(size_ - 1);
  std::string rest = size_ == 2 ? "rank 0 is" : "ranks 0";
  for (int r = 1; r + 1 < size_; ++r)
    rest += (r + 2 < size_ ? ", " : " and ") + std::to_string(r);
  if (size_ > 2) rest += " are";
  ExpectOnAll(choir_comm_run(comm_, &c),
              "all_reduce 'bucket' (operation #): " + rest +
                  " at step 7, rank " + odd +
                  " is at step 6; all ranks must take the same steps");
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
  // One of the same name that is in no step.
  if (IsOdd()) c.in_step = false;
  ExpectOnAll(choir_comm_run(comm_, &c),
              "all_reduce 'bucket' (operation #): " + rest +
                  " at step 7, rank " + odd +
                  " is outside of a step; all ranks must take the same steps");
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
  // One of another name differs by that.
  if (IsOdd()) c.name = "other";
  choir_status_t status = choir_comm_run(comm_, &c);
  ++operation_;
  EXPECT_NE(std::string(choir_status_message(status))
                .find("rank " + odd + " wants all_reduce 'other'"),
            std::string::npos)
      << choir_status_message(status);
  choir_status_free(status);
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
}

// A record that a graph runs again belongs to the step that it runs in.
TEST_P(CommRefusalSuite, ARecordIsOfTheStepThatItIsSubmittedFor) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  choir_stream_t* stream = choir_device_stream(device_);
  choir_collective_t c = Collective(CHOIR_COLLECTIVE_ALL_REDUCE);
  c.in_step = true;
  c.step = 4;
  ASSERT_OK(choir_comm_submit(comm_, stream, &c));
  ASSERT_OK(choir_stream_synchronize(stream));
  c.step = IsOdd() ? 4 : 5;
  choir_status_t status = choir_comm_submit(comm_, stream, &c);
  status = choir_status_join(status, choir_stream_synchronize(stream));
  EXPECT_NE(std::string(choir_status_message(status))
                .find("all ranks must take the same steps"),
            std::string::npos)
      << choir_status_message(status);
  choir_status_free(status);
}

// More of a name is compared than a message shows.
TEST_P(CommRefusalSuite, LongNamesThatDifferAreToldApart) {
  if (Start()) return;
  ASSERT_NO_FATAL_FAILURE(Join());
  if (size_ == 1) return;
  const std::string beginning(80, 'n');
  for (const char* end : {"", "end"}) {
    const std::string name =
        beginning + (IsOdd() ? std::to_string(rank_) : "0") + end;
    choir_status_t status = choir_comm_barrier(comm_, name.c_str());
    ++operation_;
    ASSERT_EQ(choir_status_code(status), CHOIR_STATUS_INVALID_ARGUMENT);
    const std::string said = choir_status_message(status);
    choir_status_free(status);
    std::vector<std::string> told;
    const std::string mark = "barrier 'n";
    for (size_t at = said.find(mark); at != std::string::npos;
         at = said.find(mark, at + 1))
      told.push_back(said.substr(at, said.find('\'', at + 9) - at));
    ASSERT_EQ(told.size(), 2u) << said;
    EXPECT_NE(told[0], told[1]) << said;
  }
  // The same one is the same.
  ASSERT_OK(choir_comm_barrier(comm_, (beginning + "1").c_str()));
  ++operation_;
  ASSERT_NO_FATAL_FAILURE(ExpectInOrder());
}

INSTANTIATE_TEST_SUITE_P(Backends, CommRefusalSuite,
                         ::testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace comm_suite
