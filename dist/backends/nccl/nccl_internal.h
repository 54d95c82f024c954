// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_NCCL_NCCL_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_NCCL_NCCL_INTERNAL_H_

#include "dist/backends/nccl/nccl_library_internal.h"
#include "dist/comm_internal.h"

// What the files of the data plane share. `lock` guards handle and pending, and
// is held in each call of NCCL with the handle, none of which waits; nobody
// breaks the communicator while holding it.

// An operation that was handed to the GPU.
typedef struct nccl_pending_s {
  choir_device_t* device;  // of the events, which keep it; NULL: none
  choir_event_t* before;   // the stream came to it
  choir_event_t* after;    // and is past it
  double since;            // when it came there; 0: not yet
  char text[CHOIR_ACTIVITY_TEXT_BYTES];
} nccl_pending_t;

enum { NCCL_PENDING = 32 };

typedef struct nccl_plane_s {
  choir_comm_layer_t base;  // first
  choir_allocator_t allocator;
  const choir__nccl_library_t* nccl;
  choir_device_t* device;
  pthread_mutex_t lock;
  choir__nccl_comm_t handle;  // NULL: not yet, or not any more
  nccl_pending_t pending[NCCL_PENDING];
  int32_t first;  // of those, in a ring
  int32_t count;
  // Where the last operation went, and the event behind it: all ranks' GPUs
  // need one order, whatever streams are used.
  choir_stream_t* last_stream;
  nccl_pending_t* last;   // NULL: there was none
  choir_buffer_t* zeros;  // what a rank of weight 0 gives
  size_t zeros_bytes;
} nccl_plane_t;

static inline nccl_plane_t* choir__nccl_plane(const choir_comm_t* comm) {
  return (nccl_plane_t*)comm->layers[CHOIR_COMM_LAYER_PLANE];
}

// nccl_wait.c
// Breaks the communicator by what NCCL said of `what`.
choir_status_t choir__nccl_break(choir_comm_t* comm,
                                 choir__nccl_result_t result, const char* what);
// IN_PROGRESS also where there is no handle any more: the communicator is
// broken, or about to be.
choir__nccl_result_t choir__nccl_state(nccl_plane_t* plane);
// Until NCCL has done what it was told; with the deadline.
choir_status_t choir__nccl_await(choir_comm_t* comm, const char* what);
// Until no more than `most` operations are left. The watch tells which of them
// takes too long.
choir_status_t choir__nccl_await_pending(choir_comm_t* comm, int32_t most);
// Of the oldest operation, if its stream came to it and is not past it, which
// `text` then says; else 0 and "".
double choir__nccl_stuck_seconds(nccl_plane_t* plane,
                                 char text[CHOIR_ACTIVITY_TEXT_BYTES]);
void choir__nccl_forget_events(nccl_pending_t* pending);

// nccl_operations.c
choir_status_t choir__nccl_run(choir_comm_t* comm,
                               const choir_comm_operation_t* operation);

#endif  // CHOIR_DIST_BACKENDS_NCCL_NCCL_INTERNAL_H_
