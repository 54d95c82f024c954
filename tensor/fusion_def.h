// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_FUSION_DEF_H_
#define CHOIR_TENSOR_FUSION_DEF_H_

#include "core/graph.h"
#include "tensor/op_def.h"

// Fusions: several records of a graph (core/graph.h) become one. Not installed.
//
// THE FUSION LIST is tensor/fusions/fusions.def: X(name) stands for the array
// choir__fusion_<name> in tensor/fusions/<name>.c. Each entry is a pattern: the
// ops that it matches, and the op that takes their place. It states this and
// nothing else; tensor/fusion.c finds matches and checks what makes one safe:
//
// - each record overwrites its results, and a result that the fused op does not
//   give is used by its reader in the match alone;
// - what the fused op reads has the same value where the fused op stands, and
//   nobody looks at what it writes between there and where it was written;
// - the device has a kernel of its own for the fused op: a fusion never leads
// to
//   a reference.
//
// A fusion gives the bits of the records that it replaces. So it does not
// matter which steps of a run are replays: a run that is resumed, or that meets
// a new batch size, records anew and goes on with the same bits.

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CHOIR_FUSION_NODES = 4,
  CHOIR_FUSION_OPERANDS = 12,
  // As a source: the first or the second, whichever matches; the other one.
  CHOIR_EITHER = 100,
  CHOIR_OTHER = 101,
};

// A record of the match. It writes, as its first result, what node `reader`,
// which stands before it in the pattern, takes as source `source`.
typedef struct choir_fusion_node_s {
  choir_op_t op;
  int8_t reader;
  int8_t source;
  // How many sources it has; 0: as many as it likes.
  int8_t src_count;
  // It is looked at and stays in the graph.
  bool stays;
} choir_fusion_node_t;

// An operand of a record of the match.
typedef struct choir_fusion_operand_s {
  int8_t node;
  int8_t index;  // of a source, or CHOIR_OTHER; ~ the index of a result
} choir_fusion_operand_t;

typedef struct choir_fusion_s {
  // nodes[0] is the last record.
  int32_t node_count;
  choir_fusion_node_t nodes[CHOIR_FUSION_NODES];
  // Operands that must be the same, pair by pair.
  int32_t same_count;
  choir_fusion_operand_t same[CHOIR_FUSION_OPERANDS][2];
  // The fused op, the node whose place, label and attributes it takes, and its
  // operands: sources, then results.
  choir_op_t op;
  int32_t place;
  int32_t src_count;
  int32_t dst_count;
  choir_fusion_operand_t operands[CHOIR_FUSION_OPERANDS];
  // Makes the fused op's attributes from those of the matched records; false:
  // they do not fit together. NULL: they are those of `place`.
  bool (*attrs)(const choir_record_t* const* records, void* out_attrs);
  // Where ops with several kernels have equal bits only by equal algorithms:
  // the node whose kernel the fused op's has to agree with; 0: none.
  int32_t same_algorithm;
  // The fused op's gradient, where it is not that of the ops one by one: used
  // by every step, of a graph or not (autograd/rule_table.c), if the last of
  // two ops alone uses the first one's result and the device has kernels for
  // it. Ended by one without sources; NULL: none.
  const choir_gradient_t* gradients;
} choir_fusion_t;

// The fusions, ended by NULL.
extern const choir_fusion_t* const choir__fusions[];

// One array of patterns for each line of the list, ended by one without nodes.
// A pattern is tried before those behind it.
#define X(name) extern const choir_fusion_t choir__fusion_##name[];
#include "tensor/fusions/fusions.def"
#undef X

// Applies all fusions; a rewriting for choir_graph_plan.
choir_status_t choir__graph_fuse(choir_graph_t* graph) CHOIR_NODISCARD;

// Elementwise records one behind the other, of any number and kind, as one
// (tensor/fusions/chains.c), the last of them at `node`.
choir_status_t choir__fuse_chains(choir_graph_t* graph, int32_t node)
    CHOIR_NODISCARD;

// The cast at `node` goes where all that read its result can read what it reads
// (tensor/fusions/casts.c).
choir_status_t choir__fuse_cast(choir_graph_t* graph, int32_t node)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_FUSION_DEF_H_
