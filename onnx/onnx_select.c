// SPDX-License-Identifier: Apache-2.0
// Which results forward gives, and which nodes it runs for them.
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

static int32_t find_place(const choir__onnx_graph_t* graph, const char* name) {
  for (int32_t i = 0; i < graph->place_count; ++i)
    if (name && strcmp(graph->places[i].name, name) == 0) return i;
  return -1;
}

static void mark(uint8_t* is_needed, int32_t place) {
  if (place >= 0) is_needed[place] = true;
}

// Nodes from the last to the first: one of whose results nothing is needed is
// idle, and those of the others need what they read.
choir_status_t choir__onnx_find_idle(choir_onnx_t* onnx) {
  choir__onnx_graph_t* graph = onnx->graph;
  uint8_t* is_needed =
      calloc((size_t)graph->place_count + 1, sizeof *is_needed);
  if (!is_needed)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for results");
  for (int32_t i = 0; i < onnx->result_count; ++i)
    mark(is_needed, onnx->results[i]);
  for (int32_t i = graph->node_count - 1; i >= 0; --i) {
    choir__onnx_node_t* node = &graph->nodes[i];
    node->is_idle = true;
    for (int32_t k = 0; k < node->out_count; ++k)
      if (node->outputs[k] >= 0 && is_needed[node->outputs[k]])
        node->is_idle = false;
    if (node->is_idle) continue;
    node->is_joined = node->joined && !is_needed[node->between];
    (void)choir__onnx_visit_reads(node->is_joined ? node->joined : node,
                                  is_needed, 0, true);
    if (node->slice) mark(is_needed, node->slice->y);
  }
  free(is_needed);
  return NULL;
}

// The places of the results, into `places`, which has room for all.
static choir_status_t gather(const choir__onnx_graph_t* graph, int32_t nodes,
                             const char* const* more, int32_t more_count,
                             int32_t* places, int32_t* out_count) {
  int32_t count = 0;
  if (nodes >= graph->node_count) {
    for (int32_t i = 0; i < graph->out_count; ++i)
      places[count++] = graph->outputs[i];
  } else if (nodes > 0) {
    const choir__onnx_node_t* last = &graph->nodes[nodes - 1];
    for (int32_t i = 0; i < last->out_count; ++i)
      if (last->outputs[i] >= 0) places[count++] = last->outputs[i];
  }
  for (int32_t i = 0; i < more_count; ++i) {
    const int32_t place = find_place(graph, more[i]);
    if (place < 0)
      return CHOIR_ERROR(NOT_FOUND,
                         "onnx: no value of the graph is called '%s'",
                         more[i] ? more[i] : "");
    places[count++] = place;
  }
  *out_count = count;
  return NULL;
}

int32_t choir_onnx_result_count(const choir_onnx_t* onnx) {
  return onnx->result_count;
}

choir_status_t choir_onnx_select(choir_onnx_t* onnx, int32_t nodes,
                                 const char* const* more, int32_t more_count) {
  const choir__onnx_graph_t* graph = onnx->graph;
  const int32_t cut = nodes < 0 ? nodes + graph->node_count : nodes;
  if (cut < 0)
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "onnx: %lld nodes are to be left out; the graph has %d",
                       -(long long)nodes, graph->node_count);
  if (more_count < 0 || (more_count > 0 && !more))
    return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: %d names of values, %s",
                       more_count, more ? "listed" : "and no list");
  size_t room = (size_t)graph->out_count + (size_t)more_count + 1;
  if (cut > 0 && cut < graph->node_count)
    room += (size_t)graph->nodes[cut - 1].out_count;
  int32_t* chosen = calloc(2 * room, sizeof *chosen);
  if (!chosen) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for results");
  int32_t count = 0;
  choir_status_t status = gather(graph, cut, more, more_count, chosen, &count);
  if (!status && count == 0)
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: nothing is asked for: no nodes and no names");
  if (status) {
    free(chosen);
    return status;
  }
  free(onnx->chosen);
  onnx->chosen = chosen;
  onnx->results = chosen;
  onnx->result_types = chosen + room;
  onnx->result_count = count;
  onnx->given = NULL;
  return choir__onnx_find_idle(onnx);
}
