// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_UPDATER_H_
#define CHOIR_MODEL_UPDATER_H_

#include "model/param_set.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a model needs of whoever updates its parameters: loss in, parameters
// updated. The optimizers of opt and DistOpt implement it; the model knows
// neither; what they fill in is in model/updater_backend.h. An updater serves
// one model at a time and keeps its parameters alive, until that is released or
// gets another one; then it keeps its states, and what would reach the model's
// parameters is FAILED_PRECONDITION.
//
// Ownership: shared. Threads: one thread at a time.

typedef struct choir_updater_s choir_updater_t;

// How gradients are shared; a lone optimizer ignores it.
typedef struct choir_update_options_s {
  const char* dist_option;  // "fp32"; NULL: the updater's own choice
  double spars;             // of sparse ones; 0: the updater's own choice
  const char* settings;     // others, "period=8,delay=4"; NULL: its own choice
} choir_update_options_t;

CHOIR_API void choir_updater_retain(choir_updater_t* updater);
CHOIR_API void choir_updater_release(choir_updater_t* updater);

// Collective: makes all replicas equal where a strategy let them differ, and
// averages states that training does not learn; call before digest, evaluation
// and checkpoints. There is nothing to do for a lone optimizer, NULL or an
// updater that never had a model. FAILED_PRECONDITION: its model is gone.
CHOIR_API choir_status_t choir_updater_consolidate(choir_updater_t* updater)
    CHOIR_NODISCARD;

// All elements of one of the updater's states (choir_model_states). Where each
// rank keeps a shard of it they come from all ranks, and go to rank `root`
// alone, others get NULL; -1: to all. Collective if choir_dist_opt_ranks_differ
// tells so; else any rank may call it, between steps, and sees what the others'
// shards hold then. Of what is no shard the tensor itself. The caller's
// reference.
// FAILED_PRECONDITION: a shard of a model that is gone, or a rank has let go of
// its own.
CHOIR_API choir_status_t choir_updater_gather(choir_updater_t* updater,
                                              const choir_named_tensor_t* state,
                                              int32_t root,
                                              choir_tensor_t** out_whole)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_UPDATER_H_
