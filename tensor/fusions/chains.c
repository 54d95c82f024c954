// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "core/graph_backend.h"
#include "tensor/fusion_def.h"
#include "tensor/kernels/chain.h"
#include "tensor/kernels/chain_kernel.h"
#include "tensor/kernels/element_params.h"

// Elementwise records, one behind the other -> a chain (tensor/kernels/chain.h)
// where the last of them was. Nothing stands between them, so nothing is moved
// past anything; what is left to see to is that each element's steps do not
// touch another element's operands, and which results somebody else wants.
//
// A record joins those behind it when they share an operand: then that one is
// read once, or need not be in memory. What shares nothing joins only where it
// is small, since all operands of a chain live at the same time: there a record
// costs more than its elements.

enum { SMALL = 4096 };  // elements of each operand

// Elements of a buffer, side by side.
typedef struct range_s {
  const choir_buffer_t* buffer;
  int64_t offset;
  int64_t count;
} range_t;

typedef struct source_s {
  range_t range;
  const choir_view_t* view;
} source_t;

// The last step that wrote to a range.
typedef struct result_s {
  range_t range;
  const choir_view_t* view;
  int32_t step;
} result_t;

// A chain while it is made. What a step takes is the number of an earlier step,
// or ~ that of a source.
typedef struct draft_s {
  int64_t count;  // elements
  choir__chain_t chain;
  int32_t sources;
  int32_t results;
  source_t source[CHOIR__CHAIN_OPERANDS];
  result_t result[CHOIR__CHAIN_STEPS];
} draft_t;

static range_t range_of(const choir_view_t* view, bool is_single) {
  return (range_t){view->buffer, view->offset,
                   is_single ? 1 : choir_view_count(view)};
}

static bool same_range(const range_t* a, const range_t* b) {
  return a->buffer == b->buffer && a->offset == b->offset &&
         a->count == b->count;
}

static bool ranges_meet(const range_t* a, const range_t* b) {
  return a->buffer == b->buffer && a->offset < b->offset + b->count &&
         b->offset < a->offset + a->count;
}

// ---- Which records ----

// Whether element e of the view is e elements behind its first where that is so
// of `dense`, of the same shape; or, *out_single, all are one.
static bool is_flat(const choir_view_t* view, const choir_view_t* dense,
                    bool* out_single) {
  bool is_like = true;
  bool is_single = choir_view_count(dense) > 1;
  for (int32_t k = 0; k < dense->ndim; ++k) {
    if (dense->shape[k] == 1) continue;
    is_like &= view->strides[k] == dense->strides[k];
    is_single &= view->strides[k] == 0;
  }
  *out_single = is_single;
  return is_like || is_single;
}

// The record at `node`, if it can be of a chain; else NULL.
static const choir_record_t* link_at(const choir_graph_t* graph, int32_t node) {
  const choir_record_t* record = choir_graph_record(graph, node);
  if (!record || record->at_step || record->scalar || record->dst_count != 1)
    return NULL;
  const choir_op_t op = choir__record_op(record);
  if (choir__formula_of(op) == CHOIR__FORMULA_COUNT ||
      !choir__native_kernel(choir_graph_device(graph), record))
    return NULL;
  const choir_view_t* dst = choir_record_dst(record, 0);
  if (dst->dtype != CHOIR_DTYPE_F32 || !choir_view_is_dense(dst)) return NULL;
  for (int32_t i = 0; i < record->src_count; ++i) {
    const choir_view_t* src = choir_record_src(record, i);
    bool is_single = false;
    if (src->dtype != CHOIR_DTYPE_F32 || !choir_view_same_shape(src, dst) ||
        !is_flat(src, dst, &is_single))
      return NULL;
  }
  return record;
}

// Whether two records have an operand in common.
static bool is_tied(const choir_record_t* a, const choir_record_t* b) {
  for (int32_t i = 0; i <= a->src_count; ++i)
    for (int32_t k = 0; k <= b->src_count; ++k)
      if (a->operands[i].buffer == b->operands[k].buffer &&
          a->operands[i].offset == b->operands[k].offset)
        return true;
  return false;
}

// ---- Their steps ----

// Where a step finds the view; false when it cannot be told, or there is no
// room.
static bool take(draft_t* draft, const choir_view_t* view, bool is_single,
                 int32_t* out_input) {
  const range_t range = range_of(view, is_single);
  for (int32_t i = 0; i < draft->results; ++i) {
    const result_t* result = &draft->result[i];
    *out_input = result->step;
    if (same_range(&result->range, &range)) return true;
    if (ranges_meet(&result->range, &range)) return false;
  }
  int32_t i = 0;
  while (i < draft->sources && !same_range(&draft->source[i].range, &range))
    ++i;
  *out_input = ~i;
  if (i < draft->sources) return true;
  if (i == CHOIR__CHAIN_OPERANDS) return false;
  draft->source[draft->sources++] = (source_t){range, view};
  return true;
}

static bool add_step(draft_t* draft, choir__formula_t formula,
                     const int32_t* inputs, int32_t count,
                     choir__element_params_t params) {
  if (draft->chain.step_count == CHOIR__CHAIN_STEPS) return false;
  params.accumulate = false;  // a step of its own
  draft->chain.steps[draft->chain.step_count++] =
      (choir__chain_step_t){.formula = (int32_t)formula,
                            .left = inputs[0],
                            .right = inputs[count - 1],
                            .store = -1,
                            .params = params};
  return true;
}

// The last step writes to the view.
static bool put(draft_t* draft, const choir_view_t* view) {
  const range_t range = range_of(view, false);
  for (int32_t i = 0; i < draft->sources; ++i)
    if (ranges_meet(&draft->source[i].range, &range) &&
        !same_range(&draft->source[i].range, &range))
      return false;
  for (int32_t i = 0; i < draft->results; ++i) {
    result_t* result = &draft->result[i];
    if (same_range(&result->range, &range)) {
      result->step = draft->chain.step_count - 1;
      return true;
    }
    if (ranges_meet(&result->range, &range)) return false;
  }
  draft->result[draft->results++] =
      (result_t){range, view, draft->chain.step_count - 1};
  return true;
}

static bool add_record(draft_t* draft, const choir_record_t* record) {
  const choir_op_t op = choir__record_op(record);
  const choir_view_t* dst = choir_record_dst(record, 0);
  int32_t inputs[2];
  for (int32_t i = 0; i < record->src_count; ++i) {
    const choir_view_t* src = choir_record_src(record, i);
    bool is_single = false;
    (void)is_flat(src, dst, &is_single);
    if (!take(draft, src, is_single, &inputs[i])) return false;
  }
  const choir__element_params_t params = choir__element_params(record);
  if (!add_step(draft, choir__formula_of(op), inputs, record->src_count,
                params))
    return false;
  if (record->accumulate) {
    inputs[1] = draft->chain.step_count - 1;
    if (!take(draft, dst, false, &inputs[0]) ||
        !add_step(draft, CHOIR__FORMULA_ADD, inputs, 2, params))
      return false;
  }
  return put(draft, dst);
}

// ---- Their values and operands ----

// Gives each step a value, free again when the last step that takes it begins,
// and names what steps take by place. False: more are wanted at a time than
// there are.
static bool place_values(draft_t* draft) {
  int32_t last_use[CHOIR__CHAIN_STEPS];
  int32_t holder[CHOIR__CHAIN_VALUES];  // the step; -1: none
  choir__chain_t* chain = &draft->chain;
  for (int32_t v = 0; v < CHOIR__CHAIN_VALUES; ++v) holder[v] = -1;
  for (int32_t s = 0; s < chain->step_count; ++s) {
    last_use[s] = s;
    if (chain->steps[s].left >= 0) last_use[chain->steps[s].left] = s;
    if (chain->steps[s].right >= 0) last_use[chain->steps[s].right] = s;
  }
  for (int32_t s = 0; s < chain->step_count; ++s) {
    choir__chain_step_t* step = &chain->steps[s];
    int32_t* const inputs[] = {&step->left, &step->right};
    for (int32_t i = 0; i < 2; ++i)
      *inputs[i] = *inputs[i] < 0 ? CHOIR__CHAIN_VALUES + ~*inputs[i]
                                  : chain->steps[*inputs[i]].value;
    int32_t value = 0;
    while (value < CHOIR__CHAIN_VALUES && holder[value] >= 0 &&
           last_use[holder[value]] > s)
      ++value;
    if (value == CHOIR__CHAIN_VALUES) return false;
    step->value = value;
    holder[value] = s;
  }
  return true;
}

// Sources, then the results that are wanted by those after `node`, the chain's
// last; how many operands, 0: too many or none to write.
static int32_t place_operands(draft_t* draft, const choir_graph_t* graph,
                              int32_t node, choir_view_t* operands) {
  int32_t count = 0;
  for (; count < draft->sources; ++count) {
    operands[count] = *draft->source[count].view;
    if (draft->source[count].range.count < draft->count)
      draft->chain.singles |= 1u << count;
  }
  for (int32_t i = 0; i < draft->results; ++i) {
    const choir_view_t* view = draft->result[i].view;
    if (choir_graph_is_temporary(graph, view) &&
        choir_graph_next_use(graph, view, node) < 0)
      continue;
    if (count == CHOIR__CHAIN_OPERANDS) return 0;
    draft->chain.steps[draft->result[i].step].store = count;
    operands[count++] = *view;
  }
  return count > draft->sources ? count : 0;
}

// "layer: mul+add+tanh".
static void write_label(const choir_record_t* const* records, int32_t count,
                        char* text, size_t bytes) {
  const char* layer = records[count - 1]->label;
  size_t used = 0;
  if (layer) used = (size_t)snprintf(text, bytes, "%s: ", layer);
  for (int32_t i = 0; i < count && used < bytes; ++i)
    used +=
        (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? "+" : "",
                         choir_op_name(choir__record_op(records[i])));
}

// ---- One chain ----

enum { LABEL_BYTES = 256 };

typedef struct chain_record_s {
  choir_record_t record;
  choir__chain_t chain;
  choir_view_t operands[CHOIR__CHAIN_OPERANDS];
  char label[LABEL_BYTES];
} chain_record_t;

// Makes *out the chain of these records, the last of them at `node`; false when
// there is none.
static bool make_chain(const choir_graph_t* graph, int32_t node,
                       const choir_record_t* const* records, int32_t count,
                       chain_record_t* out) {
  draft_t draft;
  memset(&draft, 0, sizeof(draft));
  draft.count = choir_view_count(choir_record_dst(records[0], 0));
  for (int32_t i = 0; i < count; ++i)
    if (!add_record(&draft, records[i])) return false;
  if (!place_values(&draft)) return false;
  const int32_t operands = place_operands(&draft, graph, node, out->operands);
  if (operands == 0) return false;
  out->chain = draft.chain;
  write_label(records, count, out->label, sizeof(out->label));
  out->record = (choir_record_t){
      .operands = out->operands,
      .src_count = draft.sources,
      .dst_count = operands - draft.sources,
      .attrs = &out->chain,
      .attrs_bytes = sizeof(out->chain),
      .label = out->label,
  };
  out->record.kernel =
      choir__chain_kernel(choir_graph_device(graph), &out->record);
  return out->record.kernel != NULL;
}

static bool joins(const choir_record_t* record,
                  const choir_record_t* const* records, int32_t count) {
  const int64_t elements = choir_view_count(choir_record_dst(record, 0));
  if (elements != choir_view_count(choir_record_dst(records[0], 0)))
    return false;
  for (int32_t i = 0; i < count; ++i)
    if (is_tied(record, records[i])) return true;
  return elements <= SMALL;
}

choir_status_t choir__fuse_chains(choir_graph_t* graph, int32_t node) {
  // Those of the chain are the last of each.
  const choir_record_t* records[CHOIR__CHAIN_STEPS];
  int32_t nodes[CHOIR__CHAIN_STEPS];
  int32_t first = CHOIR__CHAIN_STEPS - 1;
  nodes[first] = node;
  records[first] = link_at(graph, node);
  if (!records[first]) return NULL;
  chain_record_t made[2];
  chain_record_t* best = NULL;
  while (first > 0) {
    const int32_t count = CHOIR__CHAIN_STEPS - first;
    const int32_t before = choir_graph_previous(graph, nodes[first]);
    const choir_record_t* record = before < 0 ? NULL : link_at(graph, before);
    if (!record || !joins(record, records + first, count)) break;
    records[first - 1] = record;
    chain_record_t* longer = best == &made[0] ? &made[1] : &made[0];
    if (!make_chain(graph, node, records + first - 1, count + 1, longer)) break;
    nodes[--first] = before;
    best = longer;
  }
  if (!best) return NULL;
  CHOIR_TRY(choir_graph_put(graph, node, &best->record));
  for (; first < CHOIR__CHAIN_STEPS - 1; ++first)
    choir_graph_drop(graph, nodes[first]);
  return NULL;
}
