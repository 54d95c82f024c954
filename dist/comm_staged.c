// SPDX-License-Identifier: Apache-2.0
// Memory of a device that the host cannot see, over a communicator that
// exchanges host memory: what an operation gives is read down before it, what
// came is written up after it. Several tensors as one: comm_tensors.c.
#include <string.h>

#include "core/device_backend.h"
#include "core/log.h"
#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

choir_status_t choir__comm_fetch(choir_stream_t* stream, const void* src,
                                 void* host, size_t bytes) {
  if (bytes == 0) return NULL;
  if (!stream) {
    memcpy(host, src, bytes);
    return NULL;
  }
  choir_device_t* device = choir_stream_device(stream);
  return device->vtable->read(device, stream, src, host, bytes);
}

choir_status_t choir__comm_store(choir_stream_t* stream, const void* host,
                                 void* dst, size_t bytes) {
  if (bytes == 0) return NULL;
  if (!stream) {
    memcpy(dst, host, bytes);
    return NULL;
  }
  choir_device_t* device = choir_stream_device(stream);
  return device->vtable->write(device, stream, host, dst, bytes);
}

void choir__comm_staged_note(choir_comm_t* comm, size_t bytes) {
  if (atomic_fetch_add(&comm->staged_bytes, bytes) > 0 || bytes == 0) return;
  choir_log(CHOIR_LOG_INFO, "dist",
            "comm %s: memory of a GPU goes over the host, which is slow (told "
            "once)",
            choir_comm_backend(comm));
}

// Elements that came.
static int64_t came(const choir_comm_t* comm, const operation_t* operation) {
  const choir__collective_t* traits = choir__collective(operation->kind);
  const bool is_root = comm->rank == operation->collective.root;
  if (traits->is_in_place && is_root) return 0;
  if (!traits->moves) return choir__collective_room(comm, operation);
  int64_t sum = 0;
  for (int32_t r = 0; r < comm->size; ++r) sum += comm->moves.recv_count[r];
  return sum;
}

// ---- Down and up ----

static choir_status_t write_up(choir_comm_t* comm,
                               const operation_t* operation) {
  const size_t bytes = (size_t)came(comm, operation) * operation->element_bytes;
  choir__comm_staged_note(comm, bytes);
  return choir__comm_store(operation->stream, operation->collective.dst,
                           operation->device_dst, bytes);
}

// What is given, then from the next cache line on what comes.
choir_status_t choir__comm_staged_read(choir_comm_t* comm,
                                       operation_t* operation) {
  choir_collective_t* c = &operation->collective;
  const size_t e = operation->element_bytes;
  const size_t src_bytes = (size_t)choir__collective_given(comm, operation) * e;
  const size_t dst_at = (src_bytes + 63) / 64 * 64;
  size_t bytes;
  if (__builtin_mul_overflow((size_t)choir__collective_room(comm, operation), e,
                             &bytes) ||
      __builtin_add_overflow(bytes, dst_at, &bytes))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "capacity is %lld; so many elements fit in no memory",
                       (long long)c->capacity);
  // Never none.
  CHOIR_TRY(choir__comm_reserve(comm, &comm->packed, bytes + 64,
                                "memory of a GPU's data"));
  const bool is_in_place = choir__collective(operation->kind)->is_in_place;
  CHOIR_TRY(choir__comm_fetch(operation->stream, is_in_place ? c->dst : c->src,
                              comm->packed.data, src_bytes));
  choir__comm_staged_note(comm, src_bytes);
  operation->device_dst = c->dst;
  operation->land = write_up;
  c->src = comm->packed.data;
  c->dst = is_in_place ? comm->packed.data : (char*)comm->packed.data + dst_at;
  return NULL;
}
