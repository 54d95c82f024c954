// SPDX-License-Identifier: Apache-2.0
// Collectives that hand elements on as they are. They differ in one number: how
// many elements rank s gives to rank d. From it follow, once all ranks know all
// numbers, the places in every rank's src and dst; what then moves the bytes
// knows the plan and no kinds.
//
// Numbers of which each rank knows only its own travel as words ahead of the
// first message's data: room in dst, then what the rank gives.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

enum { WORD_CAPACITY, WORD_GIVEN, WORD_COUNT };

size_t choir__comm_meta_bytes(int32_t kind) {
  return choir__comm_traits(kind)->has_own_counts ? WORD_COUNT * sizeof(int64_t)
                                                  : 0;
}

void choir__comm_meta_fill(const operation_t* operation, unsigned char* data) {
  if (!operation->meta_bytes) return;
  int64_t* words = (int64_t*)(void*)data;
  words[WORD_CAPACITY] = operation->collective.capacity;
  words[WORD_GIVEN] = operation->collective.count;
}

// ---- The plan ----

static int64_t word_of(const choir_comm_t* comm, int32_t rank, size_t word) {
  return ((const int64_t*)(const void*)comm->messages[rank]->data)[word];
}

// Elements that rank `from` gives to every rank.
static int64_t given(const choir_comm_t* comm, const operation_t* operation,
                     int32_t from) {
  if (choir__comm_traits(operation->kind)->has_own_counts)
    return word_of(comm, from, WORD_GIVEN);
  return operation->collective.count;
}

static choir_status_t check_room(choir_comm_t* comm,
                                 const operation_t* operation) {
  if (!choir__comm_traits(operation->kind)->has_own_counts) return NULL;
  int64_t needed = 0;
  int32_t smallest = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (__builtin_add_overflow(needed, given(comm, operation, r), &needed))
      needed = INT64_MAX;
    if (word_of(comm, r, WORD_CAPACITY) <
        word_of(comm, smallest, WORD_CAPACITY))
      smallest = r;
  }
  int64_t capacity = word_of(comm, smallest, WORD_CAPACITY);
  if (needed <= capacity) return NULL;
  for (int32_t r = 0; r < comm->size; ++r)
    comm->headers[r].count = given(comm, operation, r);
  return choir__comm_explain_room(comm, smallest, needed, capacity);
}

choir_status_t choir__comm_plan_moves(choir_comm_t* comm,
                                      const operation_t* operation) {
  CHOIR_TRY(check_room(comm, operation));
  choir_comm_moves_t* moves = &comm->moves;
  int64_t at = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    moves->send_count[r] = given(comm, operation, comm->rank);
    moves->send_at[r] = 0;
    moves->recv_count[r] = given(comm, operation, r);
    moves->recv_at[r] = at;
    moves->their_at[r] = 0;
    moves->total[r] = moves->recv_count[r];
    at += moves->recv_count[r];
  }
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
  for (size_t done = 0; done < most; done += comm->exchange_bytes) {
    size_t bytes = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int32_t r = 0; r < comm->size; ++r) {
        size_t total = (size_t)moves->total[r] * e;
        if (!moves->open[r] || total <= done) continue;
        size_t n = total - done < comm->exchange_bytes ? total - done
                                                       : comm->exchange_bytes;
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

choir_status_t choir__comm_run_moves(choir_comm_t* comm,
                                     const operation_t* operation) {
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
  if (open && comm->vtable->large[operation->kind])
    CHOIR_TRY(comm->vtable->large[operation->kind](comm, operation));
  else if (open)
    CHOIR_TRY(choir__comm_move_rounds(comm, operation));
  int64_t* counts = operation->collective.counts;
  if (counts)
    memcpy(counts, moves->recv_count, (size_t)comm->size * sizeof(*counts));
  return NULL;
}
