// SPDX-License-Identifier: Apache-2.0
// Which buffers are temporary, when they live, where they go.
#include <stdlib.h>
#include <string.h>

#include "core/device_backend.h"
#include "core/graph_internal.h"
#include "core/record_internal.h"

enum { PLACE_ALIGNMENT = 64 };  // of buffers: what kernels count on

static size_t align_up(size_t bytes) {
  return (bytes + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
}

// ---- Buffers ----

// The number of a buffer, searched from the latest: most uses are near.
static choir_status_t number_buffer(choir_graph_t* graph,
                                    choir_buffer_t* buffer, int32_t* out_id) {
  for (int32_t id = graph->buffer_count; id-- > 0;) {
    if (graph->buffers[id].buffer != buffer) continue;
    *out_id = id;
    return NULL;
  }
  if (graph->buffer_count == graph->buffer_capacity) {
    const int32_t capacity =
        graph->buffer_capacity ? 2 * graph->buffer_capacity : 64;
    void* memory = NULL;
    CHOIR_TRY(choir_allocate(graph->allocator,
                             (size_t)capacity * sizeof(choir__graph_buffer_t),
                             "graph", &memory));
    if (graph->buffer_count > 0)
      memcpy(memory, graph->buffers,
             (size_t)graph->buffer_count * sizeof(choir__graph_buffer_t));
    choir_deallocate(
        graph->allocator, graph->buffers,
        (size_t)graph->buffer_capacity * sizeof(choir__graph_buffer_t));
    graph->buffers = memory;
    graph->buffer_capacity = capacity;
  }
  *out_id = graph->buffer_count++;
  graph->buffers[*out_id] =
      (choir__graph_buffer_t){.buffer = buffer,
                              .first = -1,
                              .last = -1,
                              .bytes = choir_buffer_bytes(buffer),
                              .input = -1,
                              .shares = -1};
  return NULL;
}

// Whether operand k of a node lends its shape alone.
static bool is_shape(const choir__node_t* node, size_t k) {
  return (int32_t)k < node->record.src_count &&
         !choir_record_reads(&node->record, (int32_t)k);
}

static choir__place_t place_of(const choir_graph_t* graph,
                               choir__graph_buffer_t* buffer) {
  for (int32_t i = 0; i < graph->input_count; ++i) {
    if (graph->inputs[i].buffer != buffer->buffer) continue;
    buffer->input = i;
    return CHOIR__PLACE_INPUT;
  }
  // Memory that somebody else made has what was put there.
  if (buffer->buffer->wrapped) return CHOIR__PLACE_KEPT;
  // Nobody but the nodes holds it, and the list of those without memory.
  const int holders =
      atomic_load_explicit(&buffer->buffer->ref_count, memory_order_acquire) -
      buffer->buffer->is_deferred;
  return holders == buffer->references && !buffer->other_stream
             ? CHOIR__PLACE_TEMPORARY
             : CHOIR__PLACE_KEPT;
}

choir_status_t choir__graph_find_buffers(choir_graph_t* graph) {
  graph->buffer_count = 0;
  for (int32_t i = 0; i < graph->node_count; ++i) {
    choir__node_t* node = &graph->nodes[i];
    if (node->kind != CHOIR__NODE_RECORD) continue;
    for (size_t k = 0; k < choir__record_operands(&node->record); ++k) {
      choir_buffer_t* buffer = choir__node_operand(node, k)->buffer;
      node->buffer_ids[k] = -1;
      if (!buffer) continue;
      CHOIR_TRY(number_buffer(graph, buffer, &node->buffer_ids[k]));
      choir__graph_buffer_t* entry = &graph->buffers[node->buffer_ids[k]];
      ++entry->references;
      entry->other_stream |= node->stream != 0;
      if (is_shape(node, k)) continue;
      if (entry->first < 0) entry->first = i;
      entry->last = i;
    }
  }
  for (int32_t id = 0; id < graph->buffer_count; ++id) {
    choir__graph_buffer_t* buffer = &graph->buffers[id];
    buffer->place = place_of(graph, buffer);
    buffer->until = buffer->last;
  }
  return NULL;
}

// ---- Records without effect ----

// Whether somebody sees what the record does: one that reads a temporary which
// it writes, or the holder of another buffer, or another rank.
static bool is_wanted(const choir_graph_t* graph, const choir__node_t* node) {
  const choir_record_t* record = &node->record;
  if (node->stream != 0 || record->dst_count == 0 ||
      (record->kernel && record->kernel->retain_attrs))
    return true;
  for (int32_t d = 0; d < record->dst_count; ++d) {
    const int32_t id = node->buffer_ids[record->src_count + d];
    if (id >= 0 && (graph->buffers[id].place != CHOIR__PLACE_TEMPORARY ||
                    graph->buffers[id].is_read))
      return true;
  }
  return false;
}

// Operands of earlier records are found where these come first.
static void drop_unwanted(choir_graph_t* graph) {
  for (int32_t i = graph->node_count; i-- > 0;) {
    choir__node_t* node = &graph->nodes[i];
    if (node->kind != CHOIR__NODE_RECORD) continue;
    if (!is_wanted(graph, node)) {
      choir__graph_clear_record(graph, node);
      ++graph->stats.unwanted;
      continue;
    }
    for (size_t k = 0; k < choir__record_operands(&node->record); ++k) {
      const int32_t id = node->buffer_ids[k];
      const bool is_source = (int32_t)k < node->record.src_count;
      if (id >= 0 && !is_shape(node, k) &&
          (is_source || node->record.accumulate))
        graph->buffers[id].is_read = true;
    }
  }
}

// The first use of a temporary or a result must write it: nobody else will
// have.
static choir_status_t check_written(const choir_graph_t* graph, int32_t id) {
  const choir__graph_buffer_t* buffer = &graph->buffers[id];
  if (buffer->first < 0) return NULL;  // only its shape is wanted
  const choir__node_t* node = &graph->nodes[buffer->first];
  bool written = buffer->bytes == 0;
  for (size_t k = 0; k < choir__record_operands(&node->record); ++k) {
    if (node->buffer_ids[k] != id || is_shape(node, k)) continue;
    const bool is_source = (int32_t)k < node->record.src_count;
    written |= !is_source && !node->record.accumulate;
    if (is_source && buffer->bytes > 0) {
      written = false;
      break;
    }
  }
  if (written) return NULL;
  char text[200];
  return CHOIR_ERROR(
      FAILED_PRECONDITION,
      "graph: %s%s%s reads what no record of the step wrote (%s); "
      "what the host fills in must be made before the step, or be an input",
      choir_record_name(&node->record), node->record.label ? " in " : "",
      node->record.label ? node->record.label : "",
      choir_view_print(&node->record.operands[0], text, sizeof text));
}

static choir_status_t check_result_used(const choir_graph_t* graph,
                                        int32_t input) {
  for (int32_t id = 0; id < graph->buffer_count; ++id)
    if (graph->buffers[id].input == input) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "graph: no record of the step touches result %d; a graph "
                     "can only give what it computes",
                     (int)input);
}

// ---- Places ----

// Orders in which temporaries may be placed. None is best for every graph.
static int compare_size(size_t a, size_t b) { return a < b ? 1 : -(a > b); }

static int by_size(const void* a_, const void* b_) {
  const choir__graph_buffer_t* a = *(choir__graph_buffer_t* const*)a_;
  const choir__graph_buffer_t* b = *(choir__graph_buffer_t* const*)b_;
  if (a->bytes != b->bytes) return compare_size(a->bytes, b->bytes);
  return a->first < b->first ? -1 : a->first > b->first;
}

static size_t life(const choir__graph_buffer_t* buffer) {
  return (size_t)buffer->until - (size_t)buffer->first + 1;
}

static int by_life(const void* a_, const void* b_) {
  const choir__graph_buffer_t* a = *(choir__graph_buffer_t* const*)a_;
  const choir__graph_buffer_t* b = *(choir__graph_buffer_t* const*)b_;
  if (life(a) != life(b)) return compare_size(life(a), life(b));
  return by_size(a_, b_);
}

static int by_area(const void* a_, const void* b_) {
  const choir__graph_buffer_t* a = *(choir__graph_buffer_t* const*)a_;
  const choir__graph_buffer_t* b = *(choir__graph_buffer_t* const*)b_;
  const size_t area_a = a->bytes * life(a);
  const size_t area_b = b->bytes * life(b);
  return area_a != area_b ? compare_size(area_a, area_b) : by_size(a_, b_);
}

static int by_first_use(const void* a_, const void* b_) {
  const choir__graph_buffer_t* a = *(choir__graph_buffer_t* const*)a_;
  const choir__graph_buffer_t* b = *(choir__graph_buffer_t* const*)b_;
  return a->first != b->first ? (a->first < b->first ? -1 : 1)
                              : by_size(a_, b_);
}

static bool live_together(const choir__graph_buffer_t* a,
                          const choir__graph_buffer_t* b) {
  return a->first <= b->until && b->first <= a->until;
}

// The tightest gap among those already placed (sorted by offset) that live at
// the same time, else the end.
static size_t find_gap(choir__graph_buffer_t* const* placed, int32_t count,
                       const choir__graph_buffer_t* buffer) {
  const size_t bytes = align_up(buffer->bytes);
  size_t end = 0;  // of those looked at
  size_t best = SIZE_MAX;
  size_t best_room = SIZE_MAX;
  for (int32_t i = 0; i < count; ++i) {
    const choir__graph_buffer_t* other = placed[i];
    if (!live_together(other, buffer)) continue;
    if (other->offset >= end + bytes && other->offset - end < best_room) {
      best = end;
      best_room = other->offset - end;
    }
    const size_t other_end = other->offset + align_up(other->bytes);
    if (other_end > end) end = other_end;
  }
  return best != SIZE_MAX ? best : end;
}

// Each into the tightest gap that its lifetime leaves; returns the bytes
// needed.
static size_t place_in_order(choir__graph_buffer_t* const* order, int32_t count,
                             choir__graph_buffer_t** placed) {
  size_t bytes = 0;
  for (int32_t i = 0; i < count; ++i) {
    choir__graph_buffer_t* buffer = order[i];
    buffer->offset = find_gap(placed, i, buffer);
    const size_t end = buffer->offset + align_up(buffer->bytes);
    if (end > bytes) bytes = end;
    int32_t at = i;
    for (; at > 0 && placed[at - 1]->offset > buffer->offset; --at)
      placed[at] = placed[at - 1];
    placed[at] = buffer;
  }
  return bytes;
}

// Tries the orders and keeps the one that needs least.
static size_t place_all(choir__graph_buffer_t** order, int32_t count,
                        choir__graph_buffer_t** placed) {
  static int (*const orders[])(const void*, const void*) = {
      by_size, by_area, by_life, by_first_use};
  enum { ORDERS = sizeof(orders) / sizeof(orders[0]) };
  int best = 0;
  size_t least = SIZE_MAX;
  for (int i = 0; i <= ORDERS; ++i) {
    // In the end the best once more, unless it was the last.
    const int chosen = i < ORDERS ? i : best;
    if (i == ORDERS && best == ORDERS - 1) break;
    qsort((void*)order, (size_t)count, sizeof(void*), orders[chosen]);
    const size_t bytes = place_in_order(order, count, placed);
    if (bytes >= least) continue;
    least = bytes;
    best = chosen;
  }
  return least;
}

// Whether all that the record does with the buffer is to read this view of it.
static bool reads_only(const choir__node_t* node, int32_t id,
                       const choir_view_t* view) {
  for (size_t k = 0; k < choir__record_operands(&node->record); ++k) {
    if (node->buffer_ids[k] != id || is_shape(node, k)) continue;
    if ((int32_t)k >= node->record.src_count ||
        !choir_view_same_layout(choir__node_operand(node, k), view))
      return false;
  }
  return true;
}

// Whether destination d of the node may take the place of source s: both are
// temporary, one ends here, the other begins here, and the operation allows it.
static bool takes_place(const choir_graph_t* graph, int32_t at, int32_t s,
                        int32_t d) {
  const choir__node_t* node = &graph->nodes[at];
  const choir_record_t* record = &node->record;
  const int32_t src_id = node->buffer_ids[s];
  const int32_t dst_id = node->buffer_ids[record->src_count + d];
  if (src_id < 0 || dst_id < 0 || src_id == dst_id) return false;
  const choir__graph_buffer_t* src = &graph->buffers[src_id];
  const choir__graph_buffer_t* dst = &graph->buffers[dst_id];
  const choir__graph_buffer_t* own =
      src->shares < 0 ? src : &graph->buffers[src->shares];
  const choir_view_t* view = choir_record_src(record, s);
  return src->place == CHOIR__PLACE_TEMPORARY &&
         dst->place == CHOIR__PLACE_TEMPORARY && dst->shares < 0 &&
         src->last == at && own->until == at && dst->first == at &&
         src->bytes == dst->bytes &&
         choir_view_same_layout(view, choir_record_dst(record, d)) &&
         reads_only(node, src_id, view) &&
         record->operation->in_place(record, s, d);
}

// Lets results take their operands' places where they may.
static void share_places(choir_graph_t* graph) {
  for (int32_t at = 0; at < graph->node_count; ++at) {
    const choir__node_t* node = &graph->nodes[at];
    const choir_record_t* record = &node->record;
    if (node->kind != CHOIR__NODE_RECORD || !record->operation ||
        !record->operation->in_place)
      continue;
    for (int32_t d = 0; d < record->dst_count; ++d) {
      int32_t s = 0;
      while (s < record->src_count && !takes_place(graph, at, s, d)) ++s;
      if (s == record->src_count) continue;
      const int32_t src = node->buffer_ids[s];
      choir__graph_buffer_t* dst =
          &graph->buffers[node->buffer_ids[record->src_count + d]];
      const int32_t before = graph->buffers[src].shares;
      dst->shares = before < 0 ? src : before;
      graph->buffers[dst->shares].until = dst->last;
    }
  }
}

static choir_status_t place_temporaries(choir_graph_t* graph) {
  void* memory = NULL;
  const size_t bytes =
      2 * (size_t)graph->buffer_count * sizeof(choir__graph_buffer_t*) + 1;
  CHOIR_TRY(choir_allocate(graph->allocator, bytes, "graph", &memory));
  choir__graph_buffer_t** order = memory;
  choir__graph_buffer_t** placed = order + graph->buffer_count;
  int32_t count = 0;
  choir_graph_stats_t* stats = &graph->stats;
  for (int32_t id = 0; id < graph->buffer_count; ++id) {
    choir__graph_buffer_t* buffer = &graph->buffers[id];
    if (buffer->place != CHOIR__PLACE_TEMPORARY) continue;
    ++stats->temporaries;
    stats->temporary_bytes += buffer->bytes;
    if (buffer->shares < 0) order[count++] = buffer;
  }
  if (count > 0) stats->arena_bytes = place_all(order, count, placed);
  for (int32_t node = 0; node < graph->node_count; ++node) {
    size_t live = 0;
    for (int32_t i = 0; i < count; ++i)
      if (order[i]->first <= node && node <= order[i]->until)
        live += order[i]->bytes;
    if (live > stats->live_bytes) stats->live_bytes = live;
  }
  choir_deallocate(graph->allocator, memory, bytes);
  for (int32_t id = 0; id < graph->buffer_count; ++id) {
    choir__graph_buffer_t* buffer = &graph->buffers[id];
    if (buffer->shares >= 0)
      buffer->offset = graph->buffers[buffer->shares].offset;
  }
  return NULL;
}

choir_status_t choir__workspace_reserve(choir_workspace_t* workspace,
                                        size_t bytes) {
  const size_t has =
      workspace->buffer ? choir_buffer_bytes(workspace->buffer) : 0;
  if (has >= bytes) return NULL;
  // First the old one goes, so that both never count.
  choir_buffer_release(workspace->buffer);
  workspace->buffer = NULL;
  choir_device_trim(workspace->device);
  CHOIR_TRY_NOTE(choir_device_check_memory(workspace->device, bytes),
                 "graph: workspace");
  CHOIR_TRY_NOTE(
      choir_buffer_create(workspace->device, bytes, &workspace->buffer),
      "graph: workspace");
  return NULL;
}

// Operands name their place in the workspace from now on, and the recorded
// temporaries go.
static void move_operands(choir_graph_t* graph) {
  for (int32_t i = 0; i < graph->node_count; ++i) {
    choir__node_t* node = &graph->nodes[i];
    if (node->kind != CHOIR__NODE_RECORD) continue;
    for (size_t k = 0; k < choir__record_operands(&node->record); ++k) {
      if (node->buffer_ids[k] < 0) continue;
      const choir__graph_buffer_t* buffer =
          &graph->buffers[node->buffer_ids[k]];
      if (buffer->place == CHOIR__PLACE_KEPT) continue;
      choir_view_t* operand = choir__node_operand(node, k);
      choir_buffer_release(operand->buffer);
      operand->buffer = NULL;
      if (buffer->place == CHOIR__PLACE_TEMPORARY)
        operand->offset +=
            (int64_t)(buffer->offset / choir_dtype_bytes(operand->dtype));
    }
  }
  for (int32_t id = 0; id < graph->buffer_count; ++id)
    if (graph->buffers[id].place != CHOIR__PLACE_KEPT)
      graph->buffers[id].buffer = NULL;
}

static choir_status_t take_inputs(choir_graph_t* graph,
                                  const choir_graph_options_t* options) {
  if (options->input_count < 0 || options->input_count > CHOIR_GRAPH_MAX_INPUTS)
    return CHOIR_ERROR(INVALID_ARGUMENT, "graph: %d inputs; needs 0 to %d",
                       (int)options->input_count, CHOIR_GRAPH_MAX_INPUTS);
  for (int32_t i = 0; i < options->input_count; ++i) {
    for (int32_t j = 0; j < i; ++j)
      if (options->inputs[i].buffer == options->inputs[j].buffer)
        return CHOIR_ERROR(INVALID_ARGUMENT,
                           "graph: inputs %d and %d are in one buffer; needs "
                           "one for each",
                           (int)j, (int)i);
    graph->inputs[i] = options->inputs[i];
  }
  graph->input_count = options->input_count;
  return NULL;
}

static choir_status_t rewrite_and_lower(choir_graph_t* graph,
                                        const choir_graph_options_t* options) {
  CHOIR_TRY(choir__graph_find_buffers(graph));
  drop_unwanted(graph);
  CHOIR_TRY(choir__graph_find_buffers(graph));
  if (options->rewrite) CHOIR_TRY(options->rewrite(graph));
  graph->stats.fused = -graph->stats.unwanted;
  for (int32_t i = 0; i < graph->node_count; ++i)
    graph->stats.fused += graph->nodes[i].kind == CHOIR__NODE_DROPPED;
  CHOIR_TRY(choir__graph_lower(graph));
  return choir__graph_find_buffers(graph);
}

static choir_status_t check_all_written(const choir_graph_t* graph,
                                        int32_t first_result) {
  for (int32_t id = 0; id < graph->buffer_count; ++id) {
    const choir__graph_buffer_t* buffer = &graph->buffers[id];
    if (buffer->place == CHOIR__PLACE_TEMPORARY ||
        (buffer->place == CHOIR__PLACE_INPUT && buffer->input >= first_result))
      CHOIR_TRY(check_written(graph, id));
  }
  for (int32_t i = first_result; i < graph->input_count; ++i)
    CHOIR_TRY(check_result_used(graph, i));
  return NULL;
}

choir_status_t choir_graph_plan(choir_graph_t* graph,
                                const choir_graph_options_t* options) {
  if (graph->is_recording || graph->is_planned || !graph->is_holding)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "graph: planned %s; needs one recorded step",
                       graph->is_planned         ? "twice"
                       : graph->is_recording     ? "before choir_graph_end"
                       : graph->stream_count > 0 ? "after the step ran"
                                                 : "before choir_graph_begin");
  CHOIR_TRY(take_inputs(graph, options));
  // Work that still runs holds its operands' buffers.
  for (int32_t s = 0; s < graph->stream_count; ++s)
    CHOIR_TRY(choir_stream_synchronize(graph->streams[s]));
  memset(&graph->stats, 0, sizeof(graph->stats));
  // Lowering makes buffers too.
  choir__deferral_begin(&graph->deferral, graph->workspace->device);
  choir_status_t status = rewrite_and_lower(graph, options);
  choir__deferral_end(&graph->deferral);
  CHOIR_TRY(status);
  for (int32_t i = 0; i < graph->node_count; ++i)
    graph->stats.records += graph->nodes[i].kind == CHOIR__NODE_RECORD;
  CHOIR_TRY(
      check_all_written(graph, options->input_count - options->result_count));
  share_places(graph);
  CHOIR_TRY(place_temporaries(graph));
  move_operands(graph);
  graph->is_planned = true;
  graph->is_holding = false;
  return NULL;
}
