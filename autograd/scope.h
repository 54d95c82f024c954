// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_AUTOGRAD_SCOPE_H_
#define CHOIR_AUTOGRAD_SCOPE_H_

#include "tensor/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// A scope is one step of a program: it owns every intermediate result and
// keeps the first error, so that a model reads like its mathematics. Calls
// return handles (variables); a handle that failed makes the calls after it
// no-ops; choir_scope_end reports what went wrong first.
//
//   choir_scope_begin(scope, &step);
//   choir_var_t* x = choir_scope_input(scope, pixels);
//   choir_var_t* y = choir_var_relu(scope, choir_var_matmul(scope, x, w,
//   NULL)); choir_scope_backward(scope, loss, NULL);
//   CHOIR_TRY(choir_scope_end(scope));
//
// In a training step the scope keeps a tape: one plain record (op, sources,
// results, attributes) for each op that a gradient can flow through.
// choir_scope_backward walks it from the end; the rules in autograd/rules
// write further records. Nothing captures a value.
//
// Ownership: scope is unique; variables belong to it and die at the next
// begin, end or destroy. Parameters are the caller's.
// Threads: one thread at a time.

typedef struct choir_scope_s choir_scope_t;
typedef struct choir_var_s choir_var_t;

// Variables that are handed to a forward: at[0] .. at[count - 1]. Borrowed.
// CHOIR_VARS(x, mask) is such a list, for C; it lives until its block ends.
typedef struct choir_vars_s {
  choir_var_t* const* at;
  int32_t count;
} choir_vars_t;
#define CHOIR_VARS(...)                    \
  ((choir_vars_t){                         \
      (choir_var_t* const[]){__VA_ARGS__}, \
      sizeof((choir_var_t* const[]){__VA_ARGS__}) / sizeof(choir_var_t*)})

// A tensor to be learnt, with its gradient. Plain struct; the maker (model)
// owns the tensors and the name.
typedef struct choir_param_s {
  const char* name;  // "conv1.W"
  choir_tensor_t* value;
  // Where backward writes: shape and strides of value; may be NULL if not
  // trainable. Whoever combines gradients puts its own memory here (a view
  // into a bucket).
  choir_tensor_t* grad;
  // Where a gradient has several places: `grad` has the first part,
  // grad_parts[i - 1] part i, alike (see choir_step_t.micro_shard). Of the one
  // who combines gradients; NULL: there is one place.
  choir_tensor_t* const* grad_parts;
  int32_t grad_part_count;
  bool trainable;  // false: a constant to backward (frozen)
  // The scope's, while a step runs.
  choir_scope_t* scope;
  choir_var_t* var;
  uint64_t generation;
} choir_param_t;

// Where in the run a step is. Random numbers are keyed by it, never by rank.
typedef struct choir_step_s {
  bool training;
  int64_t seed;
  int64_t step;  // counts training steps from 0 over the whole run
  int64_t
      first_sample;  // place of this rank's first sample in the global batch
  // This rank's samples; of a step in several passes those so far.
  int64_t sample_count;
  int64_t global_count;   // all ranks' samples in this step
  bool is_partial;        // another pass of this step follows
  int64_t batch_number;   // of the batch, by the program's count; 0: not told
  int64_t random_stream;  // the first of choir_scope_next_random_stream
  // Of inference: what layers keep of the places before (model/kv_cache.h);
  // NULL: there are none.
  struct choir_kv_cache_s* cache;
  // The tape has every op, also those without a gradient: what forward
  // computed, to be written down (onnx/onnx.h). There is no backward then.
  bool keeps_all;
  // Samples of a micro-shard, at which first_sample begins one; 0: there are
  // none. A gradient is then the sum over the whole step's micro-shards of
  // theirs, each weighted by its share of the samples, in one order for any
  // number of ranks (docs/reproducible.md): with the bits of one rank that has
  // all samples. Where this rank's micro-shards are no subtree of the sum's
  // tree a gradient has several parts, to be added up with other ranks'.
  int64_t micro_shard;
} choir_step_t;

CHOIR_API choir_status_t choir_scope_create(choir_device_t* device,
                                            choir_scope_t** out_scope)
    CHOIR_NODISCARD;
CHOIR_API void choir_scope_destroy(choir_scope_t* scope);

// Starts a step; what a step before it left is dropped. step may be NULL
// (inference).
CHOIR_API void choir_scope_begin(choir_scope_t* scope,
                                 const choir_step_t* step);
// Ends it: drops all variables and returns the first failure.
CHOIR_API choir_status_t choir_scope_end(choir_scope_t* scope) CHOIR_NODISCARD;

// Mixed precision from the next begin on (docs/precision.md). Other than F32,
// the default, ops take their sources as choir_op_mixed_dtypes says: with BF16
// products and what comes behind them have 16 bits, with F16 products alone.
// Casts are ops on the tape. Gradients of f32 variables are f32, and those of
// all others have their variable's dtype. With F16 the gradient of each product
// is scaled by a power of two, its largest element to [1, 2), and what comes
// out scaled back, so that small ones do not vanish.
CHOIR_API void choir_scope_set_precision(choir_scope_t* scope,
                                         choir_dtype_t dtype);
// The one of this step.
CHOIR_API choir_dtype_t choir_scope_precision(const choir_scope_t* scope);
CHOIR_API choir_stream_t* choir_scope_stream(const choir_scope_t* scope);
CHOIR_API choir_device_t* choir_scope_device(const choir_scope_t* scope);
CHOIR_API const choir_step_t* choir_scope_step(const choir_scope_t* scope);
// False once something failed in this step.
CHOIR_API bool choir_scope_is_ok(const choir_scope_t* scope);
// `bytes` of memory, cleared, that live as long as the variables: for the
// `self` of a custom op. NULL: there is none, and the scope fails.
CHOIR_API void* choir_scope_alloc(choir_scope_t* scope, size_t bytes);
// Hands a failure to the scope (frees it when there was one before); NULL does
// nothing. Returns the failed variable, to be returned in its place.
CHOIR_API choir_var_t* choir_scope_fail(choir_scope_t* scope,
                                        choir_status_t status);
// The first failure of this step, taken from the scope, for a function that
// returns a status; NULL: none so far.
CHOIR_API choir_status_t choir_scope_take_failure(choir_scope_t* scope)
    CHOIR_NODISCARD;
// Names the work that follows ("conv1") in failures, those of its gradients
// too; long-lived or NULL.
CHOIR_API void choir_scope_set_label(choir_scope_t* scope, const char* label);
CHOIR_API const char* choir_scope_label(const choir_scope_t* scope);
// A number for each place in a step that draws random numbers: from the step's
// random_stream on in the order of calls, so the same in every step and on
// every rank.
CHOIR_API int64_t choir_scope_next_random_stream(choir_scope_t* scope);

// A constant (retains the tensor).
CHOIR_API choir_var_t* choir_scope_input(choir_scope_t* scope,
                                         choir_tensor_t* tensor);
// A constant whose first dimension is that of the step's samples, a multiple of
// them, with a sample's rows side by side.
CHOIR_API choir_var_t* choir_scope_samples(choir_scope_t* scope,
                                           choir_tensor_t* tensor);
// A parameter: the same variable each time within a step.
CHOIR_API choir_var_t* choir_scope_param(choir_scope_t* scope,
                                         choir_param_t* param);
// From here to the end of the step choir_scope_param gives `var`, a variable of
// this step, for the parameter, whose value and gradient are not looked at: a
// layer computes with a tensor that somebody else keeps.
CHOIR_API void choir_scope_bind(choir_scope_t* scope, choir_param_t* param,
                                choir_var_t* var);
// Any op: result 0; further results into out_more (may be NULL), which has
// choir_op_result_count(op) - 1 entries. Gradients flow through result 0 only,
// and only where it is of a floating-point dtype.
CHOIR_API choir_var_t* choir_scope_op(choir_scope_t* scope, choir_op_t op,
                                      choir_var_t* const* srcs,
                                      int32_t src_count, const void* attrs,
                                      choir_var_t** out_more);
// An op that was run outside of the scope (choir_op_run): its sources and
// results as variables of this step. For programs that decide after forward
// what backward is to see, such as the Python package. results: the op's, all
// of them, retained; attrs as the op was given them.
CHOIR_API choir_var_t* choir_scope_record(choir_scope_t* scope, choir_op_t op,
                                          choir_var_t* const* srcs,
                                          int32_t src_count, const void* attrs,
                                          choir_tensor_t* const* results);

// A function that Choir does not know, with its gradient.
typedef struct choir_custom_op_s {
  const char* name;  // for errors; lives as long as the step
  // Called once in backward, if the loss depends on the result. dy is the
  // result's gradient, lent. Sets out_grads[i], for sources that want one, to a
  // new tensor of the shape of source i (its reference is taken over); NULL: no
  // contribution.
  choir_status_t (*backward)(void* self, choir_tensor_t* dy,
                             choir_tensor_t** out_grads);
  void* self;
  // The result's first dimension is that of source 0, and with micro-shards
  // (choir_step_t) out_grads[i] of a source of no sample has one dimension
  // more, in front: this rank's micro-shards. Without it such a source cannot
  // have a gradient then.
  bool knows_micro_shards;
} choir_custom_op_t;
// A backward whose self is a choir_callback_t (core/callback.h); arguments: dy,
// out_grads.
CHOIR_API choir_status_t choir_custom_op_callback(void* self,
                                                  choir_tensor_t* dy,
                                                  choir_tensor_t** out_grads)
    CHOIR_NODISCARD;
// Its result, which the caller has computed from the sources, as a variable.
CHOIR_API choir_var_t* choir_scope_record_custom(choir_scope_t* scope,
                                                 const choir_custom_op_t* op,
                                                 choir_var_t* const* srcs,
                                                 int32_t src_count,
                                                 choir_tensor_t* result);

// An op of the tape: what choir_scope_record takes, to put it on the tape of
// another scope. Lives as long as the step.
typedef struct choir_tape_entry_s {
  const struct choir_tape_entry_s* previous;
  choir_op_t op;  // CHOIR_OP_COUNT: custom, none of the list
  int32_t src_count;
  choir_var_t** srcs;
  choir_var_t* results[CHOIR_OP_MAX_RESULTS];  // then NULL
  const void* attrs;  // the op's struct; NULL: it has none
  const char* label;
  choir_custom_op_t custom;
} choir_tape_entry_t;
// The last op so far that a gradient can flow through (of a step that
// keeps_all, the last op); NULL: there is none.
CHOIR_API const choir_tape_entry_t* choir_scope_tape(
    const choir_scope_t* scope);

// Activation checkpointing (Chen et al., 2016, arXiv:1604.06174): drops what
// the ops after `since`, a choir_scope_tape of before, gave, but for `result`
// (and the others of its tuple), and runs these ops again, with the same
// sources and attributes, when backward comes to them: one forward more, the
// same bits, and of the activations only those of one such part at a time.
// Custom ops cannot be run again: what they take and give stays. So do other
// variables that lie outside; those inside are of no use any more. Nothing is
// done where there is no tape (inference). Of parts in one another the
// outermost counts.
CHOIR_API void choir_scope_recompute(choir_scope_t* scope,
                                     const choir_tape_entry_t* since,
                                     choir_var_t* result);

// Several variables handed on as one, for a layer with several results: returns
// the first, with which the others are found. A gradient flows into each of
// them. A variable that is the first of two tuples remembers the later one.
CHOIR_API choir_var_t* choir_scope_tuple(choir_scope_t* scope,
                                         choir_vars_t vars);
// Variable `index`, from 0, of the tuple whose first is `var`; 0 of any other
// variable is itself. The scope fails where there is none of this number.
CHOIR_API choir_var_t* choir_scope_result(choir_scope_t* scope,
                                          choir_var_t* var, int32_t index);
// How many variables that tuple has; 1 of any other variable.
CHOIR_API int32_t choir_var_result_count(const choir_var_t* var);

// A variable's tensor, lent; NULL for a failed one.
CHOIR_API choir_tensor_t* choir_var_tensor(const choir_var_t* var);
// The tensor's view, for shapes; NULL for a failed one.
CHOIR_API const choir_view_t* choir_var_view(const choir_var_t* var);
// Whether a gradient can flow to it: it depends on a trainable parameter or a
// leaf. False for a failed one.
CHOIR_API bool choir_var_wants_grad(const choir_var_t* var);
// After backward: the gradient of an input made with choir_scope_leaf; lent.
CHOIR_API choir_tensor_t* choir_var_grad(const choir_var_t* var);
// An input that wants a gradient (tests, custom training).
CHOIR_API choir_var_t* choir_scope_leaf(choir_scope_t* scope,
                                        choir_tensor_t* tensor);

typedef struct choir_backward_options_s {
  // Parameters that must have a gradient at the end: those that the loss does
  // not reach get zeros. Those without `trainable` are left out.
  choir_param_t* const* params;
  size_t param_count;
  // Called the moment a parameter's gradient is complete on the scope's
  // stream, last layer first; the unreached ones come at the end. A failure
  // stops backward. May be NULL.
  choir_status_t (*on_grad)(void* self, choir_param_t* param);
  void* self;
  // The gradient of `loss` to start from, in its shape; then `loss` may have
  // more than one element. NULL: 1.
  choir_tensor_t* start;
  // It is a part of another scope's forward: profiles do not take it for the
  // step's backward, and a recorded step does not need this scope any more.
  bool is_part_of_forward;
  // With micro-shards: submits to the scope's stream what rounds the elements
  // of a node of the parameter's sum, f32 and dense in any order, where they
  // are: of every node from the level on that docs/reproducible.md says. NULL:
  // no sum is rounded.
  choir_status_t (*round_node)(void* self, choir_param_t* param,
                               choir_tensor_t* node);
} choir_backward_options_t;

// Adds to `sum`, f64 (1), the value of `loss`, one element, as a multiple of
// 2^-30: sums of those up to 2^22 are exact, so that they do not depend on
// their order. In a step with micro-shards it adds, of each of this rank's, the
// value that is computed from its samples alone, times its share of the step's:
// the sum over all ranks is the same for any number of them.
CHOIR_API choir_status_t choir_scope_add_losses(choir_scope_t* scope,
                                                const choir_var_t* loss,
                                                choir_tensor_t* sum)
    CHOIR_NODISCARD;

// Gradients of `loss` (one element, see start) with respect to all parameters
// and leaves that it depends on, overwriting param->grad. options may be NULL.
// Once per step.
CHOIR_API void choir_scope_backward(choir_scope_t* scope, choir_var_t* loss,
                                    const choir_backward_options_t* options);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_AUTOGRAD_SCOPE_H_
