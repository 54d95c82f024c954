// SPDX-License-Identifier: Apache-2.0
#include "core/graph.h"

#include <string.h>

#include "core/device_backend.h"
#include "core/graph_internal.h"
#include "core/random.h"
#include "core/record_internal.h"
#include "core/record_list_internal.h"

// ---- Workspace ----

choir_status_t choir_workspace_create(choir_device_t* device,
                                      choir_workspace_t** out_workspace) {
  *out_workspace = NULL;
  choir_allocator_t allocator = choir_device_allocator(device);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_workspace_t), "workspace",
                           &memory));
  choir_workspace_t* workspace = memory;
  workspace->allocator = allocator;
  workspace->device = device;
  choir_device_retain(device);
  *out_workspace = workspace;
  return NULL;
}

void choir_workspace_trim(choir_workspace_t* workspace) {
  if (!workspace) return;
  choir_buffer_release(workspace->buffer);
  workspace->buffer = NULL;
}

void choir_workspace_destroy(choir_workspace_t* workspace) {
  if (!workspace) return;
  choir_workspace_trim(workspace);
  choir_device_t* device = workspace->device;
  choir_deallocate(workspace->allocator, workspace, sizeof(*workspace));
  choir_device_release(device);
}

// ---- Nodes ----

choir_status_t choir__graph_set_record(choir_graph_t* graph,
                                       choir__node_t* node,
                                       const choir_record_t* record) {
  const size_t ids = choir__record_operands(record) * sizeof(int32_t);
  const size_t clone = (choir__record_clone_bytes(record) + 15) / 16 * 16;
  void* block = NULL;
  CHOIR_TRY(choir_allocate(graph->allocator, clone + ids + 1, "graph", &block));
  choir__record_clone(record, block, &node->record);
  node->block = block;
  node->block_bytes = clone + ids + 1;
  node->buffer_ids = (int32_t*)((char*)block + clone);
  for (size_t k = 0; k < choir__record_operands(record); ++k)
    node->buffer_ids[k] = -1;
  return NULL;
}

// Operands of a planned graph hold only what is kept.
void choir__graph_clear_record(choir_graph_t* graph, choir__node_t* node) {
  if (node->kind != CHOIR__NODE_RECORD) return;
  for (size_t k = 0;
       graph->is_planned && k < choir__record_operands(&node->record); ++k) {
    const int32_t id = node->buffer_ids[k];
    if (id >= 0 && graph->buffers[id].place != CHOIR__PLACE_KEPT)
      choir__node_operand(node, k)->buffer = NULL;
  }
  choir__record_drop(&node->record);
  choir_deallocate(graph->allocator, node->block, node->block_bytes);
  node->kind = CHOIR__NODE_DROPPED;
}

// Room for one more node behind the last, which is not counted yet.
static choir_status_t add_node(choir_graph_t* graph, choir__node_t** out_node) {
  if (graph->node_count == graph->node_capacity) {
    const int32_t capacity =
        graph->node_capacity ? 2 * graph->node_capacity : 64;
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(graph->allocator,
                             (size_t)capacity * sizeof(choir__node_t), "graph",
                             &memory));
    if (graph->node_count > 0)
      memcpy(memory, graph->nodes,
             (size_t)graph->node_count * sizeof(choir__node_t));
    choir_deallocate(graph->allocator, graph->nodes,
                     (size_t)graph->node_capacity * sizeof(choir__node_t));
    graph->nodes = memory;
    graph->node_capacity = capacity;
  }
  choir__node_t* node = &graph->nodes[graph->node_count];
  memset(node, 0, sizeof(*node));
  node->kind = CHOIR__NODE_DROPPED;
  *out_node = node;
  return NULL;
}

choir_status_t choir__graph_insert(choir_graph_t* graph, int32_t node) {
  choir__node_t* last = NULL;
  CHOIR_TRY(add_node(graph, &last));
  const choir__node_t dropped = *last;
  choir__node_t* at = &graph->nodes[node];
  memmove(at + 1, at, (size_t)(graph->node_count++ - node) * sizeof(*at));
  *at = dropped;
  return NULL;
}

// ---- Recording ----

// Longest attributes that change with the step.
enum { STEP_ATTRS_BYTES = 512 };

static void set_attrs(const choir_record_t* record, void* attrs,
                      const choir_step_values_t* values) {
  if (record->at_step) record->at_step(attrs, values);
  if (!record->scalar) return;
  const double value = choir_scalar_get(record->scalar);
  memcpy((char*)attrs + record->scalar_offset, &value, sizeof(value));
}

// What a replay will set must be what the step itself set.
static choir_status_t check_at_step(const choir_graph_t* graph,
                                    const choir_record_t* record) {
  if (!choir__record_changes(record)) return NULL;
  _Alignas(16) unsigned char attrs[STEP_ATTRS_BYTES];
  if (record->attrs_bytes > sizeof(attrs))
    return CHOIR_ERROR(INTERNAL,
                       "graph: %s has %zu bytes of attributes; at "
                       "most %d may change with the step",
                       choir_record_name(record), record->attrs_bytes,
                       STEP_ATTRS_BYTES);
  memcpy(attrs, record->attrs, record->attrs_bytes);
  set_attrs(record, attrs, &graph->values);
  if (memcmp(attrs, record->attrs, record->attrs_bytes) == 0) return NULL;
  return CHOIR_ERROR(
      FAILED_PRECONDITION,
      "graph: the attributes of %s%s%s are not those of the "
      "step (%s, step, samples); a graph can not follow other "
      "ones",
      choir_record_name(record), record->label ? " in " : "",
      record->label ? record->label : "",
      record->scalar ? choir_scalar_name(record->scalar) : "no scalar");
}

static choir_status_t record_node(choir_graph_t* graph, int32_t stream,
                                  const choir_record_t* record) {
  CHOIR_TRY(check_at_step(graph, record));
  choir__node_t* node = NULL;
  CHOIR_TRY(add_node(graph, &node));
  CHOIR_TRY(choir__graph_set_record(graph, node, record));
  node->kind = CHOIR__NODE_RECORD;
  node->stream = stream;
  ++graph->node_count;
  return NULL;
}

static choir_status_t record_order(choir_graph_t* graph, int32_t stream,
                                   const choir_order_t* order) {
  if (order->kind == CHOIR_ORDER_HOST)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "graph: the host reads or writes a tensor in the middle "
                       "of the step (after %d records); a graph can not do "
                       "that again: do it before or after the step",
                       (int)graph->node_count);
  choir__node_t* node = NULL;
  CHOIR_TRY(add_node(graph, &node));
  node->stream = stream;
  node->kind = order->kind == CHOIR_ORDER_EVENT  ? CHOIR__NODE_EVENT
               : order->kind == CHOIR_ORDER_WAIT ? CHOIR__NODE_WAIT
                                                 : CHOIR__NODE_CALL;
  node->event = order->event;
  choir_event_retain(order->event);
  node->call = order->call;
  node->self = order->self;
  ++graph->node_count;
  return NULL;
}

// What cannot be recorded is why the step can not be run again; it goes on as
// if nobody had recorded it.
static choir_status_t give_up(choir_graph_t* graph, choir_status_t why) {
  if (graph->never_runs) {
    // Also where the program goes on as if nothing had been.
    if (!graph->error)
      graph->error =
          CHOIR_ERROR(FAILED_PRECONDITION, "%s", choir_status_message(why));
    return why;
  }
  graph->error = why;
  return choir_graph_run(graph);
}

static choir_status_t see_record(choir_stage_t* stage, choir_stream_t* stream,
                                 const choir_record_t* record) {
  choir__recorder_t* recorder = (choir__recorder_t*)stage;
  choir_graph_t* graph = recorder->graph;
  if (graph->is_holding) {
    choir_status_t status = record_node(graph, recorder->stream, record);
    if (!status) return NULL;
    CHOIR_TRY(give_up(graph, status));
  }
  return choir_stage_forward(stage, stream, record);
}

static choir_status_t see_order(choir_stage_t* stage, choir_stream_t* stream,
                                const choir_order_t* order, bool* out_is_kept) {
  choir__recorder_t* recorder = (choir__recorder_t*)stage;
  choir_graph_t* graph = recorder->graph;
  (void)stream;
  if (!graph->is_holding) return NULL;
  choir_status_t status = record_order(graph, recorder->stream, order);
  if (status) return give_up(graph, status);
  *out_is_kept = true;
  return NULL;
}

choir_status_t choir_graph_create(choir_workspace_t* workspace,
                                  choir_graph_t** out_graph) {
  *out_graph = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(workspace->allocator, sizeof(choir_graph_t), "graph",
                           &memory));
  choir_graph_t* graph = memory;
  graph->allocator = workspace->allocator;
  graph->workspace = workspace;
  choir_device_retain(workspace->device);
  *out_graph = graph;
  return NULL;
}

static void pop_recorders(choir_graph_t* graph) {
  if (graph->is_recording) choir__deferral_end(&graph->deferral);
  for (int32_t s = graph->stream_count; graph->is_recording && s-- > 0;)
    choir_stream_pop_stage(graph->streams[s], &graph->recorders[s].stage);
  graph->is_recording = false;
}

void choir_graph_destroy(choir_graph_t* graph) {
  if (!graph) return;
  pop_recorders(graph);
  choir__graph_segments_close(graph);
  for (int32_t i = 0; i < graph->node_count; ++i) {
    choir_event_release(graph->nodes[i].event);
    choir__graph_clear_record(graph, &graph->nodes[i]);
  }
  choir_deallocate(graph->allocator, graph->nodes,
                   (size_t)graph->node_capacity * sizeof(choir__node_t));
  choir_deallocate(
      graph->allocator, graph->buffers,
      (size_t)graph->buffer_capacity * sizeof(choir__graph_buffer_t));
  for (int32_t s = 0; s < graph->stream_count; ++s)
    choir_stream_release(graph->streams[s]);
  choir__deferral_drop(&graph->deferral);
  choir_status_free(graph->error);
  choir_device_t* device = graph->workspace->device;
  choir_deallocate(graph->allocator, graph, sizeof(*graph));
  choir_device_release(device);
}

choir_status_t choir_graph_begin(choir_graph_t* graph,
                                 choir_stream_t* const* streams, int32_t count,
                                 const choir_step_values_t* values) {
  if (graph->stream_count > 0)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "graph: begun twice; a graph records one step");
  if (count < 1 || count > CHOIR__GRAPH_MAX_STREAMS)
    return CHOIR_ERROR(INVALID_ARGUMENT, "graph: %d streams; needs 1 to %d",
                       (int)count, CHOIR__GRAPH_MAX_STREAMS);
  for (int32_t s = 0; s < count; ++s)
    if (choir_stream_device(streams[s]) != graph->workspace->device)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "graph: stream %d is of another device than the "
                         "workspace; needs %s",
                         (int)s, choir_device_name(graph->workspace->device));
  graph->values = *values;
  graph->stream_count = count;
  graph->is_recording = true;
  graph->is_holding = true;
  choir__deferral_begin(&graph->deferral, graph->workspace->device);
  for (int32_t s = 0; s < count; ++s) {
    graph->streams[s] = streams[s];
    choir_stream_retain(streams[s]);
    graph->recorders[s] =
        (choir__recorder_t){.stage = {.submit = see_record, .order = see_order},
                            .graph = graph,
                            .stream = s};
    choir_stream_push_stage(streams[s], &graph->recorders[s].stage);
  }
  return NULL;
}

void choir_graph_forbid_run(choir_graph_t* graph) { graph->never_runs = true; }

choir_status_t choir_graph_end(choir_graph_t* graph) {
  if (!graph->is_recording)
    return CHOIR_ERROR(FAILED_PRECONDITION, "graph: ended before it was begun");
  pop_recorders(graph);
  choir_status_t error = graph->error;
  graph->error = NULL;
  return error;
}

// ---- Replay ----

static choir_status_t check_input(const choir_view_t* recorded,
                                  const choir_view_t* given, int32_t index) {
  bool fits = given->buffer && given->dtype == recorded->dtype &&
              choir_view_same_shape(given, recorded);
  for (int32_t k = 0; fits && k < recorded->ndim; ++k)
    fits = given->strides[k] == recorded->strides[k];
  if (fits) return NULL;
  char given_text[200];
  char recorded_text[200];
  return CHOIR_ERROR(
      INVALID_ARGUMENT, "graph: input %d is %s; was recorded as %s", (int)index,
      choir_view_print(given, given_text, sizeof given_text),
      choir_view_print(recorded, recorded_text, sizeof recorded_text));
}

// Lets operands name the workspace, where it has another buffer than before,
// and this replay's inputs.
static void bind(choir_graph_t* graph, const choir_view_t* inputs) {
  choir_buffer_t* workspace = graph->workspace->buffer;
  const bool moved = graph->bound != workspace;
  if (!moved && graph->input_count == 0) return;
  for (int32_t i = 0; i < graph->node_count; ++i) {
    choir__node_t* node = &graph->nodes[i];
    if (node->kind != CHOIR__NODE_RECORD) continue;
    const size_t count = choir__record_operands(&node->record);
    for (size_t k = 0; k < count; ++k) {
      const int32_t id = node->buffer_ids[k];
      if (id < 0) continue;
      const choir__graph_buffer_t* buffer = &graph->buffers[id];
      choir_view_t* operand = choir__node_operand(node, k);
      if (buffer->place == CHOIR__PLACE_TEMPORARY) {
        if (moved) operand->buffer = workspace;
      } else if (buffer->place == CHOIR__PLACE_INPUT) {
        choir_view_t* recorded = &graph->inputs[buffer->input];
        operand->buffer = inputs[buffer->input].buffer;
        operand->offset += inputs[buffer->input].offset - recorded->offset;
      }
    }
  }
  // Offsets of operands are relative to these from now on.
  for (int32_t i = 0; i < graph->input_count; ++i)
    graph->inputs[i].offset = inputs[i].offset;
  graph->bound = workspace;
}

void choir__node_set_step(const choir__node_t* node,
                          const choir_step_values_t* values) {
  set_attrs(&node->record, (void*)(uintptr_t)node->record.attrs, values);
}

static choir_status_t run_node(choir_graph_t* graph, choir__node_t* node,
                               const choir_step_values_t* values) {
  choir_stream_t* stream = graph->streams[node->stream];
  switch (node->kind) {
    case CHOIR__NODE_RECORD:
      choir__node_set_step(node, values);
      CHOIR_TRY(choir_stream_submit(stream, &node->record));
      choir__graph_segments_observe(graph, node);
      return NULL;
    case CHOIR__NODE_EVENT:
      return choir_event_record(node->event, stream);
    case CHOIR__NODE_WAIT:
      return choir_stream_wait_event(stream, node->event);
    case CHOIR__NODE_CALL:
      return choir_stream_call(stream, node->call, node->self);
    case CHOIR__NODE_DROPPED:
      break;
  }
  return NULL;
}

choir_status_t choir_graph_run(choir_graph_t* graph) {
  if (!graph->is_holding || graph->never_runs)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "graph: run as recorded %s; needs a step that did not "
                       "run yet",
                       graph->never_runs   ? "though it is for its plan alone"
                       : graph->is_planned ? "after choir_graph_plan"
                                           : "twice");
  graph->is_holding = false;
  choir__deferral_end(&graph->deferral);
  CHOIR_TRY(choir__deferral_commit(&graph->deferral));
  for (int32_t i = 0; i < graph->node_count; ++i)
    CHOIR_TRY(run_node(graph, &graph->nodes[i], &graph->values));
  return NULL;
}

choir_status_t choir_graph_replay(choir_graph_t* graph,
                                  const choir_step_values_t* values,
                                  const choir_view_t* inputs) {
  if (!graph->is_planned || graph->never_runs)
    return CHOIR_ERROR(FAILED_PRECONDITION, "graph: replayed %s",
                       graph->is_planned ? "though it is for its plan alone"
                                         : "before choir_graph_plan");
  for (int32_t i = 0; i < graph->input_count; ++i)
    CHOIR_TRY(check_input(&graph->inputs[i], &inputs[i], i));
  if (graph->deferral.first) {  // the first replay
    CHOIR_TRY_NOTE(
        choir_device_check_memory(graph->workspace->device,
                                  choir__deferral_bytes(&graph->deferral)),
        "graph: buffers that stay");
    CHOIR_TRY(choir__deferral_commit(&graph->deferral));
  }
  // It may have lost its memory when it could not grow for another graph.
  CHOIR_TRY(
      choir__workspace_reserve(graph->workspace, graph->stats.arena_bytes));
  bind(graph, inputs);
  bool launches = false;
  CHOIR_TRY(choir__graph_segments_begin(graph, &launches));
  for (int32_t i = 0; i < graph->node_count; ++i) {
    choir__node_t* node = &graph->nodes[i];
    bool is_done = false;
    choir_status_t status = NULL;
    if (launches)
      status = choir__graph_segments_launch(graph, &i, values, &is_done);
    if (!status && !is_done) status = run_node(graph, node, values);
    if (!status) continue;
    // Other streams' records say themselves what they were for.
    const char* label = node->kind == CHOIR__NODE_RECORD && node->stream == 0
                            ? node->record.label
                            : NULL;
    return choir_status_annotate(status, __FILE__, __LINE__,
                                 label ? "%s" : NULL, label);
  }
  choir__graph_segments_end(graph);
  return NULL;
}

// ---- Looking at it ----

choir_graph_stats_t choir_graph_stats(const choir_graph_t* graph) {
  return graph->stats;
}

uint64_t choir_graph_hash(const choir_graph_t* graph) {
  uint64_t hash = CHOIR_HASH_START;
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const choir__node_t* node = &graph->nodes[i];
    if (node->kind == CHOIR__NODE_DROPPED) continue;
    const int32_t head[] = {(int32_t)node->kind, node->stream};
    hash = choir_hash_bytes(hash, head, sizeof head);
    if (node->kind == CHOIR__NODE_RECORD)
      hash = choir__record_hash(hash, &node->record, node->buffer_ids);
  }
  return hash;
}

static void print_buffer(choir__text_t* text, int32_t id,
                         const choir__graph_buffer_t* buffer) {
  choir__text_put(text, "b%d: %zu bytes, %d..%d, ", (int)id, buffer->bytes,
                  (int)buffer->first, (int)buffer->last);
  if (buffer->place == CHOIR__PLACE_INPUT)
    choir__text_put(text, "input %d\n", (int)buffer->input);
  else if (buffer->place == CHOIR__PLACE_TEMPORARY)
    choir__text_put(text, "workspace + %zu\n", buffer->offset);
  else
    choir__text_put(text, "kept\n");
}

choir_status_t choir_graph_print(const choir_graph_t* graph, char** out_text) {
  static const char* const names[] = {"record", "event", "wait", "call"};
  const choir_graph_stats_t* stats = &graph->stats;
  choir__text_t text;
  choir__text_init(&text);
  choir__text_put(&text,
                  "graph: %d records (%d fused away), %d temporaries of %zu "
                  "bytes, %zu alive at most, in a workspace of %zu\n",
                  (int)stats->records, (int)stats->fused,
                  (int)stats->temporaries, stats->temporary_bytes,
                  stats->live_bytes, stats->arena_bytes);
  choir__graph_segments_print(graph, &text);
  for (int32_t i = 0; i < graph->node_count; ++i) {
    const choir__node_t* node = &graph->nodes[i];
    if (node->kind == CHOIR__NODE_DROPPED) continue;
    choir__text_put(&text, "%d ", (int)i);
    if (node->stream > 0) choir__text_put(&text, "(stream %d) ", node->stream);
    if (node->kind == CHOIR__NODE_RECORD)
      choir__record_print(&text, &node->record, node->buffer_ids);
    else
      choir__text_put(&text, "%s\n", names[node->kind]);
  }
  for (int32_t id = 0; id < graph->buffer_count; ++id)
    if (graph->buffers[id].references > 0)
      print_buffer(&text, id, &graph->buffers[id]);
  return choir__text_take(&text, "choir_graph_print", out_text);
}
