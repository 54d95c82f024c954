// SPDX-License-Identifier: Apache-2.0
#include "autograd/scope.h"

#include <stdatomic.h>
#include <string.h>

#include "autograd/scope_internal.h"
#include "core/callback.h"
#include "core/profile.h"

// A number for each step of each scope, so that what a parameter remembers of
// a scope that is gone cannot fit a new one at the same address.
static uint64_t next_generation(void) {
  static atomic_uint_fast64_t last;
  return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

choir_status_t choir_scope_create(choir_device_t* device,
                                  choir_scope_t** out_scope) {
  *out_scope = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_device_allocator(device),
                           sizeof(choir_scope_t), "scope", &memory));
  choir_scope_t* scope = memory;
  choir_status_t status = choir_arena_create(choir_device_allocator(device),
                                             64 * 1024, &scope->arena);
  if (status) {
    choir_deallocate(choir_device_allocator(device), scope, sizeof(*scope));
    return status;
  }
  choir_device_retain(device);
  scope->device = device;
  scope->stream = choir_device_stream(device);
  scope->generation = next_generation();
  scope->precision = CHOIR_DTYPE_F32;
  *out_scope = scope;
  return NULL;
}

static void scope_drop(choir_scope_t* scope) {
  for (choir_var_t* var = scope->vars; var; var = var->next) {
    choir_tensor_release(var->tensor);
    choir_tensor_release(var->grad);
    choir__micro_shards_drop(scope, var);
  }
  scope->vars = NULL;
  scope->tape = NULL;
  choir_scope_set_label(scope, NULL);
  scope->generation = next_generation();
  choir_arena_reset(scope->arena);
}

void choir_scope_destroy(choir_scope_t* scope) {
  if (!scope) return;
  scope_drop(scope);
  choir_status_free(scope->error);
  choir_arena_destroy(scope->arena);
  choir_device_t* device = scope->device;
  choir_deallocate(choir_device_allocator(device), scope, sizeof(*scope));
  choir_device_release(device);
}

void choir_scope_begin(choir_scope_t* scope, const choir_step_t* step) {
  scope_drop(scope);
  choir_status_free(scope->error);
  scope->error = NULL;
  scope->backward_done = false;
  scope->step_precision = scope->precision;
  memset(&scope->step, 0, sizeof(scope->step));
  if (step) scope->step = *step;
  scope->next_random_stream = scope->step.random_stream;
  choir_scope_fail(scope, choir__micro_shards_begin(scope));
}

choir_status_t choir_scope_take_failure(choir_scope_t* scope) {
  choir_status_t error = scope->error;
  scope->error = NULL;
  return error;
}

choir_status_t choir_scope_end(choir_scope_t* scope) {
  scope_drop(scope);
  return choir_scope_take_failure(scope);
}

void choir_scope_set_precision(choir_scope_t* scope, choir_dtype_t dtype) {
  scope->precision = dtype;
}

choir_dtype_t choir_scope_precision(const choir_scope_t* scope) {
  return scope->step_precision;
}

choir_stream_t* choir_scope_stream(const choir_scope_t* scope) {
  return scope->stream;
}
choir_device_t* choir_scope_device(const choir_scope_t* scope) {
  return scope->device;
}
const choir_step_t* choir_scope_step(const choir_scope_t* scope) {
  return &scope->step;
}
bool choir_scope_is_ok(const choir_scope_t* scope) { return !scope->error; }

choir_var_t* choir_scope_fail(choir_scope_t* scope, choir_status_t status) {
  if (!status) return &scope->failed;
  if (scope->error)
    choir_status_free(status);
  else
    scope->error = status;
  return &scope->failed;
}

// Errors, tape and records tell it.
void choir_scope_set_label(choir_scope_t* scope, const char* label) {
  scope->label = label;
  choir_stream_set_label(scope->stream, label);
}

const char* choir_scope_label(const choir_scope_t* scope) {
  return scope->label;
}

int64_t choir_scope_next_random_stream(choir_scope_t* scope) {
  return scope->next_random_stream++;
}

void* choir_scope_alloc(choir_scope_t* scope, size_t bytes) {
  void* memory = choir_arena_alloc(scope->arena, bytes ? bytes : 1);
  if (memory) {
    memset(memory, 0, bytes);
  } else {
    choir_scope_fail(scope, CHOIR_ERROR(OUT_OF_MEMORY,
                                        "scope: no memory for %zu bytes of "
                                        "tape",
                                        bytes));
  }
  return memory;
}

choir_var_t* choir__var_make(choir_scope_t* scope, choir_tensor_t* tensor) {
  choir_var_t* var = choir_scope_alloc(scope, sizeof(*var));
  if (!var) {
    choir_tensor_release(tensor);
    return &scope->failed;
  }
  var->tensor = tensor;
  var->next = scope->vars;
  scope->vars = var;
  return var;
}

static bool var_is_failed(const choir_scope_t* scope, const choir_var_t* var) {
  return !var || var == &scope->failed;
}

choir_var_t* choir_scope_input(choir_scope_t* scope, choir_tensor_t* tensor) {
  if (scope->error) return &scope->failed;
  if (!tensor)
    return choir_scope_fail(
        scope, CHOIR_ERROR(INVALID_ARGUMENT,
                           "scope_input: the tensor is NULL; a tensor is "
                           "needed"));
  choir_tensor_retain(tensor);
  return choir__var_make(scope, tensor);
}

choir_var_t* choir_scope_samples(choir_scope_t* scope, choir_tensor_t* tensor) {
  choir_var_t* var = choir_scope_input(scope, tensor);
  if (var_is_failed(scope, var) || scope->leaf_count == 0) return var;
  const choir_view_t* view = choir_tensor_view(tensor);
  const int64_t samples = scope->step.sample_count;
  var->rows = view->ndim > 0 && view->shape[0] % samples == 0
                  ? view->shape[0] / samples
                  : CHOIR__MIXED;
  return var;
}

choir_var_t* choir_scope_leaf(choir_scope_t* scope, choir_tensor_t* tensor) {
  choir_var_t* var = choir_scope_input(scope, tensor);
  if (var_is_failed(scope, var)) return var;
  var->wants_grad = true;
  var->is_leaf = true;
  return var;
}

void choir_scope_bind(choir_scope_t* scope, choir_param_t* param,
                      choir_var_t* var) {
  param->scope = scope;
  param->generation = scope->generation;
  param->var = var;
}

choir_var_t* choir_scope_param(choir_scope_t* scope, choir_param_t* param) {
  if (scope->error) return &scope->failed;
  if (param->scope == scope && param->generation == scope->generation)
    return param->var;
  if (!param->value)
    return choir_scope_fail(
        scope, CHOIR_ERROR(FAILED_PRECONDITION,
                           "scope_param: parameter %s has no value yet; "
                           "compile the model first",
                           param->name));
  if (scope->step.training && param->trainable && !param->grad)
    return choir_scope_fail(
        scope, CHOIR_ERROR(FAILED_PRECONDITION,
                           "scope_param: parameter %s is trainable but has no "
                           "gradient tensor; it needs one to train",
                           param->name));
  choir_var_t* var = choir_scope_input(scope, param->value);
  if (var_is_failed(scope, var)) return var;
  var->param = param;
  var->wants_grad = param->trainable;
  choir_scope_bind(scope, param, var);
  return var;
}

const choir_tape_entry_t* choir_scope_tape(const choir_scope_t* scope) {
  return scope->tape;
}

// Remembers an op that a gradient can flow through. NULL: no memory, and the
// scope knows.
static choir_tape_entry_t* tape_append(choir_scope_t* scope, choir_op_t op,
                                       choir_var_t* const* srcs,
                                       int32_t src_count, const void* attrs,
                                       choir_var_t* const* dsts) {
  const choir_struct_def_t* attrs_def = choir_op_attrs_def(op);
  choir_tape_entry_t* entry = choir_scope_alloc(scope, sizeof(*entry));
  choir_var_t** entry_srcs =
      choir_scope_alloc(scope, sizeof(choir_var_t*) * (size_t)src_count);
  void* entry_attrs =
      attrs_def ? choir_scope_alloc(scope, attrs_def->bytes) : NULL;
  if (!entry || !entry_srcs || (attrs_def && !entry_attrs)) return NULL;
  memcpy(entry_srcs, srcs, sizeof(choir_var_t*) * (size_t)src_count);
  if (attrs_def) {
    if (attrs)
      memcpy(entry_attrs, attrs, attrs_def->bytes);
    else
      choir_struct_init(attrs_def, entry_attrs);
  }
  entry->op = op;
  entry->src_count = src_count;
  entry->srcs = entry_srcs;
  entry->attrs = entry_attrs;
  entry->label = scope->label;
  memcpy(entry->results, dsts, sizeof(entry->results));
  entry->previous = scope->tape;
  scope->tape = entry;
  dsts[0]->entry = entry;
  if (op == CHOIR_OP_CAST &&
      choir_tensor_dtype(srcs[0]->tensor) == CHOIR_DTYPE_F32 &&
      choir_tensor_dtype(dsts[0]->tensor) == CHOIR_DTYPE_BF16)
    dsts[0]->unrounded = srcs[0];
  return entry;
}

// Whether the sources are variables of this step that an op can take; if not,
// the scope knows. *out_wants: one of them wants a gradient.
static bool check_sources(choir_scope_t* scope, const char* name,
                          choir_var_t* const* srcs, int32_t src_count,
                          bool* out_wants) {
  *out_wants = false;
  if (src_count < 0 || src_count > CHOIR_MAX_OPERANDS) {
    choir_scope_fail(
        scope,
        CHOIR_ERROR(INVALID_ARGUMENT, "%s: %d sources; at most %d are possible",
                    name, src_count, CHOIR_MAX_OPERANDS));
    return false;
  }
  for (int32_t i = 0; i < src_count; ++i) {
    if (var_is_failed(scope, srcs[i])) {
      choir_scope_fail(
          scope,
          CHOIR_ERROR(INVALID_ARGUMENT,
                      "%s: source %d is not a variable of this step", name, i));
      return false;
    }
    if (!srcs[i]->tensor) {
      choir_scope_fail(
          scope,
          CHOIR_ERROR(INVALID_ARGUMENT,
                      "%s: source %d was made where activations are computed "
                      "again (choir_scope_recompute); of these the result "
                      "alone can be used outside",
                      name, i));
      return false;
    }
    *out_wants |= srcs[i]->wants_grad;
  }
  return true;
}

// The results (references taken over) of an op as variables, with an entry of
// the tape where a gradient can flow.
static choir_var_t* take_results(choir_scope_t* scope, choir_op_t op,
                                 choir_var_t* const* srcs, int32_t src_count,
                                 const void* attrs, bool wants_grad,
                                 choir_tensor_t* const* results,
                                 choir_var_t** out_more) {
  choir_var_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  for (int32_t i = 0; i < choir_op_result_count(op); ++i) {
    dsts[i] = choir__var_make(scope, results[i]);
    if (i > 0 && out_more) out_more[i - 1] = dsts[i];
  }
  if (scope->error || !dsts[0]) return &scope->failed;
  choir__micro_shards_note(scope, op, srcs, src_count, attrs, dsts);
  // A function with whole numbers as values is a staircase: no gradient.
  dsts[0]->wants_grad =
      scope->step.training && wants_grad && choir__grad_rule(op) &&
      choir_dtype_is_float(choir_tensor_dtype(dsts[0]->tensor));
  if (dsts[0]->wants_grad || scope->step.keeps_all)
    tape_append(scope, op, srcs, src_count, attrs, dsts);
  return scope->error ? &scope->failed : dsts[0];
}

// ---- Mixed precision ----

static choir_var_t* run_op(choir_scope_t* scope, choir_op_t op,
                           choir_var_t* const* srcs, int32_t src_count,
                           const void* attrs, bool wants_grad,
                           choir_var_t** out_more) {
  choir_tensor_t* tensors[CHOIR_MAX_OPERANDS] = {NULL};
  for (int32_t i = 0; i < src_count; ++i) tensors[i] = srcs[i]->tensor;
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {NULL};
  choir_status_t status = choir_op_run(scope->stream, op, tensors, src_count,
                                       attrs, false, results);
  if (status) {
    if (scope->label)
      status =
          choir_status_annotate(status, __FILE__, __LINE__, "%s", scope->label);
    return choir_scope_fail(scope, status);
  }
  return take_results(scope, op, srcs, src_count, attrs, wants_grad, results,
                      out_more);
}

// In bf16 once for all uses: its gradients are added up in f32 all the same
// (grad_rule.c). In f16 anew for each, whose gradient is scaled.
static choir_var_t* cast(choir_scope_t* scope, choir_var_t* var,
                         choir_dtype_t dtype) {
  if (choir_tensor_dtype(var->tensor) == dtype) return var;
  const bool is_kept = dtype == CHOIR_DTYPE_BF16;
  if (is_kept && var->rounded && var->rounded->tensor) return var->rounded;
  const choir_cast_attrs_t attrs = {.dtype = dtype};
  choir_var_t* result =
      run_op(scope, CHOIR_OP_CAST, &var, 1, &attrs, var->wants_grad, NULL);
  if (is_kept) var->rounded = result;
  return result;
}

// Casts sources to what the step's precision wants; true when the result is to
// be cast back.
static bool mix(choir_scope_t* scope, choir_op_t op, choir_var_t** srcs,
                int32_t src_count) {
  choir_dtype_t given[CHOIR_MAX_OPERANDS], wanted[CHOIR_MAX_OPERANDS];
  for (int32_t i = 0; i < src_count; ++i)
    given[i] = choir_tensor_dtype(srcs[i]->tensor);
  const bool is_cast_back = choir_op_mixed_dtypes(op, scope->step_precision,
                                                  given, src_count, wanted);
  for (int32_t i = 0; i < src_count; ++i)
    srcs[i] = cast(scope, srcs[i], wanted[i]);
  return is_cast_back;
}

choir_var_t* choir_scope_op(choir_scope_t* scope, choir_op_t op,
                            choir_var_t* const* srcs, int32_t src_count,
                            const void* attrs, choir_var_t** out_more) {
  const int32_t result_count = choir_op_result_count(op);
  for (int32_t i = 1; out_more && i < result_count; ++i)
    out_more[i - 1] = &scope->failed;
  if (scope->error) return &scope->failed;
  bool wants_grad = false;
  if (!check_sources(scope, choir_op_name(op), srcs, src_count, &wants_grad))
    return &scope->failed;
  choir_var_t* mixed[CHOIR_MAX_OPERANDS];
  bool is_cast_back = false;
  if (scope->step_precision != CHOIR_DTYPE_F32) {
    for (int32_t i = 0; i < src_count; ++i) mixed[i] = srcs[i];
    is_cast_back = mix(scope, op, mixed, src_count);
    if (scope->error) return &scope->failed;
    srcs = mixed;
  }
  choir_var_t* result =
      run_op(scope, op, srcs, src_count, attrs, wants_grad, out_more);
  if (scope->error || !is_cast_back) return result;
  return cast(scope, result, CHOIR_DTYPE_F32);
}

choir_var_t* choir_scope_record(choir_scope_t* scope, choir_op_t op,
                                choir_var_t* const* srcs, int32_t src_count,
                                const void* attrs,
                                choir_tensor_t* const* results) {
  if (scope->error) return &scope->failed;
  bool wants_grad = false;
  if (!check_sources(scope, choir_op_name(op), srcs, src_count, &wants_grad))
    return &scope->failed;
  for (int32_t i = 0; i < choir_op_result_count(op); ++i)
    choir_tensor_retain(results[i]);
  return take_results(scope, op, srcs, src_count, attrs, wants_grad, results,
                      NULL);
}

choir_var_t* choir_scope_record_custom(choir_scope_t* scope,
                                       const choir_custom_op_t* op,
                                       choir_var_t* const* srcs,
                                       int32_t src_count,
                                       choir_tensor_t* result) {
  if (scope->error) return &scope->failed;
  bool wants_grad = false;
  if (!check_sources(scope, op->name, srcs, src_count, &wants_grad))
    return &scope->failed;
  choir_var_t* dsts[CHOIR_OP_MAX_RESULTS] = {choir_scope_input(scope, result)};
  if (scope->error) return &scope->failed;
  dsts[0]->wants_grad = scope->step.training && wants_grad;
  choir__micro_shards_note_custom(scope, op, srcs, src_count, dsts[0]);
  if (!dsts[0]->wants_grad && !scope->step.keeps_all) return dsts[0];
  choir_tape_entry_t* entry =
      tape_append(scope, CHOIR_OP_COUNT, srcs, src_count, NULL, dsts);
  if (!entry) return &scope->failed;
  entry->custom = *op;
  return dsts[0];
}

choir_status_t choir_custom_op_callback(void* self, choir_tensor_t* dy,
                                        choir_tensor_t** out_grads) {
  void* const arguments[] = {dy, out_grads};
  return choir_callback_run(self, arguments);
}

choir_var_t* choir_scope_tuple(choir_scope_t* scope, choir_vars_t vars) {
  bool wants_grad = false;
  if (scope->error ||
      !check_sources(scope, "scope_tuple", vars.at, vars.count, &wants_grad))
    return &scope->failed;
  const size_t bytes = sizeof(choir_var_t*) * (size_t)vars.count;
  choir_var_t** at = choir_scope_alloc(scope, bytes);
  if (!at) return &scope->failed;
  memcpy(at, vars.at, bytes);
  at[0]->tuple = (choir_vars_t){at, vars.count};
  return at[0];
}

choir_var_t* choir_scope_result(choir_scope_t* scope, choir_var_t* var,
                                int32_t index) {
  if (scope->error || var_is_failed(scope, var)) return &scope->failed;
  if (index == 0) return var;
  if (index > 0 && index < var->tuple.count) return var->tuple.at[index];
  return choir_scope_fail(
      scope, CHOIR_ERROR(OUT_OF_RANGE, "scope_result: result %d; needs 0 .. %d",
                         index, var->tuple.count ? var->tuple.count - 1 : 0));
}

int32_t choir_var_result_count(const choir_var_t* var) {
  return var && var->tuple.count > 0 ? var->tuple.count : 1;
}

choir_tensor_t* choir_var_tensor(const choir_var_t* var) {
  return var ? var->tensor : NULL;
}
const choir_view_t* choir_var_view(const choir_var_t* var) {
  return var && var->tensor ? choir_tensor_view(var->tensor) : NULL;
}
bool choir_var_wants_grad(const choir_var_t* var) {
  return var && var->wants_grad;
}
choir_tensor_t* choir_var_grad(const choir_var_t* var) {
  return var ? var->grad : NULL;
}
