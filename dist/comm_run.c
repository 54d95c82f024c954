// SPDX-License-Identifier: Apache-2.0
// One operation from header to result. Data up to sizes.with_header travels
// with the header, so a small collective is one exchange; the rest goes over
// hosts, by the backend's slot or by rounds of exchanges.
#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "core/status_backend.h"
#include "dist/comm_internal.h"
#include "dist/comm_shared_def.h"

typedef choir_comm_operation_t operation_t;

// Gives the data of the first message: what the first round of the rounds
// below would give.
static size_t stage_inline(choir_comm_t* comm, const operation_t* operation,
                           size_t bytes, unsigned char* data) {
  const choir_collective_t* c = &operation->collective;
  if (choir__collective(operation->kind)->is_in_place) {
    if (comm->rank == c->root) memcpy(data, c->dst, bytes);
  } else {
    memcpy(data, c->src, bytes);
  }
  return bytes;
}

// Data that did not come with the headers.
static choir_status_t run_large(choir_comm_t* comm,
                                const operation_t* operation) {
  choir_comm_layer_t* hosts = comm->layers[CHOIR_COMM_LAYER_HOSTS];
  if (hosts && hosts->vtable->takes(comm, operation, NULL))
    return hosts->vtable->run(comm, operation);
  choir_status_t (*const own)(choir_comm_t*, const operation_t*) =
      comm->vtable->large[operation->kind];
  return own ? own(comm, operation)
             : choir__comm_run_rounds(comm, operation, false);
}

// ---- One operation ----

static void fill_header(choir_comm_t* comm, const operation_t* operation,
                        choir_comm_header_t* header) {
  const choir_collective_t* c = &operation->collective;
  int32_t kind = operation->kind;
  const choir__collective_t* traits = choir__collective(kind);
  const bool has_data = choir__collective_has_data(kind);
  memset(&header->root, 0, sizeof(*header) - CHOIR_COMM_HEADER_START);
  header->sequence = operation->sequence;
  header->name_hash = choir__comm_name_hash(c->name);
  if (c->in_step) {
    header->step = c->step + 1;
    header->batch = c->batch;
    const int64_t place[] = {c->step, c->batch};
    header->name_hash =
        choir_hash_bytes(header->name_hash, place, sizeof(place));
  }
  header->kind = (uint8_t)kind;
  header->weight = 1;
  if (has_data) header->dtype = (uint8_t)c->dtype;
  if (has_data
          ? !traits->has_own_counts
          : kind == CHOIR_COMM_KIND_BUFFER || kind == CHOIR_COMM_KIND_GROUP)
    header->count = c->count;
  if (c->tensors) header->words |= CHOIR_COMM_WORDS_TENSORS;
  if (operation->on_plane) header->words |= CHOIR_COMM_WORDS_PLANE;
  if (traits->has_root) header->root = c->root;
  if (traits->reduces) {
    header->op = (uint8_t)c->op;
    header->weight = c->weight;
    if (c->scales) header->words |= CHOIR_COMM_WORDS_FACTORS;
  }
  if (c->name) choir__comm_name_copy(c->name, header->name);
  if (kind == CHOIR_COMM_KIND_BUFFER)
    header->src_place = !comm->vtable->buffer_has_room(comm, (size_t)c->count);
  else if (comm->vtable->describe)
    comm->vtable->describe(comm, operation, header);
}

static void copy_alone(choir_comm_t* comm, const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  if (!choir__collective(operation->kind)->reduces) return;
  if (c->scales) {
    void* dst = c->dst;
    choir__comm_reduce(comm, operation, &c->src, &dst, 1, c->count);
    return;
  }
  if (c->src == c->dst || c->count == 0) return;
  memmove(c->dst, c->src, (size_t)c->count * operation->element_bytes);
}

// A failure that all ranks have, unless it broke the communicator.
static choir_status_t shared(choir_comm_t* comm, choir_status_t status) {
  return atomic_load(&comm->faults.broken)
             ? status
             : choir__status_mark_shared(status, comm);
}

// The headers tell who has no room (src_place of this kind).
static choir_status_t grow_if_needed(choir_comm_t* comm,
                                     const choir_collective_t* request) {
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->headers[r].src_place)
      return shared(comm,
                    comm->vtable->buffer_grow(comm, (size_t)request->count));
  return NULL;
}

// After the exchange, on a rank that joined. What is wrong with the others'
// operation is told to them.
static choir_status_t run_join(choir_comm_t* comm,
                               const operation_t* operation) {
  choir_status_t status = choir__comm_check_headers(comm, operation);
  if (status && atomic_load(&comm->faults.broken)) return status;
  if (status) {
    choir_status_free(status);
    return NULL;
  }
  if (comm->headers[0].kind == CHOIR_COMM_KIND_JOIN) {
    *(int32_t*)operation->collective.dst = comm->joins.last;
    return NULL;
  }
  bool is_inline = true;
  int32_t other = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    is_inline = is_inline && comm->headers[r].is_inline;
    if (!comm->joins.joined[r]) other = r;
  }
  if (is_inline || comm->headers[other].count == 0) return NULL;
  operation_t others;
  CHOIR_TRY(choir__comm_joined_operation(comm, operation, comm->messages[other],
                                         &others));
  return run_large(comm, &others);
}

// Who moves the data of a device.
static void place(const choir_comm_t* comm, operation_t* operation,
                  char reason[CHOIR_COMM_REASON_BYTES]) {
  const choir_comm_layer_t* plane = comm->layers[CHOIR_COMM_LAYER_PLANE];
  operation->on_plane = operation->stream && plane &&
                        plane->vtable->takes(comm, operation, reason);
}

// One rank's reduction in place, without scales, is what lies there: a GPU's
// memory need not come to the host for it.
static bool leaves_memory(const choir_comm_t* comm,
                          const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  return comm->size == 1 && choir__collective(operation->kind)->reduces &&
         !c->scales && !c->tensors && c->src == c->dst;
}

// Whether this rank can take part, and what it needs for that.
static choir_status_t prepare(choir_comm_t* comm, operation_t* operation) {
  CHOIR_TRY(choir__comm_refusal(&operation->collective));
  char reason[CHOIR_COMM_REASON_BYTES];
  choir__comm_check_arguments(comm, operation, reason);
  if (!reason[0]) place(comm, operation, reason);
  if (reason[0]) return CHOIR_ERROR(INVALID_ARGUMENT, "%s", reason);
  if (operation->on_plane || leaves_memory(comm, operation)) return NULL;
  if (operation->collective.tensors)
    return choir__comm_tensors_pack(comm, operation);
  return operation->stream ? choir__comm_staged_read(comm, operation) : NULL;
}

static choir_status_t run_operation(choir_comm_t* comm,
                                    operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  choir_comm_message_t* message = comm->vtable->stage(comm);
  choir_status_t wrong = prepare(comm, operation);
  fill_header(comm, operation, &message->header);
  int64_t payload = 0;
  size_t bytes = 0;
  if (wrong) {
    // Peers come to the exchange too and learn of it there.
    message->header.refused = (uint8_t)choir_status_code(wrong);
    bytes = CHOIR_COMM_REASON_BYTES;
    snprintf((char*)message->data, bytes, "%s", choir_status_message(wrong));
    choir_status_free(wrong);
  } else {
    payload = choir__comm_payload_bytes(comm, operation);
    bytes = operation->meta_bytes;
    choir__comm_meta_fill(comm, operation, message->data);
    size_t limit = traits->is_shared_out ? comm->sizes.share_with_header
                                         : comm->sizes.with_header;
    if ((size_t)payload + bytes <= comm->sizes.with_header &&
        (size_t)payload <= limit && comm->size > 1 &&
        !message->header.is_direct && !operation->on_plane) {
      message->header.is_inline = 1;
      if (payload > 0)
        bytes += stage_inline(comm, operation, (size_t)payload,
                              message->data + bytes);
    }
  }
  CHOIR_TRY(comm->vtable->exchange(comm, bytes));
  if (operation->kind == CHOIR_COMM_KIND_JOIN) return run_join(comm, operation);
  CHOIR_TRY(shared(comm, choir__comm_check_headers(comm, operation)));
  if (traits->moves || operation->on_plane) {
    if (operation->on_plane)
      CHOIR_TRY(
          comm->layers[CHOIR_COMM_LAYER_PLANE]->vtable->run(comm, operation));
    else if (choir__comm_begin_moves(comm, operation))
      CHOIR_TRY(run_large(comm, operation));
    if (traits->moves) choir__comm_tell_counts(comm, operation);
    return NULL;
  }
  // Where one rank's data are elsewhere, all take the way of large data.
  bool is_inline = true;
  for (int32_t r = 0; r < comm->size; ++r)
    is_inline = is_inline && comm->headers[r].is_inline;
  if (operation->kind == CHOIR_COMM_KIND_BUFFER) return grow_if_needed(comm, c);
  if (operation->kind == CHOIR_COMM_KIND_GROUP)
    choir__comm_group_agree(comm, operation);
  if (comm->size == 1) {
    copy_alone(comm, operation);
    return NULL;
  }
  if (payload <= 0) return NULL;
  return is_inline ? choir__comm_run_rounds(comm, operation, true)
                   : run_large(comm, operation);
}

choir_status_t choir__comm_execute(choir_comm_t* comm, int32_t kind,
                                   const choir_collective_t* collective,
                                   choir_stream_t* stream, bool is_blocking) {
  operation_t operation = {
      .collective = *collective,
      .kind = kind,
      .stream = stream,
      .is_blocking = is_blocking,
      .may_spin = is_blocking && !comm->hosts.oversubscribed};
  operation.element_bytes = choir_dtype_bytes(collective->dtype);
  operation.meta_bytes = choir__comm_meta_bytes(comm, &operation);
  if (collective->count_at) operation.collective.count = *collective->count_at;
  if (collective->tensors)
    operation.collective.count = choir__comm_tensors_count(collective);
  pthread_mutex_lock(&comm->run.mutex);
  choir_status_t status = NULL;
  if (atomic_load_explicit(&comm->faults.broken, memory_order_acquire)) {
    status = choir__comm_fault_status(comm);
  } else if (comm->run.finalized) {
    status =
        CHOIR_ERROR(FAILED_PRECONDITION, "%s: the communicator was finalized",
                    choir__activity_kind_name(kind));
  } else {
    const bool is_pair = choir__collective(kind)->is_pair;
    // Others do not count an operation of two.
    operation.sequence = is_pair ? comm->run.sequence : ++comm->run.sequence;
    comm->run.operation = &operation;
    for (int i = 0; i < 2; ++i)
      if (comm->activity.places[i])
        choir__activity_begin(comm->activity.places[i], kind,
                              operation.sequence, collective->name);
    status = choir__comm_check_peers(comm);
    if (!status)
      status = is_pair ? choir__comm_run_pair(comm, &operation)
                       : run_operation(comm, &operation);
    if (!status && operation.land) status = operation.land(comm, &operation);
    for (int i = 0; i < 2; ++i)
      if (comm->activity.places[i])
        choir__activity_end(comm->activity.places[i]);
    comm->run.operation = NULL;
  }
  pthread_mutex_unlock(&comm->run.mutex);
  return status;
}
