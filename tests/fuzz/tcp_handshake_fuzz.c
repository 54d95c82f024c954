// SPDX-License-Identifier: Apache-2.0
// What strangers send before ranks have met over tcp: to a rank that listens, a
// hello and a proof; to one that calls, a challenge. Whoever does not know the
// id gets in nowhere, whatever else is right.
//
// An input: what of it is made right (below); then the hello and the proof, or
// the challenge.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/tcp/tcp_join_internal.h"
#include "tests/fuzz/fuzz.h"

enum {
  CALLS = 1,  // the rank that hears it is the caller
  MAGIC = 2,
  CALLED = 4,
  PROOF = 8,  // by who knows the id
  CHALLENGE_BYTES =
      sizeof(uint64_t) + CHOIR_TCP_KEY_BYTES + sizeof(choir__comm_mac_t),
};

static choir_tcp_comm_t tcp;
static choir_comm_config_t config;
static choir_tcp_join_t join;
static int welcomed;

static choir_status_t welcome(choir_tcp_join_t* unused,
                              choir_tcp_caller_t* caller) {
  (void)unused;
  ++welcomed;
  choir_tcp_drop_caller(caller);
  return NULL;
}

static void set_up(void) {
  if (config.size) return;
  if (choir_comm_config_init(&config) || choir_comm_id_make(&config.id))
    abort();
  config.size = 3;
  config.rank = 1;
  join.tcp = &tcp;
  join.config = &config;
  join.listener = -1;
  for (int i = 0; i < CHOIR_TCP_MAX_CALLERS; ++i) join.callers[i].socket = -1;
}

// As much of the input as there is goes into a message.
static size_t take(const uint8_t** data, size_t* bytes, void* message,
                   size_t message_bytes) {
  const size_t n = *bytes < message_bytes ? *bytes : message_bytes;
  memcpy(message, *data, n);
  *data += n;
  *bytes -= n;
  return n;
}

// The other side may have dropped it already.
static void give(int socket, void* message, size_t bytes) {
  choir_tcp_move_all(socket, message, bytes, true, 0);
}

static void serve(void) {
  if (choir_tcp_serve_callers(&join, welcome)) abort();
}

// The caller's proof, from the challenge that it got.
static bool prove(int socket, const choir_tcp_hello_t* hello,
                  choir_tcp_proof_t* proof) {
  unsigned char challenge[CHALLENGE_BYTES];
  if (recv(socket, challenge, sizeof(challenge), MSG_DONTWAIT) !=
      (ssize_t)sizeof(challenge))
    return false;
  unsigned char
      text[sizeof(*hello) + CHOIR_TCP_KEY_BYTES + sizeof(proof->card)];
  memcpy(text, hello, sizeof(*hello));
  memcpy(text + sizeof(*hello), challenge + sizeof(uint64_t),
         CHOIR_TCP_KEY_BYTES);
  memcpy(text + sizeof(*hello) + CHOIR_TCP_KEY_BYTES, &proof->card,
         sizeof(proof->card));
  if (choir__comm_mac_make(&config.id, "tcp caller", text, sizeof(text),
                           &proof->mac))
    abort();
  return true;
}

static void call(int flags, const uint8_t* data, size_t bytes, int ends[2]) {
  choir_tcp_hello_t hello = {0};
  choir_tcp_proof_t proof = {0};
  size_t hello_bytes = take(&data, &bytes, &hello, sizeof(hello));
  if (flags & MAGIC) hello.magic = CHOIR_TCP_MAGIC;
  if (flags & CALLED) hello.called = config.rank;
  if (flags & PROOF) hello_bytes = sizeof(hello);
  size_t proof_bytes = take(&data, &bytes, &proof, sizeof(proof));
  join.callers[0] = (choir_tcp_caller_t){.socket = ends[0]};
  give(ends[1], &hello, hello_bytes);
  if (hello_bytes) serve();
  const bool is_proved = (flags & PROOF) && prove(ends[1], &hello, &proof);
  if (is_proved) proof_bytes = sizeof(proof);
  give(ends[1], &proof, proof_bytes);
  close(ends[1]);
  welcomed = 0;
  for (int turn = 0; turn < 2 && join.callers[0].socket >= 0; ++turn) serve();
  if (welcomed != is_proved || join.callers[0].socket >= 0) abort();
}

static void answer(int flags, const uint8_t* data, size_t bytes, int ends[2]) {
  unsigned char challenge[CHALLENGE_BYTES];
  const size_t n = take(&data, &bytes, challenge, sizeof(challenge));
  const uint64_t magic = CHOIR_TCP_MAGIC;
  if ((flags & MAGIC) && n >= sizeof(magic))
    memcpy(challenge, &magic, sizeof(magic));
  give(ends[1], challenge, n);
  shutdown(ends[1], SHUT_WR);
  choir_status_t status = choir_tcp_introduce(
      &join, CHOIR_TCP_REGISTER, 0, choir_clock_seconds() + 60, &ends[0], NULL);
  // It ended, or was told that it does not know the id.
  if (!status && ends[0] >= 0) abort();
  choir_status_free(status);
  if (ends[0] >= 0) close(ends[0]);
  close(ends[1]);
}

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  if (number > 3) return 0;
  const choir_tcp_hello_t hello = {.magic = CHOIR_TCP_MAGIC,
                                   .purpose = CHOIR_TCP_DATA,
                                   .rank = 2,
                                   .called = 1};
  memset(out_data, 0, 1024);
  static const uint8_t flags[] = {CALLS | MAGIC, 0, MAGIC | CALLED,
                                  MAGIC | CALLED | PROOF};
  out_data[0] = flags[number];
  if (number == 0) return 1 + CHALLENGE_BYTES;
  memcpy(out_data + 1, &hello, sizeof(hello));
  return 1 + sizeof(hello) + sizeof(choir_tcp_proof_t);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  int ends[2];
  if (bytes < 1) return 0;
  set_up();
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) abort();
  (data[0] & CALLS ? answer : call)(data[0], data + 1, bytes - 1, ends);
  return 0;
}
