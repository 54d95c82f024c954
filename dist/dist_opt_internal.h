// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_DIST_OPT_INTERNAL_H_
#define CHOIR_DIST_DIST_OPT_INTERNAL_H_

#include "dist/dist_opt.h"
#include "dist/strategies/strategy_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

// What dist_opt_states.c needs of it; lent.
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

// dist_opt_states.c
// A list of tensors of all ranks. Unique; `states` must outlive it.
typedef struct choir__rank_states_s choir__rank_states_t;
// Collective, after consolidate, with the model's states on every rank. On rank
// 0 the result lists these and, of each that is not the same on all ranks,
// copies of all others' as "rank1/<name>", "rank2/<name>"; elsewhere nothing.
// FAILED_PRECONDITION on all ranks: not yet a model's updater; a trained
// parameter differs. Blocks; each such tensor is sent to all ranks, one at a
// time.
choir_status_t choir__dist_opt_gather_states(
    choir_dist_opt_t* dist_opt, const choir_named_tensor_t* states,
    size_t count, choir__rank_states_t** out_gathered) CHOIR_NODISCARD;
// Lent.
const choir_named_tensor_t* choir__rank_states_list(
    const choir__rank_states_t* gathered, size_t* out_count);
void choir__rank_states_destroy(choir__rank_states_t* gathered);
// Sets *out_found if something was saved as `name` and, unless `tensor` is
// NULL, fills it.
typedef choir_status_t (*choir__state_read_t)(void* self, const char* name,
                                              choir_tensor_t* tensor,
                                              bool* out_found);
// NOT_FOUND: one of the states was not saved; FAILED_PRECONDITION: it was, but
// for each of another number of ranks than `size`. out_has_own[i] (may be
// NULL): whether state i was saved for each rank.
choir_status_t choir__check_copies(const choir_named_tensor_t* states,
                                   size_t count, int32_t size,
                                   choir__state_read_t read, void* self,
                                   uint8_t* out_has_own) CHOIR_NODISCARD;
// Collective, after attach: sets the model's states on every rank from what
// rank 0 reads; elsewhere `read` is not called. A name with others' copies
// gives each rank its own, one without gives all the same. Fails on every rank
// with rank 0's reason: one of choir__check_copies, after which nothing was
// changed; or a failure of `read`, after which some states may be.
choir_status_t choir__dist_opt_distribute_states(
    choir_dist_opt_t* dist_opt, const choir_named_tensor_t* states,
    size_t count, choir__state_read_t read, void* self) CHOIR_NODISCARD;

// dist_opt_agree.c
typedef struct choir__agreement_s {
  choir_comm_t* comm;
  choir_allocator_t allocator;
  choir_param_set_t* params;
  const choir_optimizer_t* optimizer;
  const choir_dist_opt_config_t* config;
  const choir_strategy_t* strategy;  // to be used
} choir__agreement_t;
// Collective. FAILED_PRECONDITION on all ranks, with the first rank that has
// something else than rank 0; _model: compares every parameter as well.
choir_status_t choir__agree_on_settings(const choir__agreement_t* mine);
choir_status_t choir__agree_on_model(const choir__agreement_t* mine);
// Collective: the end of a call that all ranks make, whose `status` is this
// rank's. Where it is a failure of this rank alone the others get it in the
// operation that they come to next, at the latest in this one. Returns
// `status`, or what was heard.
choir_status_t choir__agree_on_outcome(choir_comm_t* comm, const char* call,
                                       choir_status_t status);

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
