// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_COMM_SHARED_DEF_H_
#define CHOIR_DIST_COMM_SHARED_DEF_H_

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Buffers of a communicator that its ranks see of each other: work on them
// between two collectives, in place of one. What a rank wrote before a
// collective others read after it, and none writes what another reads between
// the same two.

// Collective, with as many buffers on every rank: out_data[i * size + r] is
// where rank r's buffer i lies in this process. *out_seen is false on every
// rank, and out_data is not set, when one cannot be seen, or is NULL: a rank
// that does not want to.
choir_status_t choir__comm_shared_look(choir_comm_t* comm,
                                       choir_buffer_t* const* buffers,
                                       int32_t count, void** out_data,
                                       bool* out_seen);

// Makes the collective a part of the training step with these values; NULL: of
// none.
void choir__comm_set_step(choir_collective_t* collective,
                          const choir_step_values_t* values);

// This rank cannot come to the operation that the others are about to run: they
// get `why` from it, with its code (choir_collective_t.refusal). `wanted`,
// which may be NULL, is what it was asked for. Returns `why`, which is marked
// as a failure of all ranks (core/status_backend.h) when all have heard it.
// Waits for them.
choir_status_t choir__comm_refuse(choir_comm_t* comm, int32_t kind,
                                  const choir_collective_t* wanted,
                                  choir_status_t why);

// Of a peer, also of a communicator that broke. Silent: no sign of life for
// longer than the limit. Late: the communicator broke because others had waited
// up to the deadline for an operation, which this peer has not come to.
bool choir__comm_peer_is_silent(const choir_comm_t* comm, int32_t rank);
bool choir__comm_peer_is_late(choir_comm_t* comm, int32_t rank);
// From now on a host behind a slow link breaks the communicator; of two that
// wait for each other the one where all ranks are among the last `newcomers`.
void choir__comm_watch_hosts(choir_comm_t* comm, int32_t newcomers);
// The communicator broke because this peer's host is behind a slow link.
bool choir__comm_peer_is_slow(choir_comm_t* comm, int32_t rank);

// How many times this rank has called choir_comm_buffer_create. What a peer had
// in a buffer that it gave back is in nobody else's hands before the next call,
// which all ranks make.
uint64_t choir__comm_buffers_made(const choir_comm_t* comm);

// dst = the average of `count` f32 of all sources, weighted by shares, with the
// bits of all_reduce's; dst may be a source. A source of weight 0 is to be left
// out. Any thread.
void choir__comm_average(const float* const* sources, const float* shares,
                         int32_t source_count, float* dst, int64_t count);

// choir__comm_average of `count`, and choir__comm_copy_away of `away_count`
// elements: where it can in one pass, which takes less time.
void choir__comm_average_and_copy(const float* const* sources,
                                  const float* shares, int32_t source_count,
                                  float* dst, int64_t count, float* away,
                                  const float* from, int64_t away_count);

// memcpy, into memory that this processor does not look at again soon: past
// its caches where it can.
void choir__comm_copy_away(void* dst, const void* src, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_COMM_SHARED_DEF_H_
