// SPDX-License-Identifier: Apache-2.0
// Collectives that hand elements on as they are. They differ in one number: how
// many elements rank s gives to rank d. From it follow, once all ranks know all
// numbers, the places in every rank's src and dst; what then moves the bytes
// knows the plan and no kinds.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

// ---- The plan ----

// Elements that rank `from` gives to rank `to`.
static int64_t given(const choir_comm_t* comm, const operation_t* operation,
                     int32_t from, int32_t to) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (traits->root_gives && from != c->root) return 0;
  if (traits->root_takes && to != c->root) return 0;
  if (!traits->has_own_counts) return c->count;
  return choir__comm_words_given(
      comm->messages[from])[traits->has_splits ? to : 0];
}

static int64_t sum_for(const choir_comm_t* comm, const operation_t* operation,
                       int32_t to) {
  int64_t sum = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (__builtin_add_overflow(sum, given(comm, operation, r, to), &sum))
      return INT64_MAX;
  return sum;
}

// Finds the rank that lacks most.
static void check_room(choir_comm_t* comm, const operation_t* operation,
                       choir__comm_lack_t* out_lack) {
  const bool is_alike = choir__collective(operation->kind)->gives_all_alike;
  int64_t most = 0;
  int64_t needed = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (r == 0 || !is_alike) needed = sum_for(comm, operation, r);
    const int64_t room = choir__comm_words_capacity(comm->messages[r]);
    const int64_t lack = needed - (room > 0 ? room : 0);
    if (lack <= most) continue;
    most = lack;
    *out_lack =
        (choir__comm_lack_t){.rank = r, .needed = needed, .capacity = room};
  }
  if (out_lack->rank < 0) return;
  for (int32_t r = 0; r < comm->size; ++r)
    comm->headers[r].count = given(comm, operation, r, out_lack->rank);
}

// A rank's own numbers are those that it may give.
static bool counts_are_possible(const choir_comm_t* comm,
                                const operation_t* operation, int32_t rank) {
  const choir__collective_t* traits = choir__collective(operation->kind);
  const int64_t most =
      INT64_MAX / (int64_t)operation->element_bytes / comm->size;
  for (int32_t r = 0; r < (traits->has_splits ? comm->size : 1); ++r) {
    const int64_t count = choir__comm_words_given(comm->messages[rank])[r];
    if (count < 0 || count > most) return false;
  }
  return true;
}

// What this rank takes of what came with a header is there.
static bool fits_inline(const choir_comm_t* comm, const operation_t* operation,
                        int32_t rank) {
  const choir_comm_moves_t* moves = &comm->moves;
  const int64_t end = moves->their_at[rank] + moves->recv_count[rank];
  return !comm->headers[rank].is_inline || rank == comm->rank ||
         !moves->recv_count[rank] ||
         (size_t)end * operation->element_bytes + operation->meta_bytes <=
             comm->sizes.exchange;
}

choir_status_t choir__comm_plan_moves(choir_comm_t* comm,
                                      const operation_t* operation,
                                      choir__comm_lack_t* out_lack) {
  const choir__collective_t* traits = choir__collective(operation->kind);
  out_lack->rank = -1;
  for (int32_t r = 0; r < comm->size && traits->has_own_counts; ++r)
    if (!counts_are_possible(comm, operation, r))
      return choir__comm_break_by_message(comm, r);
  if (traits->has_own_counts) check_room(comm, operation, out_lack);
  if (out_lack->rank >= 0) return NULL;
  choir_comm_moves_t* moves = &comm->moves;
  int64_t send_at = 0;
  int64_t recv_at = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    moves->send_count[r] = given(comm, operation, comm->rank, r);
    moves->recv_count[r] = given(comm, operation, r, comm->rank);
    moves->send_at[r] = send_at;
    moves->recv_at[r] = recv_at;
    moves->their_at[r] = 0;
    moves->total[r] = moves->recv_count[r];
    recv_at += moves->recv_count[r];
    if (traits->gives_all_alike) continue;
    send_at += moves->send_count[r];
    moves->total[r] = 0;
    for (int32_t to = 0; to < comm->size; ++to) {
      if (to == comm->rank) moves->their_at[r] = moves->total[r];
      moves->total[r] += given(comm, operation, r, to);
    }
  }
  for (int32_t r = 0; r < comm->size; ++r)
    if (!fits_inline(comm, operation, r))
      return choir__comm_break_by_message(comm, r);
  return NULL;
}

// ---- Moving ----

// Takes this rank's part out of bytes [start, start + bytes) of rank r's src.
static void take(choir_comm_t* comm, const operation_t* operation, int32_t r,
                 size_t start, size_t bytes, const unsigned char* data) {
  const choir_comm_moves_t* moves = &comm->moves;
  size_t e = operation->element_bytes;
  size_t part = (size_t)moves->their_at[r] * e;
  size_t part_end = part + (size_t)moves->recv_count[r] * e;
  size_t from = part > start ? part : start;
  size_t to = part_end < start + bytes ? part_end : start + bytes;
  if (from >= to) return;
  char* dst = (char*)operation->collective.dst + (size_t)moves->recv_at[r] * e;
  memcpy(dst + (from - part), data + (from - start), to - from);
}

choir_status_t choir__comm_move_rounds(choir_comm_t* comm,
                                       const operation_t* operation) {
  const choir_comm_moves_t* moves = &comm->moves;
  size_t e = operation->element_bytes;
  size_t most = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    size_t total = (size_t)moves->total[r] * e;
    if (moves->open[r] && total > most) most = total;
  }
  for (size_t done = 0; done < most; done += comm->sizes.exchange) {
    size_t bytes = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int32_t r = 0; r < comm->size; ++r) {
        size_t total = (size_t)moves->total[r] * e;
        if (!moves->open[r] || total <= done) continue;
        size_t n = total - done < comm->sizes.exchange ? total - done
                                                       : comm->sizes.exchange;
        if (pass == 0 && r == comm->rank) {
          memcpy(comm->vtable->stage(comm)->data,
                 (const char*)operation->collective.src + done, n);
          bytes = n;
        } else if (pass == 1 && r != comm->rank) {
          take(comm, operation, r, done, n, comm->messages[r]->data);
        }
      }
      if (pass == 0) CHOIR_TRY(comm->vtable->exchange(comm, bytes));
    }
  }
  return NULL;
}

// The own part never travels.
static void copy_own(choir_comm_t* comm, const operation_t* operation) {
  const choir_comm_moves_t* moves = &comm->moves;
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  size_t bytes = (size_t)moves->recv_count[comm->rank] * e;
  if (!bytes) return;
  char* dst = (char*)c->dst + (size_t)moves->recv_at[comm->rank] * e;
  const char* src =
      (const char*)c->src + (size_t)moves->send_at[comm->rank] * e;
  if (dst != src) memmove(dst, src, bytes);
}

void choir__comm_tell_counts(const choir_comm_t* comm,
                             const operation_t* operation) {
  const int64_t* came = comm->moves.recv_count;
  int64_t* counts = operation->collective.counts;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (counts && traits->root_gives && traits->has_own_counts)
    *counts = came[operation->collective.root];
  else if (counts)
    memcpy(counts, came, (size_t)comm->size * sizeof(*counts));
}

bool choir__comm_begin_moves(choir_comm_t* comm, const operation_t* operation) {
  choir_comm_moves_t* moves = &comm->moves;
  bool open = false;
  copy_own(comm, operation);
  for (int32_t r = 0; r < comm->size; ++r) {
    moves->open[r] = false;
    if (comm->headers[r].is_inline && r != comm->rank)
      take(comm, operation, r, 0,
           (size_t)moves->total[r] * operation->element_bytes,
           comm->messages[r]->data + operation->meta_bytes);
    if (!comm->headers[r].is_inline && comm->size > 1)
      moves->open[r] = moves->total[r] > 0;
    open = open || moves->open[r];
  }
  return open;
}
