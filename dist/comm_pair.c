// SPDX-License-Identifier: Apache-2.0
// Send and receive: an operation of two ranks. They exchange headers, compare
// them, and only then move data; a difference is an error on both and leaves
// everything in order.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

typedef struct pair_header_s {
  int32_t kind;
  int32_t dtype;
  int64_t count;
  uint64_t name_hash;
  int32_t on_plane;
  int32_t refused;                   // choir_status_code_t; 0: it takes part
  char name[CHOIR_COMM_NAME_BYTES];  // cut
  char reason[CHOIR_COMM_REASON_BYTES];  // why it cannot
} pair_header_t;
_Static_assert(sizeof(pair_header_t) == 296,
               "docs/algorithms.md tells how much of a pair is compared");

static void fill_header(const operation_t* operation, pair_header_t* header) {
  const choir_collective_t* c = &operation->collective;
  memset(header, 0, sizeof(*header));
  header->kind = operation->kind;
  header->dtype = (int32_t)c->dtype;
  header->count = c->count;
  header->name_hash = choir__comm_name_hash(c->name);
  if (c->name) choir__comm_name_copy(c->name, header->name);
}

static choir_status_t check_arguments(const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  int64_t bytes;
  const bool sends = operation->kind == CHOIR_COLLECTIVE_SEND;
  if (!operation->element_bytes)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%d is no dtype", (int)c->dtype);
  if (c->count < 0)
    return CHOIR_ERROR(INVALID_ARGUMENT, "count is %lld; it must be 0 or more",
                       (long long)c->count);
  if (__builtin_mul_overflow(c->count, (int64_t)operation->element_bytes,
                             &bytes))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%lld elements do not fit in 63 bits of bytes",
                       (long long)c->count);
  if (c->count > 0 && !(sends ? c->src : c->dst))
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s is NULL", sends ? "src" : "dst");
  return NULL;
}

// Whether this rank can take part, and what it needs for that.
static choir_status_t prepare(choir_comm_t* comm, operation_t* operation) {
  CHOIR_TRY(choir__comm_refusal(&operation->collective));
  CHOIR_TRY(check_arguments(operation));
  if (!operation->stream) return NULL;
  char reason[CHOIR_COMM_REASON_BYTES] = "";
  const choir_comm_layer_t* plane = comm->layers[CHOIR_COMM_LAYER_PLANE];
  operation->on_plane = plane && plane->vtable->takes(comm, operation, reason);
  if (reason[0]) return CHOIR_ERROR(INVALID_ARGUMENT, "%s", reason);
  return operation->on_plane ? NULL : choir__comm_staged_read(comm, operation);
}

static void describe(const pair_header_t* header, char* text,
                     size_t text_bytes) {
  snprintf(text, text_bytes, "%lld %s%s%s%s%s", (long long)header->count,
           choir_dtype_name((choir_dtype_t)header->dtype),
           header->on_plane ? " of a GPU" : "",
           header->name_hash ? " as '" : " without name", header->name,
           header->name_hash ? "'" : "");
}

// "send 'x' (after operation 3)".
static void describe_operation(const operation_t* operation,
                               const pair_header_t* own, char* text,
                               size_t text_bytes) {
  choir_activity_t activity = {.kind = operation->kind,
                               .waiting_for = -1,
                               .sequence = operation->sequence};
  memcpy(activity.name, own->name, sizeof(activity.name));
  choir__activity_print(&activity, text, text_bytes);
}

static choir_status_t compare(const choir_comm_t* comm,
                              const operation_t* operation,
                              const pair_header_t* own,
                              const pair_header_t* theirs) {
  const int32_t peer = operation->collective.root;
  char what[CHOIR_ACTIVITY_TEXT_BYTES];
  describe_operation(operation, own, what, sizeof(what));
  // The same words on both: those of the lower rank first.
  const bool own_first = comm->rank < peer;
  const pair_header_t* headers[2] = {own_first ? own : theirs,
                                     own_first ? theirs : own};
  const int32_t ranks[2] = {own_first ? comm->rank : peer,
                            own_first ? peer : comm->rank};
  for (int i = 0; i < 2; ++i)
    if (headers[i]->refused)
      return choir_status_make((choir_status_code_t)headers[i]->refused,
                               __FILE__, __LINE__, __func__, "%s: rank %d: %s",
                               what, ranks[i], headers[i]->reason);
  if (own->kind == theirs->kind)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: ranks %d and %d both %s; one of them must %s", what,
                       ranks[0], ranks[1], choir__activity_kind_name(own->kind),
                       own->kind == CHOIR_COLLECTIVE_SEND ? "receive" : "send");
  if (own->dtype == theirs->dtype && own->count == theirs->count &&
      own->name_hash == theirs->name_hash && own->on_plane == theirs->on_plane)
    return NULL;
  const bool first_sends = headers[0]->kind == CHOIR_COLLECTIVE_SEND;
  char sent[128];
  char received[128];
  describe(headers[first_sends ? 0 : 1], sent, sizeof(sent));
  describe(headers[first_sends ? 1 : 0], received, sizeof(received));
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: rank %d sends %s, rank %d receives %s; both need the "
                     "same",
                     what, ranks[first_sends ? 0 : 1], sent,
                     ranks[first_sends ? 1 : 0], received);
}

choir_status_t choir__comm_run_pair(choir_comm_t* comm,
                                    operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const bool sends = operation->kind == CHOIR_COLLECTIVE_SEND;
  pair_header_t own, theirs;
  fill_header(operation, &own);
  if (c->root < 0 || c->root >= comm->size || c->root == comm->rank) {
    char what[CHOIR_ACTIVITY_TEXT_BYTES];
    describe_operation(operation, &own, what, sizeof(what));
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: rank %d: the other rank is %d; it must be another "
                       "one of 0 .. %d",
                       what, comm->rank, c->root, comm->size - 1);
  }
  // The peer learns of a failure by the header.
  choir_status_t wrong = prepare(comm, operation);
  own.on_plane = operation->on_plane;
  own.refused = (int32_t)choir_status_code(wrong);
  if (wrong)
    snprintf(own.reason, sizeof(own.reason), "%s", choir_status_message(wrong));
  choir_status_free(wrong);
  CHOIR_TRY(comm->vtable->pair(comm, c->root, &own, sizeof(own), &theirs,
                               sizeof(theirs)));
  theirs.name[sizeof(theirs.name) - 1] = 0;
  theirs.reason[sizeof(theirs.reason) - 1] = 0;
  CHOIR_TRY(compare(comm, operation, &own, &theirs));
  if (operation->on_plane)
    return comm->layers[CHOIR_COMM_LAYER_PLANE]->vtable->run(comm, operation);
  const size_t bytes = (size_t)c->count * operation->element_bytes;
  if (sends) return comm->vtable->pair(comm, c->root, c->src, bytes, NULL, 0);
  return comm->vtable->pair(comm, c->root, NULL, 0, c->dst, bytes);
}
