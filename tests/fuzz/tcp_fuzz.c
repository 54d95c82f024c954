// SPDX-License-Identifier: Apache-2.0
// What a rank hears from another over tcp, once both have met: headers and data
// of operations, and the words of the control connection. Rank 0 of two is
// real; the other's sockets are this file's.
//
// An input: the operation that rank 0 runs; three bytes for those words of the
// other's header that are not as they should be; these words, then its data. Or
// 0xff, then bytes of the control connection.
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/record.h"
#include "dist/backends/tcp/tcp_internal.h"
#include "tests/fuzz/fuzz.h"

enum {
  CONTROL = 0xff,
  ELEMENTS = 40,
  START = 4,
  PAIR_BYTES = 296,  // pair_header_t of comm_pair.c
};

static float src[ELEMENTS];
static float dst[ELEMENTS];
static int64_t counts[2];
static const int64_t splits[2] = {1, 2};
static const int32_t ranks[2] = {1, 0};
static const choir_comm_tensor_t tensors[2] = {
    {.src = src, .dst = dst, .count = 3},
    {.src = src + 3, .dst = dst + 3, .count = 5}};
static choir__comm_group_terms_t terms;
static int32_t joined;

#define ARRAYS .src = src, .dst = dst, .weight = 1
static const struct {
  int32_t kind;
  choir_collective_t collective;
} operations[] = {
    {CHOIR_COLLECTIVE_ALL_REDUCE,
     {.count = 3, .name = "sum", .in_step = true, .step = 4, ARRAYS}},
    {CHOIR_COLLECTIVE_ALL_REDUCE,
     {.op = CHOIR_REDUCE_AVERAGE,
      .count = 3,
      .weight = 2,
      .src = src,
      .dst = dst,
      .scales = true,
      .prescale = 2,
      .postscale = 0.5}},
    {CHOIR_COLLECTIVE_ALL_REDUCE,
     {.tensors = tensors, .tensor_count = 2, .weight = 1}},
    {CHOIR_COLLECTIVE_BROADCAST,
     {.count = 5, .root = 1, .src = dst, .dst = dst, .weight = 1}},
    {CHOIR_COLLECTIVE_ALL_GATHER, {.count = 4, ARRAYS}},
    {CHOIR_COLLECTIVE_ALL_GATHER_V,
     {.count = 4, .capacity = ELEMENTS, .counts = counts, ARRAYS}},
    {CHOIR_COLLECTIVE_REDUCE_SCATTER, {.count = 4, ARRAYS}},
    {CHOIR_COLLECTIVE_REDUCE_SCATTER_V, {.count = 5, ARRAYS}},
    {CHOIR_COLLECTIVE_REDUCE, {.count = 5, .root = 0, ARRAYS}},
    {CHOIR_COLLECTIVE_GATHER, {.count = 5, .root = 0, ARRAYS}},
    {CHOIR_COLLECTIVE_GATHER_V,
     {.count = 5, .root = 0, .capacity = ELEMENTS, .counts = counts, ARRAYS}},
    {CHOIR_COLLECTIVE_SCATTER, {.count = 5, .root = 1, ARRAYS}},
    {CHOIR_COLLECTIVE_SCATTER_V,
     {.root = 1, .capacity = ELEMENTS, .counts = counts, ARRAYS}},
    {CHOIR_COLLECTIVE_ALL_TO_ALL, {.count = 5, ARRAYS}},
    {CHOIR_COLLECTIVE_ALL_TO_ALL_V,
     {.count = 3,
      .splits = splits,
      .capacity = ELEMENTS,
      .counts = counts,
      ARRAYS}},
    {CHOIR_COLLECTIVE_SEND, {.count = 3, .root = 1, .src = src, .name = "a"}},
    {CHOIR_COLLECTIVE_RECEIVE, {.count = 3, .root = 1, .dst = dst}},
    {CHOIR_COLLECTIVE_BARRIER, {.weight = 1}},
    {CHOIR_COMM_KIND_GROUP, {.count = 2, .src = ranks, .dst = &terms}},
    {CHOIR_COMM_KIND_JOIN, {.dst = &joined, .weight = 1}},
    {CHOIR_COMM_KIND_FINALIZE, {.weight = 1}},
};
enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

static choir_tcp_comm_t* tcp;
static int data_end, control_end;  // the other's
static choir_comm_header_t right_headers[OPERATIONS];

// ---- Two ranks ----

static void* join(void* config) {
  choir_comm_t* comm = NULL;
  if (choir_tcp_comm_join(config, &comm)) abort();
  return comm;
}

static int make_pair(int* out_end) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends))
    abort();
  *out_end = ends[1];
  return ends[0];
}

static void drain(int socket) {
  char rest[4096];
  while (recv(socket, rest, sizeof(rest), 0) > 0) {
  }
}

// As after the operation before, whatever the last input did.
static void start_anew(int32_t operation) {
  choir_comm_t* comm = &tcp->base;
  choir_tcp_link_t* link = &tcp->links[1];
  drain(link->data);
  drain(link->control);
  drain(data_end);
  drain(control_end);
  memset(&link->out, 0, sizeof(link->out));
  memset(&link->in, 0, sizeof(link->in));
  link->frame_bytes = link->control_bytes = 0;
  link->is_lost = link->has_left = false;
  atomic_store(&link->has_ended, false);
  memset(&tcp->last_header, 0, sizeof(tcp->last_header));
  link->last_header = right_headers[operation];
  link->last_header.sequence = 0;
  comm->run.sequence = 0;
  comm->joins.joined[1] = comm->joins.was_joined[1] = false;
  comm->joins.joined[0] = comm->joins.was_joined[0] = false;
  atomic_store(&comm->faults.broken, false);
  atomic_store(&comm->faults.peer_broken, false);
  atomic_store(&comm->peers[1].presence, CHOIR_COMM_PEER_HERE);
  // A wait is over at once.
  comm->silence = -1;
  comm->hosts.oversubscribed = true;
}

static void run(int32_t which) {
  choir_collective_t c = operations[which].collective;
  c.kind = (choir_collective_kind_t)operations[which].kind;
  choir_status_free(
      choir__comm_execute(&tcp->base, operations[which].kind, &c, NULL, true));
}

// A rank that joined makes room for what the others give.
static choir_allocator_t whole;
static void* allocate(void* self, size_t bytes, size_t alignment) {
  return bytes < 1 << 26 ? whole.alloc(self, bytes, alignment) : NULL;
}

static void set_up(void) {
  const int meeting = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof(address);
  choir_comm_config_t configs[2];
  if (bind(meeting, (struct sockaddr*)&address, bytes) || listen(meeting, 8) ||
      getsockname(meeting, (struct sockaddr*)&address, &bytes) ||
      choir_comm_config_init(&configs[0]) || choir_comm_id_make(&configs[0].id))
    abort();
  configs[0].rendezvous_fd = meeting;
  snprintf(configs[0].rendezvous, sizeof(configs[0].rendezvous), "127.0.0.1:%d",
           ntohs(address.sin_port));
  configs[0].size = 2;
  configs[1] = configs[0];
  configs[1].rank = 1;
  pthread_t other;
  if (pthread_create(&other, NULL, join, &configs[1])) abort();
  tcp = join(&configs[0]);
  static void* kept;
  pthread_join(other, &kept);
  whole = tcp->base.allocator;
  tcp->base.allocator.alloc = allocate;
  tcp->links[1].data = make_pair(&data_end);
  tcp->links[1].control = make_pair(&control_end);
  for (int32_t i = 0; i < OPERATIONS; ++i) {
    start_anew(i);
    run(i);
    right_headers[i] = tcp->last_header;
  }
}

// ---- Inputs ----

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  if (number < OPERATIONS) {
    memset(out_data, 0, 128);
    out_data[0] = (uint8_t)number;
    // Room, what it gives: of kinds whose counts may differ.
    out_data[START] = ELEMENTS;
    out_data[START + 8] = 1;
    return 128;
  }
  if (number > OPERATIONS) return 0;
  const uint32_t beat[2] = {1, sizeof(choir_activity_t)};
  const uint32_t fault[2] = {2, sizeof(choir_comm_fault_t)};
  size_t bytes = 1;
  out_data[0] = CONTROL;
  memcpy(out_data + bytes, beat, sizeof(beat));
  memset(out_data + bytes + sizeof(beat), 1, beat[1]);
  bytes += sizeof(beat) + beat[1];
  memcpy(out_data + bytes, fault, sizeof(fault));
  memset(out_data + bytes + sizeof(fault), 'x', fault[1]);
  return bytes + sizeof(fault) + fault[1];
}

static void send_all(int socket, const void* data, size_t bytes) {
  if (send(socket, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) abort();
}

static void run_control(const uint8_t* data, size_t bytes) {
  start_anew(0);
  if (bytes) send_all(control_end, data, bytes);
  const int kept = dup(tcp->links[1].control);
  choir_activity_t activity;
  char text[CHOIR_ACTIVITY_TEXT_BYTES];
  choir_status_free(choir_comm_poll_error(&tcp->base));
  choir__comm_peer_activity(&tcp->base, 1, &activity);
  choir__activity_print(&activity, text, sizeof(text));
  // Closed where it was no word.
  if (tcp->links[1].control < 0)
    tcp->links[1].control = kept;
  else
    close(kept);
}

static void run_data(const uint8_t* data, size_t bytes) {
  static uint8_t sent[sizeof(choir_tcp_frame_t) + CHOIR_FUZZ_MOST_BYTES + 512];
  const int32_t which = data[0] % OPERATIONS;
  const bool is_pair = choir__collective(operations[which].kind)->is_pair;
  uint32_t words = 0;
  memcpy(&words, data + 1, START - 1);
  choir_tcp_frame_t frame = {.channel = CHOIR_COMM_CHANNEL_EXCHANGE,
                             .words = words & 0xffffff};
  size_t needed = (size_t)__builtin_popcount(frame.words) * sizeof(uint64_t);
  if (is_pair) {
    frame.channel = CHOIR_COMM_CHANNEL_PAIR;
    frame.words = 0;
    needed = PAIR_BYTES;
    bytes = bytes < START + needed ? bytes : START + needed;
  }
  bytes -= START;
  memset(sent, 0, sizeof(sent));
  memcpy(sent + sizeof(frame), data + START, bytes);
  frame.bytes = (uint32_t)(bytes < needed ? needed : bytes);
  memcpy(sent, &frame, sizeof(frame));
  start_anew(which);
  send_all(data_end, sent, sizeof(frame) + frame.bytes);
  run(which);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (!tcp) set_up();
  if (bytes < START || bytes > CHOIR_FUZZ_MOST_BYTES) return 0;
  if (data[0] == CONTROL)
    run_control(data + 1, bytes - 1);
  else
    run_data(data, bytes);
  return 0;
}
