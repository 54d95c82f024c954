// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_
#define CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_

#include "dist/backends/mpi/mpi_shim.h"
#include "dist/comm_internal.h"

// MPI in this process. There is one, whatever number of communicators ride on
// it: they differ by their tags.

typedef struct choir_mpi_peer_s choir_mpi_peer_t;

typedef struct choir_mpi_world_s {
  const choir_mpi_shim_t* shim;
  int32_t rank;
  int32_t size;
  // Whether a thread of ours may call MPI beside the program's own calls.
  bool has_own_thread;
  pthread_mutex_t mutex;  // around every call of the shim
  // How much was received from each rank, of whatever communicator: a rank that
  // sends lives.
  _Atomic uint64_t* received;  // [size]
  // Of mpi_end.c; NULL where the program ends MPI, or there is one rank.
  choir_mpi_peer_t* peers;  // [size]
} choir_mpi_world_t;

// With world->mutex. A request that failed counts as done: the operation that
// needs its peer tells, and mpiexec ends a rank whose peer died.
static inline bool choir_mpi_is_over(const choir_mpi_world_t* world,
                                     choir_mpi_request_t* request) {
  int done = 0;
  return world->shim->test(request, &done) || done;
}

// mpi_world.c
// MPI, if it runs, is not finalized at exit, where it would wait for a dead
// peer.
void choir_mpi_skip_finalize(void);
// Loads the plugin, initialises MPI or attaches to it; once per process.
// Blocks at most `deadline` seconds. `leave_all` is called before MPI ends.
choir_status_t choir_mpi_world_open(double deadline, void (*leave_all)(void),
                                    choir_mpi_world_t** out_world);
// Communicators differ by their context ids; 0 is for joining. The next one
// that is free on this rank: ranks that join take the largest of theirs.
int32_t choir_mpi_world_next_context(void);
// Takes it.
choir_status_t choir_mpi_world_take_context(uint64_t context);

// The last communicator's limits hold for the end too; `peers` are all ranks
// of the world.
void choir_mpi_world_note(const choir_comm_config_t* config,
                          const choir_comm_peer_t* peers);

// mpi_end.c
choir_status_t choir_mpi_end_open(choir_mpi_world_t* world);
void choir_mpi_end_name(choir_mpi_world_t* world,
                        const choir_comm_peer_t* peers);
// Called now and then: says to peers that ask that this rank lives.
void choir_mpi_end_answer(choir_mpi_world_t* world);
// Waits until all ranks have called it. *out_waited: seconds.
choir_status_t choir_mpi_end_wait(choir_mpi_world_t* world, double deadline,
                                  double silence, double* out_waited);
// With the mutex, before MPI ends.
void choir_mpi_end_close(choir_mpi_world_t* world);

// mpi_ranks.c
// "; rank 1 (pid 4711) is stopped; rank 3 has ended", or "": what can be seen
// of this host's ranks without MPI.
void choir_mpi_describe_ranks(char* text, size_t text_bytes);

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

  unsigned char* memory;  // of all below
  size_t memory_bytes;
  size_t message_stride;
  unsigned char* out_message;
  unsigned char* in_messages;     // [size], message_stride apart
  choir_mpi_control_t* controls;  // [size]
  choir_mpi_pending_t* pending;   // [CHOIR_MPI_PENDING * size]
  int32_t pending_count;

  struct choir_mpi_comm_s* next_joined;  // mpi.c
} choir_mpi_comm_t;

// Large data go to another host in messages of this size, so that a rank sees
// them come on a slow link, half a second for each at 1 Mbit/s: what comes is a
// sign of life and progress, and heartbeats wait behind it. Below Open MPI's
// limit for TCP (64 KiB with its header) no message waits for an answer, which
// would wait behind the data of the other direction.
#define CHOIR_MPI_MESSAGE_BYTES ((size_t)63 << 10)
// Both ways, and what is beside them.
#define CHOIR_MPI_PENDING \
  (2 * (int)(CHOIR_COMM_ROUND_BYTES / CHOIR_MPI_MESSAGE_BYTES) + 6)

// Kinds of messages, by tag: the channels, and
enum {
  CHOIR_MPI_CONTROL = CHOIR_COMM_CHANNEL_COUNT,  // heartbeats and faults
  CHOIR_MPI_HANDSHAKE,
  CHOIR_MPI_TAGS = 8,
};

#endif  // CHOIR_DIST_BACKENDS_MPI_MPI_INTERNAL_H_
