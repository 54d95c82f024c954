// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_MODEL_MODEL_H_
#define CHOIR_MODEL_MODEL_H_

#include "autograd/functions.h"
#include "core/callback.h"
#include "core/graph.h"
#include "model/layers.h"
#include "model/updater.h"

#ifdef __cplusplus
extern "C" {
#endif

// A model: layers, what forward does with them, and its training step. Read
// beside SINGA's model.Model:
//
//   typedef struct { choir_layer_t *conv, *pool, *flat, *fc; } net_t;
//
//   static void net_define(choir_model_t* model, void* self) {
//     net_t* net = self;
//     net->conv = choir_layer_conv2d(model, "conv", .out_channels = 20,
//                                    .kernel_size = 5,
//                                    .activation = CHOIR_ACTIVATION_RELU);
//     net->pool = choir_layer_max_pool2d(model, "pool", .kernel_size = 2);
//     net->flat = choir_layer_flatten(model, "flat");
//     net->fc = choir_layer_linear(model, "fc", .out_features = 10);
//   }
//   static choir_var_t* net_forward(choir_scope_t* s, void* self,
//                                   choir_vars_t inputs) {
//     net_t* net = self;
//     choir_var_t* x = choir_layer_forward(s, net->conv, inputs.at[0]);
//     ...
//     return choir_layer_forward(s, net->fc, x);
//   }
//   static const choir_model_def_t net_def = {
//       .name = "net", .define = net_define, .forward = net_forward};
//
// Errors in define and forward need no check: the model and the scope keep
// the first one, and choir_model_compile or the step reports it.
//
// Ownership: shared. Threads: one thread at a time.

typedef struct choir_model_s choir_model_t;

typedef struct choir_model_def_s {
  const char* name;
  // Creates the layers, in the order in which parameters shall be listed.
  void (*define)(choir_model_t* model, void* self);
  // inputs: a batch's, as many as choir_model_compile was told; returns e.g.
  // (n, classes). NULL, with train_one_batch: the model only trains
  // (choir_model_evaluate and choir_model_predict: FAILED_PRECONDITION) and has
  // no layers.
  choir_var_t* (*forward)(choir_scope_t* scope, void* self,
                          choir_vars_t inputs);
  // Optional, as SINGA's train_one_batch: forward, loss, and one call of
  // choir_model_backward_and_update. Returns forward's result and sets
  // *out_loss. NULL: `loss` or, without one, softmax cross-entropy of the first
  // target, class labels (...) of scores (..., classes).
  choir_var_t* (*train_one_batch)(choir_model_t* model, choir_scope_t* scope,
                                  void* self, choir_vars_t inputs,
                                  choir_vars_t targets, choir_var_t** out_loss);
  // Optional: the mean loss of the labels, in place of forward and softmax
  // cross-entropy where these would hold all scores of a large vocabulary
  // (choir_var_linear_cross_entropy). Evaluation takes it and, without
  // train_one_batch, training; hits are not counted then. Uses forward's layers
  // and no others.
  choir_var_t* (*loss)(choir_scope_t* scope, void* self, choir_vars_t inputs,
                       choir_vars_t targets);
} choir_model_def_t;

// A definition whose functions are of another language (core/callback.h): the
// model's `self` is a choir_model_callbacks_t. Copy it and give it a name. It
// has no forward.
typedef struct choir_model_callbacks_s {
  choir_callback_t define;  // arguments: model
  // model, scope, inputs and targets (const choir_vars_t*), out_loss
  choir_callback_t train_one_batch;
} choir_model_callbacks_t;
CHOIR_API extern const choir_model_def_t choir_model_def_callbacks;

// Makes the model and calls define. self is handed to the callbacks and must
// outlive the model. seed: of the initial values and of dropout.
CHOIR_API choir_status_t choir_model_create(choir_device_t* device,
                                            const choir_model_def_t* def,
                                            void* self, int64_t seed,
                                            choir_model_t** out_model)
    CHOIR_NODISCARD;
CHOIR_API void choir_model_retain(choir_model_t* model);
CHOIR_API void choir_model_release(choir_model_t* model);

// Gives every layer its shapes and every parameter its initial value by one
// forward on zeros like these: inputs[i] has the dtype, the shape and the
// (dense) strides of input i, of tokens I32 or I64, say; dimension 0 is the
// batch, and another size of it may follow. Buffers and offsets are not looked
// at, so that choir_tensor_view(x) will do. count: 1 to
// CHOIR_MODEL_MAX_TENSORS, or 0 for a model without forward. INVALID_ARGUMENT:
// another count, or strides with gaps.
CHOIR_API choir_status_t choir_model_compile(choir_model_t* model,
                                             const choir_view_t* inputs,
                                             int32_t count) CHOIR_NODISCARD;
// In define: a parameter that belongs to no layer, with its value, which is
// retained; it is the next in the list of parameters. trainable false: a state
// that training does not learn (a running average). Lent. NULL: it failed, and
// choir_model_create reports why; outside of define (FAILED_PRECONDITION after
// compile) the next call that needs a compiled model. In forward it is used by
// choir_scope_param.
CHOIR_API choir_param_t* choir_model_add_param(choir_model_t* model,
                                               const char* name,
                                               choir_tensor_t* value,
                                               bool trainable);
// After compile. Retains the updater and attaches it to the parameters; the one
// before lets go of them, and may go to another model. NULL: none. An updater
// serves one model at a time: FAILED_PRECONDITION, and nothing changes, while
// it is another model's. After any other failure the model has no updater.
CHOIR_API choir_status_t choir_model_set_updater(choir_model_t* model,
                                                 choir_updater_t* updater)
    CHOIR_NODISCARD;
// The updater that it has now, lent; NULL: none.
CHOIR_API choir_updater_t* choir_model_updater(const choir_model_t* model);
// How the updater shares gradients from now on; the texts are borrowed for the
// call. INVALID_ARGUMENT or NOT_FOUND: the updater has no such option or
// setting. Collective with DistOpt, once it is the model's updater.
CHOIR_API choir_status_t choir_model_set_update_options(
    choir_model_t* model, const choir_update_options_t* options)
    CHOIR_NODISCARD;

// How steps run from now on. With use_graph the second training step of each
// kind (shapes of the batch, trainable parameters, way to share gradients), the
// first evaluation and the first prediction are recorded, planned once, run and
// replayed from then on: without the calls of forward and
// train_one_batch, in memory laid out in advance (core/graph.h), and with the
// same bits. A step of another kind is recorded anew; the last eight kinds are
// kept. Learning rates, dropout and the weights of uneven batches follow the
// step. sequential: records stay as they are, one by one; else neighbours may
// become one. What callbacks do beside their ops happens only while recording,
// and a step that reads or writes tensors from the host in its middle fails
// with FAILED_PRECONDITION. Off at first. Drops what was recorded.
CHOIR_API void choir_model_set_graph(choir_model_t* model, bool use_graph,
                                     bool sequential);
// Mixed precision, for steps, evaluation and prediction from now on
// (docs/precision.md): with BF16 activations have 16 bits, with F16 products
// alone; products are summed in f32. Parameters, their gradients, optimizer
// states, losses and what forward returns stay f32, and so do checkpoints and
// what DistOpt exchanges. bf16 has the range of f32; f16 is three bits finer,
// and what comes back to a product is scaled into its range, so neither needs a
// scaled loss. Results of 65520 and more are infinite in f16. Quicker than F32
// on GPUs with tensor cores, and with BF16 on CPUs that multiply it (AMX,
// AVX512-BF16). F32: off, as at first. Drops recorded graphs. INVALID_ARGUMENT:
// any other.
CHOIR_API choir_status_t choir_model_set_precision(choir_model_t* model,
                                                   choir_dtype_t dtype)
    CHOIR_NODISCARD;
CHOIR_API choir_dtype_t choir_model_precision(const choir_model_t* model);
// From now on a training step whose loss is not finite fails before it updates
// anything (FAILED_PRECONDITION), and the message names what was first not
// finite: an input, a parameter (updated by a step before), or the layer and
// the op of forward, for which the step's forward runs once more. So a run that
// diverges ends with the parameters of its last sound step. Off at first; never
// on where the host does not see the device's memory, as each step would wait
// for the device. Drops recorded graphs.
CHOIR_API choir_status_t choir_model_set_loss_check(choir_model_t* model,
                                                    bool checks)
    CHOIR_NODISCARD;
// All planned graphs as choir_graph_print prints them, into a malloc'ed text
// that the caller frees; "" when there is none.
CHOIR_API choir_status_t choir_model_print_graphs(const choir_model_t* model,
                                                  char** out_text)
    CHOIR_NODISCARD;
// Of the training step that was planned or replayed last; zeros when there is
// none.
CHOIR_API choir_graph_stats_t
choir_model_graph_stats(const choir_model_t* model);

// Of which graph the last training step was a replay, or which one it recorded;
// 0: of none. A callback's result that the program still holds when the step is
// recorded stays where it is, and each replay of this graph writes it again.
CHOIR_API uint64_t choir_model_last_graph(const choir_model_t* model);

// One batch: what forward takes, and what the loss compares it with. A list
// ends with its first NULL. inputs[0] is (n, ...), and so are, as a rule, the
// others; dtypes are the program's choice. n may be 0 on a rank that has no
// sample left; both lists may then be empty.
enum { CHOIR_MODEL_MAX_TENSORS = 8 };
typedef struct choir_model_batch_s {
  choir_tensor_t* inputs[CHOIR_MODEL_MAX_TENSORS];
  choir_tensor_t* targets[CHOIR_MODEL_MAX_TENSORS];
  int64_t first_sample;  // see choir_step_t
  int64_t sample_count;
  int64_t global_count;
  // For programs whose callbacks do different things for different values of
  // it: steps of different variants are never replays of one graph. 0.
  int64_t variant;
  // Which batch of the run it is by the program's count, above 0: DistOpt
  // compares it over ranks, so that one which skips a batch is noticed. 0: not
  // told.
  int64_t batch_number;
  // Samples of a micro-shard (see choir_step_t); 0: there are none.
  int64_t micro_shard;
} choir_model_batch_t;

// Forward, loss, backward, update; counts loss and hits in the metrics. With an
// updater whose steps have several passes (DistOpt) one of these. The step, or
// pass, is counted as soon as the update is applied. A failure before the
// update leaves parameters and choir_model_step as they were. One within it may
// leave some parameters changed: then the optimizer refuses the next step
// (FAILED_PRECONDITION). One after it (a graph that can not be recorded, say)
// says that the step was applied and counted. A train_one_batch that does not
// update is logged, for each model once, and its step is not counted; with
// DistOpt, where other ranks would wait, it is FAILED_PRECONDITION.
CHOIR_API choir_status_t choir_model_train_one_batch(
    choir_model_t* model, const choir_model_batch_t* batch) CHOIR_NODISCARD;
// Forward in inference mode; counts hits, and the loss where it is the default
// one; or the definition's loss. A failure after that says so.
CHOIR_API choir_status_t choir_model_evaluate(choir_model_t* model,
                                              const choir_model_batch_t* batch)
    CHOIR_NODISCARD;
// Forward in inference mode; *out_y is the result (one reference). count: as
// compile was told.
CHOIR_API choir_status_t choir_model_predict(choir_model_t* model,
                                             choir_tensor_t* const* inputs,
                                             int32_t count,
                                             choir_tensor_t** out_y)
    CHOIR_NODISCARD;
// Forward in a scope of the caller's, on the model's device and after
// choir_model_compile; inputs: as many as compile was told. The scope's failed
// variable where it fails.
CHOIR_API choir_var_t* choir_model_forward_in(choir_model_t* model,
                                              choir_scope_t* scope,
                                              choir_vars_t inputs);
// For train_one_batch callbacks: backward from loss through the updater.
CHOIR_API void choir_model_backward_and_update(choir_model_t* model,
                                               choir_scope_t* scope,
                                               choir_var_t* loss);
// For train_one_batch callbacks that fail the step on purpose, on every rank
// alike, to run it again. Call it before failing. Without it DistOpt aborts the
// communicator, so that peers do not wait.
CHOIR_API void choir_model_retract_step(choir_model_t* model);

typedef struct choir_metrics_s {
  double loss_sum;  // of the batch losses; see choir_scope_add_losses
  int64_t batches;  // with micro-shards those of all ranks are one, counted by
                    // the rank of the first
  int64_t correct;  // labels that have the largest score; see def's loss
  int64_t samples;  // labels: of scores (n, classes) n, of (n, t, classes) n t
  // Of evaluation, by labels, where train_one_batch is the default or the
  // definition has a loss: divide by samples.
  double evaluation_loss_sum;
} choir_metrics_t;
// Since the last call; waits for the device.
CHOIR_API choir_status_t choir_model_take_metrics(choir_model_t* model,
                                                  choir_metrics_t* out_metrics)
    CHOIR_NODISCARD;

// Times forward and backward of training steps by this batch, as steps of the
// model run now (graph, precision, device): *out_seconds is the middling one of
// `steps` (1 or more), after two that are not counted. Nothing is updated, and
// counts, metrics, random numbers and what is not trained (running averages)
// are afterwards what they were; gradients are overwritten, recorded graphs
// dropped, and train_one_batch runs as often as it would be asked. A batch of
// no samples: 0, and nothing runs. FAILED_PRECONDITION: the model has no
// updater. Where layers compute over the samples of all ranks it is collective,
// with one number of steps.
CHOIR_API choir_status_t choir_model_rehearse(choir_model_t* model,
                                              const choir_model_batch_t* batch,
                                              int32_t steps,
                                              double* out_seconds)
    CHOIR_NODISCARD;

typedef struct choir_precision_choice_s {
  choir_dtype_t dtype;
  double f32_seconds;  // of forward and backward of a step
  double bf16_seconds;
} choir_precision_choice_t;
// In which precision the model trains quicker on this machine by batches like
// this one: BF16 where it takes less than 0.95 of F32's time, else F32. By
// choir_model_rehearse, whose conditions are its own; the model's precision
// stays what it is. Ranks may find different things: all have to take one's
// choice, say rank 0's, and choir_model_set_precision it.
CHOIR_API choir_status_t choir_model_choose_precision(
    choir_model_t* model, const choir_model_batch_t* batch,
    choir_precision_choice_t* out_choice) CHOIR_NODISCARD;

// What training takes of the device's memory, in bytes.
typedef struct choir_model_memory_s {
  uint64_t parameters;  // and what is not learnt, as running averages
  uint64_t gradients;
  uint64_t states;       // the updater's, on this rank
  uint64_t activations;  // temporaries of the planned step
} choir_model_memory_t;
// Plans one step of training (or, is_training false, of evaluation) by batches
// like this one, in graph mode, and runs nothing of it; also where the model's
// own steps are no graphs. The steps of a model share one place for
// activations, as large as the largest needs. The batch is only looked at.
// FAILED_PRECONDITION for a step that cannot be recorded, and before compile or
// without an updater.
CHOIR_API choir_status_t choir_model_plan_memory(
    choir_model_t* model, bool is_training, const choir_model_batch_t* batch,
    choir_model_memory_t* out_memory) CHOIR_NODISCARD;
// Training steps applied; part of every random key, saved and restored by
// checkpoints. From choir_model_backward_and_update on it counts the step that
// runs.
CHOIR_API int64_t choir_model_step(const choir_model_t* model);
CHOIR_API void choir_model_set_step(choir_model_t* model, int64_t step);

CHOIR_API choir_device_t* choir_model_device(const choir_model_t* model);
// All parameters and states; lent: retain the set to keep it longer than the
// model. Empty before compile, but for those of choir_model_add_param.
CHOIR_API choir_param_set_t* choir_model_params(const choir_model_t* model);
// Parameters, states and the updater's states for a checkpoint, by name;
// lent. out_states may be NULL to count.
CHOIR_API size_t choir_model_states(const choir_model_t* model,
                                    choir_named_tensor_t* out_states);
// 64 bits over all parameters and states of the model (not the updater's).
CHOIR_API choir_status_t choir_model_digest(choir_model_t* model,
                                            uint64_t* out_digest)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_MODEL_MODEL_H_
