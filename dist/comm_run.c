// SPDX-License-Identifier: Apache-2.0
// One operation from header to result. Data up to inline_bytes travels with
// the header, so a small collective is one exchange; the rest goes through
// the backend's slot or, where it has none, through rounds of exchanges. Kinds
// that hand elements on as they are go on in comm_moves.c.
#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "core/status_backend.h"
#include "dist/comm_internal.h"
#include "dist/comm_shared_def.h"

typedef choir_comm_operation_t operation_t;

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

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

// ---- Shares ----

void choir_comm_share(int64_t count, int32_t rank, int32_t size,
                      int64_t* out_start, int64_t* out_count) {
  int64_t more = count % size;
  *out_count = count / size + (rank < more);
  *out_start = count / size * rank + (rank < more ? rank : more);
}

int64_t choir__comm_stretch(int64_t part, int64_t done, int64_t most) {
  if (part <= done) return 0;
  return part - done < most ? part - done : most;
}

// ---- Rounds of exchanges ----
// `first` tells that the first round's exchange was done with the header.

// Beyond the words that the first message begins with.
static const char* message_data(const choir_comm_t* comm,
                                const operation_t* operation, int32_t rank,
                                bool first) {
  const unsigned char* data = comm->messages[rank]->data;
  return (const char*)data + (first ? operation->meta_bytes : 0);
}

choir_status_t choir__comm_rounds_reduce(choir_comm_t* comm,
                                         const operation_t* operation,
                                         bool first) {
  const choir_collective_t* c = &operation->collective;
  bool takes = choir__collective_room(comm, operation) > 0;
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->exchange_bytes / e);
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
      comm->sources[r] = message_data(comm, operation, r, first);
    void* dst = (char*)c->dst + (size_t)done * e;
    choir__comm_reduce(comm, operation, comm->sources, &dst, 1, n);
  }
  return NULL;
}

choir_status_t choir__comm_rounds_broadcast(choir_comm_t* comm,
                                            const operation_t* operation,
                                            bool first) {
  const choir_collective_t* c = &operation->collective;
  size_t total = (size_t)c->count * operation->element_bytes;
  bool is_root = comm->rank == c->root;
  for (size_t done = 0; done < total;
       done += comm->exchange_bytes, first = false) {
    size_t bytes = smaller(total - done, comm->exchange_bytes);
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
choir_status_t choir__comm_rounds_scatter(choir_comm_t* comm,
                                          const operation_t* operation,
                                          bool first) {
  const choir_collective_t* c = &operation->collective;
  size_t e = operation->element_bytes;
  int64_t total = choir__comm_shared_count(comm, operation);
  int64_t start, most, own;
  choir_comm_share(total, 0, comm->size, &start, &most);
  choir_comm_share(total, comm->rank, comm->size, &start, &own);
  int64_t round = (int64_t)(comm->exchange_bytes / (e * (size_t)comm->size));
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
      comm->sources[r] = message_data(comm, operation, r, first) + own_at;
    void* dst = (char*)c->dst + (size_t)done * e;
    choir__comm_reduce(comm, operation, comm->sources, &dst, 1,
                       choir__comm_stretch(own, done, round));
  }
  return NULL;
}

choir_status_t choir__comm_run_rounds(choir_comm_t* comm,
                                      const operation_t* operation) {
  return choir__collective(operation->kind)->rounds(comm, operation, false);
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
  return atomic_load(&comm->broken) ? status
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
  if (status && atomic_load(&comm->broken)) return status;
  if (status) {
    choir_status_free(status);
    return NULL;
  }
  if (comm->headers[0].kind == CHOIR_COMM_KIND_JOIN) {
    *(int32_t*)operation->collective.dst = comm->last_joined;
    return NULL;
  }
  bool is_inline = true;
  int32_t other = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    is_inline = is_inline && comm->headers[r].is_inline;
    if (!comm->joined[r]) other = r;
  }
  if (is_inline || comm->headers[other].count == 0) return NULL;
  return choir__comm_run_joined(comm, operation, comm->messages[other]);
}

choir_status_t choir__comm_refusal(const choir_collective_t* c) {
  if (!c->refusal) return NULL;
  const bool is_code = c->refusal_code > CHOIR_STATUS_OK &&
                       c->refusal_code <= CHOIR_STATUS_INTERNAL;
  return choir_status_make(
      is_code ? c->refusal_code : CHOIR_STATUS_INVALID_ARGUMENT, __FILE__,
      __LINE__, __func__, "%s", c->refusal[0] ? c->refusal : "no reason given");
}

// Who moves the data of a device.
static void place(const choir_comm_t* comm, operation_t* operation,
                  char reason[CHOIR_COMM_REASON_BYTES]) {
  operation->on_plane =
      operation->stream && comm->plane &&
      comm->plane->vtable->takes(comm, operation->stream, reason);
}

static choir_status_t run_on_plane(choir_comm_t* comm,
                                   const operation_t* operation) {
  CHOIR_TRY(comm->plane->vtable->run(comm, operation));
  if (choir__collective(operation->kind)->moves)
    choir__comm_tell_counts(comm, operation);
  return NULL;
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
  operation->stays = leaves_memory(comm, operation);
  if (operation->on_plane || operation->stays) return NULL;
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
    size_t limit =
        traits->is_shared_out ? comm->inline_share_bytes : comm->inline_bytes;
    if ((size_t)payload + bytes <= comm->inline_bytes &&
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
  if (operation->on_plane) return run_on_plane(comm, operation);
  if (traits->moves) return choir__comm_run_moves(comm, operation);
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
  if (payload <= 0 || !traits->rounds) return NULL;
  choir__comm_large_t large = choir__comm_large(comm, operation);
  if (!is_inline && large) return large(comm, operation);
  return traits->rounds(comm, operation, is_inline);
}

choir_status_t choir__comm_execute(choir_comm_t* comm, int32_t kind,
                                   const choir_collective_t* collective,
                                   choir_stream_t* stream, bool is_blocking) {
  operation_t operation = {.collective = *collective,
                           .kind = kind,
                           .stream = stream,
                           .is_blocking = is_blocking,
                           .may_spin = is_blocking && !comm->oversubscribed};
  operation.element_bytes = choir_dtype_bytes(collective->dtype);
  operation.meta_bytes = choir__comm_meta_bytes(comm, &operation);
  if (collective->count_at) operation.collective.count = *collective->count_at;
  if (collective->tensors)
    operation.collective.count = choir__comm_tensors_count(collective);
  pthread_mutex_lock(&comm->run_mutex);
  choir_status_t status = NULL;
  if (atomic_load_explicit(&comm->broken, memory_order_acquire)) {
    status = choir__comm_fault_status(comm);
  } else if (comm->finalized) {
    status =
        CHOIR_ERROR(FAILED_PRECONDITION, "%s: the communicator was finalized",
                    choir__activity_kind_name(kind));
  } else {
    const bool is_pair = choir__collective(kind)->is_pair;
    // Others do not count an operation of two.
    operation.sequence = is_pair ? comm->sequence : ++comm->sequence;
    comm->running = &operation;
    for (int i = 0; i < 2; ++i)
      if (comm->activities[i])
        choir__activity_begin(comm->activities[i], kind, operation.sequence,
                              collective->name);
    status = choir__comm_check_peers(comm);
    if (!status)
      status = is_pair ? choir__comm_run_pair(comm, &operation)
                       : run_operation(comm, &operation);
    const bool is_there = !stream || operation.on_plane || operation.stays;
    if (!status && collective->tensors && !operation.on_plane)
      status = choir__comm_tensors_unpack(comm, &operation);
    else if (!status && !is_there)
      status = choir__comm_staged_write(comm, &operation);
    for (int i = 0; i < 2; ++i)
      if (comm->activities[i]) choir__activity_end(comm->activities[i]);
    comm->running = NULL;
  }
  pthread_mutex_unlock(&comm->run_mutex);
  return status;
}

choir_status_t choir__comm_refuse(choir_comm_t* comm, int32_t kind,
                                  const choir_collective_t* wanted,
                                  choir_status_t why) {
  choir_collective_t refused = {.refusal = choir_status_message(why),
                                .refusal_code = choir_status_code(why)};
  if (wanted) {
    refused.name = wanted->name;
    refused.root = wanted->root;
  }
  choir__comm_drain(comm);
  choir_status_t heard = choir__comm_execute(comm, kind, &refused, NULL, true);
  if (choir__status_is_shared(heard, comm)) {
    why = choir__status_mark_shared(why, comm);
    // What stands for a lack of memory cannot be marked.
    if (!choir__status_is_shared(why, comm)) return heard;
  }
  choir_status_free(heard);
  return why;
}
