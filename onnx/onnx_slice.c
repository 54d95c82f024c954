// SPDX-License-Identifier: Apache-2.0
// Which nodes lie between the values that a node Gradient is given and the one
// that it differentiates.
#include <stdlib.h>

#include "onnx/onnx_internal.h"

static bool visit(const int32_t* places, int32_t count, uint8_t* flags,
                  uint8_t test, uint8_t set) {
  bool has = false;
  for (int32_t i = 0; i < count; ++i) {
    if (places[i] < 0) continue;
    if (flags[places[i]] & test) has = true;
    flags[places[i]] |= set;
  }
  return has;
}

bool choir__onnx_visit_reads(const choir__onnx_node_t* node, uint8_t* flags,
                             uint8_t test, uint8_t set) {
  bool has = visit(node->inputs, node->in_count, flags, test, set);
  for (size_t k = 0; k < node->proto->n_attribute; ++k) {
    const choir__onnx_graph_t* body = node->bodies[k];
    for (int32_t j = 0; body && j < body->capture_count; ++j)
      has |= visit(&body->captures[j].outer, 1, flags, test, set);
  }
  // Of a Gradient, what its nodes read and drew.
  const choir__onnx_slice_t* slice = node->slice;
  if (!slice) return has;
  has |= visit(slice->reads, slice->read_count, flags, test, set);
  return visit(slice->firsts, slice->node_count, flags, test, set) || has;
}

// Of places.
enum {
  GIVEN = 1,    // by the node's inputs
  NEEDED = 2,   // for y
  CHANGED = 4,  // differs from, or is another variable than, the forward's
  READ = 8,     // by a node that runs again
};

static bool gives(const choir__onnx_node_t* node, const uint8_t* flags) {
  for (int32_t k = 0; k < node->out_count; ++k)
    if (node->outputs[k] >= 0 &&
        (flags[node->outputs[k]] & (NEEDED | GIVEN)) == NEEDED)
      return true;
  return false;
}

static choir_status_t mark_given(const choir__onnx_graph_t* graph,
                                 const choir__onnx_node_t* node, uint8_t* flags,
                                 bool* out_is_outer) {
  const choir__onnx_slice_t* slice = node->slice;
  *out_is_outer = false;
  for (int32_t i = 0; i < node->in_count; ++i) {
    const int32_t place = slice->given[i];
    if (flags[place] & GIVEN)
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "onnx: node '%s' (Gradient) names '%s' twice in xs and "
          "zs; once is possible",
          node->label, graph->places[place].name);
    flags[place] |= GIVEN;
    if (i < slice->x_count || node->inputs[i] != place) flags[place] |= CHANGED;
    if (graph->places[place].outer >= 0) *out_is_outer = true;
  }
  return NULL;
}

// In a body, what depends on a given value by nodes of the graph around it
// would be taken for a constant.
static choir_status_t check_outer(const choir__onnx_graph_t* graph,
                                  const choir__onnx_node_t* node,
                                  const uint8_t* flags) {
  for (int32_t i = 0; i < graph->place_count; ++i) {
    if ((flags[i] & (NEEDED | GIVEN)) != NEEDED || graph->places[i].outer < 0)
      continue;
    const choir__onnx_graph_t* at = graph;
    const choir__onnx_place_t* place = &graph->places[i];
    for (; place->outer >= 0; place = &at->places[place->outer]) at = at->outer;
    if (place->constant) continue;
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "onnx: node '%s' (Gradient) lies in a body, and '%s' "
                       "depends on '%s' of "
                       "the graph around it, which is neither in xs nor in zs; "
                       "as these are of "
                       "that graph too, it needs to be",
                       node->label, graph->places[node->slice->y].name,
                       graph->places[i].name);
  }
  return NULL;
}

static choir_status_t find(choir_onnx_t* onnx, const choir__onnx_graph_t* graph,
                           const choir__onnx_node_t* node, uint8_t* flags,
                           bool* is_between, size_t* out_work) {
  choir__onnx_slice_t* slice = node->slice;
  bool is_outer;
  CHOIR_TRY(mark_given(graph, node, flags, &is_outer));
  flags[slice->y] |= NEEDED;
  int32_t count = 0;
  for (int32_t i = graph->node_count - 1; i >= 0; --i) {
    is_between[i] = gives(&graph->nodes[i], flags);
    if (!is_between[i]) continue;
    (void)choir__onnx_visit_reads(&graph->nodes[i], flags, 0, NEEDED);
    const choir__onnx_slice_t* other = graph->nodes[i].slice;
    if (other) *out_work += (size_t)(other->read_count + other->node_count);
    ++count;
  }
  if (is_outer) CHOIR_TRY(check_outer(graph, node, flags));
  slice->nodes =
      choir_arena_alloc(onnx->arena, sizeof(int32_t) * (size_t)(count + 1));
  slice->firsts =
      choir_arena_alloc(onnx->arena, sizeof(int32_t) * (size_t)(count + 1));
  slice->reads = choir_arena_alloc(
      onnx->arena, sizeof(int32_t) * (size_t)(graph->place_count + 1));
  if (!slice->nodes || !slice->firsts || !slice->reads)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a gradient");
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const choir__onnx_node_t* between = &graph->nodes[i];
    if (!is_between[i] || !choir__onnx_visit_reads(between, flags, CHANGED, 0))
      continue;
    (void)choir__onnx_visit_reads(between, flags, 0, READ);
    const int32_t number = slice->node_count++;
    slice->nodes[number] = i;
    slice->firsts[number] = -1;
    for (int32_t k = 0; k < between->out_count; ++k) {
      const int32_t place = between->outputs[k];
      if (place < 0) continue;
      if (slice->firsts[number] < 0) slice->firsts[number] = place;
      if (!(flags[place] & GIVEN)) flags[place] |= CHANGED;
    }
  }
  for (int32_t i = 0; i < graph->place_count; ++i)
    if ((flags[i] & (READ | CHANGED | GIVEN)) == READ)
      slice->reads[slice->read_count++] = i;
  slice->is_constant = !(flags[slice->y] & CHANGED);
  return NULL;
}

choir_status_t choir__onnx_find_slice(choir_onnx_t* onnx,
                                      const choir__onnx_graph_t* graph,
                                      const choir__onnx_node_t* node,
                                      size_t* out_work) {
  *out_work = 0;
  uint8_t* flags = calloc((size_t)graph->place_count + 1, sizeof *flags);
  bool* is_between = calloc((size_t)graph->node_count + 1, sizeof *is_between);
  choir_status_t status =
      flags && is_between
          ? find(onnx, graph, node, flags, is_between, out_work)
          : CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a gradient");
  free(flags);
  free(is_between);
  return status;
}
