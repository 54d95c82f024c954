// SPDX-License-Identifier: Apache-2.0
// Which records of a graph the device is given as one launch
// (core/segments_backend.h). The first replay submits each by itself and looks
// at what it did; then the graph is cut wherever something else than a record
// that can be launched again stands between.
#include <stdio.h>

#include "core/clock_internal.h"
#include "core/device_backend.h"
#include "core/graph_internal.h"
#include "core/profile.h"
#include "core/record_internal.h"
#include "core/trace_backend.h"

// Fewer are no less work as one launch.
enum { LEAST_RECORDS = 2 };

static const choir_segments_vtable_t* vtable_of(const choir_graph_t* graph) {
  return graph->workspace->device->vtable->segments;
}

// ---- Cutting ----

// Whether the record has other attributes or addresses from replay to replay.
static bool changes(const choir_graph_t* graph, const choir__node_t* node) {
  if (choir__record_changes(&node->record)) return true;
  const int32_t count = node->record.src_count + node->record.dst_count;
  for (int32_t k = 0; k < count; ++k) {
    const int32_t id = node->buffer_ids[k];
    if (id >= 0 && graph->buffers[id].place == CHOIR__PLACE_INPUT) return true;
  }
  return false;
}

// Why the node is in no segment; NULL: it may be in one.
static const char* obstacle(const choir_graph_t* graph,
                            const choir__node_t* node) {
  switch (node->kind) {
    case CHOIR__NODE_EVENT:
      return "an event is recorded";
    case CHOIR__NODE_WAIT:
      return "a wait for an event";
    case CHOIR__NODE_CALL:
      return "a call of the host";
    case CHOIR__NODE_RECORD:
    case CHOIR__NODE_DROPPED:
      break;
  }
  if (node->stream != 0) return "another stream's record";
  // Such attributes hold a communicator, which checks each operation.
  if (node->part == CHOIR_PART_HOST || node->record.kernel->retain_attrs)
    return "the host takes part in it";
  if (node->part == CHOIR_PART_FIXED && changes(graph, node))
    return "a library launches it, with what changes from step to step";
  return NULL;
}

// The segment that begins at `node` or behind it; count 0: none.
static choir__segment_t next_segment(const choir_graph_t* graph, int32_t node) {
  choir__segment_t segment = {0};
  for (; node < graph->node_count; ++node) {
    if (graph->nodes[node].kind == CHOIR__NODE_DROPPED) continue;
    if (obstacle(graph, &graph->nodes[node])) {
      if (segment.count >= LEAST_RECORDS) break;
      segment.count = 0;
      continue;
    }
    if (segment.count++ == 0) segment.first = node;
    segment.last = node;
  }
  if (segment.count < LEAST_RECORDS) segment.count = 0;
  return segment;
}

static void fill(choir_graph_t* graph) {
  int32_t start = 0;
  int32_t node = 0;
  for (int32_t i = 0; i < graph->cut_count; ++i) {
    choir__segment_t* segment = &graph->cuts[i];
    *segment = next_segment(graph, node);
    segment->start = start;
    snprintf(segment->label, sizeof(segment->label), "%d..%d",
             (int)segment->first, (int)segment->last);
    for (node = segment->first; node <= segment->last; ++node)
      if (graph->nodes[node].kind == CHOIR__NODE_RECORD)
        graph->records[start++] = &graph->nodes[node].record;
  }
}

static choir_status_t cut(choir_graph_t* graph) {
  int32_t count = 0;
  int32_t records = 0;
  for (int32_t node = 0;;) {
    const choir__segment_t segment = next_segment(graph, node);
    if (segment.count == 0) break;
    ++count;
    records += segment.count;
    node = segment.last + 1;
  }
  graph->is_cut = true;
  if (count == 0) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(graph->allocator,
                           (size_t)count * sizeof(choir__segment_t), "graph",
                           &memory));
  graph->cuts = memory;
  graph->cut_count = count;
  graph->stats.launches = count;
  CHOIR_TRY(choir_allocate(graph->allocator,
                           (size_t)records * sizeof(choir_record_t*), "graph",
                           &memory));
  graph->records = memory;
  graph->stats.launched_records = records;
  fill(graph);
  return NULL;
}

// ---- Replay ----

choir_status_t choir__graph_segments_begin(choir_graph_t* graph,
                                           bool* out_launches) {
  const choir_segments_vtable_t* vtable = vtable_of(graph);
  const choir_stream_t* stream = graph->streams[0];
  *out_launches = false;
  graph->looks = false;
  // Whoever stands on the submit path wants to see each record.
  if (!vtable || graph->has_no_segments ||
      choir__trace_sees_records(stream->device) ||
      stream->stages != &stream->lowering ||
      stream->lowering.next != &stream->to_device)
    return NULL;
  if (!graph->segments) {
    CHOIR_TRY(vtable->create(graph->streams[0], &graph->segments));
    graph->has_no_segments = !graph->segments;
  }
  graph->looks = graph->segments != NULL;
  if (!graph->is_seen) return NULL;
  if (!graph->is_cut) {
    choir_status_t status = cut(graph);
    if (status) {
      choir__graph_segments_close(graph);
      return status;
    }
  }
  *out_launches = graph->cut_count > 0;
  return NULL;
}

static void tell_profile(const choir_graph_t* graph,
                         const choir__segment_t* segment,
                         const choir_span_t* span) {
  choir_cost_t cost = {0, 0};
  for (int32_t i = 0; span->start >= 0 && i < segment->count; ++i) {
    const choir_cost_t one =
        choir_record_cost(graph->records[segment->start + i]);
    cost.flops += one.flops;
    cost.bytes += one.bytes;
  }
  choir_span_end(span, vtable_of(graph)->name, segment->label, &cost);
}

choir_status_t choir__graph_segments_launch(choir_graph_t* graph, int32_t* node,
                                            const choir_step_values_t* values,
                                            bool* out_done) {
  *out_done = false;
  int32_t index = 0;
  while (index < graph->cut_count && graph->cuts[index].first < *node) ++index;
  if (index == graph->cut_count) return NULL;
  choir__segment_t* segment = &graph->cuts[index];
  if (segment->first != *node || segment->is_refused) return NULL;
  CHOIR_TRY(choir__check_not_forked("choir_stream_submit"));
  for (int32_t i = segment->first; i <= segment->last; ++i)
    if (graph->nodes[i].kind == CHOIR__NODE_RECORD)
      choir__node_set_step(&graph->nodes[i], values);
  choir_segment_result_t result = CHOIR_SEGMENT_REFUSED;
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_OP);
  choir_status_t status = vtable_of(graph)->launch(
      graph->segments, index, graph->records + segment->start, segment->count,
      &result);
  tell_profile(graph, segment, &span);
  CHOIR_TRY_NOTE(status, "records %s of the step", segment->label);
  *out_done = result == CHOIR_SEGMENT_LAUNCHED;
  if (*out_done) *node = segment->last;
  segment->is_refused = result == CHOIR_SEGMENT_REFUSED;
  graph->stats.refused_launches += segment->is_refused;
  return NULL;
}

void choir__graph_segments_observe(choir_graph_t* graph, choir__node_t* node) {
  if (!graph->looks || node->stream != 0) return;
  const choir_part_t part = vtable_of(graph)->observe(graph->segments);
  if (!graph->is_seen) node->part = part;
}

void choir__graph_segments_end(choir_graph_t* graph) {
  graph->is_seen |= graph->looks;
}

void choir__graph_segments_close(choir_graph_t* graph) {
  if (graph->segments && !choir_process_is_forked_child())
    vtable_of(graph)->destroy(graph->segments);
  graph->segments = NULL;
  choir_deallocate(graph->allocator, graph->cuts,
                   (size_t)graph->cut_count * sizeof(choir__segment_t));
  choir_deallocate(
      graph->allocator, graph->records,
      (size_t)graph->stats.launched_records * sizeof(choir_record_t*));
  graph->cuts = NULL;
  graph->cut_count = 0;
  graph->records = NULL;
  graph->stats.launches = 0;
  graph->stats.launched_records = 0;
  graph->is_cut = false;
  graph->is_seen = false;
  graph->looks = false;
}

// ---- Looking at it ----

static bool is_launched(const choir_graph_t* graph, int32_t node) {
  for (int32_t i = 0; i < graph->cut_count; ++i)
    if (graph->cuts[i].first <= node && node <= graph->cuts[i].last)
      return true;
  return false;
}

void choir__graph_segments_print(const choir_graph_t* graph,
                                 choir__text_t* text) {
  if (!graph->is_cut) return;
  const choir_graph_stats_t* stats = &graph->stats;
  choir__text_put(text, "launches: %d of %d records together, %d refused\n",
                  (int)stats->launches, (int)stats->launched_records,
                  (int)stats->refused_launches);
  for (int32_t i = 0; i < graph->cut_count; ++i)
    choir__text_put(text, "launch %d: nodes %s, %d records%s\n", (int)i,
                    graph->cuts[i].label, (int)graph->cuts[i].count,
                    graph->cuts[i].is_refused ? ", refused" : "");
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const choir__node_t* node = &graph->nodes[i];
    if (node->kind == CHOIR__NODE_DROPPED || is_launched(graph, i)) continue;
    const char* why = obstacle(graph, node);
    choir__text_put(text, "cut at %d: %s\n", (int)i,
                    why ? why : "a record alone");
  }
}
