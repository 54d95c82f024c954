// SPDX-License-Identifier: Apache-2.0
// How ranks find each other over TCP. Rank 0 listens at the rendezvous address;
// all others come there and say where they listen, and get the table of all.
// Then rank r connects to all lower ranks, and is called by all higher ones.
//
// Nobody is believed before it has shown that it knows the id of the run, which
// never travels (keyed codes, comm_mac_internal.h):
//   caller    hello: nonce, what for, rank, whom it calls
//   listener  challenge: nonce, code of both nonces and the hello
//   caller    proof: who it is, code of this, both nonces and the hello
//   listener  reply: welcome, or why not
// Where connections are encrypted (tcp_seal.c), the nonces are both sides'
// keys, made for this connection alone, so that who records a run and learns
// its id later can read nothing. What comes from a caller before that is at
// most a hello and a proof of fixed length, from a bounded number of callers at
// a time, each for a second.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_internal.h"
#include "dist/comm_mac_internal.h"
#include "dist/rendezvous_internal.h"

#define MAGIC 0x43484f4952544333ull  // changes with the layout
#define TEXT_BYTES 320
// Callers whose handshake is not over; one that takes longer gives its place to
// another.
#define MAX_CALLERS 64
#define HANDSHAKE_SECONDS 1.0
#define RETRY_MILLISECONDS 20
#define FAR_MICROSECONDS 1000
// At 100 Mbit/s over a second's worth, at 1 Gbit/s a seventh of one.
#define FAR_ROUND_BYTES ((size_t)16 << 20)

enum { REGISTER = 1, DATA = 2, CONTROL = 3 };

typedef struct hello_s {
  uint64_t magic;
  unsigned char nonce[CHOIR_TCP_KEY_BYTES];
  int32_t purpose;
  int32_t rank;
  int32_t called;  // the rank that it wants, so that nobody leads it to another
  int32_t zero_;
} hello_t;

typedef struct challenge_s {
  uint64_t magic;
  unsigned char nonce[CHOIR_TCP_KEY_BYTES];
  choir__comm_mac_t mac;
} challenge_t;

// Who a rank is, and where it listens.
typedef struct card_s {
  choir_comm_identity_t identity;
  uint32_t port;
  uint32_t encrypts;
} card_t;

typedef struct proof_s {
  choir__comm_mac_t mac;
  card_t card;
} proof_t;

typedef struct reply_s {
  int32_t code;  // choir_status_code_t; 0: welcome
  char text[TEXT_BYTES];
} reply_t;

// A line of the table: IPv4 addresses are mapped into IPv6's.
typedef struct entry_s {
  card_t card;
  unsigned char address[16];
  uint64_t is_rank_0;  // the host that the reader knows as rank 0's
  uint64_t is_far;     // of rank 0's: some rank's host is far from there
} entry_t;

typedef struct caller_s {
  int socket;  // -1: none
  double since;
  hello_t hello;
  size_t hello_bytes;
  choir_tcp_keys_t keys;  // this rank's
  proof_t proof;
  size_t proof_bytes;
} caller_t;

typedef struct join_s {
  choir_tcp_comm_t* tcp;
  const choir_comm_config_t* config;
  card_t own;
  double deadline;
  int listener;
  caller_t callers[MAX_CALLERS];
} join_t;

// ---- Sockets ----

static choir_status_t socket_error(const char* what) {
  if (errno == EMFILE)
    return CHOIR_ERROR(UNAVAILABLE,
                       "too few file descriptors: each rank needs two per "
                       "peer; raise the limit (ulimit -n)");
  return CHOIR_ERROR(UNAVAILABLE, "%s: %s", what, strerror(errno));
}

static void close_socket(int* socket) {
  if (*socket >= 0) close(*socket);
  *socket = -1;
}

static void set_options(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

// All interfaces; where the system has IPv6, both families.
static choir_status_t listen_at(uint16_t port, int* out_listener) {
  const int yes = 1, no = 0;
  *out_listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_6 = *out_listener >= 0;
  if (!is_6) *out_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*out_listener < 0) return socket_error("socket");
  const struct sockaddr_in6 any_6 = {.sin6_family = AF_INET6,
                                     .sin6_port = htons(port)};
  const struct sockaddr_in any_4 = {.sin_family = AF_INET,
                                    .sin_port = htons(port)};
  setsockopt(*out_listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (is_6)
    setsockopt(*out_listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  const int failed =
      is_6 ? bind(*out_listener, (const struct sockaddr*)&any_6, sizeof(any_6))
           : bind(*out_listener, (const struct sockaddr*)&any_4, sizeof(any_4));
  if (!failed && !listen(*out_listener, SOMAXCONN) &&
      !fcntl(*out_listener, F_SETFL, O_NONBLOCK))
    return NULL;
  choir_status_t status = CHOIR_ERROR(
      UNAVAILABLE, "cannot listen at port %u: %s", port, strerror(errno));
  close_socket(out_listener);
  return status;
}

static uint16_t port_of(const struct sockaddr_storage* address) {
  const size_t at = address->ss_family == AF_INET6
                        ? offsetof(struct sockaddr_in6, sin6_port)
                        : offsetof(struct sockaddr_in, sin_port);
  uint16_t port;
  memcpy(&port, (const char*)address + at, sizeof(port));
  return ntohs(port);
}

static void set_port(struct sockaddr_storage* address, uint16_t port) {
  if (address->ss_family == AF_INET6)
    ((struct sockaddr_in6*)address)->sin6_port = htons(port);
  else
    ((struct sockaddr_in*)address)->sin_port = htons(port);
}

static choir_status_t listen_anywhere(int* out_listener) {
  // $CHOIR_PORTS: FIRST-LAST, the TCP ports at which ranks may listen for each
  // other, as where a firewall lets no others pass. Not set: any free port.
  const char* ports = getenv("CHOIR_PORTS");
  if (!ports || !ports[0]) return listen_at(0, out_listener);
  int first, last;
  char more;
  if (sscanf(ports, "%5d-%5d%c", &first, &last, &more) != 2 || first < 1 ||
      first > last || last > UINT16_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "CHOIR_PORTS is '%s'; it must be FIRST-LAST, ports of 1 "
                       ".. 65535",
                       ports);
  for (int port = first; port <= last; ++port) {
    choir_status_t status = listen_at((uint16_t)port, out_listener);
    if (!status) return NULL;
    choir_status_free(status);
  }
  return CHOIR_ERROR(UNAVAILABLE,
                     "no port of %s (CHOIR_PORTS) is free for this rank to "
                     "listen at",
                     ports);
}

choir_status_t choir_tcp_listen(int* out_listener, uint16_t* out_port) {
  CHOIR_TRY(listen_anywhere(out_listener));
  struct sockaddr_storage address = {0};
  socklen_t bytes = sizeof(address);
  if (getsockname(*out_listener, (struct sockaddr*)&address, &bytes)) {
    choir_status_t status = socket_error("getsockname");
    close_socket(out_listener);
    return status;
  }
  *out_port = port_of(&address);
  return NULL;
}

// A line of the table and an address.
static void write_address(const struct sockaddr_storage* address,
                          unsigned char out[16]) {
  if (address->ss_family == AF_INET6) {
    memcpy(out, &((const struct sockaddr_in6*)address)->sin6_addr, 16);
    return;
  }
  memset(out, 0, 10);
  memset(out + 10, 0xff, 2);
  memcpy(out + 12, &((const struct sockaddr_in*)address)->sin_addr, 4);
}

static void read_address(const unsigned char in[16],
                         struct sockaddr_storage* out_address) {
  static const unsigned char mapped[12] = {0, 0, 0, 0, 0,    0,
                                           0, 0, 0, 0, 0xff, 0xff};
  memset(out_address, 0, sizeof(*out_address));
  if (!memcmp(in, mapped, sizeof(mapped))) {
    struct sockaddr_in* four = (struct sockaddr_in*)out_address;
    four->sin_family = AF_INET;
    memcpy(&four->sin_addr, in + 12, 4);
    return;
  }
  struct sockaddr_in6* six = (struct sockaddr_in6*)out_address;
  six->sin6_family = AF_INET6;
  memcpy(&six->sin6_addr, in, 16);
}

static bool is_loopback(const struct sockaddr_storage* address) {
  unsigned char bytes[16] = {0};
  write_address(address, bytes);
  struct sockaddr_storage plain;
  read_address(bytes, &plain);
  if (plain.ss_family == AF_INET)
    return ntohl(((const struct sockaddr_in*)&plain)->sin_addr.s_addr) >> 24 ==
           127;
  return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6*)&plain)->sin6_addr);
}

static const char* print_address(const struct sockaddr_storage* address,
                                 char text[INET6_ADDRSTRLEN + 8]) {
  char host[INET6_ADDRSTRLEN] = "?";
  const bool is_6 = address->ss_family == AF_INET6;
  inet_ntop(address->ss_family,
            is_6
                ? (const void*)&((const struct sockaddr_in6*)address)->sin6_addr
                : (const void*)&((const struct sockaddr_in*)address)->sin_addr,
            host, sizeof(host));
  snprintf(text, INET6_ADDRSTRLEN + 8, is_6 ? "[%s]:%u" : "%s:%u", host,
           port_of(address));
  return text;
}

// ---- Bytes with a deadline ----

// 1: ready; 0: not before the deadline.
static int wait_ready(int socket, short events, double deadline) {
  for (;;) {
    const double left = deadline - choir_clock_seconds();
    if (left <= 0) return 0;
    struct pollfd ready = {.fd = socket, .events = events};
    const int n = poll(&ready, 1, left > 1 ? 1000 : (int)(left * 1e3) + 1);
    if (n > 0) return 1;
    if (n < 0 && errno != EINTR) return 0;
  }
}

typedef enum moved_e { MOVED, MOVED_LATE, MOVED_CLOSED } moved_t;

static moved_t move_all(int socket, void* data, size_t bytes, bool is_send,
                        double deadline) {
  for (size_t done = 0; done < bytes;) {
    char* at = (char*)data + done;
    const ssize_t n = is_send ? send(socket, at, bytes - done, MSG_NOSIGNAL)
                              : recv(socket, at, bytes - done, 0);
    if (n > 0) {
      done += (size_t)n;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return MOVED_CLOSED;
    if (!wait_ready(socket, is_send ? POLLOUT : POLLIN, deadline))
      return MOVED_LATE;
  }
  return MOVED;
}

// ---- Handshakes ----

static choir_status_t make_keys(const join_t* join,
                                choir_tcp_keys_t* out_keys) {
  if (join->tcp->encrypts) return choir_tcp_make_keys(out_keys);
  memset(out_keys, 0, sizeof(*out_keys));
  if (getrandom(out_keys->shown, sizeof(out_keys->shown), 0) ==
      (ssize_t)sizeof(out_keys->shown))
    return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "no random numbers: %s", strerror(errno));
}

// After a handshake.
static choir_status_t open_seal(const join_t* join, const choir_tcp_keys_t* own,
                                const unsigned char* theirs, bool is_caller,
                                choir_tcp_seal_t** out_seal) {
  if (!join->tcp->encrypts) return NULL;
  return choir_tcp_seal_open(join->tcp->base.allocator, own, theirs, is_caller,
                             out_seal);
}

static choir_status_t make_mac(
    const join_t* join, const char* side, const hello_t* hello,
    const unsigned char listener[CHOIR_TCP_KEY_BYTES], const card_t* card,
    choir__comm_mac_t* out_mac) {
  unsigned char text[sizeof(hello_t) + CHOIR_TCP_KEY_BYTES + sizeof(card_t)];
  size_t bytes = sizeof(hello_t) + CHOIR_TCP_KEY_BYTES;
  memcpy(text, hello, sizeof(hello_t));
  memcpy(text + sizeof(hello_t), listener, CHOIR_TCP_KEY_BYTES);
  if (card) {
    memcpy(text + bytes, card, sizeof(card_t));
    bytes += sizeof(card_t);
  }
  return choir__comm_mac_make(&join->config->id, side, text, bytes, out_mac);
}

static const char of_listener[] = "tcp listener";
static const char of_caller[] = "tcp caller";

static void send_reply(int socket, choir_status_t why) {
  reply_t reply = {.code = (int32_t)choir_status_code(why)};
  if (why)
    snprintf(reply.text, sizeof(reply.text), "%s", choir_status_message(why));
  move_all(socket, &reply, sizeof(reply), true, choir_clock_seconds() + 1);
}

static choir_status_t read_reply(reply_t* reply) {
  if (!reply->code) return NULL;
  reply->text[TEXT_BYTES - 1] = 0;
  return choir_status_make((choir_status_code_t)reply->code, __FILE__, __LINE__,
                           __func__, "%s", reply->text);
}

// ---- Listening ----

static void drop(caller_t* caller) {
  close_socket(&caller->socket);
  *caller = (caller_t){.socket = -1};
}

// Free, or of the one that has been there for longest. NULL: none.
static caller_t* find_place(join_t* join, double now) {
  caller_t* oldest = &join->callers[0];
  for (int i = 0; i < MAX_CALLERS; ++i) {
    caller_t* caller = &join->callers[i];
    if (caller->socket < 0) return caller;
    if (caller->since < oldest->since) oldest = caller;
  }
  return now - oldest->since > HANDSHAKE_SECONDS ? oldest : NULL;
}

static choir_status_t accept_callers(join_t* join) {
  const double now = choir_clock_seconds();
  caller_t* place;
  while ((place = find_place(join, now))) {
    const int socket =
        accept4(join->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return errno == EMFILE ? socket_error("accept") : NULL;
    set_options(socket);
    drop(place);
    *place = (caller_t){.socket = socket, .since = now};
  }
  return NULL;
}

// What has come of a message; true: all of it. Drops a caller that ended.
static bool fill(caller_t* caller, void* message, size_t bytes, size_t* have) {
  while (*have < bytes) {
    const ssize_t n =
        recv(caller->socket, (char*)message + *have, bytes - *have, 0);
    if (n > 0) {
      *have += (size_t)n;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) drop(caller);
    return false;
  }
  return true;
}

static choir_status_t send_challenge(join_t* join, caller_t* caller) {
  challenge_t challenge = {.magic = MAGIC};
  CHOIR_TRY(make_keys(join, &caller->keys));
  memcpy(challenge.nonce, caller->keys.shown, CHOIR_TCP_KEY_BYTES);
  CHOIR_TRY(make_mac(join, of_listener, &caller->hello, caller->keys.shown,
                     NULL, &challenge.mac));
  // So little goes into the buffer of a new connection.
  if (send(caller->socket, &challenge, sizeof(challenge), MSG_NOSIGNAL) !=
      (ssize_t)sizeof(challenge))
    drop(caller);
  return NULL;
}

// A step of the caller's handshake; *out_done: it is over, and the caller
// known.
static choir_status_t serve(join_t* join, caller_t* caller, bool* out_done) {
  *out_done = false;
  if (caller->hello_bytes < sizeof(hello_t)) {
    if (!fill(caller, &caller->hello, sizeof(hello_t), &caller->hello_bytes))
      return NULL;
    if (caller->hello.magic != MAGIC ||
        caller->hello.called != join->config->rank) {
      drop(caller);
      return NULL;
    }
    CHOIR_TRY(send_challenge(join, caller));
    if (caller->socket < 0) return NULL;
  }
  if (!fill(caller, &caller->proof, sizeof(proof_t), &caller->proof_bytes))
    return NULL;
  choir__comm_mac_t mac;
  CHOIR_TRY(make_mac(join, of_caller, &caller->hello, caller->keys.shown,
                     &caller->proof.card, &mac));
  *out_done = choir__comm_mac_equal(&mac, &caller->proof.mac);
  if (!*out_done) drop(caller);
  return NULL;
}

// Waits a little for callers, and serves them.
typedef choir_status_t (*welcome_t)(join_t* join, caller_t* caller);
static choir_status_t serve_callers(join_t* join, welcome_t welcome) {
  struct pollfd polls[MAX_CALLERS + 1];
  polls[MAX_CALLERS] = (struct pollfd){.fd = join->listener, .events = POLLIN};
  for (int i = 0; i < MAX_CALLERS; ++i)
    polls[i] = (struct pollfd){.fd = join->callers[i].socket, .events = POLLIN};
  poll(polls, MAX_CALLERS + 1, RETRY_MILLISECONDS);
  CHOIR_TRY(accept_callers(join));
  for (int i = 0; i < MAX_CALLERS; ++i) {
    bool done = false;
    if (join->callers[i].socket >= 0)
      CHOIR_TRY(serve(join, &join->callers[i], &done));
    if (done) CHOIR_TRY(welcome(join, &join->callers[i]));
  }
  return NULL;
}

// ---- Calling ----

// *out_socket: -1 where nobody listens.
static choir_status_t connect_to(const struct sockaddr_storage* address,
                                 double deadline, int* out_socket) {
  *out_socket =
      socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*out_socket < 0) return socket_error("socket");
  const socklen_t bytes = address->ss_family == AF_INET6
                              ? sizeof(struct sockaddr_in6)
                              : sizeof(struct sockaddr_in);
  int error = connect(*out_socket, (const struct sockaddr*)address, bytes);
  if (error && errno == EINPROGRESS) {
    socklen_t length = sizeof(error);
    error = !wait_ready(*out_socket, POLLOUT, deadline) ||
            getsockopt(*out_socket, SOL_SOCKET, SO_ERROR, &error, &length) ||
            error;
  }
  if (error)
    close_socket(out_socket);
  else
    set_options(*out_socket);
  return NULL;
}

// After a connection: shows that it is this rank's. *out_socket: -1 where the
// other side ended it.
// `out_seal` NULL: nothing that is secret follows.
static choir_status_t introduce(const join_t* join, int32_t purpose,
                                int32_t called, double deadline,
                                int* out_socket, choir_tcp_seal_t** out_seal) {
  hello_t hello = {.magic = MAGIC,
                   .purpose = purpose,
                   .rank = join->config->rank,
                   .called = called};
  challenge_t challenge;
  proof_t proof = {.card = join->own};
  choir_tcp_keys_t keys;
  CHOIR_TRY(make_keys(join, &keys));
  memcpy(hello.nonce, keys.shown, sizeof(hello.nonce));
  if (move_all(*out_socket, &hello, sizeof(hello), true, deadline) ||
      move_all(*out_socket, &challenge, sizeof(challenge), false, deadline)) {
    close_socket(out_socket);
    return NULL;
  }
  choir__comm_mac_t mac;
  CHOIR_TRY(make_mac(join, of_listener, &hello, challenge.nonce, NULL, &mac));
  if (challenge.magic != MAGIC || !choir__comm_mac_equal(&mac, &challenge.mac))
    return CHOIR_ERROR(UNAVAILABLE,
                       "the process that listens at the place of rank %d does "
                       "not know the id of this run, or is of another start of "
                       "it",
                       called);
  CHOIR_TRY(make_mac(join, of_caller, &hello, challenge.nonce, &proof.card,
                     &proof.mac));
  if (move_all(*out_socket, &proof, sizeof(proof), true, deadline))
    close_socket(out_socket);
  if (*out_socket < 0 || !out_seal) return NULL;
  return open_seal(join, &keys, challenge.nonce, true, out_seal);
}

// ---- The rendezvous ----

// The addresses of the rendezvous, for freeaddrinfo.
static choir_status_t resolve(const char* text, struct addrinfo** out_found) {
  *out_found = NULL;
  char host[CHOIR_COMM_ADDRESS_BYTES];
  snprintf(host, sizeof(host), "%s", text);
  char* colon = strrchr(host, ':');
  if (!colon || colon == host || !colon[1])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the rendezvous is '%s'; HOST:PORT is needed", text);
  *colon = 0;
  char* name = host;
  if (*name == '[' && colon[-1] == ']') {
    ++name;
    colon[-1] = 0;
  }
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  const int error = getaddrinfo(name, colon + 1, &hints, out_found);
  if (!error) return NULL;
  return CHOIR_ERROR(NOT_FOUND, "the rendezvous %s: %s", text,
                     gai_strerror(error));
}

static void copy_address(const struct addrinfo* found,
                         struct sockaddr_storage* out_address) {
  memset(out_address, 0, sizeof(*out_address));
  memcpy(out_address, found->ai_addr, found->ai_addrlen);
}

static choir_status_t check_card(const join_t* join, const card_t* card) {
  if (card->encrypts != join->own.encrypts)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "rank %d encrypts what it sends (CHOIR_TCP_ENCRYPT=1), "
                       "rank %d does not; all ranks need the same",
                       join->own.encrypts ? 0 : card->identity.rank,
                       join->own.encrypts ? card->identity.rank : 0);
  if (card->identity.size == join->own.identity.size) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "rank %d (pid %d) has size %d, rank %d (pid %d) has size "
                     "%d; all ranks need the same",
                     join->own.identity.rank, join->own.identity.pid,
                     join->own.identity.size, card->identity.rank,
                     card->identity.pid, card->identity.size);
}

static choir_status_t tell_missing(join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  char ranks[128];
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r) count += comm->flags[r];
  choir__comm_rank_list(comm->flags, comm->size, ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come",
                     comm->rank, join->own.identity.host,
                     join->own.identity.pid, join->config->deadline, ranks,
                     comm->size, count == 1 ? "has" : "have");
}

// Rank 0: links[r].control is the connection of a rank that has come, until the
// table has gone out.
static choir_status_t note_registered(join_t* join, caller_t* caller) {
  choir_tcp_comm_t* tcp = join->tcp;
  const card_t* card = &caller->proof.card;
  const int32_t rank = caller->hello.rank;
  choir_status_t status = check_card(join, card);
  if (!status && (caller->hello.purpose != REGISTER || rank < 1 ||
                  rank >= tcp->base.size || card->identity.rank != rank))
    status = CHOIR_ERROR(INVALID_ARGUMENT, "rank %d of %d cannot register",
                         rank, tcp->base.size);
  if (!status && tcp->links[rank].control >= 0)
    status = CHOIR_ERROR(ALREADY_EXISTS,
                         "rank %d of this id is there already; an id serves "
                         "one communicator",
                         rank);
  if (status) {
    send_reply(caller->socket, status);
    drop(caller);
    return status;
  }
  socklen_t bytes = sizeof(tcp->links[rank].address);
  if (getpeername(caller->socket, (struct sockaddr*)&tcp->links[rank].address,
                  &bytes))
    return socket_error("getpeername");
  tcp->links[rank].control = caller->socket;
  tcp->base.peers[rank].identity = card->identity;
  set_port(&tcp->links[rank].address, (uint16_t)card->port);
  *caller = (caller_t){.socket = -1};
  return NULL;
}

static choir_status_t gather_ranks(join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  for (;;) {
    int32_t missing = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      comm->flags[r] = r > 0 && join->tcp->links[r].control < 0;
      missing += comm->flags[r];
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > join->deadline) return tell_missing(join);
    CHOIR_TRY(serve_callers(join, note_registered));
  }
}

// Where a packet and its acknowledgement take longer than in a local network.
static bool is_far(int socket) {
  struct tcp_info info = {0};
  socklen_t bytes = sizeof(info);
  return !getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) &&
         info.tcpi_min_rtt > FAR_MICROSECONDS;
}

// Between two rounds there is half a round trip in which nothing is sent.
static void choose_rounds(choir_tcp_comm_t* tcp, const entry_t* table) {
  if (table[0].is_far) tcp->base.sizes.round = FAR_ROUND_BYTES;
}

static choir_status_t hand_out_table(join_t* join) {
  choir_tcp_comm_t* tcp = join->tcp;
  const size_t bytes = (size_t)tcp->base.size * sizeof(entry_t);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(tcp->base.allocator, bytes, "table of ranks", &memory));
  entry_t* table = memory;
  table[0] = (entry_t){.card = join->own, .is_rank_0 = 1};
  for (int32_t r = 1; r < tcp->base.size; ++r) {
    const struct sockaddr_storage* address = &tcp->links[r].address;
    table[0].is_far |= is_far(tcp->links[r].control);
    table[r] = (entry_t){.card = {.identity = tcp->base.peers[r].identity,
                                  .port = port_of(address)},
                         .is_rank_0 = is_loopback(address)};
    write_address(address, table[r].address);
  }
  for (int32_t r = 1; r < tcp->base.size; ++r) {
    send_reply(tcp->links[r].control, NULL);
    move_all(tcp->links[r].control, table, bytes, true, join->deadline);
    close_socket(&tcp->links[r].control);
  }
  choose_rounds(tcp, table);
  choir_deallocate(tcp->base.allocator, memory, bytes);
  return NULL;
}

choir_status_t choir__rendezvous_open(int* out_fd, uint16_t* out_port) {
  const struct sockaddr_in loopback = {
      .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_storage address = {0};
  socklen_t bytes = sizeof(address);
  *out_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*out_fd < 0) return socket_error("socket");
  if (!bind(*out_fd, (const struct sockaddr*)&loopback, sizeof(loopback)) &&
      !listen(*out_fd, SOMAXCONN) &&
      !getsockname(*out_fd, (struct sockaddr*)&address, &bytes)) {
    *out_port = port_of(&address);
    return NULL;
  }
  choir_status_t status = socket_error("rendezvous");
  close_socket(out_fd);
  return status;
}

static choir_status_t open_rendezvous(join_t* join) {
  // $CHOIR_RENDEZVOUS_FD: the number of a socket that listens at the rendezvous
  // address, which rank 0 got from the launcher that opened it. Not set: rank 0
  // opens it.
  const char* inherited = getenv("CHOIR_RENDEZVOUS_FD");
  if (inherited && inherited[0]) {
    join->listener = fcntl(atoi(inherited), F_DUPFD_CLOEXEC, 0);
    if (join->listener < 0) return socket_error("CHOIR_RENDEZVOUS_FD");
    fcntl(join->listener, F_SETFL, O_NONBLOCK);
    return NULL;
  }
  struct sockaddr_storage address;
  struct addrinfo* found;
  CHOIR_TRY(resolve(join->config->rendezvous, &found));
  copy_address(found, &address);
  freeaddrinfo(found);
  return listen_at(port_of(&address), &join->listener);
}

static choir_status_t host_rendezvous(join_t* join) {
  CHOIR_TRY(open_rendezvous(join));
  choir_status_t status = gather_ranks(join);
  if (!status) status = hand_out_table(join);
  for (int32_t r = 1; r < join->tcp->base.size; ++r) {
    int* socket = &join->tcp->links[r].control;
    if (status && *socket >= 0) send_reply(*socket, status);
    close_socket(socket);
  }
  for (int i = 0; i < MAX_CALLERS; ++i) drop(&join->callers[i]);
  close_socket(&join->listener);
  return status;
}

static choir_status_t lost_rank_0(const join_t* join) {
  return CHOIR_ERROR(ABORTED,
                     "rank 0, which listens at %s, ended while ranks "
                     "were joining",
                     join->config->rendezvous);
}

static choir_status_t take_table(join_t* join, int socket,
                                 const struct sockaddr_storage* rank_0) {
  choir_tcp_comm_t* tcp = join->tcp;
  const size_t bytes = (size_t)tcp->base.size * sizeof(entry_t);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(tcp->base.allocator, bytes, "table of ranks", &memory));
  const moved_t moved = move_all(socket, memory, bytes, false, join->deadline);
  const entry_t* table = memory;
  for (int32_t r = 0; !moved && r < tcp->base.size; ++r) {
    tcp->base.peers[r].identity = table[r].card.identity;
    if (table[r].is_rank_0)
      tcp->links[r].address = *rank_0;
    else
      read_address(table[r].address, &tcp->links[r].address);
    set_port(&tcp->links[r].address, (uint16_t)table[r].card.port);
  }
  if (!moved) choose_rounds(tcp, table);
  choir_deallocate(tcp->base.allocator, memory, bytes);
  return moved ? lost_rank_0(join) : NULL;
}

// A name may have several addresses, of which rank 0 listens at some.
static choir_status_t try_rank_0(join_t* join, const struct addrinfo* found,
                                 struct sockaddr_storage* out_address,
                                 int* out_socket) {
  for (; found && *out_socket < 0; found = found->ai_next) {
    copy_address(found, out_address);
    CHOIR_TRY(connect_to(out_address, join->deadline, out_socket));
    if (*out_socket >= 0)
      CHOIR_TRY(introduce(join, REGISTER, 0, join->deadline, out_socket, NULL));
  }
  return NULL;
}

// Until rank 0 listens.
static choir_status_t call_rank_0(join_t* join,
                                  struct sockaddr_storage* out_address,
                                  int* out_socket) {
  struct addrinfo* found;
  CHOIR_TRY(resolve(join->config->rendezvous, &found));
  choir_status_t status = NULL;
  while (!status && *out_socket < 0) {
    status = try_rank_0(join, found, out_address, out_socket);
    if (status || *out_socket >= 0) break;
    if (choir_clock_seconds() > join->deadline) {
      join->tcp->base.flags[0] = true;
      status = choir_status_annotate(tell_missing(join), __FILE__, __LINE__,
                                     "rendezvous");
    }
    poll(NULL, 0, RETRY_MILLISECONDS);
  }
  freeaddrinfo(found);
  return status;
}

static choir_status_t visit_rendezvous(join_t* join) {
  struct sockaddr_storage address;
  int socket = -1;
  choir_status_t status = call_rank_0(join, &address, &socket);
  if (!status) {
    // Rank 0's own deadline is told in its reply.
    reply_t reply;
    const moved_t moved =
        move_all(socket, &reply, sizeof(reply), false, join->deadline + 1);
    status = moved ? lost_rank_0(join) : read_reply(&reply);
  }
  if (!status) status = take_table(join, socket, &address);
  close_socket(&socket);
  return status;
}

// ---- The mesh ----

static choir_status_t call_lower(join_t* join, int32_t rank, int32_t purpose,
                                 int* out_socket, choir_tcp_seal_t** out_seal) {
  const struct sockaddr_storage* address = &join->tcp->links[rank].address;
  char text[INET6_ADDRSTRLEN + 8];
  CHOIR_TRY(connect_to(address, join->deadline, out_socket));
  if (*out_socket >= 0)
    CHOIR_TRY(
        introduce(join, purpose, rank, join->deadline, out_socket, out_seal));
  reply_t reply;
  if (*out_socket >= 0 &&
      move_all(*out_socket, &reply, sizeof(reply), false, join->deadline))
    close_socket(out_socket);
  if (*out_socket >= 0) return read_reply(&reply);
  const choir_comm_identity_t* own = &join->own.identity;
  return CHOIR_ERROR(
      ABORTED,
      "rank %d (host %s) cannot reach rank %d (host %s) at %s: it "
      "ended, or the network does not let it through",
      own->rank, own->host, rank, join->tcp->base.peers[rank].identity.host,
      print_address(address, text));
}

static choir_status_t note_called(join_t* join, caller_t* caller) {
  choir_tcp_comm_t* tcp = join->tcp;
  const int32_t rank = caller->hello.rank;
  const bool is_data = caller->hello.purpose == DATA;
  if (rank <= tcp->base.rank || rank >= tcp->base.size ||
      (!is_data && caller->hello.purpose != CONTROL)) {
    drop(caller);
    return NULL;
  }
  choir_tcp_link_t* link = &tcp->links[rank];
  int* place = is_data ? &link->data : &link->control;
  if (*place >= 0) {
    drop(caller);
    return NULL;
  }
  CHOIR_TRY(open_seal(join, &caller->keys, caller->hello.nonce, false,
                      is_data ? &link->data_seal : &link->control_seal));
  send_reply(caller->socket, NULL);
  *place = caller->socket;
  *caller = (caller_t){.socket = -1};
  return NULL;
}

// Higher ranks call when they have called all that are below them.
static choir_status_t serve_higher(join_t* join) {
  choir_comm_t* comm = &join->tcp->base;
  for (;;) {
    int32_t missing = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      const choir_tcp_link_t* link = &join->tcp->links[r];
      comm->flags[r] = r > comm->rank && (link->data < 0 || link->control < 0);
      missing += comm->flags[r];
    }
    if (missing == 0) return NULL;
    if (choir_clock_seconds() > join->deadline) return tell_missing(join);
    CHOIR_TRY(serve_callers(join, note_called));
  }
}

static choir_status_t connect_mesh(join_t* join) {
  for (int32_t r = 0; r < join->config->rank; ++r) {
    choir_tcp_link_t* link = &join->tcp->links[r];
    CHOIR_TRY(
        call_lower(join, r, CONTROL, &link->control, &link->control_seal));
    CHOIR_TRY(call_lower(join, r, DATA, &link->data, &link->data_seal));
  }
  CHOIR_TRY(serve_higher(join));
  for (int32_t r = 0; r < join->config->size; ++r)
    if (r != join->config->rank)
      fcntl(join->tcp->links[r].data, F_SETFL, O_NONBLOCK);
  return NULL;
}

static void init_join(join_t* join, choir_tcp_comm_t* tcp,
                      const choir_comm_config_t* config) {
  memset(join, 0, sizeof(*join));
  join->tcp = tcp;
  join->config = config;
  join->deadline = choir_clock_seconds() + config->deadline;
  join->listener = -1;
  for (int i = 0; i < MAX_CALLERS; ++i) join->callers[i].socket = -1;
  choir__comm_identify(config, &join->own.identity);
  join->own.encrypts = tcp->encrypts;
  tcp->base.peers[config->rank].identity = join->own.identity;
}

static choir_status_t join_mesh(join_t* join, int listener) {
  join->listener = listener;
  choir_status_t status = connect_mesh(join);
  for (int i = 0; i < MAX_CALLERS; ++i) drop(&join->callers[i]);
  close_socket(&join->listener);
  return status;
}

choir_status_t choir_tcp_meet(choir_tcp_comm_t* tcp,
                              const choir_comm_config_t* config) {
  join_t join;
  int listener = -1;
  uint16_t port = 0;
  init_join(&join, tcp, config);
  CHOIR_TRY(choir_tcp_listen(&listener, &port));
  join.own.port = port;
  choir_status_t status =
      config->rank == 0 ? host_rendezvous(&join) : visit_rendezvous(&join);
  if (!status) return join_mesh(&join, listener);
  close_socket(&listener);
  return status;
}

choir_status_t choir_tcp_meet_group(choir_tcp_comm_t* tcp,
                                    const choir_comm_config_t* config,
                                    int listener, const uint16_t* ports) {
  join_t join;
  init_join(&join, tcp, config);
  for (int32_t r = 0; r < config->size; ++r)
    set_port(&tcp->links[r].address, ports[r]);
  return join_mesh(&join, listener);
}
