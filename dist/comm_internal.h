// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_INTERNAL_H_
#define CHOIR_DIST_COMM_INTERNAL_H_

#include "dist/comm_backend.h"

// What the sources of dist:comm share beyond what backends may call.

#define CHOIR_COMM_REASON_BYTES 200

// Most data bytes of an operation that fit into the first message; -1 when
// the sizes overflow.
int64_t choir__comm_payload_bytes(int32_t kind, int64_t count,
                                  size_t element_bytes, int32_t size);

// comm_check.c
// Empties `reason` or says what is wrong with this rank's arguments.
void choir__comm_check_arguments(const choir_comm_t* comm,
                                 const choir_comm_operation_t* operation,
                                 char reason[CHOIR_COMM_REASON_BYTES]);
// Compares all ranks' headers; the same result on every rank.
choir_status_t choir__comm_check_headers(choir_comm_t* comm);
uint64_t choir__comm_name_hash(const char* name);

// comm_run.c
// Runs one operation of any kind under the run mutex.
choir_status_t choir__comm_execute(choir_comm_t* comm, int32_t kind,
                                   const choir_collective_t* collective,
                                   bool is_blocking);

// comm_fault.c
choir_status_t choir__comm_fault_status(choir_comm_t* comm);
// Breaks the communicator if a peer told a fault or is gone. Never waits.
choir_status_t choir__comm_check_peers(choir_comm_t* comm);
choir_status_t choir__comm_watch_start(choir_comm_t* comm);
void choir__comm_watch_stop(choir_comm_t* comm);

// comm_async.c
// Waits for what choir_comm_start started.
void choir__comm_drain(choir_comm_t* comm);

// rank_reduce.c
// Fills in shares and shares_f64 from the headers' weights.
void choir__comm_set_shares(choir_comm_t* comm);

// backends/mpi/mpi.c
// Joins by MPI only to tell the ranks of one host a common id.
// *out_one_host is false, and the id empty, when there are several hosts.
choir_status_t choir_mpi_comm_meet(const choir_comm_config_t* config,
                                   choir_comm_id_t* out_id, bool* out_one_host);
// A communicator broke: MPI, if it runs, is not finalized at exit, where it
// would wait for a dead peer.
void choir_mpi_forsake(void);

// backends/*
#define CHOIR_COMM_BACKEND(name)                                             \
  choir_status_t choir_##name##_comm_join(const choir_comm_config_t* config, \
                                          choir_comm_t** out_comm);
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND

#endif  // CHOIR_DIST_COMM_INTERNAL_H_
