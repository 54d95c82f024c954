// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_GRAPH_INTERNAL_H_
#define CHOIR_CORE_GRAPH_INTERNAL_H_

#include "core/device_backend.h"
#include "core/graph_backend.h"
#include "core/segments_backend.h"
#include "core/stage.h"
#include "core/text_internal.h"

// A graph's insides, for graph.c (recording, replay), graph_plan.c (lifetimes,
// places), graph_rewrite.c and graph_segments.c (records as one launch).

enum { CHOIR__GRAPH_MAX_STREAMS = 4 };

typedef enum choir__node_kind_e {
  CHOIR__NODE_RECORD,
  CHOIR__NODE_EVENT,
  CHOIR__NODE_WAIT,
  CHOIR__NODE_CALL,
  CHOIR__NODE_DROPPED,
} choir__node_kind_t;

typedef struct choir__node_s {
  choir__node_kind_t kind;
  int32_t stream;         // index into the graph's
  choir_record_t record;  // RECORD; operands and attributes are in `block`
  void* block;
  size_t block_bytes;
  int32_t* buffer_ids;  // one for each operand; -1: none
  choir_event_t* event;
  choir_status_t (*call)(void* self);
  void* self;
  choir_part_t part;  // of a segment, as what the record did says
} choir__node_t;

// Records that the device is given as one launch.
typedef struct choir__segment_s {
  int32_t first;  // nodes; between them are dropped ones alone
  int32_t last;
  int32_t start;  // in choir_graph_s.records
  int32_t count;
  bool is_refused;
  char label[32];  // "3..17", for profiles
} choir__segment_t;

typedef enum choir__place_e {
  CHOIR__PLACE_KEPT,       // somebody else's
  CHOIR__PLACE_TEMPORARY,  // in the workspace
  CHOIR__PLACE_INPUT,      // given to each replay
} choir__place_t;

// A buffer that records use.
typedef struct choir__graph_buffer_s {
  choir_buffer_t* buffer;  // after planning only of kept ones
  choir__place_t place;
  int32_t input;
  int32_t references;  // held by nodes
  int32_t first;       // nodes
  int32_t last;
  size_t bytes;
  size_t offset;  // in the workspace
  bool other_stream;
  bool is_read;  // by a record that was found to be wanted
  // The temporary in whose place this one lies, which ends where this begins;
  // -1: it has a place of its own, which is used up to node `until`.
  int32_t shares;
  int32_t until;
} choir__graph_buffer_t;

typedef struct choir__recorder_s {
  choir_stage_t stage;  // first
  choir_graph_t* graph;
  int32_t stream;
} choir__recorder_t;

struct choir_workspace_s {
  choir_allocator_t allocator;
  choir_device_t* device;
  choir_buffer_t* buffer;  // NULL: none needed yet
};

struct choir_graph_s {
  choir_allocator_t allocator;
  choir_workspace_t* workspace;
  choir_stream_t* streams[CHOIR__GRAPH_MAX_STREAMS];
  choir__recorder_t recorders[CHOIR__GRAPH_MAX_STREAMS];
  int32_t stream_count;
  bool is_recording;
  bool is_holding;  // what was recorded has not run yet
  bool never_runs;
  bool is_planned;
  choir__deferral_t deferral;  // buffers of what is held
  choir_status_t error;        // of recording
  choir_step_values_t values;
  choir__node_t* nodes;
  int32_t node_count;
  int32_t node_capacity;
  choir__graph_buffer_t* buffers;
  int32_t buffer_count;
  int32_t buffer_capacity;
  choir_view_t inputs[CHOIR_GRAPH_MAX_INPUTS];
  int32_t input_count;
  const choir_buffer_t* bound;  // the workspace's buffer that operands name
  choir_graph_stats_t stats;
  // graph_segments.c: what the device keeps, or NULL; then by what its records
  // were seen to do, the segments in order.
  choir_segments_t* segments;
  bool has_no_segments;  // for good
  bool looks;            // at each record that the replay submits
  bool is_seen;          // a replay went through, record by record
  bool is_cut;
  choir__segment_t* cuts;
  int32_t cut_count;
  const choir_record_t** records;  // of all segments
};

// Makes the workspace at least so large. After a failure it has no memory.
choir_status_t choir__workspace_reserve(choir_workspace_t* workspace,
                                        size_t bytes) CHOIR_NODISCARD;
// Copies a record into a node, whose other fields stay.
choir_status_t choir__graph_set_record(choir_graph_t* graph,
                                       choir__node_t* node,
                                       const choir_record_t* record)
    CHOIR_NODISCARD;
void choir__graph_clear_record(choir_graph_t* graph, choir__node_t* node);
// Makes a node, which is dropped, at this index; the others move up.
choir_status_t choir__graph_insert(choir_graph_t* graph, int32_t node)
    CHOIR_NODISCARD;
// Gives every record a kernel: where it names an operation, the records that
// this is lowered to for the graph's device stand in its place.
choir_status_t choir__graph_lower(choir_graph_t* graph) CHOIR_NODISCARD;
// Finds every buffer's users and place anew.
choir_status_t choir__graph_find_buffers(choir_graph_t* graph) CHOIR_NODISCARD;

// ---- graph_segments.c ----

// Before a replay. *out_launches: it gives the device segments; else, and
// where it looks, each record by itself.
choir_status_t choir__graph_segments_begin(choir_graph_t* graph,
                                           bool* out_launches) CHOIR_NODISCARD;
// Launches the segment that begins at *node and sets *node to the last of it;
// *out_done: false when none begins there or the device will not have it.
choir_status_t choir__graph_segments_launch(choir_graph_t* graph, int32_t* node,
                                            const choir_step_values_t* values,
                                            bool* out_done) CHOIR_NODISCARD;
// After the node's record was submitted by itself.
void choir__graph_segments_observe(choir_graph_t* graph, choir__node_t* node);
// The replay went through.
void choir__graph_segments_end(choir_graph_t* graph);
void choir__graph_segments_print(const choir_graph_t* graph,
                                 choir__text_t* text);
void choir__graph_segments_close(choir_graph_t* graph);

// ---- graph.c ----

// Lets the attributes of the node's record follow the step.
void choir__node_set_step(const choir__node_t* node,
                          const choir_step_values_t* values);

static inline choir_view_t* choir__node_operand(const choir__node_t* node,
                                                size_t k) {
  return (choir_view_t*)node->block + k;
}

#endif  // CHOIR_CORE_GRAPH_INTERNAL_H_
