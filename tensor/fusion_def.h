// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_FUSION_DEF_H_
#define CHOIR_TENSOR_FUSION_DEF_H_

#include "core/graph.h"
#include "tensor/op_def.h"

// Fusions: several records of a graph (core/graph.h) become one. Not installed.
//
// THE FUSION LIST is tensor/fusions/fusions.def: X(name) stands for the
// function choir__fuse_<name> in tensor/fusions/<name>.c. It looks at one
// record of a recorded graph and, when it and those before it can be one op,
// puts that op in their place (core/graph_backend.h). It is asked for each
// record from the last to the first, and only does what a fast kernel of the
// device supports: a fusion never leads to a reference.
//
// A fusion gives the bits of the records that it replaces. So it does not
// matter which steps of a run are replays: a run that is resumed, or that meets
// a new batch size, records anew and goes on with the same bits.

#ifdef __cplusplus
extern "C" {
#endif

#define X(name) \
  choir_status_t choir__fuse_##name(choir_graph_t* graph, int32_t node);
#include "tensor/fusions/fusions.def"
#undef X

// Applies all fusions; a rewriting for choir_graph_plan.
choir_status_t choir__graph_fuse(choir_graph_t* graph) CHOIR_NODISCARD;

// Makes *out_record the op on these operands (sources, then destinations; the
// array is borrowed), with `like`'s label. Returns the kernel that it will be
// lowered to; NULL: the graph's device has none of its own.
const choir_op_kernel_t* choir__fused_record(
    const choir_graph_t* graph, choir_op_t op, const choir_view_t* operands,
    int32_t src_count, int32_t dst_count, const void* attrs, bool accumulate,
    const choir_record_t* like, choir_record_t* out_record);
// The same elements in the same places.
bool choir__same_view(const choir_view_t* a, const choir_view_t* b);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_FUSION_DEF_H_
