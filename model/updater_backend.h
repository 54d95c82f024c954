// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_UPDATER_BACKEND_H_
#define CHOIR_MODEL_UPDATER_BACKEND_H_

#include <stdatomic.h>

#include "model/model.h"
#include "model/updater.h"

// For those who write an updater: embed choir_updater_t as the first member and
// fill in the vtable; every slot is required unless it says otherwise.

typedef struct choir_updater_vtable_s {
  void (*destroy)(choir_updater_t* updater);
  // Called by choir__updater_attach, when the parameters have values and no
  // others are attached. Makes states; may replace param->grad and (DistOpt)
  // the values by rank 0's.
  choir_status_t (*attach)(choir_updater_t* updater, choir_device_t* device,
                           choir_param_set_t* params);
  // The parameters go, or attach failed: ends the work on them and drops
  // whatever points to them. States stay readable until the next attach.
  void (*detach)(choir_updater_t* updater);
  // Backward from `loss`, combine, update. `loss` NULL: this rank has no
  // sample in this step but takes part. Failures go to the scope.
  void (*backward_and_update)(choir_updater_t* updater, choir_scope_t* scope,
                              choir_var_t* loss);
  // From the next step on; before attach too. Collective where attach is. NULL:
  // there is nothing to choose.
  choir_status_t (*set_options)(choir_updater_t* updater,
                                const choir_update_options_t* options);
  // The states, by name, for checkpoints; lent. `out_states` may be NULL to
  // count.
  size_t (*states)(choir_updater_t* updater, choir_named_tensor_t* out_states);
  // See choir_updater_gather; of shards only. NULL: there are none.
  choir_status_t (*gather)(choir_updater_t* updater,
                           const choir_named_tensor_t* state, int32_t root,
                           choir_tensor_t** out_whole);
  // See choir_updater_consolidate.
  choir_status_t (*consolidate)(choir_updater_t* updater);
  // For layers that compute over the samples of all ranks; both NULL: it knows
  // of no other ranks. Collective, after attach: makes room for all_gather of
  // `most_bytes` of each rank.
  choir_status_t (*open_all_gather)(choir_updater_t* updater,
                                    size_t most_bytes);
  // In a training step, on the compute stream and in one order on all ranks:
  // the first `rows` rows of `own` (rows or more, elements; dense, of one dtype
  // and as many elements on all ranks) of every rank, in rank order, as
  // *out_all (total, elements), a new reference; what it holds is overwritten
  // by the next all_gather of the stream. total: the rows of all ranks; 0:
  // every rank has as many, and total is what they make up. `name`, long-lived,
  // is compared over ranks.
  choir_status_t (*all_gather)(choir_updater_t* updater,
                               const choir_step_values_t* values,
                               choir_tensor_t* own, int64_t rows, int64_t total,
                               const char* name, choir_tensor_t** out_all);
  // Before each training step, eager or replayed, by the thread that trains:
  // sets the scalars of the step (core/scalar.h); may change what comes below.
  // NULL: nothing to do.
  choir_status_t (*begin_step)(choir_updater_t* updater, int64_t step);
  // How many passes forward and backward make one step; of the first ones,
  // step.is_partial, backward_and_update keeps the gradients. NULL: one.
  int64_t (*passes)(const choir_updater_t* updater);
  // For graphs (core/graph.h). Changes when backward_and_update begins to do
  // something else than before; NULL: it never does.
  int64_t (*variant)(const choir_updater_t* updater);
  // A second stream that backward_and_update gives work to, lent; NULL (also
  // the slot): none.
  choir_stream_t* (*stream)(const choir_updater_t* updater);
  // A replay of the step failed with `status` (taken over): returns what to
  // report. NULL: nothing to do.
  choir_status_t (*replay_failed)(choir_updater_t* updater,
                                  choir_status_t status);
  // A call of choir_model_train_one_batch failed with `status` (lent), at
  // whatever place, and its step was neither counted nor retracted. Tells
  // peers, who may wait for this rank. NULL: there are none.
  void (*step_failed)(choir_updater_t* updater, choir_status_t status);
  // Before that, of an updater with takes_back: where `status` (taken over)
  // says that peers were lost, or have come, those that are there go on, and it
  // returns NULL. Parameters, whatever of them training does not learn, and
  // states are then those after *step steps on all of them; the caller gives
  // how many this rank has made. Else it returns `status`, or what went wrong.
  choir_status_t (*take_back)(choir_updater_t* updater, choir_status_t status,
                              int64_t* step);
} choir_updater_vtable_t;

struct choir_updater_s {
  atomic_int ref_count;
  const choir_updater_vtable_t* vtable;
  // Of choir__updater_attach.
  bool has_model;
  bool had_model;
  choir_param_set_t* params;  // one reference while it has a model
  const char* model;          // its name, lent; NULL: not told
  bool takes_back;            // its take_back may return NULL
  bool is_newcomer;           // whose first take_back gives it all others have
  // The program has set the step, and states too in all likelihood; the updater
  // sets it back.
  bool was_set;
};

// An updater serves one model at a time; its parameter set stands for it.
// FAILED_PRECONDITION: it has another one, or has one and `model` is NULL.
// `model` as above.
choir_status_t choir__updater_check_free(const choir_updater_t* updater,
                                         const choir_param_set_t* params,
                                         const char* model) CHOIR_NODISCARD;
// Checks that, and calls attach. With the same parameters as before the updater
// begins anew. After a failure of attach it has no model.
choir_status_t choir__updater_attach(choir_updater_t* updater,
                                     choir_device_t* device,
                                     choir_param_set_t* params,
                                     const char* model) CHOIR_NODISCARD;
// Before the parameters go: calls detach if they are the updater's.
void choir__updater_detach(choir_updater_t* updater,
                           const choir_param_set_t* params);
// FAILED_PRECONDITION while it has none: `what` was asked of `name`.
choir_status_t choir__updater_need_model(const choir_updater_t* updater,
                                         const char* name, const char* what)
    CHOIR_NODISCARD;

// For a collective of the program's own that failed with `status` (taken over):
// NULL where others go on, and the model is at a step that all of them have.
choir_status_t choir__model_take_back(choir_model_t* model,
                                      choir_status_t status) CHOIR_NODISCARD;

#endif  // CHOIR_MODEL_UPDATER_BACKEND_H_
