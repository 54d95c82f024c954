// SPDX-License-Identifier: Apache-2.0
// If, Loop and SequenceMap: bodies that run as often as known numbers say.
#include <string.h>

#include "onnx/operators/onnx_control_internal.h"

const choir__onnx_graph_t* choir__onnx_checked_body(choir__onnx_call_t* c,
                                                    const char* name,
                                                    int64_t inputs,
                                                    int64_t outputs) {
  const choir__onnx_graph_t* body = choir__onnx_body(c, name);
  if (!body) return NULL;
  const int32_t ins = choir__onnx_body_inputs(body);
  const int32_t outs = choir__onnx_body_outputs(body);
  if ((inputs < 0 || ins == inputs) && outs >= outputs) return body;
  FAIL(INVALID_ARGUMENT,
       "%s has %d inputs and %d results; needs %lld and %lld at least", name,
       ins, outs, (long long)inputs, (long long)outputs);
  return NULL;
}

bool choir__onnx_run_pass(choir__onnx_call_t* c,
                          const choir__onnx_graph_t* body,
                          const choir__onnx_value_t* inputs,
                          choir__onnx_value_t* outputs) {
  return choir__onnx_charge(c, 1 + body->place_count / 16) &&
         choir__onnx_run_body(c, body, inputs, outputs);
}

choir__onnx_value_t choir__onnx_entry(choir__onnx_call_t* c,
                                      choir__onnx_value_t* x, int64_t axis,
                                      int64_t k) {
  const choir_view_t* view = choir_var_view(x->var);
  choir__onnx_value_t entry = {.type = x->type, .is_known = x->is_known};
  if (!view) return entry;
  int64_t shape[CHOIR_MAX_NDIM];
  for (int32_t i = 0, n = 0; i < view->ndim; ++i)
    if (i != axis) shape[n++] = view->shape[i];
  const bool before = choir__onnx_go_to(c, x->is_known);
  entry.var = choir__onnx_reshape(
      c, choir__onnx_slice(c, x->var, axis, k, k + 1), view->ndim - 1, shape);
  (void)choir__onnx_go_to(c, before);
  return entry;
}

// The tensor type that result k of the body is declared with, or NULL.
static const Onnx__TypeProto__Tensor* declared_type(const choir__onnx_call_t* c,
                                                    int32_t k) {
  const Onnx__AttributeProto* attr =
      choir__onnx_find_attr(c->node, "body", NULL);
  if (!attr || !attr->g || (size_t)k >= attr->g->n_output) return NULL;
  const Onnx__TypeProto* type = attr->g->output[k]->type;
  return type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
             ? type->tensor_type
             : NULL;
}

choir__onnx_value_t choir__onnx_no_entries(choir__onnx_call_t* c, int32_t k,
                                           int64_t axis) {
  choir__onnx_value_t none = {.type = CHOIR_ONNX_FLOAT, .is_known = true};
  const Onnx__TypeProto__Tensor* type = declared_type(c, k);
  const Onnx__TensorShapeProto* sizes = type ? type->shape : NULL;
  if (type && type->has_elem_type) none.type = type->elem_type;
  const size_t ndim = sizes ? sizes->n_dim : 0;
  if (ndim >= CHOIR_MAX_NDIM) {
    FAIL(UNIMPLEMENTED, "result %d of the body has %zu dimensions", k, ndim);
    return none;
  }
  if (!choir__onnx_axis(c, &axis, (int32_t)ndim + 1)) return none;
  // A size that is not said is 0, as is that of the new axis.
  int64_t shape[CHOIR_MAX_NDIM] = {0};
  for (size_t i = 0; i < ndim; ++i) {
    const Onnx__TensorShapeProto__Dimension* dim = sizes->dim[i];
    if (dim->value_case ==
            ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
        dim->dim_value > 0)
      shape[i + ((int64_t)i >= axis)] = dim->dim_value;
  }
  choir_dtype_t dtype = CHOIR_DTYPE_F32;
  choir_status_t status = choir_onnx_type_dtype(none.type, &dtype);
  if (status) {
    choir__onnx_fail(c, status);
    return none;
  }
  const bool before = choir__onnx_go_to(c, true);
  none.var = choir__onnx_constant(c, dtype, (int32_t)ndim + 1, shape, &dtype);
  (void)choir__onnx_go_to(c, before);
  return none;
}

bool choir__onnx_append(choir__onnx_call_t* c, choir__onnx_list_t* list,
                        choir__onnx_value_t value) {
  if (list->count == list->capacity) {
    const int64_t capacity = list->capacity ? 2 * list->capacity : 16;
    choir__onnx_value_t* items = choir__onnx_make_items(c, capacity);
    if (!items) return false;
    if (list->count > 0)
      memcpy(items, list->items, sizeof(*items) * (size_t)list->count);
    list->items = items;
    list->capacity = capacity;
  }
  list->items[list->count++] = value;
  return true;
}

// ---- If ----

void choir__onnx_op_if(choir__onnx_call_t* c) {
  if (!HAS(0)) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "the condition is missing");
    return;
  }
  const double condition = choir__onnx_read_number(c, 0, 0);
  if (!CALL_IS_OK) return;
  const choir__onnx_graph_t* body = choir__onnx_checked_body(
      c, condition != 0 ? "then_branch" : "else_branch", 0, c->out_count);
  if (!body) return;
  choir__onnx_value_t* results =
      choir__onnx_make_items(c, choir__onnx_body_outputs(body));
  if (!results || !choir__onnx_run_pass(c, body, NULL, results)) return;
  for (int32_t i = 0; i < c->out_count; ++i) choir__onnx_give(c, i, results[i]);
}

// ---- Loop ----

typedef struct loop_s {
  const choir__onnx_graph_t* body;
  int64_t trips;
  bool has_condition, goes_on;
  int32_t carried, stacked;
  choir__onnx_value_t* inputs;   // iteration, condition, carried ones
  choir__onnx_value_t* results;  // condition, carried ones, stacked ones
  choir__onnx_list_t* lists;     // of stacked ones
} loop_t;

// A known scalar.
static choir__onnx_value_t known_scalar(choir__onnx_call_t* c, int32_t type,
                                        int64_t number) {
  const bool before = choir__onnx_go_to(c, true);
  choir__onnx_value_t value = {.type = type, .is_known = true};
  value.var = type == CHOIR_ONNX_BOOL
                  ? choir__onnx_scalar(c, CHOIR_DTYPE_BOOL, (double)number)
                  : choir__onnx_constant(c, CHOIR_DTYPE_I64, 0, NULL, &number);
  (void)choir__onnx_go_to(c, before);
  return value;
}

static bool read_loop(choir__onnx_call_t* c, loop_t* loop) {
  *loop = (loop_t){.trips = INT64_MAX,
                   .has_condition = HAS(1),
                   .goes_on = true,
                   .carried = c->in_count > 2 ? c->in_count - 2 : 0};
  if (HAS(0) && choir__onnx_read_ints(c, 0, &loop->trips, 1) != 1) {
    if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "the trip count is empty");
    return false;
  }
  if (HAS(1)) loop->goes_on = choir__onnx_read_number(c, 1, 1) != 0;
  loop->body = choir__onnx_checked_body(c, "body", 2 + (int64_t)loop->carried,
                                        1 + (int64_t)loop->carried);
  if (!CALL_IS_OK || !loop->body) return false;
  const int32_t results = choir__onnx_body_outputs(loop->body);
  loop->stacked = results - 1 - loop->carried;
  loop->inputs = choir__onnx_make_items(c, 2 + (int64_t)loop->carried);
  loop->results = choir__onnx_make_items(c, results);
  loop->lists = choir_scope_alloc(
      c->scope, sizeof(*loop->lists) * (size_t)(loop->stacked + 1));
  if (!loop->inputs || !loop->results || !loop->lists) return false;
  loop->inputs[1] = known_scalar(c, CHOIR_ONNX_BOOL, 1);
  for (int32_t i = 0; i < loop->carried; ++i)
    loop->inputs[2 + i] = *c->inputs[2 + i];
  return CALL_IS_OK;
}

static bool read_condition(choir__onnx_call_t* c,
                           const choir__onnx_value_t* value,
                           bool* out_goes_on) {
  choir__onnx_array_t array;
  if (!value->var ||
      !choir__onnx_read_var(c, value->var, value->is_known, &array) ||
      array.count != 1) {
    if (CALL_IS_OK)
      FAIL(INVALID_ARGUMENT, "the body's condition has no single element");
    return false;
  }
  *out_goes_on = choir__onnx_int_at(&array, 0) != 0;
  return true;
}

static bool run_trip(choir__onnx_call_t* c, loop_t* loop, int64_t trip) {
  loop->inputs[0] = known_scalar(c, CHOIR_ONNX_INT64, trip);
  if (!choir__onnx_run_pass(c, loop->body, loop->inputs, loop->results))
    return false;
  for (int32_t i = 0; i < loop->carried; ++i)
    loop->inputs[2 + i] = loop->results[1 + i];
  for (int32_t i = 0; i < loop->stacked; ++i)
    if (choir__onnx_wants(c, loop->carried + i) &&
        !choir__onnx_append(c, &loop->lists[i],
                            loop->results[1 + loop->carried + i]))
      return false;
  return !loop->has_condition ||
         read_condition(c, &loop->results[0], &loop->goes_on);
}

void choir__onnx_op_loop(choir__onnx_call_t* c) {
  loop_t loop;
  if (!read_loop(c, &loop)) return;
  for (int64_t trip = 0; trip < loop.trips && loop.goes_on; ++trip)
    if (!run_trip(c, &loop, trip)) return;
  for (int32_t i = 0; i < loop.carried; ++i)
    choir__onnx_give(c, i, loop.inputs[2 + i]);
  for (int32_t i = 0; i < loop.stacked && CALL_IS_OK; ++i) {
    const choir__onnx_list_t* list = &loop.lists[i];
    const int32_t place = loop.carried + i;
    if (!choir__onnx_wants(c, place)) continue;
    choir__onnx_give(c, place,
                     list->count > 0 ? choir__onnx_stack_values(
                                           c, list->items, list->count, 0, true)
                                     : choir__onnx_no_entries(c, 1 + place, 0));
  }
}

// ---- SequenceMap ----

static bool map_item(choir__onnx_call_t* c, const choir__onnx_graph_t* body,
                     int32_t place, choir__onnx_value_t* inputs,
                     choir__onnx_value_t* results) {
  for (int32_t i = 0; i < c->in_count; ++i) {
    const choir__onnx_value_t* input = c->inputs[i];
    if (input->is_sequence && place >= input->count) {
      FAIL(INVALID_ARGUMENT, "sequence %d has %d tensors and sequence 0 %d", i,
           input->count, c->inputs[0]->count);
      return false;
    }
    inputs[i] = input->is_sequence ? input->items[place] : *input;
  }
  return choir__onnx_run_pass(c, body, inputs, results);
}

void choir__onnx_op_sequence_map(choir__onnx_call_t* c) {
  const choir__onnx_graph_t* body =
      choir__onnx_checked_body(c, "body", c->in_count, c->out_count);
  if (!body) return;
  if (!HAS(0) || !c->inputs[0]->is_sequence) {
    FAIL(INVALID_ARGUMENT, "input 0 is no sequence; needs one");
    return;
  }
  const int32_t count = c->inputs[0]->count;
  choir__onnx_value_t* inputs = choir__onnx_make_items(c, c->in_count);
  choir__onnx_value_t* results =
      choir__onnx_make_items(c, choir__onnx_body_outputs(body));
  if (!inputs || !results) return;
  for (int32_t k = 0; k < c->out_count; ++k) {
    choir__onnx_value_t list = {.is_sequence = true, .count = count};
    list.items = choir__onnx_make_items(c, count);
    if (!list.items) return;
    choir__onnx_give(c, k, list);
  }
  for (int32_t i = 0; i < count; ++i) {
    if (!map_item(c, body, i, inputs, results)) return;
    for (int32_t k = 0; k < c->out_count; ++k) {
      if (!choir__onnx_wants(c, k)) continue;
      if (!results[k].var) {
        FAIL(INVALID_ARGUMENT, "result %d of the body is no tensor", k);
        return;
      }
      c->outputs[k].items[i] = results[k];
      c->outputs[k].type = results[k].type;
    }
  }
}
