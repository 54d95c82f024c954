// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_TCP_TCP_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_TCP_TCP_INTERNAL_H_

#include <netinet/in.h>
#include <poll.h>

#include "dist/backends/tcp/tcp_seal_internal.h"
#include "dist/comm_internal.h"

// Two connections for each pair of ranks. One has the operations' data, in
// frames; only the thread that runs an operation touches it. The other has
// heartbeats, faults and the word of a rank that leaves, which so never wait
// behind data; the watch thread reads it.

// Ahead of what is posted on a channel. An operation's first message is those
// words of 8 bytes of its header that were others in the message before, where
// the sequence number was one less; then its data. Of a header that is as the
// one before nothing is sent.
enum {
  CHOIR_TCP_HEADER_WORDS = sizeof(choir_comm_header_t) / sizeof(uint64_t),
};
_Static_assert(CHOIR_TCP_HEADER_WORDS * sizeof(uint64_t) ==
                   sizeof(choir_comm_header_t),
               "whole words");
_Static_assert(CHOIR_TCP_HEADER_WORDS <= 24, "a bit for each word");
enum {
  // Messages of several ranks: tcp_relay.c.
  CHOIR_TCP_CHANNEL_RELAY = CHOIR_COMM_CHANNEL_COUNT,
  // More ranks than so many pass messages on, where they are near.
  CHOIR_TCP_MOST_DIRECT = 8,
};
typedef struct choir_tcp_frame_s {
  uint32_t channel : 8;
  uint32_t words : 24;  // of a header that follow, a bit for each
  uint32_t bytes;       // that follow, these too
} choir_tcp_frame_t;
_Static_assert(sizeof(choir_tcp_frame_t) == 8, "as sent");

// Posted to one peer, one way.
typedef struct choir_tcp_request_s {
  choir_tcp_frame_t frame;
  void* data;
  size_t done;  // of frame and data
} choir_tcp_request_t;

// What rounds post beside each other: results of one, pieces of the next.
enum { CHOIR_TCP_POSTED = 4 };

typedef struct choir_tcp_queue_s {
  choir_tcp_request_t requests[CHOIR_TCP_POSTED];
  int32_t first;
  int32_t count;
} choir_tcp_queue_t;

typedef struct choir_tcp_link_s {
  int data;                     // -1: none
  int control;                  // -1: none, or closed by the peer
  choir_tcp_seal_t* data_seal;  // NULL: it is not encrypted
  choir_tcp_seal_t* control_seal;
  struct sockaddr_storage address;  // of the peer's host
  choir_tcp_queue_t out;
  choir_tcp_queue_t in;
  choir_tcp_frame_t frame;                  // of what comes
  size_t frame_bytes;                       // of it that have come
  uint64_t header[CHOIR_TCP_HEADER_WORDS];  // words that come
  choir_comm_header_t last_header;          // that came
  bool is_lost;                             // the data connection ended
  atomic_bool is_forged;  // what came on a connection is not what the peer sent
  double lost_at;
  // Of the control connection; with the mutex.
  unsigned char control_in[1024];
  size_t control_bytes;
  bool has_left;
  atomic_bool has_ended;  // came to finalize: it may go when all have its data
  choir_activity_t activity;
} choir_tcp_link_t;

typedef struct choir_tcp_comm_s {
  choir_comm_t base;
  bool encrypts;
  pthread_mutex_t mutex;                    // of the control connections
  choir_tcp_link_t* links;                  // [size]
  struct pollfd* polls;                     // [size + 1] of operations
  uint64_t header[CHOIR_TCP_HEADER_WORDS];  // words that go
  choir_comm_header_t last_header;          // that went
  void* work;
  struct choir_tcp_relay_s* relay;  // NULL: each rank sends to each
  struct pollfd* watched;           // [size + 1] of the watch thread
  // For a group that is about to be made; -1: none.
  int group_listener;

  unsigned char* memory;  // of all above and below
  size_t memory_bytes;
  size_t message_stride;
  unsigned char* out_message;
  unsigned char* in_messages;  // [size], message_stride apart
} choir_tcp_comm_t;

// ---- tcp_frames.c ----

// Sends what `frame` tells of, `data` behind it, or receives what comes on its
// channel: so many bytes, by relay and exchange at most so many.
choir_status_t choir_tcp_post(choir_comm_t* comm, int32_t peer,
                              choir_tcp_frame_t frame, void* data,
                              bool is_receive);
// Of a header that are others than in the one before.
size_t choir_tcp_header_bytes(const choir_tcp_frame_t* frame);
// The words of `header` that are not those of the one before, *last, which it
// is afterwards, to `packed`; returns which these are.
uint32_t choir_tcp_pack_header(const choir_comm_header_t* header,
                               choir_comm_header_t* last, uint64_t* packed);
// `header` from these words and the rank's header before, *last, which it is
// afterwards.
void choir_tcp_unpack_header(uint32_t which, const uint64_t* packed,
                             choir_comm_header_t* last,
                             choir_comm_header_t* header);

// What goes now of what is posted, and what comes; whether anything did. The
// link is lost where its connection ended.
bool choir_tcp_send_some(choir_tcp_comm_t* tcp, choir_tcp_link_t* link);
bool choir_tcp_receive_some(choir_tcp_link_t* link);
// What comes next is wanted.
bool choir_tcp_receives(const choir_tcp_link_t* link);

// ---- tcp_relay.c ----

choir_status_t choir_tcp_relay_open(choir_tcp_comm_t* tcp);
void choir_tcp_relay_close(choir_tcp_comm_t* tcp);
// The staged message, of which `own` is the frame, to all, and theirs to their
// places.
choir_status_t choir_tcp_relay_exchange(choir_tcp_comm_t* tcp,
                                        const choir_tcp_frame_t* own);

// ---- tcp_join.c ----

// Meets all ranks at config->rendezvous, and connects to each.
choir_status_t choir_tcp_meet(choir_tcp_comm_t* tcp,
                              const choir_comm_config_t* config);
// The same for a group, of which links[].address are filled in; ports[r] is
// where rank r listens, `listener` (taken over) this one's.
choir_status_t choir_tcp_meet_group(choir_tcp_comm_t* tcp,
                                    const choir_comm_config_t* config,
                                    int listener, const uint16_t* ports);
// As IPv6's; IPv4's are mapped into these. tcp_sockets.c.
void choir_tcp_write_address(const struct sockaddr_storage* address,
                             unsigned char out[16]);
// A socket that listens on any port of any interface.
choir_status_t choir_tcp_listen(int* out_listener, uint16_t* out_port);

#endif  // CHOIR_DIST_BACKENDS_TCP_TCP_INTERNAL_H_
