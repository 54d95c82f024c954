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
    comm->joins.joined[r] = headers[r].kind == CHOIR_COMM_KIND_JOIN;
    if (comm->joins.joined[r])
      ++count;
    else if (first < 0)
      first = r;
  }
  if (count == 0) return 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (!comm->joins.joined[r]) continue;
    // Of those that came together the highest rank is the last.
    if (!comm->joins.was_joined[r]) comm->joins.last = r;
    comm->joins.was_joined[r] = first >= 0;
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

// Peers are past the header: without memory this rank cannot go on beside them.
static choir_status_t fail(choir_comm_t* comm, choir_status_t status) {
  choir_status_t broken = choir__comm_break(
      comm, CHOIR_STATUS_ABORTED, "%s cannot go on after others joined: %s",
      comm->peers[comm->rank].text, choir_status_message(status));
  choir_status_free(status);
  return broken;
}

choir_status_t choir__comm_zero_joined(choir_comm_t* comm) {
  size_t bytes = sizeof(choir_comm_message_t) + comm->sizes.exchange;
  choir_status_t status = choir__comm_reserve(comm, &comm->joins.zero_message,
                                              bytes, "ranks that joined");
  if (status) return fail(comm, status);
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->joins.joined[r])
      comm->messages[r] = comm->joins.zero_message.data;
  return NULL;
}

// The others' all_reduce with zeros; its result is nobody's.
choir_status_t choir__comm_joined_operation(choir_comm_t* comm,
                                            const operation_t* own,
                                            const choir_comm_message_t* message,
                                            operation_t* out_others) {
  const choir_comm_header_t* header = &message->header;
  *out_others = *own;
  choir_collective_t* c = &out_others->collective;
  out_others->kind = header->kind;
  out_others->element_bytes = choir_dtype_bytes((choir_dtype_t)header->dtype);
  out_others->meta_bytes = 0;
  const size_t bytes = (size_t)header->count * out_others->element_bytes;
  choir_status_t status =
      choir__comm_reserve(comm, &comm->joins.zeros, bytes, "ranks that joined");
  if (status) return fail(comm, status);
  if (bytes) memset(comm->joins.zeros.data, 0, bytes);
  *c = (choir_collective_t){
      .kind = (choir_collective_kind_t)header->kind,
      .op = (choir_reduce_t)header->op,
      .dtype = (choir_dtype_t)header->dtype,
      .count = header->count,
      .src = comm->joins.zeros.data,
      .dst = comm->joins.zeros.data,
      .weight = 1,
      .scales = (header->words & CHOIR_COMM_WORDS_FACTORS) != 0,
      .name = own->collective.name};
  if (c->scales) {
    c->prescale = choir__comm_words_factors(message)[0];
    c->postscale = choir__comm_words_factors(message)[1];
  }
  return NULL;
}
