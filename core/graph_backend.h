// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_GRAPH_BACKEND_H_
#define CHOIR_CORE_GRAPH_BACKEND_H_

#include "core/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

// For rewriting a recorded graph before it is planned: look at nodes by index,
// put a record in the place of one, drop another. Indices stay as they are; a
// dropped node is no record any more.
//
// What a rewriting must keep: a record that writes a buffer which is not
// temporary stays at its index, and a record that moves down (its work is done
// by a later one) reads what nobody overwrote in between. The functions below
// answer those questions.

// Nodes, records or not.
CHOIR_API int32_t choir_graph_node_count(const choir_graph_t* graph);
// The record at `node` of streams[0]; NULL for other nodes and dropped ones.
// Lent until the node is changed.
CHOIR_API const choir_record_t* choir_graph_record(const choir_graph_t* graph,
                                                   int32_t node);
// The node before `node` that is not dropped, of whatever kind; -1: none.
CHOIR_API int32_t choir_graph_previous(const choir_graph_t* graph,
                                       int32_t node);
CHOIR_API choir_device_t* choir_graph_device(const choir_graph_t* graph);

// Whether nobody but the graph holds the view's buffer, only streams[0] uses
// it, and it is no input.
CHOIR_API bool choir_graph_is_temporary(const choir_graph_t* graph,
                                        const choir_view_t* view);
// The record that last wrote to the view's buffer before `node`; -1: none.
CHOIR_API int32_t choir_graph_writer(const choir_graph_t* graph,
                                     const choir_view_t* view, int32_t node);
// The next node after `node` that uses the view's buffer at all; -1: none.
CHOIR_API int32_t choir_graph_next_use(const choir_graph_t* graph,
                                       const choir_view_t* view, int32_t node);
// Whether no node between the two, neither of them included, writes to the
// view's buffer or is anything but a record of streams[0] where the buffer is
// not temporary.
CHOIR_API bool choir_graph_is_unchanged(const choir_graph_t* graph,
                                        const choir_view_t* view, int32_t from,
                                        int32_t to);
// Puts a copy of `record` in the place of node's record.
CHOIR_API choir_status_t choir_graph_put(choir_graph_t* graph, int32_t node,
                                         const choir_record_t* record)
    CHOIR_NODISCARD;
// Takes a record away.
CHOIR_API void choir_graph_drop(choir_graph_t* graph, int32_t node);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_GRAPH_BACKEND_H_
