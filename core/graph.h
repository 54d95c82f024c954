// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_GRAPH_H_
#define CHOIR_CORE_GRAPH_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A graph is one step of a program, recorded in front of the lowering of its
// streams while it runs, planned once, and run again without the program:
//
//   CHOIR_TRY(choir_graph_begin(graph, &stream, 1, &values));
//   ... the step, as always ...
//   CHOIR_TRY(choir_graph_end(graph));
//   ... let go of the step's intermediate results ...
//   CHOIR_TRY(choir_graph_plan(graph, &options));
//   for (...) CHOIR_TRY(choir_graph_replay(graph, &values, inputs));
//
// It holds records, recorded and awaited events, and calls of the host
// (choir_stream_call), in the order in which the host gave them. Planning lets
// operations be rewritten (several become one), lowers what then stands there
// (core/record.h) and finds the temporary buffers, those that nobody but the
// graph holds any more, and places them in one workspace by their lifetimes:
// two that never live at the same time may share bytes. Other buffers
// (parameters, gradients, counters) stay where they are, but inputs are given
// anew to each replay, and a record's attributes follow the step's values
// (choir_record_t.at_step) and a scalar that its owner sets before the replay
// (core/scalar.h).
//
// What a graph cannot do again is an error of choir_graph_end or _plan, never a
// wrong replay: data that the host read or wrote in the middle of the step,
// temporaries that no record wrote, attributes that changed with the step
// without saying so.
//
// Ownership: graph and workspace are unique; the graph retains streams, events
// and buffers, borrows the workspace. Threads: one thread at a time.

typedef struct choir_graph_s choir_graph_t;

// Memory for the temporaries of graphs that never run at the same time: as much
// as the largest of them needs.
typedef struct choir_workspace_s choir_workspace_t;
CHOIR_API choir_status_t choir_workspace_create(
    choir_device_t* device, choir_workspace_t** out_workspace) CHOIR_NODISCARD;
// After the graphs that use it.
CHOIR_API void choir_workspace_destroy(choir_workspace_t* workspace);

CHOIR_API choir_status_t choir_graph_create(choir_workspace_t* workspace,
                                            choir_graph_t** out_graph)
    CHOIR_NODISCARD;
CHOIR_API void choir_graph_destroy(choir_graph_t* graph);

// Records `count` (1 to 4) streams of the workspace's device from now on. The
// temporaries of a graph belong to streams[0], on which work runs in order;
// what other streams touch stays where it is. values: the step's, copied.
CHOIR_API choir_status_t choir_graph_begin(choir_graph_t* graph,
                                           choir_stream_t* const* streams,
                                           int32_t count,
                                           const choir_step_values_t* values)
    CHOIR_NODISCARD;
// Stops recording. FAILED_PRECONDITION, with the record or the reason, for a
// step that cannot be run again; the step itself is not affected.
CHOIR_API choir_status_t choir_graph_end(choir_graph_t* graph) CHOIR_NODISCARD;

enum { CHOIR_GRAPH_MAX_INPUTS = 24 };

typedef struct choir_graph_options_s {
  // Where lay what each replay is given: different buffers. The last
  // result_count of them are results, which the step must have written.
  const choir_view_t* inputs;
  int32_t input_count;
  int32_t result_count;
  // Puts records in the place of others (core/graph_backend.h); may be NULL.
  choir_status_t (*rewrite)(choir_graph_t* graph);
} choir_graph_options_t;

// Chooses where temporaries lie. Once, after choir_graph_end.
CHOIR_API choir_status_t choir_graph_plan(choir_graph_t* graph,
                                          const choir_graph_options_t* options)
    CHOIR_NODISCARD;
// Runs the step again. inputs: as many as were planned, results among them,
// each with the dtype, shape and strides of the recorded one (else
// INVALID_ARGUMENT); the buffers are borrowed until the work is done.
CHOIR_API choir_status_t choir_graph_replay(choir_graph_t* graph,
                                            const choir_step_values_t* values,
                                            const choir_view_t* inputs)
    CHOIR_NODISCARD;

typedef struct choir_graph_stats_s {
  int32_t records;
  int32_t fused;           // records that the rewriting took away
  int32_t temporaries;     // buffers in the workspace
  size_t live_bytes;       // largest sum of temporaries alive at one record
  size_t arena_bytes;      // what the plan needs
  size_t temporary_bytes;  // sum of all temporaries
  size_t recorded_bytes;   // most that the step took from the device's pool
                           // while it was recorded, eagerly
  // Where the device takes many records as one launch (a CUDA graph): such
  // launches of a replay, known from the second one on; records in them; and
  // those that the device refused, whose records are submitted one by one.
  int32_t launches;
  int32_t launched_records;
  int32_t refused_launches;
} choir_graph_stats_t;
CHOIR_API choir_graph_stats_t choir_graph_stats(const choir_graph_t* graph);
// 64 bits over nodes, kernels, shapes and layouts: equal for an equal step.
CHOIR_API uint64_t choir_graph_hash(const choir_graph_t* graph);
// One line for each record and each buffer (bytes, first and last use, place),
// and for each launch and what stands between them, into a malloc'ed text that
// the caller frees.
CHOIR_API choir_status_t choir_graph_print(const choir_graph_t* graph,
                                           char** out_text) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_GRAPH_H_
