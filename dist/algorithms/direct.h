// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_ALGORITHMS_DIRECT_H_
#define CHOIR_DIST_ALGORITHMS_DIRECT_H_

#include "dist/comm_backend.h"

// Large collectives as messages from each rank to each other that needs them,
// in rounds of a size that stays in cache: for the slots `large` and `pair` of
// a backend with `post` and `wait`. Sums are choir__comm_reduce's, in rank
// order.

// Reduce-scatter, then all-gather.
choir_status_t choir__direct_all_reduce(
    choir_comm_t* comm, const choir_comm_operation_t* operation);
choir_status_t choir__direct_reduce(choir_comm_t* comm,
                                    const choir_comm_operation_t* operation);
choir_status_t choir__direct_broadcast(choir_comm_t* comm,
                                       const choir_comm_operation_t* operation);
choir_status_t choir__direct_reduce_scatter(
    choir_comm_t* comm, const choir_comm_operation_t* operation);
// What is open in comm->moves.
choir_status_t choir__direct_move(choir_comm_t* comm,
                                  const choir_comm_operation_t* operation);
// All that a backend has of it in `large`.
#define CHOIR__DIRECT_LARGE                                             \
  {                                                                     \
    [CHOIR_COLLECTIVE_ALL_REDUCE] = choir__direct_all_reduce,           \
    [CHOIR_COLLECTIVE_BROADCAST] = choir__direct_broadcast,             \
    [CHOIR_COLLECTIVE_ALL_GATHER] = choir__direct_move,                 \
    [CHOIR_COLLECTIVE_REDUCE_SCATTER] = choir__direct_reduce_scatter,   \
    [CHOIR_COLLECTIVE_ALL_GATHER_V] = choir__direct_move,               \
    [CHOIR_COLLECTIVE_REDUCE_SCATTER_V] = choir__direct_reduce_scatter, \
    [CHOIR_COLLECTIVE_REDUCE] = choir__direct_reduce,                   \
    [CHOIR_COLLECTIVE_GATHER] = choir__direct_move,                     \
    [CHOIR_COLLECTIVE_GATHER_V] = choir__direct_move,                   \
    [CHOIR_COLLECTIVE_SCATTER] = choir__direct_move,                    \
    [CHOIR_COLLECTIVE_SCATTER_V] = choir__direct_move,                  \
    [CHOIR_COLLECTIVE_ALL_TO_ALL] = choir__direct_move,                 \
    [CHOIR_COLLECTIVE_ALL_TO_ALL_V] = choir__direct_move,               \
  }
choir_status_t choir__direct_pair(choir_comm_t* comm, int32_t peer,
                                  const void* out, size_t out_bytes, void* in,
                                  size_t in_bytes);

#endif  // CHOIR_DIST_ALGORITHMS_DIRECT_H_
