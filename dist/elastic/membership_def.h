// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_ELASTIC_MEMBERSHIP_DEF_H_
#define CHOIR_DIST_ELASTIC_MEMBERSHIP_DEF_H_

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// This process as a member of a run whose workers may be lost
// (docs/elastic.md): a socket by which members agree on the next generation
// (agreement_internal.h) when a communicator broke, and a thread that answers
// on it. Messages are datagrams with a code of the run's id, so that who does
// not know the id is not heard; what was heard before does no harm.
//
// Ownership: unique. Threads: one at a time.

typedef struct choir__membership_s choir__membership_t;

// Collective, on a communicator of `auto` or `shm`: its ranks are the members
// of generation 1. It is not kept. On that of a newcomer: a process that the
// first change makes a member. model: a hash of what newcomers must have the
// same of.
choir_status_t choir__membership_create(choir_comm_t* comm, uint64_t model,
                                        choir__membership_t** out_membership)
    CHOIR_NODISCARD;
// Members that ask later hear nothing. Accepts NULL.
void choir__membership_destroy(choir__membership_t* membership);

// Tells the others that this member is not in their next generation, so that
// nobody waits for it (who does not hear of it waits for the process's end),
// and the launcher that signal `number` asked for that; 0: its program. The
// generation's communicator is the caller's to break, after this. The member
// makes no more changes.
void choir__membership_leave(choir__membership_t* membership, int number);

// After that, when the communicator is broken: stays as long as the others need
// it to decide, which is up to the communicator's silence where they are on
// several hosts.
void choir__membership_see_off(choir__membership_t* membership,
                               const choir_comm_t* comm);

// The launcher of this process ends all workers. Safe in a signal handler when
// there is a membership.
bool choir__membership_is_ended(void);

// It is in no generation yet.
bool choir__membership_is_newcomer(const choir__membership_t* membership);
// How many have asked to be taken in, which the next change does.
int32_t choir__membership_newcomers(const choir__membership_t* membership);

// ---- The state for a newcomer, while the others go on ----

// Ranks that give it, and from which step on, meet the newcomer, rank 0 of a
// communicator of theirs.
typedef struct choir__feed_order_s {
  int64_t step;
  int32_t index;  // this one, of the givers; -1: it is the newcomer
  int32_t givers;
  double deadline;  // when they have met
  choir_comm_config_t config;
} choir__feed_order_t;

// A newcomer has asked for it, and nobody was named yet.
bool choir__membership_is_asked(const choir__membership_t* membership);
// Names ranks of this generation for all that have asked, to them and to these.
void choir__membership_order(choir__membership_t* membership, int64_t step,
                             const int32_t* givers, int32_t count);
// Whether this rank was named for `step`, which is made next; once for each
// newcomer.
bool choir__membership_take_order(choir__membership_t* membership,
                                  const choir_comm_t* comm, int64_t step,
                                  choir__feed_order_t* out_order);
// On all that were named, and the newcomer. Any thread.
choir_status_t choir__feed_meet(const choir__feed_order_t* order,
                                choir_comm_t** out_comm) CHOIR_NODISCARD;
// On the newcomer: asks for it, when it may come. False: nobody has answered in
// time.
bool choir__membership_ask_order(choir__membership_t* membership,
                                 const choir_comm_t* comm,
                                 choir__feed_order_t* out_order);
// One that was left out, and could not be given the state, as its link may be
// slow: whether it stays away for twice as long as before, up to the longest
// time, after which it comes without.
bool choir__membership_stay_away(choir__membership_t* membership,
                                 const choir_comm_t* comm);
// And once to be taken in; choir__membership_change does so until it is.
void choir__membership_ask_in(choir__membership_t* membership);

// A generation that was agreed on.
typedef struct choir__change_s {
  int64_t generation;
  // "generation 2: rank 1 (host h, pid 7) is gone, 3 workers go on"
  char text[512];
  double seconds;  // from the call on
  bool has_come;   // this member; what it has of the run, if any, is older
  int32_t lost;    // ranks of the one before that are not in it; has_come: 0
} choir__change_t;

// After the communicator of this generation broke, on all members that are
// left: *out_comm is that of the next one, whose ranks are those of before in
// their order, then newcomers; NULL: the others went on without this member,
// which is a newcomer now. On a newcomer: asks the members until one of their
// changes takes it in. Members that are there and do not come are waited for up
// to the communicator's silence, then left out. `comm` stays the caller's;
// peers that have not come yet must find it there.
//
// TIMEOUT: fewer than may decide were there within the communicator's deadline,
// and a text names who was missing; or nobody answered the newcomer.
// FAILED_PRECONDITION: its model is another.
choir_status_t choir__membership_change(choir__membership_t* membership,
                                        choir_comm_t* comm,
                                        choir_comm_t** out_comm,
                                        choir__change_t* out_change)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_ELASTIC_MEMBERSHIP_DEF_H_
