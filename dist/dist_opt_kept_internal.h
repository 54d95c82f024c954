// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_KEPT_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_KEPT_INTERNAL_H_

#include "dist/dist_opt_parts_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

// The optimizer's states where updates are sharded: each rank keeps those of
// its part of every bucket, in memory that all see, and nobody else writes
// there. The optimizer's own tensors are out of date after a step, and filled
// from all ranks' parts when somebody looks at them (choir__late_fill_t), which
// between steps takes no other rank's help. What somebody changed in them is
// taken over before the next update.

// A rank's part of a bucket of `count` elements, in whole cache lines.
void choir__sharded_part(int64_t count, int32_t rank, int32_t size,
                         int64_t* out_begin, int64_t* out_end);

typedef struct choir__kept_s choir__kept_t;
// All f32. Nothing of them is kept before take.
choir_status_t choir__kept_create(const choir_dist_opt_t* dist,
                                  choir__kept_t** out_kept);
// Leaves the optimizer's tensors as they are.
void choir__kept_destroy(choir__kept_t* kept);
// What was put off; peers still have what they kept after the last update.
void choir__kept_fill(choir__kept_t* kept);
// Of the memory, on every rank alike: floats.
int64_t choir__kept_count(const choir__kept_t* kept);
// It lies `start` floats into `region`, and into regions[rank] of all ranks.
// Both are borrowed.
void choir__kept_place(choir__kept_t* kept, choir_buffer_t* region,
                       int64_t start, void* const* regions);
// Where this rank keeps the states of `count` elements, from `at` of a bucket,
// of one parameter: `state_count` tensors, the caller's.
choir_status_t choir__kept_stretch(const choir__kept_t* kept, int32_t bucket,
                                   int64_t at, int64_t count,
                                   int32_t state_count,
                                   choir_tensor_t** out_states);
// Before an update, when all ranks are in it: what somebody may have changed.
void choir__kept_take(choir__kept_t* kept);
// After an update: the optimizer's tensors are out of date.
void choir__kept_put_off(choir__kept_t* kept);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_KEPT_INTERNAL_H_
