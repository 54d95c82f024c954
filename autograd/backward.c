// SPDX-License-Identifier: Apache-2.0
// The walk from the loss back along the tape.
#include "autograd/scope_internal.h"

// Marks what the loss depends on and counts the uses of each variable. Whether
// samples are among it.
static bool mark_reached(choir_scope_t* scope, choir_var_t* loss) {
  bool has_samples = false;
  loss->reached = true;
  for (const choir_tape_entry_t* entry = scope->tape; entry;
       entry = entry->previous) {
    if (!entry->results[0]->reached) continue;
    for (int32_t i = 0; i < entry->src_count; ++i) {
      has_samples |= entry->srcs[i]->rows != 0;
      if (!entry->srcs[i]->wants_grad) continue;
      entry->srcs[i]->reached = true;
      ++entry->srcs[i]->uses;
      ++entry->srcs[i]->pending;
    }
  }
  return has_samples;
}

static choir_status_t report_grad(const choir_backward_options_t* options,
                                  choir_param_t* param) {
  if (!options || !options->on_grad) return NULL;
  return options->on_grad(options->self, param);
}

// The uses of an entry's sources are done; parameters that have their whole
// gradient now are reported.
static choir_status_t finish_uses(choir_scope_t* scope,
                                  const choir_tape_entry_t* entry,
                                  const choir_backward_options_t* options) {
  for (int32_t i = 0; i < entry->src_count; ++i) {
    choir_var_t* var = entry->srcs[i];
    if (!var->wants_grad || --var->pending > 0) continue;
    if (var->rows == 0 && (var->param || var->is_leaf))
      CHOIR_TRY(choir__micro_shards_sum(scope, var));
    if (var->param && var->grad) CHOIR_TRY(report_grad(options, var->param));
  }
  return NULL;
}

// Asks a custom op for the gradients of its sources.
static choir_status_t run_custom(const choir_tape_entry_t* entry,
                                 choir_grad_t* grad) {
  choir_tensor_t* grads[CHOIR_MAX_OPERANDS] = {NULL};
  choir_status_t status =
      entry->custom.backward(entry->custom.self, grad->dy, grads);
  for (int32_t i = 0; i < entry->src_count; ++i) {
    const bool is_stack = entry->custom.knows_micro_shards &&
                          grad->scope->leaf_count > 0 &&
                          entry->srcs[i]->rows == 0;
    if (!status && grads[i] && is_stack) {
      status = choir__micro_shards_pass(grad, i, grads[i]);
      choir_tensor_release(grads[i]);
      continue;
    }
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

static choir_status_t run_rule(choir_scope_t* scope,
                               const choir_tape_entry_t* entry,
                               choir_tensor_t* dy) {
  const choir_var_t* result = entry->results[0];
  choir_grad_t grad = choir__grad_of(scope, entry);
  CHOIR_TRY(choir__grad_take_part(&grad, entry));
  CHOIR_TRY(choir__turn_part(scope, result, dy, &grad.dy));
  grad.scale = result->scale;
  grad.dy_is_masked = result->uses > 0 && result->masked == result->uses;
  const bool is_custom = entry->op == CHOIR_OP_COUNT;
  if (grad.scale && !is_custom && choir_op_info(entry->op).is_product)
    for (int32_t i = 0; i < entry->src_count; ++i)
      choir_grad_set_scale(&grad, i, grad.scale);
  return is_custom ? run_custom(entry, &grad)
                   : choir__grad_run(entry->op, &grad);
}

static choir_status_t visit_entry(choir_scope_t* scope,
                                  const choir_tape_entry_t* entry,
                                  const choir_backward_options_t* options) {
  choir_var_t* result = entry->results[0];
  if (!result->reached) return NULL;
  if (!result->grad && !result->leaves)
    return finish_uses(scope, entry, options);
  CHOIR_TRY(choir__recompute(scope, result->recomputed));
  choir_scope_set_label(scope, entry->label);
  CHOIR_TRY_NOTE(scope->leaf_count > 0
                     ? choir__micro_shards_visit(scope, entry, run_rule)
                     : run_rule(scope, entry, result->grad),
                 "%s%sgradient of %s", entry->label ? entry->label : "",
                 entry->label ? ": " : "",
                 entry->op == CHOIR_OP_COUNT ? entry->custom.name
                                             : choir_op_name(entry->op));
  choir_scope_set_label(scope, NULL);
  choir__recomputed_visited(result->recomputed, entry);
  CHOIR_TRY(finish_uses(scope, entry, options));
  // Nothing before this entry needs the gradient of its result.
  if (!result->is_leaf && !result->param) {
    choir_tensor_release(result->grad);
    result->grad = NULL;
    choir__micro_shards_drop(scope, result);
  }
  return NULL;
}

static choir_status_t backward(choir_scope_t* scope, choir_var_t* loss,
                               const choir_backward_options_t* options) {
  if (!scope->step.training || scope->step.keeps_all)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "backward: the step was begun for inference; training "
                       "is needed");
  if (scope->backward_done)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "backward: called twice in one step; once is possible");
  scope->backward_done = true;
  if (loss) {
    if (!loss->tensor)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "backward: the loss was made where activations are "
                         "computed again, and is not their result");
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
    if (!mark_reached(scope, loss) && scope->leaf_count > 0)
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "backward: with micro-shards the loss depends on no "
                         "tensor of samples; at least one is needed "
                         "(choir_scope_samples)");
    choir_fill_attrs_t one = {.value = 1.0};
    choir_tensor_t* start = loss->param ? loss->param->grad : NULL;
    if (start) choir_tensor_retain(start);
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
    if (!given) CHOIR_TRY(choir__micro_shards_check_loss(scope, loss));
  }
  for (size_t i = 0; options && i < options->param_count; ++i) {
    choir_param_t* param = options->params[i];
    const bool used =
        param->scope == scope && param->generation == scope->generation;
    if (!param->trainable || (used && param->var->grad)) continue;
    choir_fill_attrs_t zero = {.value = 0.0};
    CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_FILL, &param->value, 1,
                           &zero, false, &param->grad));
    for (int32_t k = 0; k < param->grad_part_count; ++k) {
      choir_tensor_t* part = param->grad_parts[k];
      CHOIR_TRY(choir_op_run(scope->stream, CHOIR_OP_FILL, &param->value, 1,
                             &zero, false, &part));
    }
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
  scope->backward = options;
  const bool is_phase = !options || !options->is_part_of_forward;
  if (is_phase)
    choir_scope_fail(scope,
                     choir_stream_call(scope->stream, begin_backward, scope));
  choir_scope_fail(scope, backward(scope, loss, options));
  scope->backward = NULL;
  if (is_phase)
    choir_scope_fail(scope,
                     choir_stream_call(scope->stream, end_backward, scope));
}
