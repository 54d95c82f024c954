// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_TCP_TCP_JOIN_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_TCP_TCP_JOIN_INTERNAL_H_

#include "dist/backends/tcp/tcp_internal.h"
#include "dist/comm_mac_internal.h"

// While ranks meet. What they send each other then, as it is sent.

#define CHOIR_TCP_MAGIC 0x43484f4952544333ull  // changes with the layout
#define CHOIR_TCP_REPLY_BYTES 320
// Callers whose handshake is not over; one that takes longer gives its place to
// another.
#define CHOIR_TCP_MAX_CALLERS 64
#define CHOIR_TCP_RETRY_MILLISECONDS 20
enum {
  CHOIR_TCP_REGISTER = 1,
  CHOIR_TCP_DATA = 2,
  CHOIR_TCP_CONTROL = 3,
};

typedef struct choir_tcp_hello_s {
  uint64_t magic;
  unsigned char nonce[CHOIR_TCP_KEY_BYTES];
  int32_t purpose;
  int32_t rank;
  int32_t called;  // the rank that it wants, so that nobody leads it to another
  int32_t zero_;
} choir_tcp_hello_t;

// Who a rank is, and where it listens.
typedef struct choir_tcp_card_s {
  choir_comm_identity_t identity;
  uint32_t port;
  uint32_t encrypts;
} choir_tcp_card_t;

typedef struct choir_tcp_proof_s {
  choir__comm_mac_t mac;
  choir_tcp_card_t card;
} choir_tcp_proof_t;

typedef struct choir_tcp_reply_s {
  int32_t code;  // choir_status_code_t; 0: welcome
  char text[CHOIR_TCP_REPLY_BYTES];
} choir_tcp_reply_t;

typedef struct choir_tcp_caller_s {
  int socket;  // -1: none
  double since;
  choir_tcp_hello_t hello;
  size_t hello_bytes;
  choir_tcp_keys_t keys;  // this rank's
  choir_tcp_proof_t proof;
  size_t proof_bytes;
} choir_tcp_caller_t;

typedef struct choir_tcp_join_s {
  choir_tcp_comm_t* tcp;
  const choir_comm_config_t* config;
  choir_tcp_card_t own;
  double deadline;
  int listener;
  choir_tcp_caller_t callers[CHOIR_TCP_MAX_CALLERS];
} choir_tcp_join_t;

// ---- tcp_sockets.c ----

// By errno.
choir_status_t choir_tcp_socket_error(const char* what);
void choir_tcp_close_socket(int* socket);
// Of a new connection.
void choir_tcp_set_options(int socket);
// At all interfaces, without blocking.
choir_status_t choir_tcp_listen_at(uint16_t port, int* out_listener);
// *out_socket: -1 where nobody listens.
choir_status_t choir_tcp_connect_to(const struct sockaddr_storage* address,
                                    double deadline, int* out_socket);

typedef enum choir_tcp_moved_e {
  CHOIR_TCP_MOVED,
  CHOIR_TCP_LATE,
  CHOIR_TCP_CLOSED,
} choir_tcp_moved_t;
// Sends or receives all of it, until the deadline.
choir_tcp_moved_t choir_tcp_move_all(int socket, void* data, size_t bytes,
                                     bool is_send, double deadline);

uint16_t choir_tcp_port_of(const struct sockaddr_storage* address);
void choir_tcp_set_port(struct sockaddr_storage* address, uint16_t port);
bool choir_tcp_is_loopback(const struct sockaddr_storage* address);
void choir_tcp_read_address(const unsigned char in[16],
                            struct sockaddr_storage* out_address);
// "10.0.0.1:4711", "[fe80::1]:4711".
#define CHOIR_TCP_ADDRESS_TEXT_BYTES (INET6_ADDRSTRLEN + 8)
const char* choir_tcp_print_address(const struct sockaddr_storage* address,
                                    char text[CHOIR_TCP_ADDRESS_TEXT_BYTES]);

// ---- tcp_join.c ----

// The addresses of a rendezvous, for freeaddrinfo.
struct addrinfo;
choir_status_t choir_tcp_resolve(const char* text, struct addrinfo** out_found);

// ---- tcp_handshake.c ----

// Waits a little for callers, and serves them; welcomes those that have shown
// that they know the id.
typedef choir_status_t (*choir_tcp_welcome_t)(choir_tcp_join_t* join,
                                              choir_tcp_caller_t* caller);
choir_status_t choir_tcp_serve_callers(choir_tcp_join_t* join,
                                       choir_tcp_welcome_t welcome);
void choir_tcp_drop_caller(choir_tcp_caller_t* caller);
void choir_tcp_send_reply(int socket, choir_status_t why);
choir_status_t choir_tcp_read_reply(choir_tcp_reply_t* reply);

// After a connection: shows rank `called` that it is this rank's. *out_socket:
// -1 where the other side ended it. `out_seal` NULL: nothing that is secret
// follows.
choir_status_t choir_tcp_introduce(const choir_tcp_join_t* join,
                                   int32_t purpose, int32_t called,
                                   double deadline, int* out_socket,
                                   choir_tcp_seal_t** out_seal);
// After a handshake; clears what is hidden of the keys. NULL where ranks do not
// encrypt.
choir_status_t choir_tcp_open_seal(const choir_tcp_join_t* join,
                                   choir_tcp_keys_t* own,
                                   const unsigned char* theirs, bool is_caller,
                                   choir_tcp_seal_t** out_seal);

#endif  // CHOIR_DIST_BACKENDS_TCP_TCP_JOIN_INTERNAL_H_
