// SPDX-License-Identifier: Apache-2.0
// Nobody is believed before it has shown that it knows the id of the run, which
// never travels (keyed codes, comm_mac_internal.h):
//   caller    hello: nonce, what for, rank, whom it calls
//   listener  challenge: nonce, code of both nonces and the hello
//   caller    proof: who it is, code of this, both nonces and the hello
//   listener  reply: welcome, or why not
// What comes from a caller before that is at most a hello and a proof of fixed
// length, from a bounded number of callers at a time, each for a second.
//
// Where connections are encrypted (tcp_seal.c), the nonces are both sides'
// keys, made for this connection alone, so that who records a run and learns
// its id later can read nothing.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_join_internal.h"

#define HANDSHAKE_SECONDS 1.0

typedef struct challenge_s {
  uint64_t magic;
  unsigned char nonce[CHOIR_TCP_KEY_BYTES];
  choir__comm_mac_t mac;
} challenge_t;

static choir_status_t make_keys(const choir_tcp_join_t* join,
                                choir_tcp_keys_t* out_keys) {
  if (join->tcp->encrypts) return choir_tcp_make_keys(out_keys);
  memset(out_keys, 0, sizeof(*out_keys));
  if (getrandom(out_keys->shown, sizeof(out_keys->shown), 0) ==
      (ssize_t)sizeof(out_keys->shown))
    return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "no random numbers: %s", strerror(errno));
}

// After a handshake.
choir_status_t choir_tcp_open_seal(const choir_tcp_join_t* join,
                                   choir_tcp_keys_t* own,
                                   const unsigned char* theirs, bool is_caller,
                                   choir_tcp_seal_t** out_seal) {
  if (!join->tcp->encrypts) return NULL;
  return choir_tcp_seal_open(join->tcp->base.allocator, own, theirs, is_caller,
                             out_seal);
}

static choir_status_t make_mac(
    const choir_tcp_join_t* join, const char* side,
    const choir_tcp_hello_t* hello,
    const unsigned char listener[CHOIR_TCP_KEY_BYTES],
    const choir_tcp_card_t* card, choir__comm_mac_t* out_mac) {
  unsigned char text[sizeof(choir_tcp_hello_t) + CHOIR_TCP_KEY_BYTES +
                     sizeof(choir_tcp_card_t)];
  size_t bytes = sizeof(choir_tcp_hello_t) + CHOIR_TCP_KEY_BYTES;
  memcpy(text, hello, sizeof(choir_tcp_hello_t));
  memcpy(text + sizeof(choir_tcp_hello_t), listener, CHOIR_TCP_KEY_BYTES);
  if (card) {
    memcpy(text + bytes, card, sizeof(choir_tcp_card_t));
    bytes += sizeof(choir_tcp_card_t);
  }
  return choir__comm_mac_make(&join->config->id, side, text, bytes, out_mac);
}

static const char of_listener[] = "tcp listener";
static const char of_caller[] = "tcp caller";

void choir_tcp_send_reply(int socket, choir_status_t why) {
  choir_tcp_reply_t reply = {.code = (int32_t)choir_status_code(why)};
  if (why)
    snprintf(reply.text, sizeof(reply.text), "%s", choir_status_message(why));
  choir_tcp_move_all(socket, &reply, sizeof(reply), true,
                     choir_clock_seconds() + 1);
}

choir_status_t choir_tcp_read_reply(choir_tcp_reply_t* reply) {
  if (!reply->code) return NULL;
  reply->text[CHOIR_TCP_REPLY_BYTES - 1] = 0;
  return choir_status_make((choir_status_code_t)reply->code, __FILE__, __LINE__,
                           __func__, "%s", reply->text);
}

// ---- Listening ----

void choir_tcp_drop_caller(choir_tcp_caller_t* caller) {
  choir_tcp_close_socket(&caller->socket);
  *caller = (choir_tcp_caller_t){.socket = -1};
}

// Free, or of the one that has been there for longest. NULL: none.
static choir_tcp_caller_t* find_place(choir_tcp_join_t* join, double now) {
  choir_tcp_caller_t* oldest = &join->callers[0];
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i) {
    choir_tcp_caller_t* caller = &join->callers[i];
    if (caller->socket < 0) return caller;
    if (caller->since < oldest->since) oldest = caller;
  }
  return now - oldest->since > HANDSHAKE_SECONDS ? oldest : NULL;
}

static choir_status_t accept_callers(choir_tcp_join_t* join) {
  const double now = choir_clock_seconds();
  choir_tcp_caller_t* place;
  while ((place = find_place(join, now))) {
    const int socket =
        accept4(join->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
      return errno == EMFILE ? choir_tcp_socket_error("accept") : NULL;
    choir_tcp_set_options(socket);
    choir_tcp_drop_caller(place);
    *place = (choir_tcp_caller_t){.socket = socket, .since = now};
  }
  return NULL;
}

// What has come of a message; true: all of it. Drops a caller that ended.
static bool fill(choir_tcp_caller_t* caller, void* message, size_t bytes,
                 size_t* have) {
  while (*have < bytes) {
    const ssize_t n =
        recv(caller->socket, (char*)message + *have, bytes - *have, 0);
    if (n > 0) {
      *have += (size_t)n;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
      choir_tcp_drop_caller(caller);
    return false;
  }
  return true;
}

static choir_status_t send_challenge(choir_tcp_join_t* join,
                                     choir_tcp_caller_t* caller) {
  challenge_t challenge = {.magic = CHOIR_TCP_MAGIC};
  CHOIR_TRY(make_keys(join, &caller->keys));
  memcpy(challenge.nonce, caller->keys.shown, CHOIR_TCP_KEY_BYTES);
  CHOIR_TRY(make_mac(join, of_listener, &caller->hello, caller->keys.shown,
                     NULL, &challenge.mac));
  // So little goes into the buffer of a new connection.
  if (send(caller->socket, &challenge, sizeof(challenge), MSG_NOSIGNAL) !=
      (ssize_t)sizeof(challenge))
    choir_tcp_drop_caller(caller);
  return NULL;
}

// A step of the caller's handshake; *out_done: it is over, and the caller
// known.
static choir_status_t serve(choir_tcp_join_t* join, choir_tcp_caller_t* caller,
                            bool* out_done) {
  *out_done = false;
  if (caller->hello_bytes < sizeof(choir_tcp_hello_t)) {
    if (!fill(caller, &caller->hello, sizeof(choir_tcp_hello_t),
              &caller->hello_bytes))
      return NULL;
    if (caller->hello.magic != CHOIR_TCP_MAGIC ||
        caller->hello.called != join->config->rank) {
      choir_tcp_drop_caller(caller);
      return NULL;
    }
    CHOIR_TRY(send_challenge(join, caller));
    if (caller->socket < 0) return NULL;
  }
  if (!fill(caller, &caller->proof, sizeof(choir_tcp_proof_t),
            &caller->proof_bytes))
    return NULL;
  choir__comm_mac_t mac;
  CHOIR_TRY(make_mac(join, of_caller, &caller->hello, caller->keys.shown,
                     &caller->proof.card, &mac));
  *out_done = choir__comm_mac_equal(&mac, &caller->proof.mac);
  if (!*out_done) choir_tcp_drop_caller(caller);
  return NULL;
}

// Waits a little for callers, and serves them.
choir_status_t choir_tcp_serve_callers(choir_tcp_join_t* join,
                                       choir_tcp_welcome_t welcome) {
  struct pollfd polls[CHOIR_TCP_MAX_CALLERS + 1];
  polls[CHOIR_TCP_MAX_CALLERS] =
      (struct pollfd){.fd = join->listener, .events = POLLIN};
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i)
    polls[i] = (struct pollfd){.fd = join->callers[i].socket, .events = POLLIN};
  poll(polls, CHOIR_TCP_MAX_CALLERS + 1, CHOIR_TCP_RETRY_MILLISECONDS);
  CHOIR_TRY(accept_callers(join));
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i) {
    bool done = false;
    if (join->callers[i].socket >= 0)
      CHOIR_TRY(serve(join, &join->callers[i], &done));
    if (done) CHOIR_TRY(welcome(join, &join->callers[i]));
  }
  return NULL;
}

// ---- Calling ----

// After a connection: shows that it is this rank's. *out_socket: -1 where the
// other side ended it.
// `out_seal` NULL: nothing that is secret follows.
choir_status_t choir_tcp_introduce(const choir_tcp_join_t* join,
                                   int32_t purpose, int32_t called,
                                   double deadline, int* out_socket,
                                   choir_tcp_seal_t** out_seal) {
  choir_tcp_hello_t hello = {.magic = CHOIR_TCP_MAGIC,
                             .purpose = purpose,
                             .rank = join->config->rank,
                             .called = called};
  challenge_t challenge;
  choir_tcp_proof_t proof = {.card = join->own};
  choir_tcp_keys_t keys;
  CHOIR_TRY(make_keys(join, &keys));
  memcpy(hello.nonce, keys.shown, sizeof(hello.nonce));
  if (choir_tcp_move_all(*out_socket, &hello, sizeof(hello), true, deadline) ||
      choir_tcp_move_all(*out_socket, &challenge, sizeof(challenge), false,
                         deadline)) {
    choir_tcp_close_socket(out_socket);
    return NULL;
  }
  choir__comm_mac_t mac;
  CHOIR_TRY(make_mac(join, of_listener, &hello, challenge.nonce, NULL, &mac));
  if (challenge.magic != CHOIR_TCP_MAGIC ||
      !choir__comm_mac_equal(&mac, &challenge.mac))
    return CHOIR_ERROR(UNAVAILABLE,
                       "the process that listens at the place of rank %d does "
                       "not know the id of this run, or is of another start of "
                       "it",
                       called);
  CHOIR_TRY(make_mac(join, of_caller, &hello, challenge.nonce, &proof.card,
                     &proof.mac));
  if (choir_tcp_move_all(*out_socket, &proof, sizeof(proof), true, deadline))
    choir_tcp_close_socket(out_socket);
  if (*out_socket < 0 || !out_seal) return NULL;
  return choir_tcp_open_seal(join, &keys, challenge.nonce, true, out_seal);
}
