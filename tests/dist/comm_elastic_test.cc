// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed, and those that are left go on as the next generation.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/clock.h"
#include "dist/comm.h"
#include "dist/comm_shared_def.h"
#include "dist/elastic/membership_def.h"
#include "tests/testing/ranks.h"
#include "tests/testing/status_matchers.h"

namespace {

using choir_testing::Heard;
using choir_testing::Patience;
using choir_testing::ProcessGroup;
using choir_testing::ProcessResult;
using choir_testing::Rank;
using choir_testing::Say;

constexpr int kOperations = 60;

// Where a rank of the first generation is killed.
enum Moment {
  kBefore,  // it comes to operation `number`
  kLost,    // when it has noticed the loss in operation `number`
  kDuring,  // while operation `number` runs
  kLate,    // a moment after it asked for change `number`
};
struct Death {
  Moment moment;
  int number;
};
using Deaths = std::map<int, Death>;

bool Dies(const Deaths& deaths, Moment moment, int number) {
  const auto found = deaths.find(Rank());
  return found != deaths.end() && found->second.moment == moment &&
         found->second.number == number;
}

void KillSoon(useconds_t delay) {
  const pid_t own = getpid();
  if (fork() != 0) return;
  usleep(delay);
  kill(own, SIGKILL);
  _exit(0);
}

class ElasticRank {
 public:
  explicit ElasticRank(const Deaths& deaths, double silence = 0,
                       double deadline = Patience(20))
      : deaths_(deaths) {
    choir_comm_config_t config;
    Check(choir_comm_config_init(&config));
    config.deadline = deadline;
    config.silence = silence;
    Check(choir_comm_create(&config, &comm_));
    Check(choir__membership_create(comm_, 7, &membership_));
  }

  // Nobody is lost and nobody comes.
  void GoOn() {
    if (Rank() == 0)
      choir_comm_abort(comm_, "a change");
    else
      choir_status_free(choir_comm_barrier(comm_, "before the change"));
    Change();
    Say(text_);
    End();
  }

  // Rank 2 does not come to the next operation, and rank 1 does.
  void Miss(bool is_stopped) {
    if (Rank() == 2) {
      if (is_stopped) raise(SIGSTOP);
    } else if (Rank() == 0 && is_stopped) {
      choir_comm_abort(comm_, "a change");
    } else {
      choir_status_free(choir_comm_barrier(comm_, "without rank 2"));
    }
    const auto is_missing = [&](int32_t rank) {
      return is_stopped ? choir__comm_peer_is_silent(comm_, rank)
                        : choir__comm_peer_is_late(comm_, rank);
    };
    while (Rank() != 2 && (!is_missing(2) || is_missing(1 - Rank())))
      usleep(1000);
    Say("only that one");
    for (;;) pause();
  }

  // Sums of what follows from rank, size and operation.
  void Run() {
    for (int operation = 0; operation < kOperations;) {
      if (Dies(deaths_, kBefore, operation)) raise(SIGKILL);
      if (Dies(deaths_, kDuring, operation)) KillSoon(0);
      const int32_t size = choir_comm_size(comm_);
      std::vector<double> data(50000);
      for (size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<double>(i) + choir_comm_rank(comm_);
      choir_status_t status = choir_comm_all_reduce(
          comm_, data.data(), data.data(), static_cast<int64_t>(data.size()),
          CHOIR_DTYPE_F64, CHOIR_REDUCE_SUM, "sum");
      if (!status) {
        for (size_t i = 0; i < data.size(); ++i)
          if (data[i] != size * static_cast<double>(i) + size * (size - 1) / 2)
            Fail("a wrong sum");
        ++operation;
        continue;
      }
      choir_status_free(status);
      if (Dies(deaths_, kLost, operation)) raise(SIGKILL);
      Change();
      operation = Agreed(operation);
    }
    End();
  }

  // Rank 4 is left out while rank 3, which was too, does not know it yet: that
  // one's welcome to generation 1 is nothing. The others take it in.
  void ComeBack() {
    Moments moments;
    if (Rank() == 3) {
      moments.WaitFor("in");
      _exit(0);
    }
    if (Rank() == 4) {
      moments.WaitFor("out");
    } else {
      if (Rank() == 0) choir_comm_abort(comm_, "a change");
      Change();
      if (Rank() == 0) moments.Note("out");
      while (Rank() == 0 && choir__membership_newcomers(membership_) == 0)
        usleep(1000);
      if (Rank() == 0) choir_comm_abort(comm_, "somebody has come");
      choir_status_free(choir_comm_barrier(comm_, "until somebody comes"));
    }
    Change();
    if (Rank() == 4) moments.Note("in");
    End();
  }

 private:
  // Files by which ranks tell each other how far they are.
  class Moments {
   public:
    void Note(const char* name) const {
      FILE* file = fopen(Path(name).c_str(), "w");
      if (!file || fclose(file)) Fail("no file");
    }
    void WaitFor(const char* name) const {
      while (access(Path(name).c_str(), F_OK)) usleep(1000);
      unlink(Path(name).c_str());
    }

   private:
    static std::string Path(const char* name) {
      const char* id = getenv("CHOIR_COMM_ID");
      return ::testing::TempDir() + (id ? id : "") + name;
    }
  };

  [[noreturn]] void End() {
    Check(choir_comm_finalize(comm_));
    choir_comm_release(comm_);
    choir__membership_destroy(membership_);
    std::string words = "generation " + std::to_string(generation_) +
                        ", size " + std::to_string(size_) + ", rank " +
                        std::to_string(rank_);
    // Who ends behind the decision is waited for where the others meet.
    const bool are_late = std::any_of(
        deaths_.begin(), deaths_.end(),
        [](const auto& death) { return death.second.moment == kLate; });
    if (!are_late && slowest_ > Patience(2)) words += ", slow";
    Say(words);
    _exit(0);
  }

  static void Fail(const std::string& why) {
    Say(why);
    _exit(1);
  }
  static void Check(choir_status_t status) {
    if (status) Fail(choir_status_message(status));
  }

  void Change() {
    static int changes = 0;
    if (Dies(deaths_, kLate, ++changes))
      KillSoon(300 * static_cast<unsigned>(Rank()));
    choir_comm_t* next = nullptr;
    choir__change_t change;
    // Where it is left out it comes back as a newcomer.
    while (!next)
      Check(choir__membership_change(membership_, comm_, &next, &change));
    choir_comm_release(comm_);
    comm_ = next;
    generation_ = change.generation;
    rank_ = choir_comm_rank(comm_);
    size_ = choir_comm_size(comm_);
    slowest_ = std::max(slowest_, change.seconds);
    text_ = change.text;
  }

  // All go on with the operation that nobody has finished.
  int Agreed(int operation) {
    for (;;) {
      int32_t first = operation;
      choir_status_t status =
          choir_comm_all_reduce(comm_, &first, &first, 1, CHOIR_DTYPE_I32,
                                CHOIR_REDUCE_MAX, "operation");
      if (!status) return first;
      choir_status_free(status);
      Change();
    }
  }

  const Deaths& deaths_;
  choir_comm_t* comm_ = nullptr;
  choir__membership_t* membership_ = nullptr;
  int64_t generation_ = 1;
  int32_t rank_ = 0, size_ = 0;
  double slowest_ = 0;
  std::string text_;  // of the last change
};

// Of several hosts rank r is on host r % hosts.
void SetHost(int hosts) {
  if (hosts > 1)
    setenv("CHOIR_HOST", ("h" + std::to_string(Rank() % hosts)).c_str(), 1);
}

// The ranks that are left say these words, each with its new rank.
void Expect(int size, const Deaths& deaths, const std::string& words,
            int hosts = 1) {
  if (choir_testing::InRank()) {
    SetHost(hosts);
    ElasticRank(deaths).Run();
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, hosts > 1 ? "tcp" : "shm", size);
  const std::vector<ProcessResult> results = group.Wait(Patience(90));
  int rank = 0;
  for (int r = 0; r < size; ++r) {
    const ProcessResult& result = results[static_cast<size_t>(r)];
    if (deaths.count(r)) {
      EXPECT_EQ(result.exit_status, 128 + SIGKILL) << r << result.output;
      continue;
    }
    EXPECT_EQ(result.exit_status, 0) << r << result.output;
    EXPECT_TRUE(choir_testing::Matches(
        Heard(result), words + ", rank " + std::to_string(rank++)))
        << r << ": " << Heard(result);
  }
}

// Who does not come is known when the communicator is broken, too.
void ExpectMissing(bool is_stopped, int hosts) {
  if (choir_testing::InRank()) {
    SetHost(hosts);
    ElasticRank({}, is_stopped ? Patience(1) : 0, Patience(2)).Miss(is_stopped);
  }
  ProcessGroup group;
  choir_testing::StartRanks(&group, hosts > 1 ? "tcp" : "shm", 3);
  for (const size_t r : {0, 1})
    EXPECT_TRUE(group.WaitForOutput(r, "only that one", Patience(40)))
        << group.output(r);
}

TEST(ElasticTest, WhoIsSilent) { ExpectMissing(true, 1); }
TEST(ElasticTest, WhoIsLate) { ExpectMissing(false, 1); }
TEST(ElasticHostsTest, WhoIsSilent) { ExpectMissing(true, 3); }
TEST(ElasticHostsTest, WhoIsLate) { ExpectMissing(false, 3); }

TEST(ElasticTest, OneOfFour) {
  Expect(4, {{2, {kBefore, 7}}}, "generation 2, size 3");
}
TEST(ElasticTest, TheFirst) {
  Expect(3, {{0, {kBefore, 7}}}, "generation 2, size 2");
}
TEST(ElasticTest, TheFirstOfTwo) {
  Expect(2, {{0, {kDuring, 11}}}, "generation 2, size 1");
}
TEST(ElasticTest, InTheMiddle) {
  Expect(7, {{3, {kDuring, 20}}}, "generation 2, size 6");
}
TEST(ElasticTest, OneAfterTheOther) {
  Expect(4, {{1, {kBefore, 7}}, {0, {kBefore, 30}}, {3, {kBefore, 50}}},
         "generation 4, size 1");
}
// One that notices a loss and is lost too.
TEST(ElasticTest, OnTheWay) {
  Expect(4, {{1, {kBefore, 7}}, {0, {kLost, 7}}}, "generation [23], size 2");
}
TEST(ElasticTest, WhileTheyAgree) {
  Expect(7,
         {{1, {kBefore, 7}}, {0, {kLate, 1}}, {2, {kLate, 1}}, {5, {kLate, 1}}},
         "generation [2345], size 3");
}

// Over several hosts more than half have to be left, or half with rank 0.
TEST(ElasticHostsTest, OneOfThree) {
  Expect(3, {{1, {kBefore, 7}}}, "generation 2, size 2", 3);
}
TEST(ElasticHostsTest, TheFirst) {
  Expect(3, {{0, {kBefore, 7}}}, "generation 2, size 2", 3);
}
TEST(ElasticHostsTest, TheSecondOfTwo) {
  Expect(2, {{1, {kDuring, 11}}}, "generation 2, size 1", 2);
}
TEST(ElasticHostsTest, InTheMiddle) {
  Expect(7, {{3, {kDuring, 20}}}, "generation 2, size 6", 3);
}
// All of a host; then one of those that share the other.
TEST(ElasticHostsTest, AllOfAHost) {
  Expect(4, {{1, {kBefore, 7}}, {3, {kBefore, 7}}, {2, {kBefore, 30}}},
         "generation [34], size 1", 2);
}
TEST(ElasticHostsTest, OnTheWay) {
  Expect(6, {{1, {kBefore, 7}}, {0, {kLost, 7}}}, "generation [23], size 4", 3);
}
TEST(ElasticHostsTest, WhileTheyAgree) {
  Expect(7, {{1, {kBefore, 7}}, {0, {kLate, 1}}, {5, {kLate, 1}}},
         "generation [234], size 4", 3);
}

TEST(ElasticTest, TheSameMembersSayWhy) {
  if (choir_testing::InRank()) ElasticRank({}).GoOn();
  ProcessGroup group;
  choir_testing::StartRanks(&group, "shm", 3);
  for (const ProcessResult& result : group.Wait(Patience(90)))
    EXPECT_TRUE(choir_testing::Matches(
        Heard(result),
        "generation 2: rank 0 \\(host [^ ]+, pid \\d+\\) aborted: a change, "
        "3 workers go on"))
        << result.output;
}

TEST(ElasticTest, OneThatWasLeftOutComesBack) {
  if (choir_testing::InRank()) ElasticRank({}, Patience(0.5)).ComeBack();
  ProcessGroup group;
  choir_testing::StartRanks(&group, "shm", 5);
  const std::vector<ProcessResult> results = group.Wait(Patience(90));
  for (const size_t r : {0, 1, 2, 4})
    EXPECT_TRUE(choir_testing::Matches(
        Heard(results[r]),
        "generation 3, size 4, rank " + std::to_string(r == 4 ? 3 : r)))
        << r << ": " << results[r].output;
}

}  // namespace
