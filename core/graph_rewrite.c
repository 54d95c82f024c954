// SPDX-License-Identifier: Apache-2.0
#include "core/graph_internal.h"
#include "core/record_internal.h"

int32_t choir_graph_node_count(const choir_graph_t* graph) {
  return graph->node_count;
}

const choir_record_t* choir_graph_record(const choir_graph_t* graph,
                                         int32_t node) {
  const choir__node_t* at = &graph->nodes[node];
  return at->kind == CHOIR__NODE_RECORD && at->stream == 0 ? &at->record : NULL;
}

int32_t choir_graph_previous(const choir_graph_t* graph, int32_t node) {
  while (node-- > 0)
    if (graph->nodes[node].kind != CHOIR__NODE_DROPPED) return node;
  return -1;
}

choir_device_t* choir_graph_device(const choir_graph_t* graph) {
  return graph->workspace->device;
}

bool choir_graph_is_temporary(const choir_graph_t* graph,
                              const choir_view_t* view) {
  for (int32_t id = 0; id < graph->buffer_count; ++id)
    if (graph->buffers[id].buffer == view->buffer)
      return graph->buffers[id].place == CHOIR__PLACE_TEMPORARY;
  return false;
}

static bool uses(const choir__node_t* node, const choir_buffer_t* buffer,
                 bool only_writes) {
  if (node->kind != CHOIR__NODE_RECORD) return false;
  const size_t first = only_writes ? (size_t)node->record.src_count : 0;
  for (size_t k = first; k < choir__record_operands(&node->record); ++k)
    if (node->record.operands[k].buffer == buffer) return true;
  return false;
}

int32_t choir_graph_writer(const choir_graph_t* graph, const choir_view_t* view,
                           int32_t node) {
  while (node-- > 0)
    if (uses(&graph->nodes[node], view->buffer, true)) return node;
  return -1;
}

int32_t choir_graph_next_use(const choir_graph_t* graph,
                             const choir_view_t* view, int32_t node) {
  while (++node < graph->node_count)
    if (uses(&graph->nodes[node], view->buffer, false)) return node;
  return -1;
}

bool choir_graph_is_unchanged(const choir_graph_t* graph,
                              const choir_view_t* view, int32_t from,
                              int32_t to) {
  const bool temporary = choir_graph_is_temporary(graph, view);
  for (int32_t i = from + 1; i < to; ++i) {
    const choir__node_t* node = &graph->nodes[i];
    if (node->kind == CHOIR__NODE_DROPPED) continue;
    if (uses(node, view->buffer, true)) return false;
    if (!temporary && (node->kind != CHOIR__NODE_RECORD || node->stream != 0))
      return false;
  }
  return true;
}

choir_status_t choir_graph_put(choir_graph_t* graph, int32_t node,
                               const choir_record_t* record) {
  CHOIR_TRY(choir__record_check("choir_graph_put", record));
  choir__node_t* at = &graph->nodes[node];
  choir__node_t fresh = *at;
  CHOIR_TRY(choir__graph_set_record(graph, &fresh, record));
  choir__graph_clear_record(graph, at);
  *at = fresh;
  at->kind = CHOIR__NODE_RECORD;
  return NULL;
}

void choir_graph_drop(choir_graph_t* graph, int32_t node) {
  choir__graph_clear_record(graph, &graph->nodes[node]);
}

// ---- Lowering ----

typedef struct lowering_s {
  choir_graph_t* graph;
  int32_t next;    // where the next record goes
  int32_t stream;  // of all of them
  bool has_room;   // that node is there and is dropped
} lowering_t;

static choir_status_t put_lowered(void* lowering_,
                                  const choir_record_t* record) {
  lowering_t* lowering = lowering_;
  choir_graph_t* graph = lowering->graph;
  if (!lowering->has_room)
    CHOIR_TRY(choir__graph_insert(graph, lowering->next));
  lowering->has_room = false;
  choir__node_t* node = &graph->nodes[lowering->next];
  CHOIR_TRY(choir__graph_set_record(graph, node, record));
  node->kind = CHOIR__NODE_RECORD;
  node->stream = lowering->stream;
  ++lowering->next;
  return NULL;
}

choir_status_t choir__graph_lower(choir_graph_t* graph) {
  lowering_t lowering = {.graph = graph};
  const choir_lowering_t into = {.device = choir_graph_device(graph),
                                 .emit = put_lowered,
                                 .self = &lowering};
  for (int32_t i = 0; i < graph->node_count; i = lowering.next) {
    choir__node_t whole = graph->nodes[i];
    lowering.next = i + 1;
    if (whole.kind != CHOIR__NODE_RECORD || whole.record.kernel) continue;
    graph->nodes[i].kind = CHOIR__NODE_DROPPED;
    lowering.next = i;
    lowering.has_room = true;
    lowering.stream = whole.stream;
    choir_status_t status = whole.record.operation->lower(&into, &whole.record);
    if (status) {  // the graph may still be run as it was recorded
      while (lowering.next-- > i)
        choir__graph_clear_record(graph, &graph->nodes[lowering.next]);
      graph->nodes[i] = whole;
      return status;
    }
    choir__graph_clear_record(graph, &whole);
    lowering.next += lowering.has_room;
  }
  return NULL;
}
