// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_MODEL_INTERNAL_H_
#define CHOIR_MODEL_MODEL_INTERNAL_H_

#include <stdatomic.h>

#include "core/profile.h"
#include "model/model.h"

// The model's insides, for model.c, model_graph.c, model_parts.c and layer.c.

enum {
  CHOIR__MODEL_MAX_GRAPHS = 8,
  CHOIR__BATCH_TENSORS = 2 * CHOIR_MODEL_MAX_TENSORS,
};

typedef enum choir__step_kind_e {
  CHOIR__STEP_TRAIN,
  CHOIR__STEP_EVALUATE,
  CHOIR__STEP_PREDICT,
} choir__step_kind_t;

// What steps must share to be replays of one graph. Compared byte by byte.
typedef struct choir__graph_key_s {
  int64_t kind;
  // Without buffer and, but for those that share one, offset.
  choir_view_t tensors[CHOIR__BATCH_TENSORS];
  // Which tensor of the batch is the first in the same buffer, counted from 1;
  // 0: there is no tensor.
  int64_t owners[CHOIR__BATCH_TENSORS];
  int64_t variant;  // of the updater
  int64_t asked;    // the batch's variant
  int64_t partial;  // a pass that is not the step's last
  // With micro-shards: which there are, first_sample and global_count.
  int64_t micro_shard, first_sample, global_count;
  uint64_t trainable;
} choir__graph_key_t;

typedef struct choir__model_graph_s {
  choir__graph_key_t key;
  choir_graph_t* graph;
  bool is_once;             // not for other steps
  choir_metrics_t metrics;  // what one step adds on the host; first: before it
  choir_view_t result;      // of a prediction; its buffer is not there any more
  size_t result_bytes;      // of that buffer
  uint64_t used;            // when, for the one to be dropped
  uint64_t id;
} choir__model_graph_t;

// What a step changes beside what the updater does, as it was; zeros: nothing
// yet.
typedef struct choir__snapshot_s {
  choir_tensor_t** changing;  // [count] the model's, lent
  choir_tensor_t** kept;      // [count]
  size_t count;
  size_t most;
  choir_metrics_t metrics;
  int64_t step;
  int64_t pass;
  int64_t pass_samples;
} choir__snapshot_t;

#define CHOIR__MODEL_GRAPHS_BYTES \
  (CHOIR__MODEL_MAX_GRAPHS * sizeof(choir__model_graph_t))

struct choir_model_s {
  atomic_int ref_count;
  choir_device_t* device;
  const choir_model_def_t* def;
  void* self;
  int64_t seed;
  choir_dtype_t precision;
  int64_t first_stream;  // of the parameters' initial values
  int64_t step;
  int64_t pass;           // of the step: how many were counted before
  int64_t pass_samples;   // in those passes
  int64_t batch_samples;  // in the pass that runs
  bool is_updated;        // choir_model_backward_and_update was called in it
  bool is_counted;        // its update was applied, and it counted
  bool is_retracted;      // choir_model_retract_step was called in it
  bool is_kept;           // what was before it is in `before`
  bool told_no_update;    // the log has that a step did not update
  bool is_compiled;
  int32_t input_count;  // of forward, as compiled
  choir_span_t forward_span;
  choir_status_t error;  // the first failure of a call that makes a part
  choir_scope_t* scope;
  choir_updater_t* updater;
  choir__snapshot_t
      before;             // the step at hand, if the updater takes steps back
  choir_layer_t* parent;  // which makes children; NULL: none
  choir_layer_t** layers;
  size_t layer_count;
  size_t layer_capacity;
  // Those over the samples of all ranks (choir_sync_batch_norm_t), in the order
  // in which forward runs them.
  void** sync_norms;
  size_t sync_norm_count;
  size_t sync_norm_capacity;
  int64_t sync_norm_rows;           // that there is room for
  int64_t batch_number;             // of the step that runs
  choir_param_set_t* params;        // the layers' and the model's own
  choir_tensor_t* loss_sum;         // f64 (1), summed on the device
  choir_tensor_t* correct;          // i64 (1)
  choir_tensor_t* evaluation_loss;  // f64 (1)
  bool checks_loss;                 // choir_model_set_loss_check
  bool is_lost;                     // the step's loss is not finite
  choir_tensor_t* last_loss;        // f64 (1), of the step, where it is checked
  choir_metrics_t metrics;          // the parts that the host counts
  bool use_graph;
  bool sequential;
  choir_workspace_t* workspace;  // of all graphs
  choir__model_graph_t* graphs;  // room for the most; NULL before the first
  int32_t graph_count;
  uint64_t graph_clock;
  uint64_t last_graph;  // see choir_model_last_graph
  // Where choir_model_plan_memory wants the next step's; NULL: the step runs.
  choir_model_memory_t* memory;
  choir_graph_stats_t graph_stats;
};

// See choir_model_create; of any definition, also of one without functions.
choir_status_t choir__model_make(choir_device_t* device,
                                 const choir_model_def_t* def, void* self,
                                 int64_t seed, choir_model_t** out_model)
    CHOIR_NODISCARD;
// Fails where the model has none; `what` is not possible without one.
choir_status_t choir__model_need_updater(const choir_model_t* model,
                                         const char* what) CHOIR_NODISCARD;
// Whether the pass that comes is not the step's last.
bool choir__model_is_partial(const choir_model_t* model);

// model_graph.c
// Replays the step if a graph of its kind is planned; *out_done tells. A
// prediction gives *out_y, others take NULL.
choir_status_t choir__model_replay(choir_model_t* model,
                                   choir__step_kind_t kind,
                                   const choir_model_batch_t* batch,
                                   choir_tensor_t** out_y, bool* out_done)
    CHOIR_NODISCARD;
// Starts to record the step that follows; out_recorded->graph NULL: not this
// one. The scope begins after it and ends before choir__model_end_graph, which
// takes the graph, a prediction's result (else NULL) and the step's status,
// plans, runs the step, and returns the status or a failure to plan.
choir_status_t choir__model_begin_graph(choir_model_t* model,
                                        choir__step_kind_t kind,
                                        const choir_model_batch_t* batch,
                                        choir__model_graph_t* out_recorded)
    CHOIR_NODISCARD;
choir_status_t choir__model_end_graph(choir_model_t* model,
                                      const choir_model_batch_t* batch,
                                      choir__model_graph_t* recorded,
                                      const choir_tensor_t* y,
                                      choir_status_t status) CHOIR_NODISCARD;
void choir__model_drop_graphs(choir_model_t* model);

// snapshot.c
// On the model's stream; the model is compiled. Taken again into the same
// memory, also with other parameters frozen.
choir_status_t choir__snapshot_take(choir_model_t* model,
                                    choir__snapshot_t* snapshot)
    CHOIR_NODISCARD;
choir_status_t choir__snapshot_restore(choir_model_t* model,
                                       const choir__snapshot_t* snapshot)
    CHOIR_NODISCARD;
void choir__snapshot_drop(const choir_model_t* model,
                          choir__snapshot_t* snapshot);

// rehearsal.c
// Training steps with another end: what `backward` does in the place of
// backward and update, and `run`, which calls choir_model_train_one_batch.
typedef struct choir__aside_s {
  void (*backward)(choir_updater_t* updater, choir_scope_t* scope,
                   choir_var_t* loss);
  choir_status_t (*run)(choir_model_t* model, void* self);
  void* self;
} choir__aside_t;
// Runs them and puts back what steps change beside parameters, also after a
// failure; drops graphs. The model has an updater.
choir_status_t choir__model_step_aside(choir_model_t* model,
                                       const choir__aside_t* aside)
    CHOIR_NODISCARD;

// loss_check.c
// One element of any shape, as a loss may be () or (1) or (1, 1), into a
// counter on the device, or (adds) to it.
choir_status_t choir__model_take_loss(const choir_model_t* model,
                                      choir_var_t* loss, bool adds,
                                      choir_tensor_t* counter) CHOIR_NODISCARD;
// Keeps the loss for the check, if there is to be one.
choir_status_t choir__model_note_loss(choir_model_t* model, choir_var_t* loss)
    CHOIR_NODISCARD;
// Between forward and backward, in replays too.
choir_status_t choir__model_check_loss(choir_model_t* model) CHOIR_NODISCARD;
// A step by this batch that failed with `status` (taken over): says what made
// its loss not finite, if that was it.
choir_status_t choir__model_explain_loss(choir_model_t* model,
                                         const choir_model_batch_t* batch,
                                         choir_status_t status) CHOIR_NODISCARD;

// model_parts.c
// Keeps the first failure; NULL does nothing.
void choir__model_fail(choir_model_t* model, choir_status_t status);
// That failure, once.
choir_status_t choir__model_take_error(choir_model_t* model) CHOIR_NODISCARD;
// What is made from now on belongs to `layer`, or, where it is NULL, to the
// model. Returns the one before.
choir_layer_t* choir__model_enter(choir_model_t* model, choir_layer_t* layer);
// Takes the layer over unless it fails; a name that is taken already becomes
// the model's failure.
choir_status_t choir__model_add_layer(choir_model_t* model,
                                      choir_layer_t* layer) CHOIR_NODISCARD;
// See choir_param_set_add; before compile. *out_param is the model's.
choir_status_t choir__model_add_param(choir_model_t* model, const char* name,
                                      choir_tensor_t* value, bool trainable,
                                      choir_param_t** out_param)
    CHOIR_NODISCARD;
// Appends a pointer to a growing array.
choir_status_t choir__append(choir_allocator_t allocator, void*** items,
                             size_t* count, size_t* capacity, void* item)
    CHOIR_NODISCARD;
// sync_batch_norm.c
// Collective where there is not as much yet: room for what they exchange, so
// many rows of all ranks, with the updater that the model has now. Not while a
// step is recorded.
choir_status_t choir__sync_norms_open(choir_model_t* model, int64_t rows);
// In the place of forward and backward, on a rank without samples.
void choir__sync_norms_without_samples(choir_model_t* model,
                                       choir_scope_t* scope);
// Forgets all but the first `count`.
void choir__sync_norms_keep(choir_model_t* model, size_t count);
struct choir_sync_batch_norm_s;
choir_status_t choir__sync_norm_update(
    choir_scope_t* scope, const struct choir_sync_batch_norm_s* norm,
    choir_tensor_t* mean, choir_tensor_t* unbiased) CHOIR_NODISCARD;
// layer.c
// *out_text is "parent.name" or, without a parent, "name"; choir__free_text.
choir_status_t choir__full_name(const choir_model_t* model,
                                const choir_layer_t* parent, const char* name,
                                char** out_text) CHOIR_NODISCARD;
void choir__free_text(const choir_model_t* model, char* text);
void choir__layer_destroy(choir_layer_t* layer);

#endif  // CHOIR_MODEL_MODEL_INTERNAL_H_
