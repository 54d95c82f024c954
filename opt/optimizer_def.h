// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_OPTIMIZER_DEF_H_
#define CHOIR_OPT_OPTIMIZER_DEF_H_

#include "opt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// For what wraps an optimizer. Not installed.

enum { CHOIR_OPTIMIZER_MAX_STATES = 2 };

// ---- For who shares out an update (DistOpt) ----

// What attach begins with: marks what frozen groups match as not trainable
// (is_whole: INVALID_ARGUMENT names a group that matches none). After it:
choir_status_t choir__optimizer_prepare(choir_optimizer_t* optimizer,
                                        const choir_param_set_t* params,
                                        bool is_whole) CHOIR_NODISCARD;
// Whether the update of an element depends on that element alone, so that it
// may be taken shard by shard; no, where parameters have memory in common.
bool choir__optimizer_is_elementwise(const choir_optimizer_t* optimizer);
// The limits of gradients that it was given.
const choir_gradient_clip_t* choir__optimizer_clip(
    const choir_optimizer_t* optimizer);
// As choir_optimizer_update, of gradients that are within the limits.
choir_status_t choir__optimizer_update_clipped(choir_optimizer_t* optimizer,
                                               choir_stream_t* stream,
                                               int64_t step) CHOIR_NODISCARD;
// Multiplies all learning rates from the next step on, beside what the program
// sets; 1 at first.
void choir__optimizer_scale_lr(choir_optimizer_t* optimizer, double scale);
// What learning rates follow from, beside the schedule: that scale, and what
// the program has set of the optimizer and its groups. Returns how many numbers
// that is; rates NULL: this alone.
size_t choir__optimizer_rates(const choir_optimizer_t* optimizer,
                              double* rates);
void choir__optimizer_set_rates(choir_optimizer_t* optimizer,
                                const double* rates);
// The dtype of the states of parameters of `dtype`: F32 where these have 16
// bits, as sums of small steps need more.
choir_dtype_t choir__optimizer_state_dtype(choir_dtype_t dtype);
// How many states a parameter has.
int32_t choir__optimizer_state_count(const choir_optimizer_t* optimizer);

// Which states are kept here and where, instead of all in memory of their own.
typedef struct choir__sharding_s {
  // `count` elements of a trainable parameter from `start`, in the order of
  // memory; count may be 0.
  void (*part_of)(void* self, const choir_param_t* param, int64_t* out_start,
                  int64_t* out_count);
  // Those elements of its state `number`: a tensor [count].
  choir_status_t (*place)(void* self, const choir_param_t* param,
                          int32_t number, choir_tensor_t** out_state);
  void* self;
} choir__sharding_t;
// From the next attach on; borrowed. NULL: whole states. States that are shards
// are updated by choir__param_shard_update alone.
void choir__optimizer_set_sharding(choir_optimizer_t* optimizer,
                                   const choir__sharding_t* sharding);
// Whose state `tensor`, one of choir_optimizer_states, is; NULL: of none that
// is there.
const choir_param_t* choir__optimizer_find_state(
    const choir_optimizer_t* optimizer, const choir_tensor_t* tensor,
    int32_t* out_number);

// A shard of a parameter: `count` elements from `start`, in the order of
// memory, whose states are kept here. `grad` has so many: where its gradient
// will be. `param` is one of attach's and trainable. Unique; to be destroyed
// before the optimizer lets go of its parameters.
typedef struct choir__param_shard_s choir__param_shard_t;
choir_status_t choir__param_shard_create(choir_optimizer_t* optimizer,
                                         choir_param_t* param, int64_t start,
                                         int64_t count, choir_tensor_t* grad,
                                         choir__param_shard_t** out_shard)
    CHOIR_NODISCARD;
void choir__param_shard_destroy(choir__param_shard_t* shard);
// As choir_optimizer_update, of this shard alone.
choir_status_t choir__param_shard_update(choir__param_shard_t* shard,
                                         choir_stream_t* stream, int64_t step)
    CHOIR_NODISCARD;

// ---- clip_gradients.c ----

// Whether there is any limit.
bool choir__clips(const choir_gradient_clip_t* clip);
// Records that limit gradients where they lie, or a part of them: first their
// values, where there is a limit.
choir_status_t choir__clip_values(const choir_gradient_clip_t* clip,
                                  choir_stream_t* stream,
                                  choir_tensor_t* const* grads, size_t count)
    CHOIR_NODISCARD;
// Then the norm, where there is one: total = the sum of their squares, in a
// tensor that make_total made; and, from the sum over all, the gradients times
// limit / max(norm, limit).
choir_status_t choir__clip_make_total(const choir_tensor_t* grad,
                                      choir_tensor_t** out_total)
    CHOIR_NODISCARD;
choir_status_t choir__clip_squares(choir_stream_t* stream,
                                   choir_tensor_t* const* grads, size_t count,
                                   choir_tensor_t* total) CHOIR_NODISCARD;
choir_status_t choir__clip_scale(const choir_gradient_clip_t* clip,
                                 choir_stream_t* stream,
                                 choir_tensor_t* const* grads, size_t count,
                                 choir_tensor_t* total) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_OPT_OPTIMIZER_DEF_H_
