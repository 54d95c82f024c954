// SPDX-License-Identifier: Apache-2.0
// A forward: goes through the nodes in order and calls the operator of each.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

static void release_tensor(void* tensor, void* data) {
  (void)data;
  choir_tensor_release(tensor);
}

// The host's memory as a tensor of the device's, where that sees it.
static choir_status_t share(choir_device_t* device, choir_tensor_t* tensor,
                            choir_tensor_t** out_tensor) {
  choir_view_t view = *choir_tensor_view(tensor);
  choir_tensor_retain(tensor);
  choir_buffer_t* buffer = NULL;
  choir_status_t status = choir_buffer_wrap(
      device, choir_buffer_data(view.buffer), choir_buffer_bytes(view.buffer),
      release_tensor, tensor, &buffer);
  if (status) {
    choir_tensor_release(tensor);
    return status;
  }
  view.buffer = buffer;
  status = choir_tensor_from_view(&view, out_tensor);
  choir_buffer_release(buffer);
  return status;
}

static choir_status_t copy_over(choir_device_t* device, choir_tensor_t* tensor,
                                choir_tensor_t** out_tensor) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const size_t width = choir_dtype_bytes(view->dtype);
  const size_t bytes = (size_t)choir_view_count(view) * width;
  if (bytes == 0 || choir_view_is_contiguous(view))
    return choir_tensor_from_data(
        device, view->dtype, view->ndim, view->shape,
        (const char*)choir_buffer_data(view->buffer) +
            (bytes ? (size_t)view->offset * width : 0),
        out_tensor);
  void* dense = malloc(bytes);
  if (!dense) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a copy");
  choir_status_t status = choir_tensor_read(tensor, dense, bytes);
  if (!status)
    status = choir_tensor_from_data(device, view->dtype, view->ndim,
                                    view->shape, dense, out_tensor);
  free(dense);
  return status;
}

choir_var_t* choir__onnx_move(choir__onnx_run_t* run, choir_tensor_t* tensor,
                              choir_tensor_t** kept) {
  if (!tensor) return choir_scope_fail(run->scope, NULL);
  if (kept && *kept &&
      choir_tensor_device(*kept) == choir_scope_device(run->scope))
    return choir_scope_input(run->scope, *kept);
  choir_device_t* device = choir_scope_device(run->scope);
  choir_tensor_t* moved = NULL;
  choir_status_t status = choir_device_is_host(device)
                              ? share(device, tensor, &moved)
                              : copy_over(device, tensor, &moved);
  if (status) return choir_scope_fail(run->scope, status);
  choir_var_t* var = choir_scope_input(run->scope, moved);
  if (kept) {
    choir_tensor_release(*kept);
    *kept = moved;
  } else {
    choir_tensor_release(moved);
  }
  return var;
}

// Constants and parameters of a graph as values.
static bool place_constants(choir__onnx_run_t* run,
                            const choir__onnx_graph_t* graph,
                            choir__onnx_value_t* values) {
  for (int32_t i = 0; i < graph->place_count; ++i) {
    const choir__onnx_place_t* place = &graph->places[i];
    if (!place->constant) continue;
    choir__onnx_value_t* value = &values[i];
    *value = (choir__onnx_value_t){.type = place->type};
    if (place->param >= 0) {
      value->var =
          choir_scope_param(run->scope, run->onnx->params[place->param]);
    } else {
      value->var = choir_scope_input(run->known, place->constant);
      value->is_known = true;
      value->kept = (choir_tensor_t**)&place->moved;
    }
  }
  return choir_scope_is_ok(run->scope) && choir_scope_is_ok(run->known);
}

static const choir__onnx_value_t absent;

// A failure of the host's scope is the step's.
static void hand_over(choir__onnx_run_t* run) {
  choir_status_t status = choir_scope_take_failure(run->known);
  if (status) choir_scope_fail(run->scope, status);
}

// A failure says which node it is of.
static void name_failure(choir__onnx_run_t* run,
                         const choir__onnx_node_t* node) {
  choir_status_t status = choir_scope_take_failure(run->scope);
  if (status)
    choir_scope_fail(
        run->scope,
        choir_status_annotate(status, __FILE__, __LINE__, "node '%s' (%s)",
                              node->label, node->op->name));
}

static void call_node(choir__onnx_run_t* run, const choir__onnx_node_t* node,
                      bool is_known, choir__onnx_value_t** inputs,
                      choir__onnx_value_t* outputs) {
  choir__onnx_call_t call = {.run = run,
                             .node = node,
                             .scope = is_known ? run->known : run->scope,
                             .version = node->version,
                             .is_known = is_known,
                             .inputs = inputs,
                             .in_count = node->in_count,
                             .outputs = outputs,
                             .out_count = node->out_count};
  const char* label = choir_scope_label(run->scope);
  choir_scope_set_label(call.scope, node->label);
  node->op->call(&call);
  choir_scope_set_label(call.scope, call.scope == run->scope ? label : NULL);
  if (node->op->where != CHOIR__ONNX_BOTH && choir__onnx_wants(&call, 0) &&
      !outputs[0].var && !outputs[0].is_sequence &&
      choir_scope_is_ok(call.scope))
    choir_scope_fail(
        call.scope, CHOIR_ERROR(INVALID_ARGUMENT,
                                "%d inputs, some of them absent; it needs more",
                                node->in_count));
  hand_over(run);
  name_failure(run, node);
}

static bool run_node(choir__onnx_run_t* run, const choir__onnx_node_t* node,
                     choir__onnx_value_t* values) {
  if (++run->nodes > CHOIR__ONNX_MAX_RUNS) {
    choir_scope_fail(run->scope,
                     CHOIR_ERROR(FAILED_PRECONDITION,
                                 "onnx: more than %d nodes in one forward (a "
                                 "loop that does not end?)",
                                 CHOIR__ONNX_MAX_RUNS));
    return false;
  }
  const int32_t drawn = run->drawn;
  choir__onnx_value_t** inputs = choir_scope_alloc(
      run->known, sizeof(void*) * (size_t)(node->in_count + 1));
  choir__onnx_value_t* outputs = choir_scope_alloc(
      run->known, sizeof(*outputs) * (size_t)(node->out_count + 1));
  if (!inputs || !outputs) {
    hand_over(run);
    return false;
  }
  bool is_known = true;
  for (int32_t i = 0; i < node->in_count; ++i) {
    const int32_t place = node->inputs[i];
    inputs[i] = place < 0 ? (choir__onnx_value_t*)&absent : &values[place];
    if (inputs[i]->var && !inputs[i]->is_known) is_known = false;
    if (inputs[i]->is_sequence) is_known = false;
  }
  if (node->op->where == CHOIR__ONNX_HOST) is_known = true;
  if (node->op->where == CHOIR__ONNX_STEP) is_known = false;
  const bool is_kept = is_known && node->memo;
  if (!is_kept || !choir__onnx_recall(run, node, inputs, outputs)) {
    call_node(run, node, is_known, inputs, outputs);
    if (is_kept && run->drawn == drawn && choir_scope_is_ok(run->scope))
      choir__onnx_remember(run, node, inputs, outputs);
  }
  if (!choir_scope_is_ok(run->scope)) return false;
  for (int32_t i = 0; i < node->out_count; ++i)
    if (node->outputs[i] >= 0 && !values[node->outputs[i]].is_given) {
      values[node->outputs[i]] = outputs[i];
      values[node->outputs[i]].is_given = false;
      values[node->outputs[i]].drawn = drawn;
    }
  return true;
}

// Nodes that run again draw what they drew before.
static bool run_slice(choir__onnx_run_t* run, const choir__onnx_graph_t* graph,
                      const choir__onnx_slice_t* slice,
                      choir__onnx_value_t* values) {
  for (int32_t i = 0; i < slice->node_count; ++i) {
    run->drawn = run->before[slice->firsts[i]].drawn;
    if (!run_node(run, &graph->nodes[slice->nodes[i]], values)) return false;
  }
  return true;
}

// As many values a run of a graph counts for, however few nodes it has.
enum { RUN_VALUES = 16 };

bool choir__onnx_run_graph(choir__onnx_run_t* run,
                           const choir__onnx_graph_t* graph,
                           const choir__onnx_slice_t* slice,
                           choir__onnx_value_t* values) {
  if (++run->depth > CHOIR__ONNX_MAX_DEPTH) {
    choir_scope_fail(run->scope,
                     CHOIR_ERROR(FAILED_PRECONDITION,
                                 "onnx: graphs run in one another more than %d "
                                 "deep",
                                 CHOIR__ONNX_MAX_DEPTH));
    return false;
  }
  run->value_count += graph->place_count + RUN_VALUES;
  if (run->value_count > CHOIR__ONNX_MAX_VALUES) {
    choir_scope_fail(run->scope,
                     CHOIR_ERROR(FAILED_PRECONDITION,
                                 "onnx: more than %d values in one forward (a "
                                 "loop that does not end?)",
                                 CHOIR__ONNX_MAX_VALUES));
    return false;
  }
  const choir__onnx_graph_t* outer_graph = run->graph;
  choir__onnx_value_t* outer_values = run->values;
  run->graph = graph;
  run->values = values;
  bool is_ok = slice ? run_slice(run, graph, slice, values)
                     : place_constants(run, graph, values);
  hand_over(run);
  for (int32_t i = 0; is_ok && !slice && i < graph->node_count; ++i) {
    const choir__onnx_node_t* node = &graph->nodes[i];
    if (!node->is_idle)
      is_ok = run_node(run, node->is_joined ? node->joined : node, values);
  }
  run->graph = outer_graph;
  run->values = outer_values;
  --run->depth;
  return is_ok && choir_scope_is_ok(run->scope);
}

// ---- Graphs in attributes ----

int32_t choir__onnx_body_inputs(const choir__onnx_graph_t* body) {
  return body->in_count;
}
int32_t choir__onnx_body_outputs(const choir__onnx_graph_t* body) {
  return body->out_count;
}

const choir__onnx_graph_t* choir__onnx_body(choir__onnx_call_t* c,
                                            const char* name) {
  int32_t number = -1;
  (void)choir__onnx_find_attr(c->node, name, &number);
  const choir__onnx_graph_t* body = number < 0 ? NULL : c->node->bodies[number];
  if (!body) FAIL(INVALID_ARGUMENT, "attribute %s, a graph, is missing", name);
  return body;
}

bool choir__onnx_run_body(choir__onnx_call_t* c,
                          const choir__onnx_graph_t* body,
                          const choir__onnx_value_t* inputs,
                          choir__onnx_value_t* outputs) {
  choir__onnx_run_t* run = c->run;
  choir__onnx_value_t* values = choir_scope_alloc(
      run->known, sizeof(*values) * (size_t)(body->place_count + 1));
  if (!values) {
    hand_over(run);
    return false;
  }
  for (int32_t i = 0; i < body->capture_count; ++i)
    values[body->captures[i].inner] = run->values[body->captures[i].outer];
  for (int32_t i = 0; i < body->in_count; ++i)
    values[body->inputs[i]] = inputs[i];
  if (!choir__onnx_run_graph(run, body, NULL, values)) return false;
  for (int32_t i = 0; i < body->out_count; ++i)
    outputs[i] = body->outputs[i] < 0 ? absent : values[body->outputs[i]];
  return true;
}

// ---- A forward ----

// Whether a variable is what the file declares of the input.
static bool check_var(choir__onnx_run_t* run, choir_var_t* var,
                      const choir_onnx_value_info_t* info, int32_t* out_type) {
  const choir_view_t* view = choir_var_view(var);
  if (!view) {
    choir_scope_fail(
        run->scope, CHOIR_ERROR(INVALID_ARGUMENT, "onnx: input '%s' is missing",
                                info->name));
    return false;
  }
  choir_dtype_t dtype = view->dtype;
  *out_type = choir__onnx_dtype_type(view->dtype);
  if (info->type != CHOIR_ONNX_UNDEFINED) {
    choir_status_t status = choir_onnx_type_dtype(info->type, &dtype);
    if (status) {
      choir_scope_fail(run->scope, status);
      return false;
    }
    *out_type = info->type;
  }
  if (dtype == view->dtype && (info->ndim < 0 || info->ndim == view->ndim))
    return true;
  char text[160];
  choir_scope_fail(
      run->scope,
      CHOIR_ERROR(INVALID_ARGUMENT,
                  "onnx: input '%s' is %s; the model takes %s of %d dimensions",
                  info->name, choir_view_print(view, text, sizeof text),
                  choir_dtype_name(dtype), info->ndim));
  return false;
}

static bool place_input(choir__onnx_run_t* run, int32_t i,
                        const choir_onnx_value_t* input,
                        choir__onnx_value_t* value) {
  const choir_onnx_value_info_t info = choir_onnx_input(run->onnx, i);
  const int32_t count = input->vars.count;
  const bool is_tensor = strcmp(info.kind, "tensor") == 0;
  const bool is_list = strcmp(info.kind, "sequence") == 0;
  if ((is_tensor && (input->is_sequence || count != 1)) ||
      (is_list && !input->is_sequence) || count < 0 ||
      (!input->is_sequence && count > 1)) {
    choir_scope_fail(
        run->scope,
        CHOIR_ERROR(INVALID_ARGUMENT,
                    "onnx: input '%s' is %s of %d tensors; the model takes "
                    "a %s (choir_onnx_run takes other values than tensors)",
                    info.name, input->is_sequence ? "a sequence" : "a value",
                    count, info.kind));
    return false;
  }
  *value = (choir__onnx_value_t){.type = info.type,
                                 .is_sequence = input->is_sequence};
  if (!input->is_sequence) {
    if (count == 0) return true;
    value->var = input->vars.at[0];
    return check_var(run, value->var, &info, &value->type);
  }
  value->count = count;
  value->items = choir_scope_alloc(run->scope,
                                   sizeof(*value->items) * ((size_t)count + 1));
  if (!value->items) return false;
  for (int32_t k = 0; k < count; ++k) {
    value->items[k].var = input->vars.at[k];
    if (!check_var(run, input->vars.at[k], &info, &value->items[k].type))
      return false;
  }
  return true;
}

// A value as variables of the step.
static bool give_result(choir__onnx_run_t* run,
                        const choir__onnx_value_t* value,
                        choir_onnx_value_t* out) {
  const int32_t count = value->is_sequence ? value->count : value->var != NULL;
  const choir__onnx_value_t* items = value->is_sequence ? value->items : value;
  choir_var_t** vars =
      choir_scope_alloc(run->scope, sizeof(void*) * ((size_t)count + 1));
  if (!vars) return false;
  for (int32_t k = 0; k < count; ++k) {
    if (!choir_var_tensor(items[k].var)) {
      choir_scope_fail(
          run->scope, CHOIR_ERROR(UNIMPLEMENTED,
                                  "onnx: item %d of a result is no tensor", k));
      return false;
    }
    vars[k] = items[k].is_known
                  ? choir__onnx_move(run, choir_var_tensor(items[k].var),
                                     items[k].kept)
                  : items[k].var;
  }
  *out = (choir_onnx_value_t){.vars = {vars, count},
                              .is_sequence = value->is_sequence,
                              .type = value->type};
  return choir_scope_is_ok(run->scope);
}

static bool run_values(choir__onnx_run_t* run,
                       const choir_onnx_value_t* inputs) {
  choir_onnx_t* onnx = run->onnx;
  const choir__onnx_graph_t* graph = onnx->graph;
  choir__onnx_value_t* values = choir_scope_alloc(
      run->scope, sizeof(*values) * (size_t)(graph->place_count + 1));
  choir_onnx_value_t* given = choir_scope_alloc(
      run->scope, sizeof(*given) * (size_t)(onnx->result_count + 1));
  if (!values || !given) return false;
  onnx->values = values;
  onnx->scope = run->scope;
  for (int32_t i = 0; i < graph->in_count; ++i)
    if (!place_input(run, i, &inputs[i], &values[graph->inputs[i]]))
      return false;
  if (!choir__onnx_run_graph(run, graph, NULL, values)) return false;
  for (int32_t i = 0; i < onnx->result_count; ++i) {
    const int32_t place = onnx->results[i];
    const choir__onnx_value_t* value = place < 0 ? &absent : &values[place];
    onnx->result_types[i] = value->type;
    if (!give_result(run, value, &given[i])) return false;
  }
  onnx->given = given;
  return true;
}

bool choir_onnx_run(choir_scope_t* scope, choir_onnx_t* onnx,
                    const choir_onnx_value_t* inputs, int32_t count) {
  if (!choir_scope_is_ok(scope)) return false;
  onnx->values = NULL;
  onnx->given = NULL;
  choir_status_t status = NULL;
  if (onnx->define_failure)
    status = choir_status_clone(onnx->define_failure);
  else if (count != onnx->graph->in_count)
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: %d inputs were given; the model takes %d",
                         count, onnx->graph->in_count);
  else if (onnx->device != choir_scope_device(scope))
    status = CHOIR_ERROR(FAILED_PRECONDITION,
                         "onnx: the parameters are not on the scope's device; "
                         "choir_onnx_define or choir_onnx_place comes first");
  if (status) {
    choir_scope_fail(scope, status);
    return false;
  }
  choir_scope_begin(onnx->known, NULL);
  choir__onnx_draws_t draws = {.scope = scope};
  choir__onnx_run_t run = {.onnx = onnx,
                           .scope = scope,
                           .known = onnx->known,
                           .is_training = choir_scope_step(scope)->training,
                           .draws = &draws};
  return run_values(&run, inputs) && choir_scope_is_ok(scope);
}

choir_onnx_value_t choir_onnx_result(const choir_onnx_t* onnx, int32_t index) {
  if (!onnx->given || index < 0 || index >= onnx->result_count)
    return (choir_onnx_value_t){.vars = {NULL, 0}};
  return onnx->given[index];
}

// The results of the last run, all tensors, as a tuple.
static choir_var_t* tuple_of(choir_scope_t* scope, const choir_onnx_t* onnx) {
  const int32_t count = onnx->result_count;
  choir_var_t** vars =
      choir_scope_alloc(scope, sizeof(void*) * (size_t)(count + 1));
  if (!vars) return choir_scope_fail(scope, NULL);
  for (int32_t i = 0; i < count; ++i) {
    const choir_onnx_value_t* value = &onnx->given[i];
    const int32_t place = onnx->results[i];
    if (value->is_sequence || value->vars.count != 1)
      return choir_scope_fail(
          scope, CHOIR_ERROR(UNIMPLEMENTED,
                             "onnx: result '%s' is %s; results of a model are "
                             "tensors (choir_onnx_run gives others)",
                             place < 0 ? "" : onnx->graph->places[place].name,
                             value->is_sequence ? "a sequence" : "empty"));
    vars[i] = value->vars.at[0];
  }
  return count == 0
             ? choir_scope_fail(scope, CHOIR_ERROR(INVALID_ARGUMENT,
                                                   "onnx: the model has no "
                                                   "results"))
             : choir_scope_tuple(scope, (choir_vars_t){vars, count});
}

choir_var_t* choir_onnx_forward(choir_scope_t* scope, choir_onnx_t* onnx,
                                choir_vars_t inputs) {
  const size_t count = inputs.count > 0 ? (size_t)inputs.count : 0;
  choir_onnx_value_t* values =
      choir_scope_is_ok(scope)
          ? choir_scope_alloc(scope, sizeof(*values) * (count + 1))
          : NULL;
  if (!values) return choir_scope_fail(scope, NULL);
  for (size_t i = 0; i < count; ++i)
    values[i] = (choir_onnx_value_t){.vars = {&inputs.at[i], 1}};
  return choir_onnx_run(scope, onnx, values, inputs.count)
             ? tuple_of(scope, onnx)
             : choir_scope_fail(scope, NULL);
}

choir_var_t* choir_onnx_find_result(const choir_onnx_t* onnx,
                                    const char* name) {
  const choir__onnx_graph_t* graph = onnx->graph;
  for (int32_t i = 0; onnx->values && i < graph->place_count; ++i) {
    if (strcmp(graph->places[i].name, name) != 0) continue;
    const choir__onnx_value_t* value = &onnx->values[i];
    return value->is_known ? NULL : value->var;
  }
  return NULL;
}
