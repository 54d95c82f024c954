// SPDX-License-Identifier: Apache-2.0
// A forward: goes through the nodes in order and calls the operator of each.
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
  const size_t bytes =
      (size_t)choir_view_count(view) * choir_dtype_bytes(view->dtype);
  const char* data = choir_buffer_data(view->buffer);
  choir_view_t dense = *view;
  choir_view_set_contiguous(&dense);
  if (!choir_view_is_contiguous(view))
    return CHOIR_ERROR(INTERNAL, "onnx: a known value is not dense");
  return choir_tensor_from_data(
      device, view->dtype, view->ndim, view->shape,
      bytes ? data + (size_t)view->offset * choir_dtype_bytes(view->dtype)
            : data,
      out_tensor);
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
  hand_over(run);
  if (!choir_scope_is_ok(run->scope)) return false;
  for (int32_t i = 0; i < node->out_count; ++i)
    if (node->outputs[i] >= 0) values[node->outputs[i]] = outputs[i];
  return true;
}

bool choir__onnx_run_graph(choir__onnx_run_t* run,
                           const choir__onnx_graph_t* graph,
                           choir__onnx_value_t* values) {
  if (++run->depth > CHOIR__ONNX_MAX_DEPTH) {
    choir_scope_fail(run->scope,
                     CHOIR_ERROR(FAILED_PRECONDITION,
                                 "onnx: graphs run in one another more than %d "
                                 "deep",
                                 CHOIR__ONNX_MAX_DEPTH));
    return false;
  }
  const choir__onnx_graph_t* outer_graph = run->graph;
  choir__onnx_value_t* outer_values = run->values;
  run->graph = graph;
  run->values = values;
  bool is_ok = place_constants(run, graph, values);
  hand_over(run);
  for (int32_t i = 0; is_ok && i < graph->node_count; ++i)
    is_ok = run_node(run, &graph->nodes[i], values);
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
  if (!choir__onnx_run_graph(run, body, values)) return false;
  for (int32_t i = 0; i < body->out_count; ++i)
    outputs[i] = body->outputs[i] < 0 ? absent : values[body->outputs[i]];
  return true;
}

// ---- A forward ----

static choir_var_t* run_forward(choir__onnx_run_t* run, choir_vars_t inputs) {
  choir_onnx_t* onnx = run->onnx;
  const choir__onnx_graph_t* graph = onnx->graph;
  choir__onnx_value_t* values = choir_scope_alloc(
      run->scope, sizeof(*values) * (size_t)(graph->place_count + 1));
  if (!values) return choir_scope_fail(run->scope, NULL);
  onnx->values = values;
  onnx->scope = run->scope;
  for (int32_t i = 0; i < graph->in_count; ++i) {
    const choir_view_t* view = choir_var_view(inputs.at[i]);
    if (!view) return choir_scope_fail(run->scope, NULL);
    const choir_onnx_value_info_t info = choir_onnx_input(onnx, i);
    int32_t type = choir__onnx_dtype_type(view->dtype);
    choir_dtype_t dtype = view->dtype;
    if (info.type != CHOIR_ONNX_UNDEFINED) {
      choir_status_t status = choir_onnx_type_dtype(info.type, &dtype);
      if (status) return choir_scope_fail(run->scope, status);
      type = info.type;
    }
    if (dtype != view->dtype || (info.ndim >= 0 && info.ndim != view->ndim)) {
      char text[160];
      return choir_scope_fail(
          run->scope,
          CHOIR_ERROR(INVALID_ARGUMENT,
                      "onnx: input '%s' is %s; the model takes %s of %d "
                      "dimensions",
                      info.name, choir_view_print(view, text, sizeof text),
                      choir_dtype_name(dtype), info.ndim));
    }
    values[graph->inputs[i]] =
        (choir__onnx_value_t){.var = inputs.at[i], .type = type};
  }
  if (!choir__onnx_run_graph(run, graph, values))
    return choir_scope_fail(run->scope, NULL);
  choir_var_t** results = choir_scope_alloc(
      run->scope, sizeof(void*) * (size_t)(graph->out_count + 1));
  if (!results) return choir_scope_fail(run->scope, NULL);
  for (int32_t i = 0; i < graph->out_count; ++i) {
    choir__onnx_value_t* value = &values[graph->outputs[i]];
    if (!value->var)
      return choir_scope_fail(
          run->scope,
          CHOIR_ERROR(UNIMPLEMENTED,
                      "onnx: result '%s' is %s; results of a model are tensors",
                      graph->places[graph->outputs[i]].name,
                      value->is_sequence ? "a sequence" : "empty"));
    onnx->result_types[i] = value->type;
    results[i] =
        value->is_known
            ? choir__onnx_move(run, choir_var_tensor(value->var), value->kept)
            : value->var;
  }
  return graph->out_count == 0
             ? choir_scope_fail(run->scope,
                                CHOIR_ERROR(INVALID_ARGUMENT,
                                            "onnx: the model has no results"))
             : choir_scope_tuple(run->scope,
                                 (choir_vars_t){results, graph->out_count});
}

choir_var_t* choir_onnx_forward(choir_scope_t* scope, choir_onnx_t* onnx,
                                choir_vars_t inputs) {
  if (!choir_scope_is_ok(scope)) return choir_scope_fail(scope, NULL);
  if (inputs.count != onnx->graph->in_count)
    return choir_scope_fail(
        scope, CHOIR_ERROR(INVALID_ARGUMENT,
                           "onnx: %d inputs were given; the model takes %d",
                           inputs.count, onnx->graph->in_count));
  if (onnx->device != choir_scope_device(scope))
    return choir_scope_fail(
        scope,
        CHOIR_ERROR(FAILED_PRECONDITION,
                    "onnx: the parameters are not on the scope's device; "
                    "choir_onnx_define or choir_onnx_place comes first"));
  choir_scope_begin(onnx->known, NULL);
  choir__onnx_run_t run = {.onnx = onnx, .scope = scope, .known = onnx->known};
  return run_forward(&run, inputs);
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
