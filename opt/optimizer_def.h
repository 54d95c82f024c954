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

// Whether the update of an element depends on that element alone, so that it
// may be taken shard by shard; no, where parameters have memory in common.
bool choir__optimizer_is_elementwise(const choir_optimizer_t* optimizer);
// Whether it clips gradients before an update, which needs all of them.
bool choir__optimizer_clips(const choir_optimizer_t* optimizer);
// The states of `param`, one of attach's that is trainable, in the order of
// choir_optimizer_states; lent. 0 where the optimizer keeps none, or `param` is
// not such a one.
int32_t choir__optimizer_states_of(const choir_optimizer_t* optimizer,
                                   const choir_param_t* param,
                                   choir_tensor_t* const** out_tensors);
// A shard of a parameter: `count` elements from `start`, in the order of
// memory. `grad`, and each of `states` (as many as states_of tells), has so
// many: where its gradient will be and where its states are kept, which may be
// other memory than the parameter's own states. `param` is one of attach's and
// trainable. Unique; to be destroyed before the optimizer lets go of its
// parameters.
typedef struct choir__param_shard_s choir__param_shard_t;
choir_status_t choir__param_shard_create(choir_optimizer_t* optimizer,
                                         choir_param_t* param, int64_t start,
                                         int64_t count, choir_tensor_t* grad,
                                         choir_tensor_t* const* states,
                                         choir__param_shard_t** out_shard)
    CHOIR_NODISCARD;
void choir__param_shard_destroy(choir__param_shard_t* shard);
// As choir_optimizer_update, of this shard alone.
choir_status_t choir__param_shard_update(choir__param_shard_t* shard,
                                         choir_stream_t* stream, int64_t step)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_OPT_OPTIMIZER_DEF_H_
