// SPDX-License-Identifier: Apache-2.0
// An operation's data by rounds of exchanges, which serve every kind. `first`
// tells that the first round's exchange was done with the header.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// Beyond the words that the first message begins with.
static const char* message_data(const choir_comm_t* comm,
                                const operation_t* operation, int32_t rank,
                                bool first) {
  const unsigned char* data = comm->messages[rank]->data;
  return (const char*)data + (first ? operation->meta_bytes : 0);
}

static choir_status_t rounds_reduce(choir_comm_t* comm,
                                    const operation_t* operation, bool first) {
  const choir_collective_t* c = &operation->collective;
  bool takes = choir__collective_room(comm, operation) > 0;
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->sizes.exchange / e);
  for (int64_t done = 0; done < c->count; done += round, first = false) {
    int64_t n = choir__comm_stretch(c->count, done, round);
    size_t bytes = (size_t)n * e;
    if (!first) {
      memcpy(comm->vtable->stage(comm)->data,
             (const char*)c->src + (size_t)done * e, bytes);
      CHOIR_TRY(comm->vtable->exchange(comm, bytes));
    }
    if (!takes) continue;
    for (int32_t r = 0; r < comm->size; ++r)
      comm->sums.sources[r] = message_data(comm, operation, r, first);
    void* dst = (char*)c->dst + (size_t)done * e;
    choir__comm_reduce(comm, operation, comm->sums.sources, &dst, 1, n);
  }
  return NULL;
}

static choir_status_t rounds_broadcast(choir_comm_t* comm,
                                       const operation_t* operation,
                                       bool first) {
  const choir_collective_t* c = &operation->collective;
  size_t total = (size_t)c->count * operation->element_bytes;
  bool is_root = comm->rank == c->root;
  for (size_t done = 0; done < total;
       done += comm->sizes.exchange, first = false) {
    size_t bytes = smaller(total - done, comm->sizes.exchange);
    char* dst = (char*)c->dst + done;
    if (!first) {
      choir_comm_message_t* message = comm->vtable->stage(comm);
      if (is_root) memcpy(message->data, dst, bytes);
      CHOIR_TRY(comm->vtable->exchange(comm, is_root ? bytes : 0));
    }
    if (!is_root)
      memcpy(dst, message_data(comm, operation, c->root, first), bytes);
  }
  return NULL;
}

// A round carries the same stretch of every rank's share, one after the other;
// the first, when it went with the header, is all of src.
static choir_status_t rounds_scatter(choir_comm_t* comm,
                                     const operation_t* operation, bool first) {
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  int64_t total = choir__comm_shared_count(comm, operation);
  int64_t start, most, own;
  choir_comm_share(total, 0, comm->size, &start, &most);
  choir_comm_share(total, comm->rank, comm->size, &start, &own);
  int64_t round = (int64_t)(comm->sizes.exchange / (e * (size_t)comm->size));
  if (first) round = most;
  for (int64_t done = 0; done < most; done += round, first = false) {
    unsigned char* data = first ? NULL : comm->vtable->stage(comm)->data;
    size_t bytes = 0;
    size_t own_at = 0;
    for (int32_t r = 0; r < comm->size; ++r) {
      int64_t count;
      choir_comm_share(total, r, comm->size, &start, &count);
      size_t n = (size_t)choir__comm_stretch(count, done, round) * e;
      if (data)
        memcpy(data + bytes, (const char*)c->src + (size_t)(start + done) * e,
               n);
      if (r == comm->rank) own_at = bytes;
      bytes += n;
    }
    if (!first) CHOIR_TRY(comm->vtable->exchange(comm, bytes));
    for (int32_t r = 0; r < comm->size; ++r)
      comm->sums.sources[r] = message_data(comm, operation, r, first) + own_at;
    void* dst = (char*)c->dst + (size_t)done * e;
    choir__comm_reduce(comm, operation, comm->sums.sources, &dst, 1,
                       choir__comm_stretch(own, done, round));
  }
  return NULL;
}

choir_status_t choir__comm_run_rounds(choir_comm_t* comm,
                                      const operation_t* operation,
                                      bool first) {
  static choir_status_t (*const rounds[CHOIR_COMM_KIND_COUNT])(
      choir_comm_t*, const operation_t*, bool) = {
      [CHOIR_COLLECTIVE_ALL_REDUCE] = rounds_reduce,
      [CHOIR_COLLECTIVE_BROADCAST] = rounds_broadcast,
      [CHOIR_COLLECTIVE_REDUCE_SCATTER] = rounds_scatter,
      [CHOIR_COLLECTIVE_REDUCE_SCATTER_V] = rounds_scatter,
      [CHOIR_COLLECTIVE_REDUCE] = rounds_reduce,
  };
  if (choir__collective(operation->kind)->moves)
    return choir__comm_move_rounds(comm, operation);
  if (!rounds[operation->kind])
    return CHOIR_ERROR(INTERNAL, "%s has no rounds",
                       choir__activity_kind_name(operation->kind));
  return rounds[operation->kind](comm, operation, first);
}
