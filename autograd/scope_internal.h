// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_
#define CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_

#include "autograd/grad_rule.h"
#include "core/profile.h"

// A scope's insides, for scope.c, recompute.c, grad_rule.c and backward.c.

// Variables and tape entries lie in an arena that the next step reuses, and
// tensors come from the device's pool: a steady loop allocates nothing.

// Entries of the tape whose results are computed again.
typedef struct choir__recomputed_s choir__recomputed_t;

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
  bool wants_grad;
  bool is_leaf;
  bool is_kept;         // and not computed again
  bool reached;         // the loss depends on it
  bool grad_is_shared;  // grad is also somebody else's tensor: do not add
};

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

#endif  // CHOIR_AUTOGRAD_SCOPE_INTERNAL_H_
