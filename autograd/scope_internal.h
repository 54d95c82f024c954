// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_
#define CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_

#include "autograd/grad_rule.h"
#include "core/profile.h"
#include "core/sum_tree_backend.h"
#include "tensor/fusion_def.h"

// A scope's insides, for scope.c, recompute.c, grad_rule.c, backward.c and
// micro_shards.c.

// Variables and tape entries lie in an arena that the next step reuses, and
// tensors come from the device's pool: a steady loop allocates nothing.

// Entries of the tape whose results are computed again.
typedef struct choir__recomputed_s choir__recomputed_t;

// The gradient of one micro-shard, of a variable without samples.
typedef struct choir__leaf_s {
  choir_tensor_t* grad;
  bool is_shared;
} choir__leaf_t;

// What the rule at hand is run for.
typedef enum choir__turn_e {
  CHOIR__TURN_ALL,      // all sources
  CHOIR__TURN_SAMPLES,  // those with samples, all samples at once
  CHOIR__TURN_NODE,     // of those without, sums over rows, some micro-shards
  CHOIR__TURN_REST,     // those without, one micro-shard
  CHOIR__TURN_LEAF,     // all, one micro-shard
} choir__turn_t;

struct choir_var_s {
  choir_var_t* next;       // all variables of the step, for the release
  choir_tensor_t* tensor;  // one reference; NULL: to be computed again
  choir_tensor_t* grad;    // one reference; NULL until something arrives
  choir_param_t* param;    // of a parameter
  const choir_tape_entry_t* entry;  // whose result 0 it is; NULL: none
  int32_t uses;                     // that backward visits
  int32_t pending;                  // of those, still to visit
  int32_t masked;                   // of those, with choir_grad_note_masked
  choir_tensor_t* scale;            // of its gradient, the scope's; NULL: none
  choir_var_t* rounded;             // itself in bf16; NULL: not yet
  choir_var_t* unrounded;           // the f32 that it is a cast to bf16 of
  choir_vars_t tuple;               // whose first it is; count 0: of none
  choir__recomputed_t* recomputed;  // the entry is one of these; NULL: of none
  // With micro-shards: rows of dimension 0 that a sample has; 0: it is of no
  // sample; CHOIR__MIXED: a micro-shard's elements are not rows of it.
  int64_t rows;
  choir__leaf_t* leaves;  // its gradients, of no sample; NULL: not yet
  // Of the gradient of one with samples: the entry that began it, and the last
  // micro-shard of it that is there.
  const choir_tape_entry_t* begun_by;
  int64_t last_leaf;
  bool wants_grad;
  bool is_leaf;
  bool is_kept;         // and not computed again
  bool reached;         // the loss depends on it
  bool grad_is_shared;  // grad is also somebody else's tensor: do not add
  bool is_partial;      // of no sample, but computed from this rank's
  // The nodes of its gradient are there: in their places or, where they are
  // rounded and summed up further, in `leaves`.
  bool has_nodes;
};

enum { CHOIR__MIXED = -1 };

struct choir_scope_s {
  choir_device_t* device;
  choir_stream_t* stream;  // the device's, lent
  choir_arena_t* arena;
  choir_step_t step;
  choir_status_t error;
  choir_var_t failed;  // what calls return after a failure
  choir_var_t* vars;
  const choir_tape_entry_t* tape;  // the last entry
  const char* label;
  uint64_t generation;
  int64_t next_random_stream;
  choir_dtype_t precision;       // of the steps to come
  choir_dtype_t step_precision;  // of this one
  bool backward_done;
  choir_span_t backward_span;
  // This rank's micro-shards first_leaf .. first_leaf + leaf_count - 1 of the
  // step's leaf_total; leaf_count 0: there are none.
  int64_t first_leaf, leaf_count, leaf_total;
  const choir_backward_options_t* backward;  // of the one that runs; or NULL
  choir__turn_t turn;
  int64_t leaf;                        // of the turn, from 0
  int64_t part_first, part_count;      // samples of the turn, from 0
  int32_t node, node_count;            // of the turn, and all of this rank
  const choir_tape_entry_t* visiting;  // the entry
  // That with the one in front of it, where gradients are of both; else NULL.
  const choir_fusion_t* fusion;
};

// scope.c
// A variable of the step; takes over one reference to `tensor`.
choir_var_t* choir__var_make(choir_scope_t* scope, choir_tensor_t* tensor);

// recompute.c; of NULL all is there.
bool choir__recomputed_is_there(const choir__recomputed_t* part);
// Before the first of its entries is visited.
choir_status_t choir__recompute(choir_scope_t* scope, choir__recomputed_t* part)
    CHOIR_NODISCARD;
// After each; the last one visited drops the results again.
void choir__recomputed_visited(const choir__recomputed_t* part,
                               const choir_tape_entry_t* entry);

// grad_rule.c
// What an entry's rule gets, but for dy.
choir_grad_t choir__grad_of(choir_scope_t* scope,
                            const choir_tape_entry_t* entry);
// In a turn for one micro-shard: of that.
choir_status_t choir__grad_take_part(choir_grad_t* grad,
                                     const choir_tape_entry_t* entry)
    CHOIR_NODISCARD;
// What choir_grad_only_producer finds, whatever turns the two take; or NULL.
const choir_tape_entry_t* choir__grad_producer(const choir_grad_t* grad,
                                               int32_t src);

// rule_table.c
// The fusion whose gradients choir__grad_run would take (tensor/fusion_def.h),
// and the entry in front; NULL: the op's rule.
const choir_fusion_t* choir__grad_fusion(
    choir_op_t op, const choir_grad_t* grad,
    const choir_tape_entry_t** out_producer);

// micro_shards.c: gradients as sums over micro-shards.
// At the begin of a step.
choir_status_t choir__micro_shards_begin(choir_scope_t* scope) CHOIR_NODISCARD;
// Sets the rows of an op's results.
void choir__micro_shards_note(choir_scope_t* scope, choir_op_t op,
                              choir_var_t* const* srcs, int32_t src_count,
                              const void* attrs, choir_var_t* const* dsts);
// Those of a custom op's result.
void choir__micro_shards_note_custom(const choir_scope_t* scope,
                                     const choir_custom_op_t* op,
                                     choir_var_t* const* srcs,
                                     int32_t src_count, choir_var_t* dst);
// In the place of its rule, where it knows micro-shards: the gradients that it
// gave.
choir_status_t choir__micro_shards_pass(choir_grad_t* grad, int32_t src,
                                        choir_tensor_t* gradient)
    CHOIR_NODISCARD;
// Whether the turn is for this source.
bool choir__turn_wants(const choir_scope_t* scope, const choir_var_t* var);
// In a turn for one micro-shard, its part of a variable's tensor, or of a
// tensor in its shape; else, and of no sample, the whole. The scope's.
choir_status_t choir__turn_part(choir_scope_t* scope, const choir_var_t* var,
                                choir_tensor_t* tensor,
                                choir_tensor_t** out_part) CHOIR_NODISCARD;
// In such a turn, where the micro-shard's part of the gradient of a variable
// with samples goes (the caller's reference). makes: the whole is made where
// there is none, else *out_dst may be NULL.
choir_status_t choir__turn_place(choir_scope_t* scope, choir_var_t* var,
                                 choir_dtype_t dtype, bool makes,
                                 choir_tensor_t** out_dst, bool* out_accumulate)
    CHOIR_NODISCARD;
// choir_grad_emit_rows in a turn for a node of the sum over micro-shards.
choir_status_t choir__turn_node(choir_grad_t* grad, const int32_t* sources,
                                int32_t count, choir_op_t op,
                                choir_tensor_t* const* srcs, int32_t src_count,
                                uint32_t rows, const void* attrs)
    CHOIR_NODISCARD;
// Whether it is weighted by micro-shards: one of which it is not known what it
// has of each is refused.
choir_status_t choir__micro_shards_check_loss(const choir_scope_t* scope,
                                              const choir_var_t* loss)
    CHOIR_NODISCARD;
// Runs an entry's rule in all turns that it takes.
choir_status_t choir__micro_shards_visit(
    choir_scope_t* scope, const choir_tape_entry_t* entry,
    choir_status_t (*run)(choir_scope_t* scope, const choir_tape_entry_t* entry,
                          choir_tensor_t* dy)) CHOIR_NODISCARD;
// The whole gradient of a variable of no sample, from those of its
// micro-shards.
choir_status_t choir__micro_shards_sum(choir_scope_t* scope, choir_var_t* var)
    CHOIR_NODISCARD;
// Gradients of micro-shards that nothing needs any more.
void choir__micro_shards_drop(choir_scope_t* scope, choir_var_t* var);

#endif  // CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_
