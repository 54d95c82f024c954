// SPDX-License-Identifier: Apache-2.0
#include "tensor/fusion_def.h"

#include <string.h>

#include "core/graph_backend.h"
#include "tensor/strided_internal.h"

const choir_fusion_t* const choir__fusions[] = {
#define X(name) choir__fusion_##name,
#include "tensor/fusions/fusions.def"
#undef X
    NULL};

// A pattern and the nodes of the graph that match its first ones.
typedef struct match_s {
  const choir_graph_t* graph;
  const choir_fusion_t* fusion;
  int32_t count;
  int32_t at[CHOIR_FUSION_NODES];
  int32_t source[CHOIR_FUSION_NODES];  // by which its reader takes it
  const choir_record_t* records[CHOIR_FUSION_NODES];
} match_t;

// ---- Which records ----

// The source of a node that CHOIR_OTHER means: not the one that another node of
// the match wrote.
static int32_t other_source(const match_t* match, int32_t node) {
  for (int32_t i = 1; i < match->count; ++i)
    if (match->fusion->nodes[i].reader == node &&
        match->fusion->nodes[i].source == CHOIR_EITHER)
      return 1 - match->source[i];
  return 0;
}

static const choir_view_t* operand_of(const match_t* match,
                                      choir_fusion_operand_t operand) {
  const choir_record_t* record = match->records[operand.node];
  if (operand.index < 0) return choir_record_dst(record, ~operand.index);
  return choir_record_src(record, operand.index == CHOIR_OTHER
                                      ? other_source(match, operand.node)
                                      : operand.index);
}

static bool is_given(const choir_fusion_t* fusion, int32_t node) {
  for (int32_t i = 0; i < fusion->dst_count; ++i) {
    const choir_fusion_operand_t* dst =
        &fusion->operands[fusion->src_count + i];
    if (dst->node == node && dst->index == ~0) return true;
  }
  return false;
}

// Whether the record at `writer` may be node i, read as this source of its
// reader.
static bool fits(const match_t* match, int32_t i, int32_t writer,
                 const choir_view_t* view) {
  const choir_graph_t* graph = match->graph;
  const choir_fusion_node_t* node = &match->fusion->nodes[i];
  const choir_record_t* record =
      writer < 0 ? NULL : choir_graph_record(graph, writer);
  if (!record || choir__record_op(record) != node->op || record->accumulate ||
      record->segment > 0 ||
      (node->src_count > 0 && record->src_count != node->src_count) ||
      !choir__views_equal(choir_record_dst(record, 0), view))
    return false;
  if (node->stays) return true;
  const int32_t reader = match->at[node->reader];
  return choir_graph_is_temporary(graph, view) &&
         choir_graph_next_use(graph, view, writer) == reader &&
         (is_given(match->fusion, i) ||
          choir_graph_next_use(graph, view, reader) < 0);
}

// Finds node `count` of the match; of two sources that it may be, the one that
// was written later.
static bool match_next(match_t* match) {
  const int32_t i = match->count;
  const choir_fusion_node_t* node = &match->fusion->nodes[i];
  const choir_record_t* reader = match->records[node->reader];
  const bool either = node->source == CHOIR_EITHER;
  const int32_t first = either ? 0 : node->source;
  const int32_t last = either ? 1 : node->source;
  match->at[i] = -1;
  for (int32_t s = first; s <= last && s < reader->src_count; ++s) {
    const choir_view_t* view = choir_record_src(reader, s);
    const int32_t writer =
        choir_graph_writer(match->graph, view, match->at[node->reader]);
    if (writer <= match->at[i] || !fits(match, i, writer, view)) continue;
    match->at[i] = writer;
    match->source[i] = s;
    match->records[i] = choir_graph_record(match->graph, writer);
  }
  ++match->count;
  return match->at[i] >= 0;
}

// ---- Whether they may become one ----

// Nobody writes to the view between two nodes, one of which reads it.
static bool keeps_value(const match_t* match, const choir_view_t* view,
                        int32_t from, int32_t to) {
  const int32_t later = from > to ? from : to;
  return choir_graph_writer(match->graph, view, later) <=
         (from > to ? to : from);
}

static bool are_same(const match_t* match) {
  const choir_fusion_t* fusion = match->fusion;
  for (int32_t i = 0; i < fusion->same_count; ++i) {
    const choir_fusion_operand_t* pair = fusion->same[i];
    const choir_view_t* a = operand_of(match, pair[0]);
    if (!choir__views_equal(a, operand_of(match, pair[1])) ||
        !keeps_value(match, a, match->at[pair[0].node],
                     match->at[pair[1].node]))
      return false;
  }
  return true;
}

// Whether the fused op reads the same where it stands. What a record that stays
// has read is a parameter or a result of forward; between forward and backward
// the host runs, which would part it from its gradient in any case.
static bool may_read(const match_t* match, choir_fusion_operand_t operand) {
  const choir_view_t* view = operand_of(match, operand);
  const int32_t from = match->at[operand.node];
  const int32_t place = match->at[match->fusion->place];
  if (match->fusion->nodes[operand.node].stays)
    return keeps_value(match, view, from, place);
  if (from <= place)
    return choir_graph_is_unchanged(match->graph, view, from, place);
  return choir_graph_writer(match->graph, view, from) < place;
}

// Whether nobody looks at the result between where the record of the match
// writes it and where the fused op does.
static bool may_write(const match_t* match, choir_fusion_operand_t operand) {
  const choir_graph_t* graph = match->graph;
  const choir_view_t* view = operand_of(match, operand);
  const int32_t from = match->at[operand.node];
  const int32_t place = match->at[match->fusion->place];
  if (from == place) return true;
  if (!choir_graph_is_temporary(graph, view) ||
      choir_graph_writer(graph, view, from) >= 0)
    return false;
  if (place < from) return choir_graph_next_use(graph, view, place) == from;
  const int32_t next = choir_graph_next_use(graph, view, from);
  return next < 0 || next >= place;
}

// ---- One match ----

static bool agrees_on_algorithm(const match_t* match,
                                const choir_op_kernel_t* fused) {
  const int32_t node = match->fusion->same_algorithm;
  if (node == 0) return true;
  const choir_op_kernel_t* kernel = choir__native_kernel(
      choir_graph_device(match->graph), match->records[node]);
  return kernel && strcmp(kernel->algorithm, fused->algorithm) == 0;
}

static choir_status_t replace(choir_graph_t* graph, const match_t* match) {
  const choir_fusion_t* fusion = match->fusion;
  const choir_record_t* stands = match->records[fusion->place];
  choir_view_t operands[CHOIR_FUSION_OPERANDS];
  for (int32_t i = 0; i < fusion->src_count + fusion->dst_count; ++i) {
    operands[i] = *operand_of(match, fusion->operands[i]);
    if (!(i < fusion->src_count ? may_read : may_write)(match,
                                                        fusion->operands[i]))
      return NULL;
  }
  const choir_op_def_t* def = choir__op_def(fusion->op);
  _Alignas(8) unsigned char attrs[CHOIR_OP_ATTRS_MAX_BYTES] = {0};
  if (fusion->attrs && !fusion->attrs(match->records, attrs)) return NULL;
  const choir_record_t fused = {
      .operation = choir__operation(fusion->op),
      .operands = operands,
      .src_count = fusion->src_count,
      .dst_count = fusion->dst_count,
      .attrs = fusion->attrs ? attrs : stands->attrs,
      .attrs_bytes = def->attrs ? def->attrs->bytes : 0,
      .at_step = def->at_step,
      .label = stands->label,
  };
  const choir_op_kernel_t* kernel =
      choir__native_kernel(choir_graph_device(graph), &fused);
  if (!kernel || !agrees_on_algorithm(match, kernel)) return NULL;
  CHOIR_TRY(choir_graph_put(graph, match->at[fusion->place], &fused));
  for (int32_t i = 0; i < fusion->node_count; ++i)
    if (i != fusion->place && !fusion->nodes[i].stays)
      choir_graph_drop(graph, match->at[i]);
  return NULL;
}

static choir_status_t fuse(choir_graph_t* graph, const choir_fusion_t* fusion,
                           int32_t node) {
  const choir_record_t* last = choir_graph_record(graph, node);
  if (!last || last->accumulate || last->segment > 0 ||
      choir__record_op(last) != fusion->nodes[0].op)
    return NULL;
  match_t match = {.graph = graph,
                   .fusion = fusion,
                   .count = 1,
                   .at = {node},
                   .records = {last}};
  while (match.count < fusion->node_count)
    if (!match_next(&match)) return NULL;
  return are_same(&match) ? replace(graph, &match) : NULL;
}

choir_status_t choir__graph_fuse(choir_graph_t* graph) {
  const int32_t count = choir_graph_node_count(graph);
  for (int i = 0; choir__fusions[i]; ++i)
    for (const choir_fusion_t* one = choir__fusions[i]; one->node_count > 0;
         ++one)
      for (int32_t node = count; node-- > 0;) CHOIR_TRY(fuse(graph, one, node));
  for (int32_t node = count; node-- > 0;) {
    CHOIR_TRY(choir__fuse_cast(graph, node));
    if (choir_graph_record(graph, node))
      CHOIR_TRY(choir__fuse_chains(graph, node));
  }
  return NULL;
}
