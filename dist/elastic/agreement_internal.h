// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_ELASTIC_AGREEMENT_INTERNAL_H_
#define CHOIR_DIST_ELASTIC_AGREEMENT_INTERNAL_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How the members of a generation agree on which of them make the next one
// (docs/elastic.md): one decision by Paxos (Lamport, "Paxos Made Simple",
// 2001). All members may accept, any may propose, and one that dies in between
// is followed by any other. There is never a second decision, whatever messages
// are lost, come twice, late or out of order.
//
// Messages, of one attempt of one member:
//   ASK      to all: take no part in older attempts; who is there?
//   ANSWER   back: what this member has accepted
//   PROPOSE  to all: the choice of those who answered, or what one of them has
//            accepted already
//   ACCEPT   back
//   REFUSE   back, of an older attempt
//   DECIDE   to all: more than half have accepted, or half with rank 0
//
// Where all members are processes of one host, who has ended is known: then all
// who have not may decide, too, however few they are.
//
// No clock, memory or sockets of its own: who owns it gives it messages and the
// time, in seconds, and sends what it says. Threads: one at a time.

enum { CHOIR__MEMBERS_MOST = 1024 };

// A bit for each rank of a generation.
typedef struct choir__members_s {
  uint64_t bits[CHOIR__MEMBERS_MOST / 64];
} choir__members_t;
bool choir__members_has(const choir__members_t* members, int32_t rank);
void choir__members_add(choir__members_t* members, int32_t rank);
int32_t choir__members_count(const choir__members_t* members);
// Whether they decide for a generation of `size`: more than half of it, or half
// with rank 0, so that any two such sets have a member in common.
bool choir__members_decide(const choir__members_t* members, int32_t size);

// Where a process listens. IPv4's addresses are mapped into IPv6's.
typedef struct choir__endpoint_s {
  unsigned char address[16];
  uint32_t port;
} choir__endpoint_t;
// A member, as the owner wants it.
typedef struct choir__member_s {
  choir__endpoint_t at;
  int32_t pid;
  uint64_t host;  // the same on those who see each other's processes
} choir__member_t;
enum { CHOIR__NEWCOMERS_MOST = 16 };  // of one generation

// What is decided.
typedef struct choir__decision_s {
  choir__members_t members;  // ranks of the generation that go on
  int32_t newcomer_count;    // behind them, in this order
  choir__member_t newcomers[CHOIR__NEWCOMERS_MOST];
} choir__decision_t;

// Of two attempts the later is that of the larger number, then of the higher
// rank. Number 0: none.
typedef struct choir__attempt_s {
  int64_t number;
  int32_t rank;
} choir__attempt_t;

typedef enum choir__agreement_kind_e {
  CHOIR__AGREE_ASK,
  CHOIR__AGREE_ANSWER,
  CHOIR__AGREE_PROPOSE,
  CHOIR__AGREE_ACCEPT,
  CHOIR__AGREE_REFUSE,
  CHOIR__AGREE_DECIDE,
  CHOIR__AGREE_KINDS,
} choir__agreement_kind_t;

typedef struct choir__agreement_message_s {
  int64_t generation;
  int32_t kind;  // choir__agreement_kind_t
  int32_t from, to;
  choir__attempt_t attempt;    // REFUSE: the later one that is in the way
  choir__attempt_t accepted;   // ANSWER: of `decision`; none: it has none
  choir__decision_t decision;  // ANSWER, PROPOSE, DECIDE
} choir__agreement_message_t;

typedef struct choir__agreement_config_s {
  int64_t generation;
  int32_t rank, size;  // in it; size up to CHOIR__MEMBERS_MOST
  // How long an attempt waits for those that are neither gone nor silent, and
  // after which time it asks once more; 0: never. While a member is asked by
  // another it makes no attempt, and for a few times the latter after that.
  double limit, again;
  // Who is gone has ended, and what it sent reaches each member ahead of what
  // others send after they know.
  bool gone_is_ended;
  void (*send)(void* self, const choir__agreement_message_t* message);
  void* self;
} choir__agreement_config_t;

typedef enum choir__agreement_phase_e {
  CHOIR__AGREE_IDLE,
  CHOIR__AGREE_ASKING,
  CHOIR__AGREE_PROPOSING,
  CHOIR__AGREE_RESTING,  // before another attempt
  CHOIR__AGREE_DONE,
} choir__agreement_phase_t;

// Plain; what a reader may look at is `phase`, and `decision` when it is DONE.
typedef struct choir__agreement_s {
  choir__agreement_config_t config;
  choir__agreement_phase_t phase;
  choir__decision_t decision;
  choir__members_t gone;  // known to have ended
  // Those that want to be in no further generation, set by the owner; they
  // decide like all others.
  choir__members_t leaving;
  // Those that it is no use to wait for, as the owner sees it now. They may be
  // alive, and decide like all others.
  choir__members_t silent;
  // Whom this member would take in; set by the owner, `members` means nothing.
  choir__decision_t wanted;
  choir__attempt_t latest;  // that this member answered or accepted
  choir__attempt_t accepted;
  choir__decision_t accepted_decision;
  // Of its own attempt.
  choir__attempt_t own;
  choir__members_t replies;  // answers, then acceptances
  choir__attempt_t best;     // the latest that an answer has accepted
  choir__decision_t choice;  // of it, or of who answered
  double until;
  double again_at;
  double quiet_until;  // another's attempt is on its way
} choir__agreement_t;

// A generation begins.
void choir__agreement_begin(choir__agreement_t* agreement,
                            const choir__agreement_config_t* config);
// A change is wanted: somebody was lost, leaves or joins. Nothing where one is
// on its way, which may stop: call it again and again.
void choir__agreement_propose(choir__agreement_t* agreement, double now);
// This rank has ended: nobody waits for it.
void choir__agreement_note_gone(choir__agreement_t* agreement, int32_t rank,
                                double now);
// What came. Of another generation, or of what is no member, it is nothing.
void choir__agreement_receive(choir__agreement_t* agreement,
                              const choir__agreement_message_t* message,
                              double now);
// Time passes. Call it a few times within the limit.
void choir__agreement_tick(choir__agreement_t* agreement, double now);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_ELASTIC_AGREEMENT_INTERNAL_H_
