// SPDX-License-Identifier: Apache-2.0
// Ranks that ran out of data. A rank that joined comes to every operation with
// no request of its own; sums and averages by all_reduce count it as zeros, all
// else fails on the others, until all ranks have joined.
//
// For those who compare headers a joined rank wants what the first of the
// others wants, so that only these can differ.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

int32_t choir__comm_note_joined(choir_comm_t* comm) {
  choir_comm_header_t* headers = comm->headers;
  int32_t count = 0;
  int32_t first = -1;
  for (int32_t r = 0; r < comm->size; ++r) {
    comm->joined[r] = headers[r].kind == CHOIR_COMM_KIND_JOIN;
    if (comm->joined[r])
      ++count;
    else if (first < 0)
      first = r;
  }
  if (count == 0) return 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (!comm->joined[r]) continue;
    // Of those that came together the highest rank is the last.
    if (!comm->was_joined[r]) comm->last_joined = r;
    comm->was_joined[r] = first >= 0;
    if (first < 0) continue;
    memcpy(&headers[r].root, &headers[first].root,
           sizeof(headers[r]) - CHOIR_COMM_HEADER_START);
    headers[r].weight = 1;
    headers[r].refused = 0;
    headers[r].src_place = headers[r].dst_place = 0;
    comm->messages[r] = comm->messages[first];
  }
  return count;
}

static choir_status_t reserve(choir_comm_t* comm, void** memory,
                              size_t* memory_bytes, size_t bytes) {
  if (bytes <= *memory_bytes) return NULL;
  if (*memory) choir_deallocate(comm->allocator, *memory, *memory_bytes);
  *memory = NULL;
  *memory_bytes = 0;
  CHOIR_TRY(
      choir_allocate(comm->allocator, bytes, "ranks that joined", memory));
  *memory_bytes = bytes;
  memset(*memory, 0, bytes);
  return NULL;
}

// Peers are past the header: without memory this rank cannot go on beside them.
static choir_status_t fail(choir_comm_t* comm, choir_status_t status) {
  choir_status_t broken = choir__comm_break(
      comm, CHOIR_STATUS_ABORTED, "%s cannot go on after others joined: %s",
      comm->peers[comm->rank].text, choir_status_message(status));
  choir_status_free(status);
  return broken;
}

choir_status_t choir__comm_zero_joined(choir_comm_t* comm) {
  size_t bytes = sizeof(choir_comm_message_t) + comm->exchange_bytes;
  choir_status_t status =
      reserve(comm, &comm->zero_message, &comm->zero_message_bytes, bytes);
  if (status) return fail(comm, status);
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->joined[r]) comm->messages[r] = comm->zero_message;
  return NULL;
}

void choir__comm_join_free(choir_comm_t* comm) {
  if (comm->zero_message)
    choir_deallocate(comm->allocator, comm->zero_message,
                     comm->zero_message_bytes);
  if (comm->join_memory)
    choir_deallocate(comm->allocator, comm->join_memory,
                     comm->join_memory_bytes);
}

// The others' all_reduce with zeros; its result is nobody's.
choir_status_t choir__comm_run_joined(choir_comm_t* comm,
                                      const operation_t* operation,
                                      const choir_comm_message_t* message) {
  const choir_comm_header_t* header = &message->header;
  operation_t others = *operation;
  choir_collective_t* c = &others.collective;
  others.kind = header->kind;
  others.element_bytes = choir_dtype_bytes((choir_dtype_t)header->dtype);
  others.meta_bytes = 0;
  const size_t bytes = (size_t)header->count * others.element_bytes;
  choir_status_t status =
      reserve(comm, &comm->join_memory, &comm->join_memory_bytes, bytes);
  if (status) return fail(comm, status);
  memset(comm->join_memory, 0, bytes);
  *c = (choir_collective_t){
      .kind = (choir_collective_kind_t)header->kind,
      .op = (choir_reduce_t)header->op,
      .dtype = (choir_dtype_t)header->dtype,
      .count = header->count,
      .src = comm->join_memory,
      .dst = comm->join_memory,
      .weight = 1,
      .scales = (header->words & CHOIR_COMM_WORDS_FACTORS) != 0,
      .name = operation->collective.name};
  if (c->scales) {
    c->prescale = choir__comm_words_factors(message)[0];
    c->postscale = choir__comm_words_factors(message)[1];
  }
  choir__comm_large_t large = choir__comm_large(comm, &others);
  return large ? large(comm, &others) : choir__comm_run_rounds(comm, &others);
}

choir_status_t choir_comm_join(choir_comm_t* comm, int32_t* out_last) {
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "join: comm is NULL");
  if (!out_last)
    return choir__comm_refuse(
        comm, CHOIR_COMM_KIND_UNKNOWN, NULL,
        CHOIR_ERROR(INVALID_ARGUMENT, "join: out_last is NULL"));
  *out_last = -1;
  choir__comm_drain(comm);
  // Set by the operation to which all came joined.
  choir_collective_t request = {.dst = out_last};
  while (*out_last < 0)
    CHOIR_TRY(
        choir__comm_execute(comm, CHOIR_COMM_KIND_JOIN, &request, NULL, true));
  return NULL;
}
