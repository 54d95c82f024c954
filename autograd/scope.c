// SPDX-License-Identifier: Apache-2.0
#include "autograd/scope.h"

#include <stdatomic.h>
#include <string.h>

#include "autograd/grad_rule.h"
#include "core/callback.h"
#include "core/profile.h"

// Variables and tape entries lie in an arena that the next step reuses, and
// tensors come from the device's pool: a steady loop allocates nothing.

struct choir_var_s {
  choir_var_t* next;       // all variables of the step, for the release
  choir_tensor_t* tensor;  // one reference
  choir_tensor_t* grad;    // one reference; NULL until something arrives
  choir_param_t* param;    // of a parameter
  const choir_tape_entry_t* entry;  // whose result 0 it is; NULL: none
  int32_t uses;                     // that backward visits
  int32_t pending;                  // of those, still to visit
  int32_t masked;                   // of those, with choir_grad_note_masked
  choir_tensor_t* scale;            // of its gradient, the scope's; NULL: none
  choir_vars_t tuple;               // whose first it is; count 0: of none
  bool wants_grad;
  bool is_leaf;
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
}

choir_status_t choir_scope_end(choir_scope_t* scope) {
  scope_drop(scope);
  choir_status_t error = scope->error;
  scope->error = NULL;
  return error;
}

void choir_scope_set_precision(choir_scope_t* scope, choir_dtype_t dtype) {
  scope->precision = dtype;
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

static void* scope_alloc(choir_scope_t* scope, size_t bytes) {
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

// Takes over one reference to `tensor`.
static choir_var_t* var_make(choir_scope_t* scope, choir_tensor_t* tensor) {
  choir_var_t* var = scope_alloc(scope, sizeof(*var));
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
  return var_make(scope, tensor);
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
  choir_tape_entry_t* entry = scope_alloc(scope, sizeof(*entry));
  choir_var_t** entry_srcs =
      scope_alloc(scope, sizeof(choir_var_t*) * (size_t)src_count);
  void* entry_attrs = attrs_def ? scope_alloc(scope, attrs_def->bytes) : NULL;
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
    dsts[i] = var_make(scope, results[i]);
    if (i > 0 && out_more) out_more[i - 1] = dsts[i];
  }
  if (scope->error || !dsts[0]) return &scope->failed;
  // A function with whole numbers as values is a staircase: no gradient.
  if (scope->step.training && wants_grad && choir__grad_rule(op) &&
      choir_dtype_is_float(choir_tensor_dtype(dsts[0]->tensor))) {
    dsts[0]->wants_grad = true;
    tape_append(scope, op, srcs, src_count, attrs, dsts);
  }
  return scope->error ? &scope->failed : dsts[0];
}

// ---- Mixed precision ----

static bool is_mixed(const choir_scope_t* scope, choir_op_t op,
                     choir_var_t* const* srcs, int32_t src_count) {
  return scope->step_precision != CHOIR_DTYPE_F32 && src_count > 0 &&
         choir_op_info(op).is_product &&
         choir_tensor_dtype(srcs[0]->tensor) == CHOIR_DTYPE_F32;
}

static choir_var_t* cast(choir_scope_t* scope, choir_var_t* var,
                         choir_dtype_t dtype) {
  const choir_cast_attrs_t attrs = {.dtype = dtype};
  return choir_scope_op(scope, CHOIR_OP_CAST, &var, 1, &attrs, NULL);
}

static choir_var_t* mixed_op(choir_scope_t* scope, choir_op_t op,
                             choir_var_t* const* srcs, int32_t src_count,
                             const void* attrs) {
  choir_var_t* narrow[CHOIR_MAX_OPERANDS];
  // Anew for each use, so that gradients of several uses are added up in f32.
  for (int32_t i = 0; i < src_count; ++i)
    narrow[i] = cast(scope, srcs[i], scope->step_precision);
  choir_var_t* result =
      choir_scope_op(scope, op, narrow, src_count, attrs, NULL);
  return cast(scope, result, CHOIR_DTYPE_F32);
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
  if (is_mixed(scope, op, srcs, src_count))
    return mixed_op(scope, op, srcs, src_count, attrs);
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
  if (scope->error || !scope->step.training || !wants_grad) return dsts[0];
  dsts[0]->wants_grad = true;
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
  choir_var_t** at = scope_alloc(scope, bytes);
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

choir_tensor_t* choir_var_tensor(const choir_var_t* var) {
  return var ? var->tensor : NULL;
}
const choir_view_t* choir_var_view(const choir_var_t* var) {
  return var && var->tensor ? choir_tensor_view(var->tensor) : NULL;
}
choir_tensor_t* choir_var_grad(const choir_var_t* var) {
  return var ? var->grad : NULL;
}

// ---- Gradients into their destinations ----

bool choir_grad_wants(const choir_grad_t* grad, int32_t src) {
  return grad->src_vars[src]->wants_grad;
}

bool choir_grad_is_rectified(const choir_grad_t* grad, int32_t src) {
  const choir_tape_entry_t* entry = grad->src_vars[src]->entry;
  const choir_op_def_t* def = entry ? choir__op_def(entry->op) : NULL;
  return def && (entry->op == CHOIR_OP_RELU ||
                 (def->is_rectified && def->is_rectified(entry->attrs)));
}

void choir_grad_note_masked(choir_grad_t* grad, int32_t src) {
  ++grad->src_vars[src]->masked;
}

void choir_grad_set_scale(choir_grad_t* grad, int32_t src,
                          choir_tensor_t* scale) {
  grad->src_vars[src]->scale = scale;
}

// Where the next contribution to `var` goes: *out_dst is a tensor to write
// (one reference for the caller) or NULL for a new one.
static void grad_destination(choir_var_t* var, choir_tensor_t** out_dst,
                             bool* out_accumulate) {
  *out_dst = NULL;
  *out_accumulate = false;
  if (var->grad) {
    if (!var->grad_is_shared) {
      *out_dst = var->grad;
      *out_accumulate = true;
    }
  } else if (var->param && var->param->grad) {
    *out_dst = var->param->grad;
  }
  if (*out_dst) choir_tensor_retain(*out_dst);
}

bool choir_grad_has_kernel(const choir_grad_t* grad, const int32_t* sources,
                           int32_t count, choir_op_t op,
                           choir_tensor_t* const* srcs, int32_t src_count,
                           const void* attrs) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  bool accumulate = false;
  bool is_wanted = false;
  for (int32_t i = 0; i < count && i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (sources[i] < 0 || !choir_grad_wants(grad, sources[i])) continue;
    bool adds = false;
    grad_destination(grad->src_vars[sources[i]], &dsts[i], &adds);
    accumulate |= adds;
    is_wanted = true;
  }
  const bool has_kernel =
      !is_wanted || choir__op_has_kernel(grad->scope->device, op, srcs,
                                         src_count, attrs, accumulate, dsts);
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    choir_tensor_release(dsts[i]);
  return has_kernel;
}

// `tensor` (one reference, taken over) is now the gradient of `var`, or one
// more contribution that was not added yet.
static choir_status_t grad_store(choir_scope_t* scope, choir_var_t* var,
                                 choir_tensor_t* tensor, bool is_shared) {
  // Added in place; a shared one that comes again is one more contribution.
  if (var->grad == tensor && !var->grad_is_shared) {
    choir_tensor_release(tensor);
    return NULL;
  }
  if (!var->grad) {
    var->grad = tensor;
    var->grad_is_shared = is_shared;
    return NULL;
  }
  choir_tensor_t* sum = NULL;
  choir_tensor_t* srcs[] = {var->grad, tensor};
  choir_status_t status =
      choir_op_run(scope->stream, CHOIR_OP_ADD, srcs, 2, NULL, false, &sum);
  choir_tensor_release(tensor);
  if (status) return status;
  choir_tensor_release(var->grad);
  var->grad = sum;
  var->grad_is_shared = false;
  return NULL;
}

choir_status_t choir_grad_pass(choir_grad_t* grad, int32_t src,
                               choir_tensor_t* tensor) {
  choir_var_t* var = grad->src_vars[src];
  if (!var->wants_grad) return NULL;
  if (!choir_view_same_shape(choir_tensor_view(tensor),
                             choir_tensor_view(var->tensor)))
    return choir_grad_emit1(grad, src, CHOIR_OP_COPY, tensor, NULL);
  choir_tensor_t* dst = NULL;
  bool accumulate = false;
  grad_destination(var, &dst, &accumulate);
  if (!dst) {
    choir_tensor_retain(tensor);
    return grad_store(grad->scope, var, tensor, true);
  }
  choir_status_t status = choir_op_run(grad->scope->stream, CHOIR_OP_COPY,
                                       &tensor, 1, NULL, accumulate, &dst);
  if (status) {
    choir_tensor_release(dst);
    return status;
  }
  return grad_store(grad->scope, var, dst, false);
}

// Sums a gradient of a broadcast result down to the shape of the source.
static choir_status_t grad_reduce(choir_grad_t* grad, choir_tensor_t* wide,
                                  const choir_view_t* target,
                                  choir_tensor_t** out_tensor) {
  choir_tensor_t* current = wide;
  while (choir_tensor_ndim(current) > target->ndim) {
    choir_sum_attrs_t attrs = {.axis = 0, .keep_dims = false};
    CHOIR_TRY(
        choir_grad_temp(grad, CHOIR_OP_SUM, &current, 1, &attrs, &current));
  }
  for (int32_t k = 0; k < target->ndim; ++k) {
    if (choir_tensor_shape(current)[k] == target->shape[k]) continue;
    choir_sum_attrs_t attrs = {.axis = k, .keep_dims = true};
    CHOIR_TRY(
        choir_grad_temp(grad, CHOIR_OP_SUM, &current, 1, &attrs, &current));
  }
  *out_tensor = current;
  return NULL;
}

// Whether op(srcs) has the shape of source `src`: only elementwise ops
// broadcast, and then the result has the shape of dy or of all operands.
static bool result_is_wide(const choir_grad_t* grad, int32_t src, choir_op_t op,
                           choir_tensor_t* const* srcs, int32_t src_count) {
  const choir_view_t* target = choir_tensor_view(grad->srcs[src]);
  const choir_op_def_t* def = choir__op_def(op);
  if (!def->elementwise && op != CHOIR_OP_COPY) return false;
  for (int32_t i = 0; i < src_count; ++i) {
    const choir_view_t* view = choir_tensor_view(srcs[i]);
    if (view->ndim > target->ndim) return true;
    for (int32_t k = 1; k <= view->ndim; ++k) {
      const int64_t size = view->shape[view->ndim - k];
      if (size != 1 && size != target->shape[target->ndim - k]) return true;
    }
  }
  return false;
}

choir_status_t choir_grad_emit(choir_grad_t* grad, int32_t src, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs) {
  choir_var_t* var = grad->src_vars[src];
  if (!var->wants_grad) return NULL;
  if (result_is_wide(grad, src, op, srcs, src_count)) {
    choir_tensor_t* wide = NULL;
    CHOIR_TRY(choir_grad_temp(grad, op, srcs, src_count, attrs, &wide));
    CHOIR_TRY(grad_reduce(grad, wide, choir_tensor_view(var->tensor), &wide));
    return choir_grad_pass(grad, src, wide);
  }
  int32_t sources[CHOIR_OP_MAX_RESULTS] = {src};
  for (int32_t i = 1; i < CHOIR_OP_MAX_RESULTS; ++i) sources[i] = -1;
  return choir_grad_emit_many(grad, sources, choir_op_result_count(op), op,
                              srcs, src_count, attrs);
}

choir_status_t choir_grad_emit1(choir_grad_t* grad, int32_t src, choir_op_t op,
                                choir_tensor_t* a, const void* attrs) {
  choir_tensor_t* srcs[] = {a};
  return choir_grad_emit(grad, src, op, srcs, 1, attrs);
}

choir_status_t choir_grad_emit2(choir_grad_t* grad, int32_t src, choir_op_t op,
                                choir_tensor_t* a, choir_tensor_t* b,
                                const void* attrs) {
  choir_tensor_t* srcs[] = {a, b};
  return choir_grad_emit(grad, src, op, srcs, 2, attrs);
}

// Whether a result is a view of a source (reshape, slice, ...).
static bool shares_memory(const choir_tensor_t* result,
                          choir_tensor_t* const* srcs, int32_t src_count) {
  for (int32_t i = 0; i < src_count; ++i)
    if (choir_tensor_view(result)->buffer == choir_tensor_view(srcs[i])->buffer)
      return true;
  return false;
}

choir_status_t choir_grad_emit_many(choir_grad_t* grad, const int32_t* sources,
                                    int32_t count, choir_op_t op,
                                    choir_tensor_t* const* srcs,
                                    int32_t src_count, const void* attrs) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  bool wanted[CHOIR_OP_MAX_RESULTS] = {false};
  int32_t wanted_count = 0;
  bool accumulate = false;
  // The op writes straight to the destinations when all of them agree on
  // whether to add; else it makes new tensors, which are passed on.
  bool direct = true;
  for (int32_t i = 0; i < count && i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (sources[i] < 0 || !choir_grad_wants(grad, sources[i])) continue;
    choir_var_t* var = grad->src_vars[sources[i]];
    bool adds = false;
    grad_destination(var, &dsts[i], &adds);
    for (int32_t j = 0; j < i; ++j)
      if (wanted[j] && grad->src_vars[sources[j]] == var) direct = false;
    if (wanted_count > 0 && adds != accumulate) direct = false;
    accumulate |= adds;
    wanted[i] = true;
    ++wanted_count;
  }
  if (wanted_count == 0) return NULL;
  if (accumulate && wanted_count < choir_op_result_count(op)) direct = false;
  if (!direct) {
    for (int32_t i = 0; i < count; ++i) {
      choir_tensor_release(dsts[i]);
      dsts[i] = NULL;
    }
    accumulate = false;
  }
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS];
  memcpy(results, dsts, sizeof(results));
  choir_status_t status = choir_op_run(grad->scope->stream, op, srcs, src_count,
                                       attrs, accumulate, results);
  if (status) {
    for (int32_t i = 0; i < count; ++i) choir_tensor_release(dsts[i]);
    return status;
  }
  for (int32_t i = 0; i < choir_op_result_count(op); ++i) {
    if (i < count && wanted[i] && !status) {
      if (direct) {
        status =
            grad_store(grad->scope, grad->src_vars[sources[i]], results[i],
                       !dsts[i] && shares_memory(results[i], srcs, src_count));
        continue;
      }
      status = choir_grad_pass(grad, sources[i], results[i]);
    }
    choir_tensor_release(results[i]);
  }
  return status;
}

choir_status_t choir_grad_temp_all(choir_grad_t* grad, choir_op_t op,
                                   choir_tensor_t* const* srcs,
                                   int32_t src_count, const void* attrs,
                                   choir_tensor_t** out_tensors) {
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i) out_tensors[i] = NULL;
  CHOIR_TRY(choir_op_run(grad->scope->stream, op, srcs, src_count, attrs, false,
                         out_tensors));
  for (int32_t i = 0; i < choir_op_result_count(op); ++i)
    (void)var_make(grad->scope, out_tensors[i]);
  return grad->scope->error ? choir_status_clone(grad->scope->error) : NULL;
}

choir_status_t choir_grad_temp(choir_grad_t* grad, choir_op_t op,
                               choir_tensor_t* const* srcs, int32_t src_count,
                               const void* attrs, choir_tensor_t** out_tensor) {
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS];
  CHOIR_TRY(choir_grad_temp_all(grad, op, srcs, src_count, attrs, results));
  *out_tensor = results[0];
  return NULL;
}

// ---- Backward ----

// Marks what the loss depends on and counts the uses of each variable.
static void mark_reached(choir_scope_t* scope, choir_var_t* loss) {
  loss->reached = true;
  for (const choir_tape_entry_t* entry = scope->tape; entry;
       entry = entry->previous) {
    if (!entry->results[0]->reached) continue;
    for (int32_t i = 0; i < entry->src_count; ++i) {
      if (!entry->srcs[i]->wants_grad) continue;
      entry->srcs[i]->reached = true;
      ++entry->srcs[i]->uses;
      ++entry->srcs[i]->pending;
    }
  }
}

static choir_status_t report_grad(const choir_backward_options_t* options,
                                  choir_param_t* param) {
  if (!options || !options->on_grad) return NULL;
  return options->on_grad(options->self, param);
}

// The uses of an entry's sources are done; parameters that have their whole
// gradient now are reported.
static choir_status_t finish_uses(const choir_tape_entry_t* entry,
                                  const choir_backward_options_t* options) {
  for (int32_t i = 0; i < entry->src_count; ++i) {
    choir_var_t* var = entry->srcs[i];
    if (!var->wants_grad || --var->pending > 0 || !var->param || !var->grad)
      continue;
    CHOIR_TRY(report_grad(options, var->param));
  }
  return NULL;
}

// What an entry's rule gets, but for dy.
static choir_grad_t grad_of(choir_scope_t* scope,
                            const choir_tape_entry_t* entry) {
  choir_grad_t grad = {.scope = scope,
                       .attrs = entry->attrs,
                       .src_count = entry->src_count,
                       .label = entry->label};
  for (int32_t i = 0; i < entry->src_count; ++i) {
    grad.srcs[i] = entry->srcs[i]->tensor;
    grad.src_vars[i] = entry->srcs[i];
  }
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    grad.dsts[i] = entry->results[i] ? entry->results[i]->tensor : NULL;
  return grad;
}

bool choir_grad_only_producer(const choir_grad_t* grad, int32_t src,
                              choir_op_t* out_op, choir_grad_t* out_producer) {
  const choir_var_t* var = grad->src_vars[src];
  if (!var->entry || var->uses != 1 || var->grad) return false;
  *out_op = var->entry->op;
  *out_producer = grad_of(grad->scope, var->entry);
  return true;
}

// Asks a custom op for the gradients of its sources.
static choir_status_t run_custom(const choir_tape_entry_t* entry,
                                 choir_grad_t* grad) {
  choir_tensor_t* grads[CHOIR_MAX_OPERANDS] = {NULL};
  choir_status_t status =
      entry->custom.backward(entry->custom.self, grad->dy, grads);
  for (int32_t i = 0; i < entry->src_count; ++i) {
    if (!status && grads[i] && choir_grad_wants(grad, i) &&
        !choir_view_same_shape(choir_tensor_view(grads[i]),
                               choir_tensor_view(grad->srcs[i]))) {
      char given[128];
      char needed[128];
      status = CHOIR_ERROR(
          INVALID_ARGUMENT,
          "%s: backward gave %s for source %d; its shape is %s",
          entry->custom.name,
          choir_view_print(choir_tensor_view(grads[i]), given, sizeof given), i,
          choir_view_print(choir_tensor_view(grad->srcs[i]), needed,
                           sizeof needed));
    }
    if (!status && grads[i]) status = choir_grad_pass(grad, i, grads[i]);
    choir_tensor_release(grads[i]);
  }
  return status;
}

static choir_status_t visit_entry(choir_scope_t* scope,
                                  const choir_tape_entry_t* entry,
                                  const choir_backward_options_t* options) {
  choir_var_t* result = entry->results[0];
  if (!result->reached) return NULL;
  if (!result->grad) return finish_uses(entry, options);
  choir_grad_t grad = grad_of(scope, entry);
  grad.dy = result->grad;
  grad.scale = result->scale;
  grad.dy_is_masked = result->uses > 0 && result->masked == result->uses;
  choir_scope_set_label(scope, entry->label);
  const bool is_custom = entry->op == CHOIR_OP_COUNT;
  if (grad.scale && !is_custom && choir_op_info(entry->op).is_product)
    for (int32_t i = 0; i < entry->src_count; ++i)
      choir_grad_set_scale(&grad, i, grad.scale);
  CHOIR_TRY_NOTE(
      is_custom ? run_custom(entry, &grad) : choir__grad_run(entry->op, &grad),
      "%s%sgradient of %s", entry->label ? entry->label : "",
      entry->label ? ": " : "",
      is_custom ? entry->custom.name : choir_op_name(entry->op));
  choir_scope_set_label(scope, NULL);
  CHOIR_TRY(finish_uses(entry, options));
  // Nothing before this entry needs the gradient of its result.
  if (!result->is_leaf && !result->param) {
    choir_tensor_release(result->grad);
    result->grad = NULL;
  }
  return NULL;
}

static choir_status_t backward(choir_scope_t* scope, choir_var_t* loss,
                               const choir_backward_options_t* options) {
  if (!scope->step.training)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "backward: the step was begun for inference; training "
                       "is needed");
  if (scope->backward_done)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "backward: called twice in one step; once is possible");
  scope->backward_done = true;
  if (loss) {
    const choir_view_t* view = choir_tensor_view(loss->tensor);
    choir_tensor_t* given = options ? options->start : NULL;
    char text[128];
    if (given && !choir_view_same_shape(choir_tensor_view(given), view)) {
      char given_text[128];
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "backward: starts from a gradient %s for %s",
                         choir_view_print(choir_tensor_view(given), given_text,
                                          sizeof given_text),
                         choir_view_print(view, text, sizeof text));
    }
    if (!given && choir_view_count(view) != 1) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "backward: the loss is %s; one element is needed",
                         choir_view_print(view, text, sizeof text));
    }
    if (!loss->wants_grad)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "backward: the loss depends on no parameter; at least "
                         "one is needed");
    mark_reached(scope, loss);
    choir_fill_attrs_t one = {.value = 1.0};
    bool accumulate = false;
    choir_tensor_t* start = NULL;
    grad_destination(loss, &start, &accumulate);
    choir_status_t status = choir_op_run(
        scope->stream, given ? CHOIR_OP_COPY : CHOIR_OP_FILL,
        given ? &given : &loss->tensor, 1, given ? NULL : &one, false, &start);
    if (status) {
      choir_tensor_release(start);
      return status;
    }
    loss->grad = start;
    if (loss->param) CHOIR_TRY(report_grad(options, loss->param));
    for (const choir_tape_entry_t* entry = scope->tape; entry;
         entry = entry->previous)
      CHOIR_TRY(visit_entry(scope, entry, options));
  }
  for (size_t i = 0; options && i < options->param_count; ++i) {
    choir_param_t* param = options->params[i];
    const bool used =
        param->scope == scope && param->generation == scope->generation;
    if (!param->trainable || (used && param->var->grad)) continue;
    choir_fill_attrs_t zero = {.value = 0.0};
    CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_FILL, &param->value, 1,
                           &zero, false, &param->grad));
    CHOIR_TRY(report_grad(options, param));
  }
  return NULL;
}

static choir_status_t begin_backward(void* self) {
  ((choir_scope_t*)self)->backward_span = choir_span_begin(CHOIR_SPAN_PHASE);
  return NULL;
}

static choir_status_t end_backward(void* self) {
  choir_span_end(&((choir_scope_t*)self)->backward_span, "backward", NULL,
                 NULL);
  return NULL;
}

void choir_scope_backward(choir_scope_t* scope, choir_var_t* loss,
                          const choir_backward_options_t* options) {
  if (scope->error) return;
  if (loss == &scope->failed) loss = NULL;
  choir_scope_fail(scope,
                   choir_stream_call(scope->stream, begin_backward, scope));
  choir_scope_fail(scope, backward(scope, loss, options));
  choir_scope_fail(scope,
                   choir_stream_call(scope->stream, end_backward, scope));
}
