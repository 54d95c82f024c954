// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_SHM_SHM_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_SHM_SHM_INTERNAL_H_

#include "dist/comm_internal.h"

// Processes of one host. Two kinds of shared memory, both memfds that rank 0
// makes and hands over Unix sockets, so that nothing has to be cleaned up:
//   control segment   a slot per rank: heartbeat, fault, two banks for
//   messages,
//                     whose first word is the phase
//   data segments     a slice per rank, from which choir_comm_buffer_create
//                     is served
// A socket joins each pair of ranks; its end-of-file is the peer's death.

// Most data segments; each is at least as large as config.segment_bytes.
#define CHOIR_SHM_MAX_SEGMENTS 256

typedef struct choir_shm_slot_s {
  // Processes asleep on this rank's phase.
  _Alignas(64) _Atomic uint32_t waiters;
  _Alignas(64) _Atomic uint64_t beat;
  _Atomic uint32_t left;         // released without a death
  _Atomic uint32_t fault_ready;  // 1: being written, 2: `fault` is complete
  choir_comm_fault_t fault;
  _Alignas(64) choir_shared_activity_t activity;
} choir_shm_slot_t;

typedef struct choir_shm_segment_s {
  unsigned char* base;  // slices of all ranks
  size_t slice_bytes;
} choir_shm_segment_t;

// A stretch of this rank's slice that a buffer has.
typedef struct choir_shm_block_s {
  int32_t segment;
  size_t offset;
  size_t bytes;
} choir_shm_block_t;

typedef struct choir_shm_comm_s {
  choir_comm_t base;
  int listener;
  int* sockets;          // [size]; -1 for this rank
  struct pollfd* polls;  // [size + 1], the watch's
  unsigned char* control;
  size_t control_bytes;
  size_t slot_stride;
  size_t bank_stride;
  uint32_t phase;
  size_t segment_bytes;  // least slice of a new data segment

  pthread_mutex_t block_mutex;  // blocks are freed by any thread
  choir_shm_segment_t segments[CHOIR_SHM_MAX_SEGMENTS];
  int32_t segment_count;
  choir_shm_block_t* blocks;  // by segment, then offset
  size_t block_count;
  size_t block_capacity;
} choir_shm_comm_t;

static inline choir_shm_slot_t* choir_shm_slot(const choir_shm_comm_t* shm,
                                               int32_t rank) {
  return (choir_shm_slot_t*)(void*)(shm->control +
                                    (size_t)rank * shm->slot_stride);
}

// shm_join.c
// Connects the mesh of sockets and maps the control segment.
choir_status_t choir_shm_connect(choir_shm_comm_t* shm,
                                 const choir_comm_config_t* config);
void choir_shm_disconnect(choir_shm_comm_t* shm);

// shm_memory.c
// A memfd of `bytes` all of which the kernel has given, else a status.
choir_status_t choir_shm_create_memory(size_t bytes, int* out_fd);
choir_status_t choir_shm_map(int fd, size_t bytes, unsigned char** out_base);
// One file descriptor to a peer and from rank 0.
choir_status_t choir_shm_send_fd(int socket, int fd);
// True when a message was there; *out_fd is -1 if it brought no file.
bool choir_shm_try_receive_fd(int socket, int* out_fd);
choir_status_t choir_shm_receive_fd(choir_shm_comm_t* shm, int32_t rank,
                                    int* out_fd);
bool choir_shm_buffer_has_room(choir_comm_t* comm, size_t bytes);
choir_status_t choir_shm_buffer_grow(choir_comm_t* comm, size_t bytes);
void* choir_shm_buffer_alloc(choir_comm_t* comm, size_t bytes);
void choir_shm_buffer_free(choir_comm_t* comm, void* data);
void choir_shm_free_memory(choir_shm_comm_t* shm);
// Where `bytes` at `data` lie in this rank's slices, as a number for headers;
// 0: elsewhere.
uint64_t choir_shm_place(choir_shm_comm_t* shm, const void* data, size_t bytes);
// That place of another rank, in this process.
void* choir_shm_at(const choir_shm_comm_t* shm, int32_t rank, uint64_t place);

// shm.c
// All ranks come to the next phase. What a rank wrote before it, others may
// read after it until they come to the phase after.
choir_status_t choir_shm_sync(choir_shm_comm_t* shm);
// Notes peers whose sockets have ended, without waiting.
void choir_shm_poll_sockets(choir_shm_comm_t* shm, int timeout_ms);

#endif  // CHOIR_DIST_BACKENDS_SHM_SHM_INTERNAL_H_
