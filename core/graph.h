// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_GRAPH_H_
#define CHOIR_CORE_GRAPH_H_

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A graph is one step of a program, recorded in front of the lowering of its
// streams, planned once, and run as often as wanted without the program:
//
//   CHOIR_TRY(choir_graph_begin(graph, &stream, 1, &values));
//   ... the step, as always ...
//   CHOIR_TRY(choir_graph_end(graph));
//   ... let go of the step's intermediate results ...
//   CHOIR_TRY(choir_graph_plan(graph, &options));
//   for (...) CHOIR_TRY(choir_graph_replay(graph, &values, inputs));
//
// While it is recorded the step does not run, and the buffers that it makes on
// the recording thread have no memory: those that become temporaries never
// need any of their own. The first replay is the step itself.
//
// It holds records, recorded and awaited events, and calls of the host
// (choir_stream_call), in the order in which the host gave them. Planning
// leaves out records of streams[0] whose results are temporaries that nobody
// reads, lets operations be rewritten (several become one), lowers what then
// stands there (core/record.h) and finds the temporary buffers, those that
// nobody but the graph holds any more, and places them in one workspace by
// their lifetimes: two that never live at the same time may share bytes. Other
// buffers (parameters, gradients, counters) stay where they are, but inputs are
// given anew to each replay, and a record's attributes follow the step's values
// (choir_record_t.at_step) and a scalar that its owner sets before the replay
// (core/scalar.h).
//
// What a graph cannot do again is an error of choir_graph_end or _plan, never a
// wrong replay: data that the host reads or writes in the middle of the step,
// temporaries that no record writes, attributes that change with the step
// without saying so. Where recording sees it, what was held runs at once and
// the rest of the step as if nobody recorded it; where planning sees it,
// choir_graph_run runs the step.
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
// Gives the memory back; the next graph that runs takes what it needs. NULL:
// nothing.
CHOIR_API void choir_workspace_trim(choir_workspace_t* workspace);

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
// Before choir_graph_begin: the graph is for its plan alone. Nothing of what is
// recorded ever runs; what cannot be recorded fails where it happens.
CHOIR_API void choir_graph_forbid_run(choir_graph_t* graph);
// Stops recording. FAILED_PRECONDITION, with the record or the reason, for a
// step that cannot be run again; it has run.
CHOIR_API choir_status_t choir_graph_end(choir_graph_t* graph) CHOIR_NODISCARD;
// Runs the step as it was recorded, without a plan, once: after a failure of
// choir_graph_plan.
CHOIR_API choir_status_t choir_graph_run(choir_graph_t* graph) CHOIR_NODISCARD;

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

// Chooses where temporaries lie; takes no memory and runs nothing. Once, after
// choir_graph_end.
CHOIR_API choir_status_t choir_graph_plan(choir_graph_t* graph,
                                          const choir_graph_options_t* options)
    CHOIR_NODISCARD;
// Runs the step. inputs: as many as were planned, results among them,
// each with the dtype, shape and strides of the recorded one (else
// INVALID_ARGUMENT); the buffers are borrowed until the work is done.
CHOIR_API choir_status_t choir_graph_replay(choir_graph_t* graph,
                                            const choir_step_values_t* values,
                                            const choir_view_t* inputs)
    CHOIR_NODISCARD;

typedef struct choir_graph_stats_s {
  int32_t records;
  int32_t unwanted;        // records whose results nobody reads, left out
  int32_t fused;           // records that the rewriting took away
  int32_t temporaries;     // buffers in the workspace
  size_t live_bytes;       // largest sum of temporaries alive at one record
  size_t arena_bytes;      // what the plan needs
  size_t temporary_bytes;  // sum of all temporaries
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
