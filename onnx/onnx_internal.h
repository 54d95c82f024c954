// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_INTERNAL_H_
#define CHOIR_ONNX_ONNX_INTERNAL_H_

#include "onnx/onnx.pb-c.h"
#include "onnx/onnx_call_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the files of this layer share. A file is parsed (onnx_file.c), its graph
// is put into arrays whose nodes name values by their places (onnx_graph.c),
// and each forward goes through them (onnx_run.c).

// A graph in a graph in a graph, a function that calls a function: so many.
enum { CHOIR__ONNX_MAX_DEPTH = 32 };
// Nodes of a file, functions written out.
enum { CHOIR__ONNX_MAX_NODES = 1 << 20 };
// What they read, give and have as attributes, and names of graphs.
enum { CHOIR__ONNX_MAX_NAMES = 1 << 22 };
// Attributes of a node or a function, operator sets of a file or a function:
// lists that are searched from their beginning.
enum { CHOIR__ONNX_MAX_LIST = 256 };
// The last version of ai.onnx that the operators follow.
enum { CHOIR__ONNX_MAX_VERSION = 28 };
// Nodes that run in one forward, with those of loops, and values of the graphs
// that they are in.
enum { CHOIR__ONNX_MAX_RUNS = 1 << 20, CHOIR__ONNX_MAX_VALUES = 1 << 22 };

// A value that a name of the file stands for: place k of a graph.
typedef struct choir__onnx_place_s {
  const char* name;          // of the file
  choir_tensor_t* constant;  // of an initialiser, on the host; NULL: none
  int32_t type;              // of its elements
  int32_t param;             // number of the parameter that it is; -1: none
  int32_t outer;             // place in the graph around it; -1: of this one
  choir_tensor_t* moved;     // the constant on the step's device, once needed
} choir__onnx_place_t;

// A call of a function of the file: where its nodes find attributes that are
// the call's.
typedef struct choir__onnx_site_s {
  const Onnx__NodeProto* call;
  const Onnx__FunctionProto* function;
  const struct choir__onnx_site_s* outer;
} choir__onnx_site_t;

// What a node Gradient differentiates: `y`, which nodes of its graph compute
// from given places.
typedef struct choir__onnx_slice_s {
  int32_t* given;  // those of the attributes xs and zs, as the node's inputs
  int32_t x_count;
  int32_t y;
  int32_t* nodes;   // those to run again, in order: they depend on given values
  int32_t* firsts;  // the first place that each of them gives
  int32_t node_count;
  int32_t* reads;  // places that these read as they are
  int32_t read_count;
  bool is_constant;  // y depends on no given value
} choir__onnx_slice_t;

typedef struct choir__onnx_memo_s choir__onnx_memo_t;

typedef struct choir__onnx_node_s {
  const Onnx__NodeProto* proto;
  const choir__onnx_site_t* site;  // NULL: of no function
  const choir__onnx_operator_t* op;
  int64_t version;
  const char* label;
  int32_t* inputs;  // places; -1: absent
  int32_t in_count;
  int32_t* outputs;  // places; -1: unnamed
  int32_t out_count;
  choir__onnx_graph_t** bodies;  // by number of the attribute; NULL: no graph
  choir__onnx_slice_t* slice;    // of Gradient; NULL: another
  bool is_idle;                  // no result that forward gives needs it
  // It and the node before it as one, and the value between them; NULL: none.
  struct choir__onnx_node_s* joined;
  int32_t between;
  bool is_joined;            // that one runs
  choir__onnx_memo_t* memo;  // NULL: nothing is kept of it
} choir__onnx_node_t;

// A body takes some values from the graph around it.
typedef struct choir__onnx_capture_s {
  int32_t outer;  // place there
  int32_t inner;
} choir__onnx_capture_t;

struct choir__onnx_graph_s {
  choir__onnx_graph_t* outer;  // NULL: the file's
  choir__onnx_graph_t* next;   // of all graphs
  choir__onnx_place_t* places;
  int32_t place_count, place_capacity;
  choir__onnx_node_t* nodes;
  int32_t node_count, node_capacity;
  choir__onnx_capture_t* captures;
  int32_t capture_count, capture_capacity;
  int32_t* inputs;                     // without those that have an initialiser
  const Onnx__ValueInfoProto** infos;  // of inputs
  int32_t in_count;
  int32_t* outputs;
  int32_t out_count;
};

// A tensor of the file that was made once, for all who read it.
typedef struct choir__onnx_made_s {
  const void* proto;
  choir_tensor_t* tensor;
  int32_t type;
  struct choir__onnx_made_s* next;  // of all
} choir__onnx_made_t;

struct choir_onnx_s {
  int32_t references;
  choir_device_t* host;  // where constants and known values are
  choir_scope_t* known;  // of known values, for a forward
  Onnx__ModelProto* proto;
  ProtobufCAllocator proto_memory;
  uint64_t proto_bytes, proto_limit;
  char* folder;          // NULL: none
  choir_arena_t* arena;  // of graphs
  choir__onnx_graph_t* graph;
  choir__onnx_graph_t* graphs;            // all of them
  const Onnx__FunctionProto** functions;  // sorted
  void* made_by_proto;                    // of choir__onnx_made_t, by tsearch
  choir__onnx_made_t* made;
  choir__onnx_memo_t* memos;  // all of them
  int32_t total_nodes, total_names;
  // Parameters and states: places of the file's graph.
  int32_t* param_places;
  choir_param_t** params;  // the model's or own; NULL until define or place
  choir_param_set_t* param_set;  // of the model, kept for its parameters
  choir_param_t* own_params;
  int32_t param_count;
  choir_status_t define_failure;  // NULL: none
  choir_device_t* device;         // of params
  // Of the last forward.
  choir__onnx_value_t* values;
  choir_onnx_value_t* given;  // its results; NULL: it failed
  choir_scope_t* scope;
  // What forward gives: places, and types of the last forward.
  const int32_t* results;
  int32_t* result_types;
  int32_t result_count;
  int32_t* chosen;  // both, of choir_onnx_select; NULL: the file's
};

// Streams of random numbers in the order of a forward. Nodes that run again for
// Gradient draw from the same.
typedef struct choir__onnx_draws_s {
  choir_scope_t* scope;  // of the forward
  int64_t* streams;
  int32_t count, capacity;
} choir__onnx_draws_t;

typedef struct choir__onnx_run_s {
  choir_onnx_t* onnx;
  choir_scope_t* scope;
  choir_scope_t* known;
  const choir__onnx_graph_t* graph;  // whose nodes run now
  choir__onnx_value_t* values;       // of its places
  // Of a run of some nodes again, for Gradient: what they gave before. NULL: of
  // a forward.
  const choir__onnx_value_t* before;
  bool is_training;     // the step is
  int64_t nodes;        // that ran
  int64_t value_count;  // of the graphs that ran
  int32_t depth;
  choir__onnx_draws_t* draws;
  int32_t drawn;  // of draws
} choir__onnx_run_t;

// onnx_data.c: a tensor of the file on the host's device, lent. It is made at
// the first call, and its bytes in the file's structs are freed.
choir_status_t choir__onnx_make_tensor(choir_onnx_t* onnx,
                                       Onnx__TensorProto* proto,
                                       choir_tensor_t** out_tensor,
                                       int32_t* out_type) CHOIR_NODISCARD;
// The dense tensor of a sparse one.
choir_status_t choir__onnx_make_sparse(choir_onnx_t* onnx,
                                       const Onnx__SparseTensorProto* proto,
                                       choir_tensor_t** out_tensor,
                                       int32_t* out_type) CHOIR_NODISCARD;
void choir__onnx_release_made(choir_onnx_t* onnx);
// A float of 8 or 4 bits by its bits.
float choir__onnx_small_float(int32_t type, uint8_t bits);
// The type that a dtype is the natural one of.
int32_t choir__onnx_dtype_type(choir_dtype_t dtype);

// onnx_functions.c
const Onnx__AttributeProto* choir__onnx_find_attr(
    const choir__onnx_node_t* node, const char* name, int32_t* out_number);
// "" for ONNX's own.
const char* choir__onnx_domain(const char* domain);
int64_t choir__onnx_version(const choir_onnx_t* onnx,
                            const choir__onnx_site_t* site, const char* domain);
// Fails where a list is longer than CHOIR__ONNX_MAX_LIST; what: its entries.
choir_status_t choir__onnx_check_list(size_t count, const char* what)
    CHOIR_NODISCARD;
// Looks at versions and makes onnx->functions.
choir_status_t choir__onnx_sort_functions(choir_onnx_t* onnx) CHOIR_NODISCARD;
// NULL: the node is none of the file's functions.
const Onnx__FunctionProto* choir__onnx_find_function(
    const choir_onnx_t* onnx, const Onnx__NodeProto* proto);

// onnx_graph.c
choir_status_t choir__onnx_build(choir_onnx_t* onnx) CHOIR_NODISCARD;
void choir__onnx_release_graphs(choir_onnx_t* onnx);

// onnx_join.c: sets `joined` of the file's nodes.
choir_status_t choir__onnx_join_layers(choir_onnx_t* onnx) CHOIR_NODISCARD;

// onnx_memo.c: results of nodes that are computed on the host, from one forward
// to the next.
choir_status_t choir__onnx_make_memos(choir_onnx_t* onnx) CHOIR_NODISCARD;
void choir__onnx_forget(choir_onnx_t* onnx);
// Sets outputs to what the node gave, if its inputs are what they were.
bool choir__onnx_recall(choir__onnx_run_t* run, const choir__onnx_node_t* node,
                        choir__onnx_value_t* const* inputs,
                        choir__onnx_value_t* outputs);
void choir__onnx_remember(choir__onnx_run_t* run,
                          const choir__onnx_node_t* node,
                          choir__onnx_value_t* const* inputs,
                          choir__onnx_value_t* outputs);

// onnx_select.c: finds the nodes that run for the results.
choir_status_t choir__onnx_find_idle(choir_onnx_t* onnx) CHOIR_NODISCARD;

// onnx_slice.c
// Sets flags[place] |= set for each place that the node, or a graph in it,
// reads. Returns whether one of them had a flag of `test`.
bool choir__onnx_visit_reads(const choir__onnx_node_t* node, uint8_t* flags,
                             uint8_t test, uint8_t set);
// The rest of node->slice, of which given, x_count and y are set. The graph's
// nodes are those before this one. *out_work: what was looked at beyond these
// and their names.
choir_status_t choir__onnx_find_slice(choir_onnx_t* onnx,
                                      const choir__onnx_graph_t* graph,
                                      const choir__onnx_node_t* node,
                                      size_t* out_work) CHOIR_NODISCARD;

// onnx_run.c
// slice: runs its nodes alone, whose values are set, again; NULL: all nodes.
bool choir__onnx_run_graph(choir__onnx_run_t* run,
                           const choir__onnx_graph_t* graph,
                           const choir__onnx_slice_t* slice,
                           choir__onnx_value_t* values);
// A known tensor as a variable of the step.
choir_var_t* choir__onnx_move(choir__onnx_run_t* run, choir_tensor_t* tensor,
                              choir_tensor_t** kept);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_ONNX_ONNX_INTERNAL_H_
