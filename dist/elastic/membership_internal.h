// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_ELASTIC_MEMBERSHIP_INTERNAL_H_
#define CHOIR_DIST_ELASTIC_MEMBERSHIP_INTERNAL_H_

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "dist/comm_backend.h"
#include "dist/elastic/agreement_internal.h"
#include "dist/elastic/membership_def.h"

// What the sources of a membership share.

// Who was asked and has not answered is asked again after so many seconds.
#define CHOIR__AGAIN_SECONDS 0.05

// Two sockets at one port: by datagrams members agree, and at the other the
// members of a generation meet whose rank 0 this is.
typedef struct choir__member_sockets_s {
  int datagrams;  // -1: none, as the other
  int listener;
  bool is_6;  // the family of `datagrams`
} choir__member_sockets_t;

typedef struct choir__packet_s choir__packet_t;

// Who gives the state to which newcomer, and from which step on.
typedef struct choir__feed_s {
  choir__member_t to;
  int64_t step;
  int32_t index;  // of the one who is told; -1: it is the newcomer
  int32_t givers;
} choir__feed_t;

struct choir__membership_s {
  choir_allocator_t allocator;
  choir_comm_id_t id;  // the run's
  uint64_t model;
  choir__member_t own;
  choir__member_sockets_t sockets;
  int wake_fd;
  pthread_t thread;
  bool thread_runs;
  choir__packet_t* sent;      // under the mutex
  choir__packet_t* received;  // the thread's

  pthread_mutex_t mutex;
  pthread_cond_t heard;
  atomic_bool stops;
  // Of this generation, under the mutex; 0: it has come, and is in none yet.
  int64_t generation;
  int64_t left_out_of;    // the last one that went on without it; 0: none
  choir__members_t left;  // who has said that it goes
  bool is_turned_away;
  bool is_welcomed;  // as a newcomer, and has not come yet
  int32_t rank;
  int32_t size;
  choir__member_t members[CHOIR__MEMBERS_MOST];  // [size]
  bool is_open;                                  // it takes part in agreeing
  choir__agreement_t agreement;
  atomic_int newcomer_count;  // that have asked
  choir__member_t newcomers[CHOIR__NEWCOMERS_MOST];
  // Newcomers that ask for the state, and what was said about that and has not
  // been done yet.
  choir__member_t askers[CHOIR__NEWCOMERS_MOST];
  atomic_int asker_count;
  choir__feed_t orders[CHOIR__NEWCOMERS_MOST];
  atomic_int order_count;
  // decisions[i] made generation i + 2. Everybody who was in generation i + 1
  // and asks gets it. Of generations before this member came: zeros.
  choir__decision_t* decisions;  // [capacity]
  int64_t capacity;
  // Of a host behind a slow link: when it came, for how long it stayed away,
  // and until when it does; seconds.
  double came, pause, away_until;
  double answered;  // when a member did last
};

// All of them, of this generation and those who would come, are on this host.
bool choir__membership_is_local(const choir__membership_t* membership);

// ---- member_sockets.c ----

// Where ranks of the communicator reach this process, without a port, and what
// of it is the same on its host.
choir_status_t choir__member_identify(const choir_comm_t* comm,
                                      choir__member_t* out_member);
// Opens both, and sets the port.
choir_status_t choir__member_open(choir__member_t* member,
                                  choir__member_sockets_t* out_sockets);
void choir__member_close(choir__member_sockets_t* sockets);
// What does not go is as good as lost.
void choir__member_send(const choir__member_sockets_t* sockets,
                        const choir__endpoint_t* to, const void* data,
                        size_t bytes);
// Bytes of what has come, or -1.
int64_t choir__member_receive(const choir__member_sockets_t* sockets,
                              void* data, size_t bytes,
                              choir__endpoint_t* out_from);
bool choir__endpoint_equal(const choir__endpoint_t* a,
                           const choir__endpoint_t* b);
// "10.0.0.1:4711", "[fe80::1]:4711", and back.
#define CHOIR__ENDPOINT_TEXT_BYTES 64
const char* choir__endpoint_print(const choir__endpoint_t* endpoint,
                                  char text[CHOIR__ENDPOINT_TEXT_BYTES]);
bool choir__endpoint_parse(const char* text, choir__endpoint_t* out_endpoint);

// ---- member_listing.c ----

// It is a member now, or is none any more: newcomers ask those who are.
void choir__membership_note(const choir__membership_t* membership);

// ---- member_messages.c ----

// Of one who comes, and to it; of one who leaves.
enum {
  CHOIR__GREETING_JOIN,     // may it take part?
  CHOIR__GREETING_WELCOME,  // yes, as this rank; all members
  CHOIR__GREETING_AWAY,     // no: its model or settings are others
  CHOIR__GREETING_SOON,     // yes, at the next change
  CHOIR__GREETING_LEAVE,    // this rank is not in the next generation
  CHOIR__GREETING_ASK,      // who gives it the state?
  CHOIR__GREETING_ORDER,    // these do
};
// Memory of both packets.
choir_status_t choir__messages_open(choir__membership_t* membership);
void choir__messages_close(choir__membership_t* membership);
// Of this generation. `self` is the membership, as an agreement wants it.
void choir__messages_send(void* self,
                          const choir__agreement_message_t* message);
void choir__messages_greet(const choir__membership_t* membership, int32_t kind,
                           int32_t rank, const choir__endpoint_t* to);
void choir__messages_leave(const choir__membership_t* membership);
void choir__messages_order(const choir__membership_t* membership,
                           const choir__feed_t* feed,
                           const choir__endpoint_t* to);
// With the mutex held: what this member was told, by itself too.
void choir__membership_note_order(choir__membership_t* membership,
                                  const choir__feed_t* feed);
// Takes the next one that is there, if any.
void choir__messages_receive(choir__membership_t* membership);

// ---- membership_change.c ----

// With the mutex held: asks all that it knows.
void choir__membership_ask(const choir__membership_t* membership, int32_t kind);
void choir__membership_wait_a_turn(choir__membership_t* membership);
// Of a communicator of some members: the run's, and what these have in common,
// through a one-way function.
choir_status_t choir__membership_make_id(const choir__membership_t* membership,
                                         const char* what, const void* data,
                                         size_t bytes, choir_comm_id_t* out_id);

#endif  // CHOIR_DIST_ELASTIC_MEMBERSHIP_INTERNAL_H_
