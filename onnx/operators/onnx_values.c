// SPDX-License-Identifier: Apache-2.0
// Values that are joined, moved and counted: helpers of sequences and loops.
#include "onnx/operators/onnx_sequences_internal.h"

enum { MOST_SOURCES = 15 };  // of the op concat

choir_var_t* choir__onnx_join(choir__onnx_call_t* c, choir_var_t* const* vars,
                              int64_t count, int64_t axis) {
  if (count == 1) return vars[0];
  if (count < 1)
    return FAIL(INVALID_ARGUMENT, "there is nothing to join; needs a tensor");
  if (axis < 0 || axis >= CHOIR_MAX_NDIM)
    return FAIL(INVALID_ARGUMENT, "axis %lld to join along", (long long)axis);
  const choir_concat_attrs_t attrs = {.axis = axis};
  if (count <= MOST_SOURCES)
    return choir_var_concat(c->scope, vars, (int32_t)count, &attrs);
  const int64_t groups = (count + MOST_SOURCES - 1) / MOST_SOURCES;
  choir_var_t** joined =
      choir_scope_alloc(c->scope, sizeof(void*) * (size_t)groups);
  if (!joined) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t left = count - i * MOST_SOURCES;
    joined[i] =
        choir__onnx_join(c, vars + i * MOST_SOURCES,
                         left < MOST_SOURCES ? left : MOST_SOURCES, axis);
  }
  return choir__onnx_join(c, joined, groups, axis);
}

choir_var_t* choir__onnx_stack(choir__onnx_call_t* c, choir_var_t* const* vars,
                               int64_t count, int64_t axis) {
  if (count < 1) return choir__onnx_join(c, vars, count, axis);
  const choir_view_t* view = choir_var_view(vars[0]);
  if (!view || !choir__onnx_axis(c, &axis, view->ndim + 1))
    return choir_scope_fail(c->scope, NULL);
  choir_var_t** rows =
      choir_scope_alloc(c->scope, sizeof(void*) * (size_t)count);
  if (!rows) return choir_scope_fail(c->scope, NULL);
  for (int64_t i = 0; i < count; ++i) {
    const choir_view_t* own = choir_var_view(vars[i]);
    if (own && own->ndim != view->ndim)
      return FAIL(INVALID_ARGUMENT,
                  "tensors of %d and of %d dimensions are to be stacked",
                  view->ndim, own->ndim);
    rows[i] = choir__onnx_unsqueeze(c, vars[i], &axis, 1);
  }
  return choir__onnx_join(c, rows, count, axis);
}

choir_var_t* choir__onnx_zeros(choir__onnx_call_t* c, choir_dtype_t dtype,
                               int32_t ndim, const int64_t* shape) {
  choir_broadcast_to_attrs_t attrs = {.ndim = ndim};
  for (int32_t i = 0; i < ndim; ++i) attrs.shape[i] = shape[i];
  return DO(copy, DO(broadcast_to, choir__onnx_scalar(c, dtype, 0), &attrs));
}

bool choir__onnx_charge(choir__onnx_call_t* c, int64_t nodes) {
  if (!CALL_IS_OK) return false;
  if (nodes >= 0 && nodes <= CHOIR__ONNX_MAX_RUNS - c->run->nodes) {
    c->run->nodes += nodes;
    return true;
  }
  FAIL(FAILED_PRECONDITION,
       "it takes as much as more than %d nodes in one forward (a loop that "
       "does not end?)",
       CHOIR__ONNX_MAX_RUNS);
  return false;
}

bool choir__onnx_go_to(choir__onnx_call_t* c, bool is_known) {
  const bool before = c->is_known;
  c->is_known = is_known;
  c->scope = is_known ? c->run->known : c->run->scope;
  return before;
}

choir_var_t* choir__onnx_take(choir__onnx_call_t* c,
                              choir__onnx_value_t* value) {
  if (!value->var || c->is_known == value->is_known) return value->var;
  if (c->is_known)
    return FAIL(INTERNAL, "a value is not known before the step runs");
  if (!value->moved)
    value->moved =
        choir__onnx_move(c->run, choir_var_tensor(value->var), value->kept);
  return value->moved;
}

void choir__onnx_give(choir__onnx_call_t* c, int32_t i,
                      choir__onnx_value_t value) {
  if (choir__onnx_wants(c, i)) c->outputs[i] = value;
}

choir__onnx_value_t* choir__onnx_make_items(choir__onnx_call_t* c,
                                            int64_t count) {
  // A sixteenth of a node for each: 56 bytes beside a node's kilobyte.
  if (!choir__onnx_charge(c, count / 16)) return NULL;
  return choir_scope_alloc(c->scope,
                           sizeof(choir__onnx_value_t) * (size_t)(count + 1));
}

choir__onnx_value_t choir__onnx_stack_values(choir__onnx_call_t* c,
                                             choir__onnx_value_t* values,
                                             int64_t count, int64_t axis,
                                             bool makes_axis) {
  bool is_known = true;
  choir__onnx_value_t result = {.type = count > 0 ? values[0].type : 0};
  for (int64_t i = 0; i < count; ++i) {
    if (!values[i].var)
      FAIL(INVALID_ARGUMENT, "value %lld to join is no tensor", (long long)i);
    if (!values[i].is_known) is_known = false;
  }
  choir_var_t** vars =
      CALL_IS_OK
          ? choir_scope_alloc(c->scope, sizeof(void*) * (size_t)(count + 1))
          : NULL;
  if (!vars) return result;
  const bool before = choir__onnx_go_to(c, is_known);
  for (int64_t i = 0; i < count; ++i) vars[i] = choir__onnx_take(c, &values[i]);
  if (!makes_axis && count > 0) {
    const choir_view_t* view = choir_var_view(vars[0]);
    if (view && choir__onnx_axis(c, &axis, view->ndim))
      result.var = choir__onnx_join(c, vars, count, axis);
  } else {
    result.var = choir__onnx_stack(c, vars, count, axis);
  }
  result.is_known = is_known;
  (void)choir__onnx_go_to(c, before);
  return result;
}
