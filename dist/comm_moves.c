// SPDX-License-Identifier: Apache-2.0
// Collectives that hand elements on as they are. They differ in one number: how
// many elements rank s gives to rank d. From it follow, once all ranks know all
// numbers, the places in every rank's src and dst; what then moves the bytes
// knows the plan and no kinds.
//
// Numbers of which each rank knows only its own travel as words ahead of the
// first message's data.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

#define FACTOR_BYTES (2 * sizeof(double))

const double* choir__comm_words_factors(const choir_comm_message_t* message) {
  return (const double*)(const void*)message->data;
}

const int64_t* choir__comm_words_tensors(const choir_comm_message_t* message,
                                         uint8_t words) {
  bool is_scaled = words & CHOIR_COMM_WORDS_FACTORS;
  return (const int64_t*)(const void*)(message->data +
                                       (is_scaled ? FACTOR_BYTES : 0));
}

// Room in dst, then what the rank gives: one number, or one for each rank.
enum { WORD_CAPACITY, WORD_GIVEN };

size_t choir__comm_meta_bytes(const choir_comm_t* comm,
                              const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  size_t bytes = 0;
  if (operation->kind == CHOIR_COMM_KIND_GROUP)
    return choir__comm_group_bytes(c->count);
  if (traits->reduces && c->scales) bytes += FACTOR_BYTES;
  if (c->tensors && c->tensor_count > 0)
    bytes += (1 + (size_t)c->tensor_count) * sizeof(int64_t);
  if (!traits->has_own_counts) return bytes;
  size_t given = traits->has_splits ? (size_t)comm->size : 1;
  return (WORD_GIVEN + given) * sizeof(int64_t);
}

void choir__comm_meta_fill(const choir_comm_t* comm,
                           const operation_t* operation, unsigned char* data) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (!operation->meta_bytes) return;
  if (operation->kind == CHOIR_COMM_KIND_GROUP) {
    choir__comm_group_fill(operation, data);
    return;
  }
  if (traits->reduces && c->scales) {
    const double factors[2] = {c->prescale, c->postscale};
    memcpy(data, factors, FACTOR_BYTES);
    data += FACTOR_BYTES;
  }
  int64_t* words = (int64_t*)(void*)data;
  if (c->tensors) {
    words[0] = c->tensor_count;
    for (int32_t i = 0; i < c->tensor_count; ++i)
      words[1 + i] = c->tensors[i].count;
  }
  if (!traits->has_own_counts) return;
  words[WORD_CAPACITY] = c->capacity;
  words[WORD_GIVEN] = c->count;
  if (!traits->has_splits) return;
  bool gives = comm->rank == c->root || !traits->root_gives;
  for (int32_t r = 0; r < comm->size; ++r)
    words[WORD_GIVEN + r] = gives ? c->splits[r] : 0;
}

// ---- The plan ----

static int64_t word_of(const choir_comm_t* comm, int32_t rank, int32_t word) {
  return ((const int64_t*)(const void*)comm->messages[rank]->data)[word];
}

// Elements that rank `from` gives to rank `to`.
static int64_t given(const choir_comm_t* comm, const operation_t* operation,
                     int32_t from, int32_t to) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (traits->root_gives && from != c->root) return 0;
  if (traits->root_takes && to != c->root) return 0;
  if (!traits->has_own_counts) return c->count;
  return word_of(comm, from, WORD_GIVEN + (traits->has_splits ? to : 0));
}

static int64_t sum_for(const choir_comm_t* comm, const operation_t* operation,
                       int32_t to) {
  int64_t sum = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (__builtin_add_overflow(sum, given(comm, operation, r, to), &sum))
      return INT64_MAX;
  return sum;
}

// Tells of the rank that lacks most.
static choir_status_t check_room(choir_comm_t* comm,
                                 const operation_t* operation) {
  const bool is_alike = choir__collective(operation->kind)->gives_all_alike;
  int32_t worst = -1;
  int64_t most = 0;
  int64_t needed = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (r == 0 || !is_alike) needed = sum_for(comm, operation, r);
    const int64_t room = word_of(comm, r, WORD_CAPACITY);
    const int64_t lack = needed - (room > 0 ? room : 0);
    if (lack <= most) continue;
    most = lack;
    worst = r;
  }
  if (worst < 0) return NULL;
  for (int32_t r = 0; r < comm->size; ++r)
    comm->headers[r].count = given(comm, operation, r, worst);
  return choir__comm_explain_room(comm, worst, sum_for(comm, operation, worst),
                                  word_of(comm, worst, WORD_CAPACITY));
}

// A rank's own numbers are those that it may give.
static bool counts_are_possible(const choir_comm_t* comm,
                                const operation_t* operation, int32_t rank) {
  const choir__collective_t* traits = choir__collective(operation->kind);
  const int64_t most =
      INT64_MAX / (int64_t)operation->element_bytes / comm->size;
  for (int32_t r = 0; r < (traits->has_splits ? comm->size : 1); ++r) {
    const int64_t count = word_of(comm, rank, WORD_GIVEN + r);
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
             comm->exchange_bytes;
}

choir_status_t choir__comm_plan_moves(choir_comm_t* comm,
                                      const operation_t* operation) {
  const choir__collective_t* traits = choir__collective(operation->kind);
  for (int32_t r = 0; r < comm->size && traits->has_own_counts; ++r)
    if (!counts_are_possible(comm, operation, r))
      return choir__comm_break_by_message(comm, r);
  if (traits->has_own_counts) CHOIR_TRY(check_room(comm, operation));
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
  choir__comm_large_t large = choir__comm_large(comm, operation);
  if (open)
    CHOIR_TRY(large ? large(comm, operation)
                    : choir__comm_move_rounds(comm, operation));
  choir__comm_tell_counts(comm, operation);
  return NULL;
}
