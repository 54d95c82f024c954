// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_SHARDS_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_SHARDS_INTERNAL_H_

#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

// Updates that are shared out: what dist_opt_shards.c and dist_opt_peers.c know
// of each other.

#ifdef __cplusplus
extern "C" {
#endif

// A part of a parameter that this rank updates.
typedef struct choir__shard_s {
  choir__param_shard_t* update;
  int32_t bucket;
  int64_t start;  // in the bucket, elements
  int64_t count;
} choir__shard_t;

typedef struct choir__peers_s choir__peers_t;

struct choir__shards_s {
  const choir_dist_opt_t* dist;  // borrowed
  choir__sharding_t sharding;
  int32_t state_count;  // of each parameter
  // This rank's states. After a line for peers: for each bucket, for each
  // number of a state, those of this rank's part; alike on all ranks.
  choir_buffer_t* states;
  choir__peers_t* peers;  // NULL: ranks exchange messages
  choir__shard_t* items;  // in the order of buckets
  size_t room;
  size_t count;
  choir_span_t span;  // of the update
};

// ---- dist_opt_peers.c ----

// For ranks that see each other's memory. Collective. NULL: they do not, or
// have been told not to use it, or parameters are not f32.
choir_status_t choir__peers_create(const choir_dist_opt_t* dist,
                                   choir__peers_t** out_peers);
// Collective, when parameters and states are where they will be.
choir_status_t choir__peers_look(choir__peers_t* peers,
                                 const choir__shards_t* shards);
// Before the states go. Others may still read them (gather), until their memory
// is used again.
void choir__peers_destroy(choir__peers_t* peers);
// Elements that a shard has at most.
int64_t choir__peers_stretch(const choir__peers_t* peers);
// Where the average of a shard's gradients is, if it is apart.
choir_buffer_t* choir__peers_averages(const choir__peers_t* peers);
// Records of a step: waits until all have their gradients, and tells them of
// how many samples, and of which micro-shards; averages this rank's part of
// them, where it lies, or adds up its nodes, for all where clipping looks at
// the whole sum; updates that part, from there or, is_apart, from each shard's
// average, which it makes before; waits until all have.
choir_status_t choir__peers_open(choir__shards_t* shards,
                                 const choir_step_values_t* values,
                                 choir_stream_t* stream);
choir_status_t choir__peers_average(choir__shards_t* shards,
                                    const choir_step_values_t* values,
                                    choir_stream_t* stream);
choir_status_t choir__peers_update(choir__shards_t* shards, bool is_apart,
                                   int64_t step, choir_stream_t* stream);
choir_status_t choir__peers_close(choir__shards_t* shards,
                                  const choir_step_values_t* values,
                                  choir_stream_t* stream);
// Local: the rank's states. FAILED_PRECONDITION: it does not keep them any
// more.
choir_status_t choir__peers_states_of(const choir__shards_t* shards,
                                      int32_t rank, const void** out_states);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_SHARDS_INTERNAL_H_
