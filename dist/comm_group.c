// SPDX-License-Identifier: Apache-2.0
// Groups of ranks: all ranks of a communicator agree on the list, then its
// members join by the backend's own way.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

// Ahead of the first message's data, then the list. In an operation of this
// kind src is the list, dst the terms.
typedef struct group_words_s {
  choir_comm_id_t id;
  char zeros_[7];
} group_words_t;
_Static_assert(sizeof(group_words_t) % 8 == 0, "words");

size_t choir__comm_group_bytes(int64_t count) {
  return (sizeof(group_words_t) + (size_t)count * sizeof(int32_t) + 7) / 8 * 8;
}

void choir__comm_group_fill(const operation_t* operation, unsigned char* data) {
  const choir_collective_t* c = &operation->collective;
  const choir__comm_group_terms_t* terms = c->dst;
  group_words_t words = {.id = terms->id};
  memcpy(data, &words, sizeof(words));
  memcpy(data + sizeof(words), c->src, (size_t)c->count * sizeof(int32_t));
}

const int32_t* choir__comm_group_ranks(const choir_comm_message_t* message) {
  return (const int32_t*)(const void*)(message->data + sizeof(group_words_t));
}

void choir__comm_group_check(const choir_comm_t* comm,
                             const operation_t* operation,
                             char reason[CHOIR_COMM_REASON_BYTES]) {
  const int32_t* ranks = operation->collective.src;
  const int64_t count = operation->collective.count;
  if (count < 1 || count > comm->size) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "a group of %lld ranks; there are %d", (long long)count,
             comm->size);
    return;
  }
  if (!ranks) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "ranks is NULL");
    return;
  }
  for (int32_t i = 0; i < count && !reason[0]; ++i) {
    if (ranks[i] < 0 || ranks[i] >= comm->size)
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "ranks[%d] is %d; ranks are 0 .. %d", i, ranks[i],
               comm->size - 1);
    for (int32_t k = 0; k < i && !reason[0]; ++k)
      if (ranks[k] == ranks[i])
        snprintf(reason, CHOIR_COMM_REASON_BYTES,
                 "ranks[%d] and ranks[%d] are both %d", k, i, ranks[i]);
  }
}

void choir__comm_group_agree(const choir_comm_t* comm,
                             const operation_t* operation) {
  choir__comm_group_terms_t* terms = operation->collective.dst;
  const int32_t* ranks = operation->collective.src;
  group_words_t words;
  memcpy(&words, comm->messages[ranks[0]]->data, sizeof(words));
  terms->id = words.id;
  terms->context = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->headers[r].src_place > terms->context)
      terms->context = comm->headers[r].src_place;
}

static choir_status_t join(choir_comm_t* comm, const int32_t* ranks,
                           int32_t count, int32_t own,
                           const choir__comm_group_terms_t* terms,
                           choir_comm_t** out_group) {
  choir_comm_config_t config = {.rank = own,
                                .size = count,
                                .id = terms->id,
                                .deadline = comm->deadline,
                                .silence = comm->silence,
                                .segment_bytes = comm->segment_bytes,
                                .device = comm->device};
  if (count == 1) return choir_self_comm_join(&config, out_group);
  return comm->vtable->group(comm, &config, ranks, terms->context, out_group);
}

choir_status_t choir_comm_group(choir_comm_t* comm, const int32_t* ranks,
                                int32_t count, choir_comm_t** out_group) {
  return choir__comm_make_group(comm, ranks, count, true, out_group);
}

choir_status_t choir__comm_make_group(choir_comm_t* comm, const int32_t* ranks,
                                      int32_t count, bool has_plane,
                                      choir_comm_t** out_group) {
  if (out_group) *out_group = NULL;
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "group: comm is NULL");
  choir__comm_group_terms_t terms;
  choir_status_t wrong =
      out_group ? choir_comm_id_make(&terms.id)
                : CHOIR_ERROR(INVALID_ARGUMENT, "group: out_group is NULL");
  if (wrong)
    return choir__comm_refuse(comm, CHOIR_COMM_KIND_GROUP, NULL, wrong);
  choir__comm_drain(comm);
  choir_collective_t request = {.count = count, .src = ranks, .dst = &terms};
  CHOIR_TRY(
      choir__comm_execute(comm, CHOIR_COMM_KIND_GROUP, &request, NULL, true));
  for (int32_t i = 0; i < count; ++i) {
    if (ranks[i] != comm->rank) continue;
    CHOIR_TRY(join(comm, ranks, count, i, &terms, out_group));
    choir_status_t status = has_plane && comm->plane
                                ? comm->plane->vtable->group(comm, *out_group)
                                : NULL;
    if (!status) return choir__comm_start_up(out_group);
    choir_comm_release(*out_group);
    *out_group = NULL;
    return status;
  }
  return NULL;
}
