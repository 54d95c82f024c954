// SPDX-License-Identifier: Apache-2.0
#include "autograd/grad_rule.h"

#include <string.h>

#include "autograd/scope_internal.h"

// Gradients into their destinations: what rules call.

bool choir_grad_wants(const choir_grad_t* grad, int32_t src) {
  return grad->src_vars[src]->wants_grad &&
         choir__turn_wants(grad->scope, grad->src_vars[src]);
}

bool choir_grad_is_rectified(const choir_grad_t* grad, int32_t src) {
  const choir_tape_entry_t* entry = grad->src_vars[src]->entry;
  const choir_op_def_t* def = entry ? choir__op_def(entry->op) : NULL;
  return def && (entry->op == CHOIR_OP_RELU ||
                 (def->is_rectified && def->is_rectified(entry->attrs)));
}

void choir_grad_note_masked(choir_grad_t* grad, int32_t src) {
  // Once, whatever turns the rule takes.
  const choir__turn_t turn = grad->scope->turn;
  if (choir__turn_wants(grad->scope, grad->src_vars[src]) &&
      turn != CHOIR__TURN_NODE &&
      (turn <= CHOIR__TURN_SAMPLES || grad->scope->leaf == 0))
    ++grad->src_vars[src]->masked;
}

// Whether a gradient that is no sum over rows is due.
static bool is_due(const choir_grad_t* grad, int32_t src) {
  return grad->scope->turn != CHOIR__TURN_NODE && choir_grad_wants(grad, src);
}

void choir_grad_set_scale(choir_grad_t* grad, int32_t src,
                          choir_tensor_t* scale) {
  grad->src_vars[src]->scale = scale;
}

// Whose gradient that of `var` is: of a cast to bf16 what was cast.
static choir_var_t* owner_of(choir_var_t* var) {
  return var->unrounded ? var->unrounded : var;
}

static choir_dtype_t grad_dtype(const choir_var_t* var) {
  return var->unrounded ? CHOIR_DTYPE_F32 : choir_tensor_dtype(var->tensor);
}

// A variable's gradient, or in a turn for a micro-shard that one's.
typedef struct slot_s {
  choir_tensor_t** grad;
  bool* is_shared;
} slot_t;

static bool is_part_of_samples(const choir_scope_t* scope,
                               const choir_var_t* var) {
  return scope->turn > CHOIR__TURN_SAMPLES && var->rows != 0;
}

static slot_t slot_of(const choir_scope_t* scope, choir_var_t* var) {
  if (scope->turn <= CHOIR__TURN_SAMPLES)
    return (slot_t){&var->grad, &var->grad_is_shared};
  choir__leaf_t* leaf = &var->leaves[scope->leaf];
  return (slot_t){&leaf->grad, &leaf->is_shared};
}

// Where the next contribution to `var` itself goes.
static choir_status_t place_of(choir_scope_t* scope, choir_var_t* var,
                               bool makes, choir_tensor_t** out_dst,
                               bool* out_accumulate) {
  *out_dst = NULL;
  *out_accumulate = false;
  if (is_part_of_samples(scope, var))
    return choir__turn_place(scope, var, grad_dtype(var), makes, out_dst,
                             out_accumulate);
  const slot_t slot = slot_of(scope, var);
  if (*slot.grad) {
    if (!*slot.is_shared) {
      *out_dst = *slot.grad;
      *out_accumulate = true;
    }
  } else if (slot.grad == &var->grad && var->param && var->param->grad) {
    *out_dst = var->param->grad;
  }
  if (*out_dst) choir_tensor_retain(*out_dst);
  return NULL;
}

// Where that to its gradient goes. An op of which a source is_narrow would make
// a gradient of 16 bits: not of what has 32.
static choir_status_t destination(choir_scope_t* scope, choir_var_t* var,
                                  bool is_narrow, bool makes,
                                  choir_tensor_t** out_dst,
                                  bool* out_accumulate) {
  CHOIR_TRY(place_of(scope, owner_of(var), makes, out_dst, out_accumulate));
  if (*out_dst || !is_narrow || grad_dtype(var) != CHOIR_DTYPE_F32) return NULL;
  choir_view_t view = *choir_tensor_view(var->tensor);
  view.dtype = CHOIR_DTYPE_F32;
  choir_view_set_layout_like(&view, choir_tensor_view(var->tensor));
  return choir_tensor_create_layout(scope->device, &view, out_dst);
}

static bool has_narrow(choir_tensor_t* const* srcs, int32_t src_count) {
  for (int32_t i = 0; i < src_count; ++i)
    if (choir__is_narrow(choir_tensor_dtype(srcs[i]))) return true;
  return false;
}

bool choir_grad_has_kernel(const choir_grad_t* grad, const int32_t* sources,
                           int32_t count, choir_op_t op,
                           choir_tensor_t* const* srcs, int32_t src_count,
                           const void* attrs) {
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS] = {NULL};
  bool accumulate = false;
  bool is_wanted = false;
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < count && i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (sources[i] < 0 || !choir_grad_wants(grad, sources[i])) continue;
    bool adds = false;
    status = destination(grad->scope, grad->src_vars[sources[i]],
                         has_narrow(srcs, src_count), false, &dsts[i], &adds);
    accumulate |= adds;
    is_wanted = true;
  }
  const bool has_kernel =
      !status &&
      (!is_wanted || choir__op_has_kernel(grad->scope->device, op, srcs,
                                          src_count, attrs, accumulate, dsts));
  choir_status_free(status);
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    choir_tensor_release(dsts[i]);
  return has_kernel;
}

// `tensor` (one reference, taken over) is now the gradient of `var`, or one
// more contribution that was not added yet.
static choir_status_t grad_store(choir_scope_t* scope, choir_var_t* var,
                                 choir_tensor_t* tensor, bool is_shared) {
  var = owner_of(var);
  if (is_part_of_samples(scope, var)) {
    var->last_leaf = scope->leaf;
    choir_tensor_release(tensor);
    return NULL;
  }
  const slot_t slot = slot_of(scope, var);
  // Added in place; a shared one that comes again is one more contribution.
  if (*slot.grad == tensor && !*slot.is_shared) {
    choir_tensor_release(tensor);
    return NULL;
  }
  if (!*slot.grad) {
    *slot.grad = tensor;
    *slot.is_shared = is_shared;
    return NULL;
  }
  choir_tensor_t* sum = NULL;
  choir_tensor_t* srcs[] = {*slot.grad, tensor};
  choir_status_t status =
      choir_op_run(scope->stream, CHOIR_OP_ADD, srcs, 2, NULL, false, &sum);
  choir_tensor_release(tensor);
  if (status) return status;
  choir_tensor_release(*slot.grad);
  *slot.grad = sum;
  *slot.is_shared = false;
  return NULL;
}

choir_status_t choir_grad_pass(choir_grad_t* grad, int32_t src,
                               choir_tensor_t* tensor) {
  choir_var_t* var = grad->src_vars[src];
  if (!is_due(grad, src)) return NULL;
  if (!choir_view_same_shape(choir_tensor_view(tensor),
                             choir_tensor_view(grad->srcs[src])))
    return choir_grad_emit1(grad, src, CHOIR_OP_COPY, tensor, NULL);
  const choir_cast_attrs_t attrs = {.dtype = grad_dtype(var)};
  const bool is_cast = choir_tensor_dtype(tensor) != attrs.dtype;
  choir_tensor_t* dst = NULL;
  bool accumulate = false;
  CHOIR_TRY(destination(grad->scope, var, is_cast, true, &dst, &accumulate));
  if (!dst && !is_cast) {
    choir_tensor_retain(tensor);
    return grad_store(grad->scope, var, tensor, true);
  }
  choir_tensor_t* stored = dst;
  choir_status_t status =
      choir_op_run(grad->scope->stream, is_cast ? CHOIR_OP_CAST : CHOIR_OP_COPY,
                   &tensor, 1, is_cast ? &attrs : NULL, accumulate, &stored);
  if (status) {
    choir_tensor_release(dst);
    return status;
  }
  return grad_store(grad->scope, var, stored, false);
}

// A sum over an axis; in f32 where it is of 16 bits and for what has 32.
static choir_status_t sum_over(choir_grad_t* grad, choir_tensor_t* tensor,
                               int32_t axis, bool keep_dims, bool is_wide,
                               choir_tensor_t** out_sum) {
  const choir_sum_attrs_t attrs = {.axis = axis, .keep_dims = keep_dims};
  if (!is_wide || !choir__is_narrow(choir_tensor_dtype(tensor)))
    return choir_grad_temp(grad, CHOIR_OP_SUM, &tensor, 1, &attrs, out_sum);
  choir_view_t view;
  CHOIR_TRY(choir__op_infer(CHOIR_OP_SUM, choir_tensor_view(tensor), 1, &attrs,
                            &view));
  view.dtype = CHOIR_DTYPE_F32;
  CHOIR_TRY(choir_tensor_create_layout(grad->scope->device, &view, out_sum));
  (void)choir__var_make(grad->scope, *out_sum);
  if (grad->scope->error) return choir_status_clone(grad->scope->error);
  return choir_op_run(grad->scope->stream, CHOIR_OP_SUM, &tensor, 1, &attrs,
                      false, out_sum);
}

// Sums a gradient of a broadcast result down to the shape of the source.
static choir_status_t grad_reduce(choir_grad_t* grad, choir_tensor_t* wide,
                                  int32_t src, choir_tensor_t** out_tensor) {
  const choir_view_t* target = choir_tensor_view(grad->srcs[src]);
  const bool is_wide = grad_dtype(grad->src_vars[src]) == CHOIR_DTYPE_F32;
  choir_tensor_t* current = wide;
  while (choir_tensor_ndim(current) > target->ndim)
    CHOIR_TRY(sum_over(grad, current, 0, false, is_wide, &current));
  for (int32_t k = 0; k < target->ndim; ++k)
    if (choir_tensor_shape(current)[k] != target->shape[k])
      CHOIR_TRY(sum_over(grad, current, k, true, is_wide, &current));
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
  if (!is_due(grad, src)) return NULL;
  if (result_is_wide(grad, src, op, srcs, src_count)) {
    choir_tensor_t* wide = NULL;
    CHOIR_TRY(choir_grad_temp(grad, op, srcs, src_count, attrs, &wide));
    CHOIR_TRY(grad_reduce(grad, wide, src, &wide));
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

// Whether it can make a gradient in f32 of sources in 16 bits.
static bool writes_f32(choir_op_t op) {
  return op == CHOIR_OP_CAST ||
         choir__op_takes_dst(op, CHOIR_DTYPE_BF16, CHOIR_DTYPE_F32);
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
  const bool is_narrow = has_narrow(srcs, src_count);
  choir_status_t status = NULL;
  for (int32_t i = 0; !status && i < count && i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (sources[i] < 0 || !is_due(grad, sources[i])) continue;
    choir_var_t* var = grad->src_vars[sources[i]];
    bool adds = false;
    status = destination(grad->scope, var, is_narrow, true, &dsts[i], &adds);
    if (is_narrow && grad_dtype(var) == CHOIR_DTYPE_F32 && !writes_f32(op))
      direct = false;
    for (int32_t j = 0; j < i; ++j)
      if (wanted[j] && owner_of(grad->src_vars[sources[j]]) == owner_of(var))
        direct = false;
    if (wanted_count > 0 && adds != accumulate) direct = false;
    accumulate |= adds;
    wanted[i] = true;
    ++wanted_count;
  }
  if (wanted_count == 0) return NULL;
  if (status) {
    for (int32_t i = 0; i < count; ++i) choir_tensor_release(dsts[i]);
    return status;
  }
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
  status = choir_op_run(grad->scope->stream, op, srcs, src_count, attrs,
                        accumulate, results);
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

choir_status_t choir_grad_emit_rows(choir_grad_t* grad, const int32_t* sources,
                                    int32_t count, choir_op_t op,
                                    choir_tensor_t* const* srcs,
                                    int32_t src_count, uint32_t rows,
                                    const void* attrs) {
  if (grad->scope->turn != CHOIR__TURN_NODE)
    return choir_grad_emit_many(grad, sources, count, op, srcs, src_count,
                                attrs);
  return rows == 0 ? NULL
                   : choir__turn_node(grad, sources, count, op, srcs, src_count,
                                      rows, attrs);
}

choir_status_t choir_grad_temp_all(choir_grad_t* grad, choir_op_t op,
                                   choir_tensor_t* const* srcs,
                                   int32_t src_count, const void* attrs,
                                   choir_tensor_t** out_tensors) {
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i) out_tensors[i] = NULL;
  CHOIR_TRY(choir_op_run(grad->scope->stream, op, srcs, src_count, attrs, false,
                         out_tensors));
  for (int32_t i = 0; i < choir_op_result_count(op); ++i)
    (void)choir__var_make(grad->scope, out_tensors[i]);
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

choir_grad_t choir__grad_of(choir_scope_t* scope,
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

choir_status_t choir__grad_take_part(choir_grad_t* grad,
                                     const choir_tape_entry_t* entry) {
  for (int32_t i = 0; i < entry->src_count; ++i)
    CHOIR_TRY(choir__turn_part(grad->scope, entry->srcs[i], grad->srcs[i],
                               &grad->srcs[i]));
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i)
    if (entry->results[i])
      CHOIR_TRY(choir__turn_part(grad->scope, entry->results[i], grad->dsts[i],
                                 &grad->dsts[i]));
  return NULL;
}

const choir_tape_entry_t* choir__grad_producer(const choir_grad_t* grad,
                                               int32_t src) {
  const choir_var_t* var = grad->src_vars[src];
  const bool is_only = var->entry && var->uses == 1 && !var->grad;
  return is_only && choir__recomputed_is_there(var->recomputed) ? var->entry
                                                                : NULL;
}

bool choir_grad_only_producer(const choir_grad_t* grad, int32_t src,
                              choir_op_t* out_op, choir_grad_t* out_producer) {
  // With micro-shards the two may take different turns.
  const choir_tape_entry_t* entry =
      grad->scope->leaf_count > 0 ? NULL : choir__grad_producer(grad, src);
  if (!entry) return false;
  *out_op = entry->op;
  *out_producer = choir__grad_of(grad->scope, entry);
  return true;
}
