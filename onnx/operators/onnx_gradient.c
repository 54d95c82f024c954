// SPDX-License-Identifier: Apache-2.0
// Gradient: the nodes between the given values and y run once more, in a scope
// of their own in which these are leaves, and backward runs from y. All of it
// is work on the step's stream, so that recorded steps have it.
#include <string.h>

#include "onnx/onnx_internal.h"

typedef struct inner_s {
  choir_scope_t* scope;
  choir__onnx_value_t* values;  // of the graph's places
  choir_var_t* learnt;  // of the step: a gradient of it would be a second one
} inner_t;

// A value of the step in the inner scope.
static choir__onnx_value_t carry(choir__onnx_call_t* c, inner_t* inner,
                                 const choir__onnx_value_t* value) {
  choir__onnx_value_t carried = *value;
  carried.moved = NULL;
  if (value->is_sequence) {
    carried.items = choir_scope_alloc(
        c->scope, sizeof(*carried.items) * ((size_t)value->count + 1));
    for (int32_t i = 0; carried.items && i < value->count; ++i)
      carried.items[i] = carry(c, inner, &value->items[i]);
  } else if (value->var && !value->is_known) {
    if (choir_var_wants_grad(value->var)) inner->learnt = value->var;
    carried.var = choir_scope_input(inner->scope, choir_var_tensor(value->var));
  }
  return carried;
}

static void fill_values(choir__onnx_call_t* c, inner_t* inner) {
  const choir__onnx_slice_t* slice = c->node->slice;
  for (int32_t i = 0; i < slice->read_count; ++i) {
    const int32_t place = slice->reads[i];
    inner->values[place] = carry(c, inner, &c->run->values[place]);
  }
  for (int32_t i = 0; i < c->in_count && CALL_IS_OK; ++i) {
    choir__onnx_value_t* value = &inner->values[slice->given[i]];
    *value = carry(c, inner, c->inputs[i]);
    value->is_given = true;
    if (i >= slice->x_count) continue;
    const choir_view_t* view = VIEW(i);
    if (!view || !choir_dtype_is_float(view->dtype)) {
      FAIL(INVALID_ARGUMENT, "input %d, for '%s' of xs, is %s; needs floats", i,
           c->run->graph->places[slice->given[i]].name,
           view ? choir_dtype_name(view->dtype) : "no tensor");
      return;
    }
    value->is_known = false;
    value->kept = NULL;
    value->var = choir_scope_leaf(inner->scope, choir_var_tensor(IN(i)));
  }
}

static void run_again(choir__onnx_call_t* c, inner_t* inner) {
  choir__onnx_run_t* outer = c->run;
  choir__onnx_run_t run = {.onnx = outer->onnx,
                           .scope = inner->scope,
                           .known = outer->known,
                           .before = outer->values,
                           .is_training = outer->is_training,
                           .nodes = outer->nodes,
                           .value_count = outer->value_count,
                           .depth = outer->depth,
                           .draws = outer->draws};
  const bool is_new = outer->drawn == outer->draws->count;
  (void)choir__onnx_run_graph(&run, outer->graph, c->node->slice,
                              inner->values);
  outer->nodes = run.nodes;
  outer->value_count = run.value_count;
  if (is_new) outer->drawn = outer->draws->count;
}

// Backward from y, if it depends on an x.
static void differentiate(choir__onnx_call_t* c, inner_t* inner) {
  const choir__onnx_value_t* y = &inner->values[c->node->slice->y];
  const choir_view_t* view = choir_var_view(y->var);
  if (!view || !choir_dtype_is_float(view->dtype)) {
    FAIL(INVALID_ARGUMENT, "y, '%s', is %s; needs floats",
         c->run->graph->places[c->node->slice->y].name,
         view ? choir_dtype_name(view->dtype) : "no tensor");
    return;
  }
  if (y->is_known || !choir_var_wants_grad(y->var)) return;
  const choir_fill_attrs_t one = {.value = 1};
  choir_var_t* start = choir_var_fill(inner->scope, y->var, &one);
  const choir_backward_options_t options = {.start = choir_var_tensor(start),
                                            .is_part_of_forward = true};
  choir_scope_backward(inner->scope, y->var, &options);
}

static choir_status_t no_second(void* self, choir_tensor_t* dy,
                                choir_tensor_t** out_grads) {
  (void)self, (void)dy, (void)out_grads;
  return CHOIR_ERROR(UNIMPLEMENTED,
                     "onnx: it is a gradient itself; Choir has no second "
                     "derivatives");
}

static void give_gradients(choir__onnx_call_t* c, inner_t* inner) {
  const choir__onnx_slice_t* slice = c->node->slice;
  const choir_custom_op_t op = {.name = "Gradient", .backward = no_second};
  const choir_fill_attrs_t zero = {.value = 0};
  for (int32_t i = 0; i < slice->x_count; ++i) {
    if (!choir__onnx_wants(c, i)) continue;
    choir_var_t* leaf = inner->values[slice->given[i]].var;
    choir_tensor_t* tensor = choir_var_grad(leaf);
    choir_var_t* source = inner->learnt ? inner->learnt : IN(i);
    choir__onnx_out_as(
        c, i,
        tensor ? choir_scope_record_custom(c->scope, &op, &source, 1, tensor)
               : DO(fill, IN(i), &zero),
        TYPE(i));
  }
}

// The step's, but with a tape.
static choir_status_t begin_inner(choir__onnx_call_t* c, inner_t* inner) {
  CHOIR_TRY(choir_scope_create(choir_scope_device(c->scope), &inner->scope));
  choir_step_t step = *choir_scope_step(c->scope);
  step.training = true;
  step.keeps_all = false;
  choir_scope_set_precision(inner->scope, choir_scope_precision(c->scope));
  choir_scope_begin(inner->scope, &step);
  return NULL;
}

void choir__onnx_op_gradient(choir__onnx_call_t* c) {
  inner_t inner = {.values = choir_scope_alloc(
                       c->scope, sizeof(*inner.values) *
                                     (size_t)(c->run->graph->place_count + 1))};
  if (!inner.values) return;
  choir_status_t status = begin_inner(c, &inner);
  if (status) {
    choir__onnx_fail(c, status);
    return;
  }
  fill_values(c, &inner);
  if (CALL_IS_OK && choir_scope_is_ok(inner.scope)) {
    run_again(c, &inner);
    if (!c->node->slice->is_constant && choir_scope_is_ok(inner.scope))
      differentiate(c, &inner);
    status = choir_scope_take_failure(inner.scope);
    if (status) choir__onnx_fail(c, status);
    if (CALL_IS_OK) give_gradients(c, &inner);
  }
  choir__onnx_fail(c, choir_scope_take_failure(inner.scope));
  choir_scope_destroy(inner.scope);
  choir_scope_set_label(c->scope, c->node->label);
}
