// SPDX-License-Identifier: Apache-2.0
// Scan: a body runs over the entries of tensors. Version 8 has sequences of
// several lengths as a batch, later ones have axes.
#include "onnx/operators/onnx_control_internal.h"

typedef struct scan_s {
  const choir__onnx_graph_t* body;
  int32_t first;                 // of the node's inputs: the first state
  int32_t states, ins, outs;     // numbers of each
  choir__onnx_value_t* inputs;   // of the body
  choir__onnx_value_t* results;  // of the body
  choir__onnx_list_t* lists;     // of each scanned result
} scan_t;

// Number i of an ints attribute.
static int64_t number_of(const choir__onnx_call_t* c, const char* name,
                         int32_t i) {
  int32_t count;
  const int64_t* ints = choir__onnx_ints(c, name, &count);
  return i < count ? ints[i] : 0;
}

static bool read_scan(choir__onnx_call_t* c, scan_t* scan) {
  const int64_t ins = choir__onnx_int(c, "num_scan_inputs", 0);
  *scan = (scan_t){.first = c->version < 9};
  if (ins < 1 || ins > c->in_count - scan->first) {
    FAIL(INVALID_ARGUMENT,
         "num_scan_inputs is %lld of %d inputs; needs one at least",
         (long long)ins, c->in_count);
    return false;
  }
  scan->ins = (int32_t)ins;
  scan->states = c->in_count - scan->first - scan->ins;
  for (int32_t i = scan->first + scan->states; i < c->in_count; ++i)
    if (!VIEW(i)) {
      if (CALL_IS_OK) FAIL(INVALID_ARGUMENT, "input %d is no tensor", i);
      return false;
    }
  scan->body = choir__onnx_checked_body(
      c, "body", (int64_t)scan->states + scan->ins, scan->states);
  if (!scan->body) return false;
  const int32_t results = choir__onnx_body_outputs(scan->body);
  scan->outs = results - scan->states;
  scan->inputs = choir__onnx_make_items(c, (int64_t)scan->states + scan->ins);
  scan->results = choir__onnx_make_items(c, results);
  scan->lists = choir_scope_alloc(
      c->scope, sizeof(*scan->lists) * (size_t)(scan->outs + 1));
  return scan->inputs && scan->results && scan->lists;
}

// Runs the body `length` times over states and scanned tensors (values);
// results: the last states, then each scanned result in one tensor.
static bool run_sequence(choir__onnx_call_t* c, scan_t* scan,
                         choir__onnx_value_t* values, int64_t length,
                         choir__onnx_value_t* results) {
  const bool has_axes = c->version >= 9;
  const char* directions = has_axes ? "scan_input_directions" : "directions";
  for (int32_t i = 0; i < scan->states; ++i) results[i] = values[i];
  for (int32_t i = 0; i < scan->outs; ++i) scan->lists[i].count = 0;
  for (int64_t t = 0; t < length; ++t) {
    for (int32_t i = 0; i < scan->states; ++i) scan->inputs[i] = results[i];
    for (int32_t i = 0; i < scan->ins; ++i) {
      choir__onnx_value_t* x = &values[scan->states + i];
      int64_t axis = has_axes ? number_of(c, "scan_input_axes", i) : 0;
      if (!choir__onnx_axis(c, &axis, choir_var_view(x->var)->ndim))
        return false;
      const bool is_reverse = number_of(c, directions, i) != 0;
      scan->inputs[scan->states + i] =
          choir__onnx_entry(c, x, axis, is_reverse ? length - 1 - t : t);
    }
    if (!choir__onnx_run_pass(c, scan->body, scan->inputs, scan->results))
      return false;
    for (int32_t i = 0; i < scan->states; ++i) results[i] = scan->results[i];
    for (int32_t i = 0; i < scan->outs; ++i)
      if (!choir__onnx_append(c, &scan->lists[i],
                              scan->results[scan->states + i]))
        return false;
  }
  for (int32_t i = 0; i < scan->outs && CALL_IS_OK; ++i) {
    choir__onnx_list_t* list = &scan->lists[i];
    const int64_t axis = has_axes ? number_of(c, "scan_output_axes", i) : 0;
    const int64_t count = list->count;
    if (has_axes && number_of(c, "scan_output_directions", i) != 0)
      for (int64_t k = 0; k < count / 2; ++k) {
        const choir__onnx_value_t item = list->items[k];
        list->items[k] = list->items[count - 1 - k];
        list->items[count - 1 - k] = item;
      }
    results[scan->states + i] =
        count > 0 ? choir__onnx_stack_values(c, list->items, count, axis, true)
                  : choir__onnx_no_entries(c, scan->states + i, axis);
  }
  return CALL_IS_OK;
}

// The entries that all scanned tensors have along their axes; -1: it failed.
static int64_t length_of(choir__onnx_call_t* c, const scan_t* scan) {
  int64_t length = -1;
  for (int32_t i = 0; i < scan->ins; ++i) {
    const choir_view_t* view = VIEW(scan->first + scan->states + i);
    int64_t axis = c->version >= 9 ? number_of(c, "scan_input_axes", i) : 1;
    if (!choir__onnx_axis(c, &axis, view->ndim)) return -1;
    if (length >= 0 && view->shape[axis] != length) {
      FAIL(INVALID_ARGUMENT,
           "scanned inputs have %lld and %lld entries; needs the same number",
           (long long)length, (long long)view->shape[axis]);
      return -1;
    }
    length = view->shape[axis];
  }
  return length;
}

static void scan_once(choir__onnx_call_t* c, scan_t* scan, int64_t length) {
  const int32_t count = scan->states + scan->ins;
  choir__onnx_value_t* values = choir__onnx_make_items(c, count);
  choir__onnx_value_t* results =
      choir__onnx_make_items(c, (int64_t)scan->states + scan->outs);
  if (!values || !results) return;
  for (int32_t i = 0; i < count; ++i) values[i] = *c->inputs[i];
  if (!run_sequence(c, scan, values, length, results)) return;
  for (int32_t i = 0; i < scan->states + scan->outs; ++i)
    choir__onnx_give(c, i, results[i]);
}

// ---- Version 8 ----

// Zeros behind the entries of dimension 0, so that there are `length`.
static void pad_value(choir__onnx_call_t* c, choir__onnx_value_t* value,
                      int64_t length) {
  const choir_view_t* view = choir_var_view(value->var);
  if (!view || view->ndim < 1 || view->shape[0] >= length) return;
  const choir_pad_attrs_t attrs = {.mode = CHOIR_PAD_CONSTANT,
                                   .after = {length - view->shape[0]}};
  const bool before = choir__onnx_go_to(c, value->is_known);
  value->var = DO(pad, value->var, &attrs);
  (void)choir__onnx_go_to(c, before);
}

// What sample `sample` gives goes into column `sample` of columns.
static bool scan_sample(choir__onnx_call_t* c, scan_t* scan, int64_t sample,
                        int64_t length, int64_t longest,
                        choir__onnx_list_t* columns) {
  const int32_t count = scan->states + scan->ins;
  choir__onnx_value_t* values = choir__onnx_make_items(c, count);
  choir__onnx_value_t* results =
      choir__onnx_make_items(c, (int64_t)scan->states + scan->outs);
  if (!values || !results) return false;
  for (int32_t i = 0; i < count; ++i)
    values[i] = choir__onnx_entry(c, c->inputs[1 + i], 0, sample);
  if (!run_sequence(c, scan, values, length, results)) return false;
  for (int32_t i = 0; i < scan->states + scan->outs; ++i) {
    if (i >= scan->states) pad_value(c, &results[i], longest);
    if (i >= scan->states && length == 0) results[i].var = NULL;
    if (!choir__onnx_append(c, &columns[i], results[i])) return false;
  }
  return CALL_IS_OK;
}

// Samples without entries have zeros, as many as the others'; what they are
// shaped as where no sample has an entry is what the body declares.
static void fill_column(choir__onnx_call_t* c, choir__onnx_list_t* column,
                        int32_t result, int64_t longest) {
  choir__onnx_value_t* some = NULL;
  for (int64_t i = 0; !some && i < column->count; ++i)
    if (column->items[i].var) some = &column->items[i];
  choir__onnx_value_t zeros;
  if (some) {
    const choir_view_t* view = choir_var_view(some->var);
    if (!view) return;
    zeros = (choir__onnx_value_t){.type = some->type, .is_known = true};
    const bool before = choir__onnx_go_to(c, true);
    zeros.var = choir__onnx_zeros(c, view->dtype, view->ndim, view->shape);
    (void)choir__onnx_go_to(c, before);
  } else {
    zeros = choir__onnx_no_entries(c, result, 0);
    pad_value(c, &zeros, longest);
  }
  for (int64_t i = 0; i < column->count; ++i)
    if (!column->items[i].var) column->items[i] = zeros;
}

static void scan_batch(choir__onnx_call_t* c, scan_t* scan, int64_t longest) {
  const int64_t batch = VIEW(1 + scan->states)->shape[0];
  for (int32_t i = 1; i < c->in_count; ++i) {
    const choir_view_t* view = VIEW(i);
    if (view && view->ndim > 0 && view->shape[0] == batch) continue;
    FAIL(INVALID_ARGUMENT, "input %d has no batch of %lld samples", i,
         (long long)batch);
    return;
  }
  choir__onnx_array_t lengths = {0};
  if (HAS(0) && !choir__onnx_read(c, 0, &lengths)) return;
  if ((HAS(0) && lengths.count != batch) || batch < 1) {
    FAIL(INVALID_ARGUMENT, "%lld lengths of a batch of %lld samples",
         (long long)lengths.count, (long long)batch);
    return;
  }
  choir__onnx_list_t* columns = choir_scope_alloc(
      c->scope, sizeof(*columns) * (size_t)(scan->states + scan->outs + 1));
  for (int64_t b = 0; columns && b < batch; ++b) {
    const int64_t length = HAS(0) ? choir__onnx_int_at(&lengths, b) : longest;
    if (length < 0 || length > longest) {
      FAIL(INVALID_ARGUMENT, "length %lld of sample %lld; needs 0 to %lld",
           (long long)length, (long long)b, (long long)longest);
      return;
    }
    if (!scan_sample(c, scan, b, length, longest, columns)) return;
  }
  for (int32_t i = scan->states; columns && i < scan->states + scan->outs; ++i)
    fill_column(c, &columns[i], i, longest);
  for (int32_t i = 0; columns && i < scan->states + scan->outs; ++i)
    choir__onnx_give(c, i,
                     choir__onnx_stack_values(c, columns[i].items,
                                              columns[i].count, 0, true));
}

void choir__onnx_op_scan(choir__onnx_call_t* c) {
  scan_t scan;
  if (!read_scan(c, &scan)) return;
  const int64_t length = length_of(c, &scan);
  if (length < 0) return;
  if (c->version < 9)
    scan_batch(c, &scan, length);
  else
    scan_once(c, &scan, length);
}
