// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_

#include "dist/backends/mpi/mpi_shim.h"
#include "dist/comm_internal.h"

// MPI in this process. There is one, whatever number of communicators ride on
// it: they differ by their tags.

typedef struct choir_mpi_world_s {
  const choir_mpi_shim_t* shim;
  int32_t rank;
  int32_t size;
  // Whether a thread of ours may call MPI beside the program's own calls.
  bool has_own_thread;
  pthread_mutex_t mutex;  // around every call of the shim
} choir_mpi_world_t;

// mpi_world.c
// Loads the plugin, initialises MPI or attaches to it; once per process.
// Blocks at most `deadline` seconds.
choir_status_t choir_mpi_world_open(double deadline,
                                    choir_mpi_world_t** out_world);
// Communicators differ by their numbers; 0 is for joining. The next one that is
// free on this rank: ranks that join take the largest of theirs.
int32_t choir_mpi_world_next(void);
// Takes it.
choir_status_t choir_mpi_world_take(uint64_t number);

// One operation under way.
typedef struct choir_mpi_pending_s {
  choir_mpi_request_t request;
  int32_t peer;
  bool is_receive;
  bool done;
} choir_mpi_pending_t;

typedef struct choir_mpi_control_s choir_mpi_control_t;

typedef struct choir_mpi_comm_s {
  choir_comm_t base;
  choir_mpi_world_t* world;
  int32_t* world_ranks;  // [size]
  int tag;

  unsigned char* memory;  // holds all below
  size_t memory_bytes;
  size_t message_stride;
  unsigned char* out_message;
  unsigned char* in_messages;     // [size], message_stride apart
  choir_mpi_control_t* controls;  // [size]
  choir_mpi_pending_t* pending;   // [4 * size]
  int32_t pending_count;

  struct choir_mpi_comm_s* next_joined;  // mpi.c

  unsigned char* work;  // pieces of all ranks while they are summed
  size_t work_bytes;
  uint64_t beat;
} choir_mpi_comm_t;

// Kinds of messages, by tag.
enum {
  CHOIR_MPI_EXCHANGE = 0,
  CHOIR_MPI_PIECE = 1,    // of a rank's part
  CHOIR_MPI_RESULT = 2,   // a finished part
  CHOIR_MPI_CONTROL = 3,  // heartbeats and faults
  CHOIR_MPI_HELLO = 4,
  CHOIR_MPI_PAIR = 5,  // of an operation of two ranks
  CHOIR_MPI_TAGS = 8,
};

// mpi.c
// Posts; the status is a broken communicator.
choir_status_t choir_mpi_send(choir_mpi_comm_t* mpi, int32_t peer, int kind,
                              const void* data, size_t bytes);
choir_status_t choir_mpi_receive(choir_mpi_comm_t* mpi, int32_t peer, int kind,
                                 void* data, size_t bytes);
// Waits until all that was posted is done.
choir_status_t choir_mpi_wait(choir_mpi_comm_t* mpi);

// mpi_collectives.c
// Memory for pieces of all ranks.
choir_status_t choir_mpi_prepare(choir_comm_t* comm,
                                 const choir_comm_operation_t* operation);
choir_status_t choir_mpi_all_reduce(choir_comm_t* comm,
                                    const choir_comm_operation_t* operation);
choir_status_t choir_mpi_reduce(choir_comm_t* comm,
                                const choir_comm_operation_t* operation);
choir_status_t choir_mpi_broadcast(choir_comm_t* comm,
                                   const choir_comm_operation_t* operation);
choir_status_t choir_mpi_pair(choir_comm_t* comm, int32_t peer, const void* out,
                              size_t out_bytes, void* in, size_t in_bytes);
// What is open in comm->moves.
choir_status_t choir_mpi_move(choir_comm_t* comm,
                              const choir_comm_operation_t* operation);
choir_status_t choir_mpi_reduce_scatter(
    choir_comm_t* comm, const choir_comm_operation_t* operation);

#endif  // CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_
