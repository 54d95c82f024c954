// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_INTERNAL_H_

#include "core/sum_tree_backend.h"
#include "dist/dist_opt.h"
#include "dist/strategies/strategy_internal.h"
#include "io/loader.h"

#ifdef __cplusplus
extern "C" {
#endif

// What training.c needs of it; lent.
typedef struct choir__dist_opt_view_s {
  choir_comm_t* comm;
  choir_device_t* device;
  choir_allocator_t allocator;
  choir_param_set_t* params;
} choir__dist_opt_view_t;

// Waits for all work of the last step. FAILED_PRECONDITION, with `what` was
// asked for, without a model.
choir_status_t choir__dist_opt_settle(choir_dist_opt_t* dist_opt,
                                      const char* what,
                                      choir__dist_opt_view_t* out_view);
// Parameters were set from outside, equal on all ranks.
choir_status_t choir__dist_opt_take_params(choir_dist_opt_t* dist_opt);

// The DistOpt that this updater is; NULL: none.
choir_dist_opt_t* choir__dist_opt_from(choir_updater_t* updater);
// See choir_training_follow.
choir_status_t choir__dist_opt_follow(choir_dist_opt_t* dist_opt,
                                      choir_loader_t* loader, int64_t step);

// dist_opt_agree.c
typedef struct choir__common_s {
  choir_comm_t* comm;
  choir_allocator_t allocator;
  choir_param_set_t* params;
  const choir_optimizer_t* optimizer;
  const choir_struct_def_t* config_def;  // of config
  const choir_dist_opt_config_t* config;
  const choir_strategy_t* strategy;  // to be used
} choir__common_t;
// Collective. FAILED_PRECONDITION on all ranks, with the first rank that has
// something else than rank 0; _model: compares every parameter as well.
choir_status_t choir__agree_on_settings(const choir__common_t* mine);
choir_status_t choir__agree_on_model(const choir__common_t* mine);
// Of all that they compare.
uint64_t choir__agree_hash(const choir__common_t* mine);
// Collective: the end of a call that all ranks make, whose `status` is this
// rank's. Where it is a failure of this rank alone the others get it in the
// operation that they come to next, at the latest in this one. Returns
// `status`, or what was heard.
choir_status_t choir__agree_on_outcome(choir_comm_t* comm, const char* call,
                                       choir_status_t status);

// Local: INVALID_ARGUMENT where the micro-shards of all ranks, [size], are not
// one after the other those of a step.
choir_status_t choir__agree_on_leaves(choir_comm_t* comm,
                                      const choir__leaves_t* leaves);

// dist_opt_passes.c
// What one bucket keeps between the passes of a step; destroy it also after a
// failure. The bucket must outlive it.
typedef struct choir__passes_s choir__passes_t;
choir_status_t choir__passes_create(choir_allocator_t allocator,
                                    const choir_strategy_bucket_t* bucket,
                                    choir__passes_t** out_passes);
void choir__passes_destroy(choir_allocator_t allocator,
                           choir__passes_t* passes);
// After the bucket's gradients: keeps them (is_partial), or makes them those of
// all passes. samples: this rank's in the passes so far, this one included.
choir_status_t choir__passes_submit(choir__passes_t* passes, bool is_partial,
                                    int64_t samples, choir_stream_t* stream);

// dist_opt_mirror.c
// Copies on the host of what a device has that the host cannot see. What they
// are of must outlive them. NULL in place of a mirror: nothing to copy.
typedef struct choir__mirror_s choir__mirror_t;
typedef struct choir__mirrored_s {
  choir_comm_t* comm;
  choir_device_t* host;
  choir_buffer_t* const* grads;   // [bucket_count]
  choir_tensor_t* const* values;  // [value_count], of `pieces`
  // Their pointers will be those of the copies.
  choir_strategy_bucket_t* buckets;
  choir_strategy_piece_t* pieces;
  int32_t bucket_count;
  int32_t value_count;  // 0: the strategy does not look at parameters
} choir__mirrored_t;
// Collective. Destroy it also after a failure.
choir_status_t choir__mirror_create(choir_allocator_t allocator,
                                    const choir__mirrored_t* what,
                                    choir__mirror_t** out_mirror);
void choir__mirror_destroy(choir__mirror_t* mirror);
// Records that copy a bucket's gradients, or all parameters, up or down.
choir_status_t choir__mirror_submit_bucket(choir__mirror_t* mirror,
                                           int32_t bucket,
                                           choir_stream_t* stream, bool is_up);
choir_status_t choir__mirror_submit_values(choir__mirror_t* mirror,
                                           choir_stream_t* stream, bool is_up);
// All parameters, now.
choir_status_t choir__mirror_copy_values(choir__mirror_t* mirror,
                                         choir_stream_t* stream, bool is_up);

// For tests: the stream on which buckets are exchanged, lent; NULL before
// attach.
choir_stream_t* choir__dist_opt_background(const choir_dist_opt_t* dist_opt);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_DIST_OPT_INTERNAL_H_
