// SPDX-License-Identifier: Apache-2.0
#include "dist/algorithms/direct.h"

#include <string.h>

typedef choir_comm_operation_t operation_t;

static choir_status_t post_send(choir_comm_t* comm, int32_t peer,
                                int32_t channel, const void* data,
                                size_t bytes) {
  return comm->vtable->post(comm, peer, channel, (void*)data, bytes, false);
}

static choir_status_t post_receive(choir_comm_t* comm, int32_t peer,
                                   int32_t channel, void* data, size_t bytes) {
  return comm->vtable->post(comm, peer, channel, data, bytes, true);
}

static choir_status_t wait_all(choir_comm_t* comm) {
  return comm->vtable->wait(comm);
}

// All ranks' messages go in steps: in step k rank r sends to r + k and receives
// from r - k, so that no two are sent to the same rank.
static int32_t goes_to(const choir_comm_t* comm, int32_t step) {
  return (comm->rank + step) % comm->size;
}

static int32_t comes_from(const choir_comm_t* comm, int32_t step) {
  return (comm->rank - step + comm->size) % comm->size;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Elements of each rank's share in one round of a reduce-scatter.
static int64_t scatter_round(const choir_comm_t* comm, size_t element_bytes,
                             int64_t total) {
  int64_t start, most;
  choir_comm_share(total, 0, comm->size, &start, &most);
  return smaller(
      (int64_t)(comm->sizes.round / element_bytes / (size_t)comm->size), most);
}

// A stretch of `count` elements of which each rank has one part.
typedef struct stretch_s {
  choir_comm_t* comm;
  size_t element_bytes;
  int64_t count;
} stretch_t;

static void part_bytes(const stretch_t* stretch, int32_t rank, size_t* out_at,
                       size_t* out_bytes) {
  int64_t start, count;
  choir__comm_part(stretch->count, stretch->element_bytes, rank,
                   stretch->comm->size, &start, &count);
  *out_at = (size_t)start * stretch->element_bytes;
  *out_bytes = (size_t)count * stretch->element_bytes;
}

// Every rank gets all ranks' pieces of its part, in work.
static choir_status_t post_pieces(const stretch_t* stretch, const char* src) {
  choir_comm_t* comm = stretch->comm;
  size_t own_at, own_bytes, at, bytes;
  part_bytes(stretch, comm->rank, &own_at, &own_bytes);
  for (int32_t step = 1; step < comm->size; ++step) {
    const int32_t to = goes_to(comm, step);
    const int32_t from = comes_from(comm, step);
    part_bytes(stretch, to, &at, &bytes);
    CHOIR_TRY(post_receive(comm, from, CHOIR_COMM_CHANNEL_PIECE,
                           comm->work + (size_t)from * own_bytes, own_bytes));
    CHOIR_TRY(post_send(comm, to, CHOIR_COMM_CHANNEL_PIECE, src + at, bytes));
  }
  return NULL;
}

// Every rank gives its part of `dst` to all but `except`, who has it.
static choir_status_t post_results(const stretch_t* stretch, char* dst,
                                   int32_t except) {
  choir_comm_t* comm = stretch->comm;
  size_t own_at, own_bytes, at, bytes;
  part_bytes(stretch, comm->rank, &own_at, &own_bytes);
  for (int32_t step = 1; step < comm->size; ++step) {
    const int32_t to = goes_to(comm, step);
    const int32_t from = comes_from(comm, step);
    part_bytes(stretch, from, &at, &bytes);
    if (comm->rank != except)
      CHOIR_TRY(
          post_receive(comm, from, CHOIR_COMM_CHANNEL_RESULT, dst + at, bytes));
    if (to != except)
      CHOIR_TRY(post_send(comm, to, CHOIR_COMM_CHANNEL_RESULT, dst + own_at,
                          own_bytes));
  }
  return NULL;
}

// The result of this rank's part goes to `result`.
static void reduce_part(const stretch_t* stretch, const operation_t* operation,
                        const char* src, void* result) {
  choir_comm_t* comm = stretch->comm;
  size_t at, bytes;
  part_bytes(stretch, comm->rank, &at, &bytes);
  for (int32_t r = 0; r < comm->size; ++r)
    comm->sums.sources[r] = comm->work + (size_t)r * bytes;
  comm->sums.sources[comm->rank] = src + at;
  choir__comm_reduce(comm, operation, comm->sums.sources, &result, 1,
                     (int64_t)(bytes / stretch->element_bytes));
}

// Reduce-scatter, then all-gather; the pieces of a round travel beside the
// results of the one before.
choir_status_t choir__direct_all_reduce(choir_comm_t* comm,
                                        const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->sizes.round / e);
  int64_t first = smaller(c->count, round);
  stretch_t stretch = {comm, e, first};
  CHOIR_TRY(post_pieces(&stretch, c->src));
  CHOIR_TRY(wait_all(comm));
  for (int64_t done = 0; done < c->count; done += round) {
    stretch.count = smaller(c->count - done, round);
    const char* src = (const char*)c->src + (size_t)done * e;
    char* dst = (char*)c->dst + (size_t)done * e;
    size_t at, bytes;
    part_bytes(&stretch, comm->rank, &at, &bytes);
    reduce_part(&stretch, operation, src, dst + at);
    CHOIR_TRY(post_results(&stretch, dst, -1));
    stretch_t next = {comm, e, smaller(c->count - done - round, round)};
    if (next.count > 0) CHOIR_TRY(post_pieces(&next, src + (size_t)round * e));
    CHOIR_TRY(wait_all(comm));
  }
  return NULL;
}

// Reduce-scatter, then the root gathers: it receives each byte of the result
// once, where all ranks' src would be n - 1 times as much.
choir_status_t choir__direct_reduce(choir_comm_t* comm,
                                    const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  bool is_root = comm->rank == c->root;
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->sizes.round / e);
  for (int64_t done = 0; done < c->count; done += round) {
    stretch_t stretch = {comm, e, smaller(c->count - done, round)};
    const char* src = (const char*)c->src + (size_t)done * e;
    CHOIR_TRY(post_pieces(&stretch, src));
    CHOIR_TRY(wait_all(comm));
    size_t at, bytes;
    part_bytes(&stretch, comm->rank, &at, &bytes);
    // The own piece has a place there that is not used.
    char* result = (char*)comm->work + (size_t)comm->rank * bytes;
    if (is_root) result = (char*)c->dst + (size_t)done * e + at;
    reduce_part(&stretch, operation, src, result);
    for (int32_t r = 0; r < comm->size && is_root; ++r) {
      part_bytes(&stretch, r, &at, &bytes);
      char* dst = (char*)c->dst + (size_t)done * e + at;
      if (r != comm->rank)
        CHOIR_TRY(post_receive(comm, r, CHOIR_COMM_CHANNEL_RESULT, dst, bytes));
    }
    if (!is_root)
      CHOIR_TRY(
          post_send(comm, c->root, CHOIR_COMM_CHANNEL_RESULT, result, bytes));
    CHOIR_TRY(wait_all(comm));
  }
  return NULL;
}

// The root hands out parts, then all give theirs to all: the root sends each
// byte once.
choir_status_t choir__direct_broadcast(choir_comm_t* comm,
                                       const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->sizes.round / e);
  for (int64_t done = 0; done < c->count; done += round) {
    stretch_t stretch = {comm, e, smaller(c->count - done, round)};
    char* dst = (char*)c->dst + (size_t)done * e;
    size_t at, bytes;
    if (comm->rank != c->root) {
      part_bytes(&stretch, comm->rank, &at, &bytes);
      CHOIR_TRY(post_receive(comm, c->root, CHOIR_COMM_CHANNEL_PIECE, dst + at,
                             bytes));
    } else {
      for (int32_t r = 0; r < comm->size; ++r) {
        part_bytes(&stretch, r, &at, &bytes);
        if (r != c->root)
          CHOIR_TRY(
              post_send(comm, r, CHOIR_COMM_CHANNEL_PIECE, dst + at, bytes));
      }
    }
    CHOIR_TRY(wait_all(comm));
    CHOIR_TRY(post_results(&stretch, dst, c->root));
    CHOIR_TRY(wait_all(comm));
  }
  return NULL;
}

// One stretch of at most a round's bytes from `at` on of a part.
static size_t stretch_of(const choir_comm_t* comm, int64_t count,
                         size_t element_bytes, size_t at) {
  size_t total = (size_t)count * element_bytes;
  if (total <= at) return 0;
  return total - at < comm->sizes.round ? total - at : comm->sizes.round;
}

// Each rank gives each peer its part. A round's stretches make progress on a
// slow link before the deadline passes.
choir_status_t choir__direct_move(choir_comm_t* comm,
                                  const operation_t* operation) {
  const choir_comm_moves_t* moves = &comm->moves;
  size_t e = operation->element_bytes;
  const char* src = operation->collective.src;
  char* dst = operation->collective.dst;
  bool more = true;
  for (size_t done = 0; more; done += comm->sizes.round) {
    more = false;
    for (int32_t step = 1; step < comm->size; ++step) {
      const int32_t to = goes_to(comm, step);
      const int32_t from = comes_from(comm, step);
      size_t in = 0;
      size_t out = 0;
      if (moves->open[from])
        in = stretch_of(comm, moves->recv_count[from], e, done);
      if (moves->open[comm->rank])
        out = stretch_of(comm, moves->send_count[to], e, done);
      if (in)
        CHOIR_TRY(post_receive(comm, from, CHOIR_COMM_CHANNEL_RESULT,
                               dst + (size_t)moves->recv_at[from] * e + done,
                               in));
      if (out)
        CHOIR_TRY(post_send(comm, to, CHOIR_COMM_CHANNEL_RESULT,
                            src + (size_t)moves->send_at[to] * e + done, out));
      more = more || in || out;
    }
    CHOIR_TRY(wait_all(comm));
  }
  return NULL;
}

choir_status_t choir__direct_reduce_scatter(choir_comm_t* comm,
                                            const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  int64_t total = choir__comm_shared_count(comm, operation);
  int64_t start, most, own_start, own;
  choir_comm_share(total, 0, comm->size, &start, &most);
  choir_comm_share(total, comm->rank, comm->size, &own_start, &own);
  const int64_t round = scatter_round(comm, e, total);
  for (int64_t done = 0; done < most; done += round) {
    int64_t n = choir__comm_stretch(own, done, round);
    size_t bytes = (size_t)n * e;
    comm->sums.sources[comm->rank] =
        (const char*)c->src + (size_t)(own_start + done) * e;
    for (int32_t step = 1; step < comm->size; ++step) {
      const int32_t to = goes_to(comm, step);
      const int32_t from = comes_from(comm, step);
      int64_t count;
      choir_comm_share(total, to, comm->size, &start, &count);
      const char* src = (const char*)c->src + (size_t)(start + done) * e;
      unsigned char* piece = comm->work + (size_t)from * bytes;
      comm->sums.sources[from] = piece;
      CHOIR_TRY(
          post_receive(comm, from, CHOIR_COMM_CHANNEL_PIECE, piece, bytes));
      CHOIR_TRY(post_send(comm, to, CHOIR_COMM_CHANNEL_PIECE, src,
                          (size_t)choir__comm_stretch(count, done, round) * e));
    }
    CHOIR_TRY(wait_all(comm));
    void* dst = (char*)c->dst + (size_t)done * e;
    choir__comm_reduce(comm, operation, comm->sums.sources, &dst, 1, n);
  }
  return NULL;
}

static size_t round_of(const choir_comm_t* comm, size_t bytes) {
  return bytes < comm->sizes.round ? bytes : comm->sizes.round;
}

choir_status_t choir__direct_pair(choir_comm_t* comm, int32_t peer,
                                  const void* out, size_t out_bytes, void* in,
                                  size_t in_bytes) {
  size_t sent = 0;
  size_t received = 0;
  while (sent < out_bytes || received < in_bytes) {
    const size_t out_now = round_of(comm, out_bytes - sent);
    const size_t in_now = round_of(comm, in_bytes - received);
    if (in_now)
      CHOIR_TRY(post_receive(comm, peer, CHOIR_COMM_CHANNEL_PAIR,
                             (char*)in + received, in_now));
    if (out_now)
      CHOIR_TRY(post_send(comm, peer, CHOIR_COMM_CHANNEL_PAIR,
                          (const char*)out + sent, out_now));
    CHOIR_TRY(wait_all(comm));
    sent += out_now;
    received += in_now;
  }
  return NULL;
}
