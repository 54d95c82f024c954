// SPDX-License-Identifier: Apache-2.0
// Members that agree on the next generation, over simulated messages that are
// lost, come twice, late and out of order, while members die and the network is
// split: there is never a second decision, and there is one as soon as those
// who may decide can hear each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "dist/elastic/agreement_internal.h"
#include "tests/testing/sanitized.h"

namespace {

using Message = choir__agreement_message_t;

constexpr double kLimit = 1;
// Up to here messages are lost and members die; then nothing more happens.
constexpr double kTrouble = 6;

struct Event {
  double at;
  int64_t order;  // of events at one time
  int32_t to;     // whom it reaches; -1: it is no message
  Message message;
  bool operator<(const Event& other) const {
    return at > other.at || (at == other.at && order > other.order);
  }
};

class World {
 public:
  World(int32_t size, unsigned seed) : random_(seed), members_(Size(size)) {
    side_.assign(Size(size), 0);
    is_alive_.assign(Size(size), true);
    for (int32_t r = 0; r < size; ++r) {
      links_.push_back(std::make_unique<Link>(Link{this, r}));
      const choir__agreement_config_t config = {
          7, r, size, kLimit, kLimit / 4, false, Send, links_.back().get()};
      choir__agreement_begin(&members_[Size(r)], &config);
      // Each knows of others who want to come.
      members_[Size(r)].wanted.newcomer_count = 1 + r % 3;
      members_[Size(r)].wanted.newcomers[r % 3].at.port =
          static_cast<uint16_t>(100 + r);
    }
    loss_ = Share() * 0.4;
  }

  void Run() {
    // Some notice a loss, at different times.
    std::vector<double> wants(members_.size());
    for (double& at : wants) at = Share() * 3;
    double next_trouble = Share();
    for (now_ = 0; now_ < kTrouble + 40 * kLimit; now_ += 0.05) {
      if (now_ >= next_trouble && now_ < kTrouble) {
        MakeTrouble();
        next_trouble = now_ + Share() * 2;
      }
      if (now_ >= kTrouble) EndTrouble();
      if (random_() % 4 == 0) MakeSilent();
      Deliver();
      bool all_done = true;
      for (int32_t r = 0; r < size(); ++r) {
        if (!is_alive_[Size(r)]) continue;
        choir__agreement_t* member = &members_[Size(r)];
        if (now_ >= wants[Size(r)]) choir__agreement_propose(member, now_);
        choir__agreement_tick(member, now_);
        Note(r);
        all_done &= member->phase == CHOIR__AGREE_DONE;
      }
      if (all_done && now_ >= kTrouble) break;
    }
  }

  void Check() const {
    int32_t alive = 0;
    choir__members_t survivors = {};
    for (int32_t r = 0; r < size(); ++r)
      if (is_alive_[Size(r)]) {
        choir__members_add(&survivors, r);
        ++alive;
      }
    int32_t done = 0;
    for (int32_t r = 0; r < size(); ++r)
      done +=
          is_alive_[Size(r)] && members_[Size(r)].phase == CHOIR__AGREE_DONE;
    if (choir__members_decide(&survivors, size())) {
      EXPECT_EQ(done, alive) << "not all survivors have heard";
    } else if (decisions_.empty()) {
      EXPECT_EQ(done, 0);
    }
    ASSERT_LE(decisions_.size(), 1u) << "there is a second decision";
    if (decisions_.empty()) return;
    EXPECT_TRUE(choir__members_decide(&decisions_[0].members, size()));
  }

  bool is_decided() const { return !decisions_.empty(); }
  int32_t left_out() const {
    return decisions_.empty()
               ? 0
               : size() - choir__members_count(&decisions_[0].members);
  }

 private:
  struct Link {
    World* world;
    int32_t rank;
  };
  static size_t Size(int32_t n) { return static_cast<size_t>(n); }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  double Share() { return static_cast<double>(random_() % 10000) / 10000; }

  static void Send(void* self, const Message* message) {
    static_cast<Link*>(self)->world->Post(*message);
  }

  void Post(const Message& message) {
    if (now_ < kTrouble && Share() < loss_) return;
    const int copies = now_ < kTrouble && random_() % 10 == 0 ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const double late =
          random_() % 8 == 0 ? Share() * 3 * kLimit : Share() * 0.1;
      events_.push({now_ + late, order_++, message.to, message});
    }
  }

  void Deliver() {
    while (!events_.empty() && events_.top().at <= now_) {
      const Event event = events_.top();
      events_.pop();
      const size_t from = Size(event.message.from), to = Size(event.to);
      if (!is_alive_[to] || side_[from] != side_[to]) continue;
      choir__agreement_receive(&members_[to], &event.message, now_);
      Note(event.to);
    }
  }

  // Some are not waited for, who may be there and answer late, for ever.
  void MakeSilent() {
    choir__agreement_t* member = &members_[random_() % members_.size()];
    member->silent = {};
    for (int32_t r = 0; r < size(); ++r)
      if (random_() % 3 == 0) choir__members_add(&member->silent, r);
  }

  void MakeTrouble() {
    switch (random_() % 3) {
      case 0: {  // dies; some see it
        const auto rank = static_cast<int32_t>(random_() % members_.size());
        is_alive_[Size(rank)] = false;
        for (int32_t r = 0; r < size(); ++r)
          if (r != rank && random_() % 2)
            choir__agreement_note_gone(&members_[Size(r)], rank, now_);
        break;
      }
      case 1:  // a split
        for (int& side : side_) side = static_cast<int>(random_() % 2);
        break;
      default:
        std::fill(side_.begin(), side_.end(), 0);
    }
  }

  // Who is dead is known, and a message comes within a limit.
  void EndTrouble() {
    std::fill(side_.begin(), side_.end(), 0);
    for (int32_t rank = 0; rank < size(); ++rank)
      for (int32_t r = 0; !is_alive_[Size(rank)] && r < size(); ++r)
        choir__agreement_note_gone(&members_[Size(r)], rank, now_);
  }

  // Also what those decide who die later.
  void Note(int32_t rank) {
    const choir__agreement_t& member = members_[Size(rank)];
    if (member.phase != CHOIR__AGREE_DONE) return;
    for (const choir__decision_t& known : decisions_)
      if (memcmp(&known, &member.decision, sizeof known) == 0) return;
    decisions_.push_back(member.decision);
  }

  std::mt19937 random_;
  std::vector<choir__agreement_t> members_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<int> side_;
  std::vector<bool> is_alive_;
  std::priority_queue<Event> events_;
  std::vector<choir__decision_t> decisions_;  // different ones
  int64_t order_ = 0;
  double now_ = 0, loss_ = 0;
};

// Processes of one host: messages stand in each member's queue in the order in
// which they were sent, a process ends at any time, also between two messages
// to others, and each of those that are left notices it some time. They decide
// however few they are, and all that are left the same.
class Host {
 public:
  Host(int32_t size, unsigned seed) : random_(seed), members_(Size(size)) {
    queues_.resize(Size(size));
    sends_left_.assign(Size(size), kAlive);
    for (int32_t r = 0; r < size; ++r) {
      links_.push_back(std::make_unique<Link>(Link{this, r}));
      // No limit, as nothing is lost.
      const choir__agreement_config_t config = {
          7, r, size, 1e9, 0, true, Send, links_.back().get()};
      choir__agreement_begin(&members_[Size(r)], &config);
      // Each knows of others who want to come.
      members_[Size(r)].wanted.newcomer_count = 1 + r % 3;
      members_[Size(r)].wanted.newcomers[r % 3].at.port =
          static_cast<uint16_t>(100 + r);
    }
  }

  void Run() {
    for (int turn = 0; turn < 40000 && !AllDone(); ++turn) {
      const auto rank = static_cast<int32_t>(random_() % members_.size());
      choir__agreement_t* member = &members_[Size(rank)];
      if (!sends_left_[Size(rank)]) continue;
      switch (random_() % 9) {
        case 0:  // dies now, or while it sends the next messages
          if (turn < 60 && alive() > 1)
            sends_left_[Size(rank)] = static_cast<int>(random_() % 4);
          break;
        case 1:  // looks who is there
          for (int32_t r = 0; r < size(); ++r)
            if (!sends_left_[Size(r)] && random_() % 2)
              choir__agreement_note_gone(member, r, turn);
          break;
        case 2:
          if (turn > 20) choir__agreement_propose(member, turn);
          break;
        case 3:
          // After an attempt that another's was in the way of.
          if (member->phase == CHOIR__AGREE_RESTING && random_() % 8 == 0)
            choir__agreement_tick(member, member->until);
          break;
        case 4:  // does not wait for some, who have ended or answer late
          member->silent = {};
          for (int32_t r = 0; r < size(); ++r)
            if (random_() % 3 == 0) choir__members_add(&member->silent, r);
          break;
        default:
          if (queues_[Size(rank)].empty()) break;
          const Message message = queues_[Size(rank)].front();
          queues_[Size(rank)].pop();
          choir__agreement_receive(member, &message, turn);
      }
    }
  }

  void Check() const {
    const choir__decision_t* first = nullptr;
    for (int32_t r = 0; r < size(); ++r) {
      if (!sends_left_[Size(r)]) continue;
      const choir__agreement_t& member = members_[Size(r)];
      ASSERT_EQ(member.phase, CHOIR__AGREE_DONE) << r;
      if (!first) first = &member.decision;
      ASSERT_EQ(memcmp(first, &member.decision, sizeof *first), 0)
          << "there is a second decision";
    }
  }
  int32_t alive() const {
    int32_t count = 0;
    for (int left : sends_left_) count += left != 0;
    return count;
  }

 private:
  static constexpr int kAlive = 1 << 30;
  struct Link {
    Host* host;
    int32_t rank;
  };
  static size_t Size(int32_t n) { return static_cast<size_t>(n); }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }

  static void Send(void* self, const Message* message) {
    const auto* link = static_cast<Link*>(self);
    int* left = &link->host->sends_left_[Size(link->rank)];
    if (*left == 0) return;
    --*left;
    link->host->queues_[Size(message->to)].push(*message);
  }
  bool AllDone() const {
    for (int32_t r = 0; r < size(); ++r)
      if (sends_left_[Size(r)] && members_[Size(r)].phase != CHOIR__AGREE_DONE)
        return false;
    return true;
  }

  std::mt19937 random_;
  std::vector<choir__agreement_t> members_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::queue<Message>> queues_;
  std::vector<int> sends_left_;  // 0: it has ended
};

// CHOIR_TEST_SCHEDULES: how many.
unsigned Schedules() {
  const char* text = getenv("CHOIR_TEST_SCHEDULES");
  if (text) return static_cast<unsigned>(std::stoul(text));
  return choir::testing::kSanitized ? 2000 : 20000;
}

TEST(AgreementTest, ThereIsOneDecision) {
  unsigned decided = 0, smaller = 0;
  for (unsigned seed = 0; seed < Schedules(); ++seed) {
    SCOPED_TRACE(seed);
    World world(1 + static_cast<int32_t>(seed % 8), seed);
    world.Run();
    world.Check();
    decided += world.is_decided();
    smaller += world.left_out() > 0;
    if (HasFailure()) return;
  }
  // Both happen often, or the schedules would show little.
  EXPECT_GT(decided, Schedules() / 2);
  EXPECT_GT(smaller, Schedules() / 5);
}

TEST(AgreementTest, OfOneHost) {
  unsigned few = 0;
  for (unsigned seed = 0; seed < Schedules(); ++seed) {
    SCOPED_TRACE(seed);
    const int32_t size = 2 + static_cast<int32_t>(seed % 7);
    Host host(size, seed);
    host.Run();
    host.Check();
    few += 2 * host.alive() < size;
    if (HasFailure()) return;
  }
  EXPECT_GT(few, Schedules() / 10);
}

// Two sets that may decide have a member in common.
TEST(AgreementTest, Quorums) {
  for (int32_t size = 1; size <= 10; ++size) {
    std::vector<choir__members_t> deciding;
    for (uint64_t bits = 0; bits < (uint64_t{1} << size); ++bits) {
      const choir__members_t members = {{bits}};
      if (choir__members_decide(&members, size)) deciding.push_back(members);
    }
    for (const auto& a : deciding)
      for (const auto& b : deciding) ASSERT_NE(a.bits[0] & b.bits[0], 0u);
  }
  choir__members_t half = {};
  choir__members_add(&half, 0);
  EXPECT_TRUE(choir__members_decide(&half, 2));
  half = {};
  choir__members_add(&half, 1);
  EXPECT_FALSE(choir__members_decide(&half, 2));
  choir__members_t many = {};
  for (int32_t r = 0; r < 513; ++r) choir__members_add(&many, 2 * r % 1023);
  EXPECT_EQ(choir__members_count(&many), 513);
  EXPECT_TRUE(choir__members_decide(&many, CHOIR__MEMBERS_MOST));
}

struct Sent {
  std::vector<Message> messages;
  static void Add(void* self, const Message* message) {
    static_cast<Sent*>(self)->messages.push_back(*message);
  }
};

choir__agreement_t Member(Sent* sent, int32_t rank, int32_t size) {
  choir__agreement_t member;
  const choir__agreement_config_t config = {3, rank,  size,      kLimit,
                                            0, false, Sent::Add, sent};
  choir__agreement_begin(&member, &config);
  return member;
}

// A run of one worker, and one whose others are known to be gone.
TEST(AgreementTest, Alone) {
  Sent sent;
  choir__agreement_t one = Member(&sent, 0, 1);
  choir__agreement_propose(&one, 0);
  ASSERT_EQ(one.phase, CHOIR__AGREE_DONE);
  choir__agreement_t two = Member(&sent, 0, 2);
  choir__agreement_note_gone(&two, 1, 0);
  choir__agreement_propose(&two, 0);
  ASSERT_EQ(two.phase, CHOIR__AGREE_DONE);
  EXPECT_EQ(choir__members_count(&two.decision.members), 1);
  // The other half waits.
  choir__agreement_t other = Member(&sent, 1, 2);
  choir__agreement_note_gone(&other, 0, 0);
  choir__agreement_propose(&other, 0);
  for (double now = 0; now < 100; now += 0.1)
    choir__agreement_tick(&other, now);
  EXPECT_NE(other.phase, CHOIR__AGREE_DONE);
}

Message From(int32_t rank, choir__agreement_kind_t kind,
             choir__attempt_t attempt) {
  Message message = {};
  message.generation = 3;
  message.from = rank;
  message.kind = kind;
  message.attempt = attempt;
  return message;
}

// A majority goes on at once; fewer wait also where it is known who has ended.
TEST(AgreementTest, SilentMembers) {
  for (const bool gone_is_ended : {false, true}) {
    Sent sent;
    choir__agreement_t member = Member(&sent, 0, 4);
    member.config.gone_is_ended = gone_is_ended;
    choir__members_add(&member.silent, 2);
    choir__members_add(&member.silent, 3);
    choir__agreement_propose(&member, 0);
    ASSERT_EQ(member.phase, CHOIR__AGREE_ASKING);
    const Message answer = From(1, CHOIR__AGREE_ANSWER, member.own);
    choir__agreement_receive(&member, &answer, 0);
    ASSERT_EQ(member.phase, CHOIR__AGREE_PROPOSING);
    EXPECT_EQ(member.choice.members.bits[0], 3u);
    choir__agreement_t few = Member(&sent, 1, 4);
    few.config.gone_is_ended = gone_is_ended;
    few.silent = member.silent;
    choir__members_add(&few.silent, 0);
    choir__agreement_propose(&few, 0);
    choir__agreement_tick(&few, 0);
    EXPECT_EQ(few.phase, CHOIR__AGREE_ASKING);
  }
}

// Nothing is waited for where nobody is missing: two round trips.
TEST(AgreementTest, IsQuickWhereAllAnswer) {
  Sent sent;
  std::vector<choir__agreement_t> members;
  for (int32_t r = 0; r < 4; ++r) members.push_back(Member(&sent, r, 4));
  for (int32_t r = 0; r < 3; ++r)
    choir__agreement_note_gone(&members[static_cast<size_t>(r)], 3, 0);
  choir__agreement_propose(&members[1], 0);
  int rounds = 0;
  while (!sent.messages.empty() && ++rounds) {
    const std::vector<Message> now = std::move(sent.messages);
    sent.messages.clear();
    for (const Message& message : now)
      if (message.to != 3)
        choir__agreement_receive(&members[static_cast<size_t>(message.to)],
                                 &message, 0);
  }
  EXPECT_EQ(rounds, 5);
  for (int32_t r = 0; r < 3; ++r) {
    const choir__agreement_t& member = members[static_cast<size_t>(r)];
    ASSERT_EQ(member.phase, CHOIR__AGREE_DONE) << r;
    EXPECT_EQ(member.decision.members.bits[0], 7u);
  }
}

// What was for an older attempt does not count for this one.
TEST(AgreementTest, RepliesToAnOlderAttempt) {
  Sent sent;
  choir__agreement_t member = Member(&sent, 0, 3);
  choir__agreement_propose(&member, 0);
  const choir__attempt_t first = member.own;
  const Message refusal = From(2, CHOIR__AGREE_REFUSE, {5, 2});
  choir__agreement_receive(&member, &refusal, 0.1);
  for (double now = 0.1; member.phase == CHOIR__AGREE_RESTING; now += 0.1)
    choir__agreement_tick(&member, now);
  ASSERT_EQ(member.phase, CHOIR__AGREE_ASKING);
  EXPECT_EQ(member.own.number, 6);
  const choir__attempt_t second = member.own;
  const double late = member.until + 0.1;
  const Message old_answer = From(1, CHOIR__AGREE_ANSWER, first);
  choir__agreement_receive(&member, &old_answer, late);
  EXPECT_EQ(member.phase, CHOIR__AGREE_ASKING);
  const Message answer = From(1, CHOIR__AGREE_ANSWER, second);
  choir__agreement_receive(&member, &answer, late);
  ASSERT_EQ(member.phase, CHOIR__AGREE_PROPOSING);
  const Message old_accept = From(2, CHOIR__AGREE_ACCEPT, first);
  choir__agreement_receive(&member, &old_accept, late);
  EXPECT_EQ(member.phase, CHOIR__AGREE_PROPOSING);
  const Message accept = From(1, CHOIR__AGREE_ACCEPT, second);
  choir__agreement_receive(&member, &accept, late);
  EXPECT_EQ(member.phase, CHOIR__AGREE_DONE);
  EXPECT_EQ(member.decision.members.bits[0], 3u);
}

// Of other generations and of ranks that there are not.
TEST(AgreementTest, WhatIsNotOfIt) {
  Sent sent;
  choir__agreement_t member = Member(&sent, 1, 3);
  Message message = {};
  message.kind = CHOIR__AGREE_DECIDE;
  message.generation = 2;
  choir__agreement_receive(&member, &message, 0);
  message.generation = 3;
  for (int32_t from : {-1, 1, 3, int32_t{CHOIR__MEMBERS_MOST}}) {
    message.from = from;
    choir__agreement_receive(&member, &message, 0);
  }
  message.from = 0;
  message.kind = CHOIR__AGREE_KINDS;
  choir__agreement_receive(&member, &message, 0);
  EXPECT_EQ(member.phase, CHOIR__AGREE_IDLE);
  EXPECT_TRUE(sent.messages.empty());
}

}  // namespace
