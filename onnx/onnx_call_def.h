// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_CALL_DEF_H_
#define CHOIR_ONNX_ONNX_CALL_DEF_H_

#include "autograd/functions.h"
#include "onnx/onnx.h"

// For writers of an operator (onnx/operators). Not installed.
//
//   static void relu(choir__onnx_call_t* c) {
//     OUT(0, choir_var_relu(c->scope, IN(0)));
//   }
//
// A function computes the node's results from its inputs. It runs in every
// forward, on variables: of the step, or, where the node's inputs are known
// (they follow from constants and shapes alone), of a scope of the host's
// beside it. It need not know which. After a failure calls do nothing, so that
// few need a look at choir_scope_is_ok(c->scope) (CALL_IS_OK): those that go on
// to look at shapes.

typedef struct choir__onnx_call_s choir__onnx_call_t;
typedef struct choir__onnx_graph_s choir__onnx_graph_t;

// What a name stands for in a forward.
typedef struct choir__onnx_value_s choir__onnx_value_t;
struct choir__onnx_value_s {
  choir_var_t* var;  // NULL: no tensor (absent, an empty optional, a sequence)
  choir_var_t* moved;  // a known one as a variable of the step; NULL: not yet
  choir_tensor_t** kept;  // where a constant's tensor there is kept, or NULL
  int32_t type;           // choir_onnx_type_t of the elements
  bool is_known;          // var is of the host's scope
  bool is_sequence;
  bool is_given;  // to Gradient: nodes that run again do not set it
  choir__onnx_value_t* items;  // of a sequence
  int32_t count;
  int32_t drawn;  // streams of random numbers before its node ran
};

struct choir__onnx_call_s {
  struct choir__onnx_run_s* run;
  const struct choir__onnx_node_s* node;
  choir_scope_t* scope;  // where results are computed
  int64_t version;       // of the operator's domain, as the file says
  bool is_known;         // scope is the host's
  choir__onnx_value_t* const* inputs;  // an absent one has no var
  int32_t in_count;
  choir__onnx_value_t* outputs;
  int32_t out_count;  // those that the node names; its rest may be left out
};

// ---- Inputs and results ----

// Input i as a variable of c->scope; NULL: the node has none.
choir_var_t* choir__onnx_in(choir__onnx_call_t* c, int32_t i);
// Whether the node has input i.
bool choir__onnx_has(const choir__onnx_call_t* c, int32_t i);
// Its shape and dtype without looking at elements; NULL: absent or failed.
const choir_view_t* choir__onnx_view(const choir__onnx_call_t* c, int32_t i);
// Its ONNX type; UNDEFINED: absent.
int32_t choir__onnx_type(const choir__onnx_call_t* c, int32_t i);
// Sets result i (nothing where the node does not name it). Its type is that of
// input 0 where the dtype is the one in which that is kept, else the one that
// the dtype stands for.
void choir__onnx_out(choir__onnx_call_t* c, int32_t i, choir_var_t* var);
// The same with the type said.
void choir__onnx_out_as(choir__onnx_call_t* c, int32_t i, choir_var_t* var,
                        int32_t type);
// Whether the node names result i.
bool choir__onnx_wants(const choir__onnx_call_t* c, int32_t i);
// Whether c->scope is that of a training step. (A scope with a tape need not
// be: Gradient runs nodes in one.)
bool choir__onnx_is_training(const choir__onnx_call_t* c);

#define IN(i) choir__onnx_in(c, i)
#define HAS(i) choir__onnx_has(c, i)
#define VIEW(i) choir__onnx_view(c, i)
#define TYPE(i) choir__onnx_type(c, i)
#define OUT(i, var) choir__onnx_out(c, i, var)
#define OUT_AS(i, var, type) choir__onnx_out_as(c, i, var, CHOIR_ONNX_##type)
// DO(add, a, b): op `add` of tensor/ops.h on variables of c->scope.
#define DO(op, ...) choir_var_##op(c->scope, __VA_ARGS__)
#define CALL_IS_OK choir_scope_is_ok(c->scope)
// FAIL(INVALID_ARGUMENT, "format", ...): the forward names the node.
#define FAIL(code, ...) choir__onnx_fail(c, CHOIR_ERROR(code, __VA_ARGS__))

// Takes the status over; returns a failed variable. NULL: no failure.
choir_var_t* choir__onnx_fail(choir__onnx_call_t* c, choir_status_t status);

// ---- Attributes ----

bool choir__onnx_has_attr(const choir__onnx_call_t* c, const char* name);
int64_t choir__onnx_int(const choir__onnx_call_t* c, const char* name,
                        int64_t value);
double choir__onnx_float(const choir__onnx_call_t* c, const char* name,
                         double value);
// Ends with 0; lent.
const char* choir__onnx_string(const choir__onnx_call_t* c, const char* name,
                               const char* value);
// Lent, *out_count 0 and NULL: there is none.
const int64_t* choir__onnx_ints(const choir__onnx_call_t* c, const char* name,
                                int32_t* out_count);
const float* choir__onnx_floats(const choir__onnx_call_t* c, const char* name,
                                int32_t* out_count);
// A constant of the host's scope; NULL: there is none. *out_type: of elements.
choir_var_t* choir__onnx_tensor(choir__onnx_call_t* c, const char* name,
                                int32_t* out_type);
// "linear" of STRINGS attribute `name`, item i; NULL: there is none.
const char* choir__onnx_string_at(const choir__onnx_call_t* c, const char* name,
                                  int32_t i);

// ---- What an operator has to know ----

// The elements of an input in row-major order, for sizes, axes, indices. Those
// of a known value are there; for others the call waits for the step's work, or
// fails where the step is only recorded. Lent until the forward ends.
typedef struct choir__onnx_array_s {
  choir_view_t view;  // dtype and shape; row-major
  void* data;
  int64_t count;  // elements
} choir__onnx_array_t;
// False: it failed, or the input is absent.
bool choir__onnx_read(choir__onnx_call_t* c, int32_t i,
                      choir__onnx_array_t* out_array);
// is_known: the variable is of the host's scope.
bool choir__onnx_read_var(choir__onnx_call_t* c, choir_var_t* var,
                          bool is_known, choir__onnx_array_t* out_array);
// Whole numbers of an input (any integer dtype), at most `most` (else it
// fails). -1: absent or failed.
int32_t choir__onnx_read_ints(choir__onnx_call_t* c, int32_t i, int64_t* out,
                              int32_t most);
// The same from input i or, before operator versions that have it, from the
// ints attribute `name`. Neither: -1.
int32_t choir__onnx_ints_of(choir__onnx_call_t* c, int32_t i, const char* name,
                            int64_t* out, int32_t most);
// One number of an input; absent: value.
double choir__onnx_read_number(choir__onnx_call_t* c, int32_t i, double value);
// Element k of an array, as any number.
double choir__onnx_number_at(const choir__onnx_array_t* array, int64_t k);
int64_t choir__onnx_int_at(const choir__onnx_array_t* array, int64_t k);
// Sets it; not of integers of 64 bits, which a double does not hold.
void choir__onnx_set_number(const choir__onnx_array_t* array, int64_t k,
                            double value);

// A negative axis counts from the end: *axis becomes 0 .. ndim - 1, or it
// fails.
bool choir__onnx_axis(choir__onnx_call_t* c, int64_t* axis, int32_t ndim);

// ---- Helpers for results ----

// A new constant in c->scope with these elements (row-major, of `dtype`).
choir_var_t* choir__onnx_constant(choir__onnx_call_t* c, choir_dtype_t dtype,
                                  int32_t ndim, const int64_t* shape,
                                  const void* data);
// A scalar (no dimensions) of `dtype`.
choir_var_t* choir__onnx_scalar(choir__onnx_call_t* c, choir_dtype_t dtype,
                                double value);
choir_var_t* choir__onnx_reshape(choir__onnx_call_t* c, choir_var_t* x,
                                 int32_t ndim, const int64_t* shape);
// x with axes of size 1 put in at, or taken from, these places (sorted or not,
// of the result's, or of x's, dimensions; negative ones count from the end).
choir_var_t* choir__onnx_unsqueeze(choir__onnx_call_t* c, choir_var_t* x,
                                   const int64_t* axes, int32_t count);
choir_var_t* choir__onnx_transpose(choir__onnx_call_t* c, choir_var_t* x,
                                   const int64_t* axes);
choir_var_t* choir__onnx_cast(choir__onnx_call_t* c, choir_var_t* x,
                              choir_dtype_t dtype);
choir_var_t* choir__onnx_slice(choir__onnx_call_t* c, choir_var_t* x,
                               int64_t axis, int64_t start, int64_t stop);

// ---- Loops of the host's ----

// What no op of Choir computes: a loop over the elements of sources, which
// gives constants to autograd; where nodes run again for Gradient, it fails
// when it is asked for its gradient. It becomes a record, so that recorded
// steps have it. Sources and destinations lie row-major without gaps, in host
// memory; UNIMPLEMENTED on a device whose memory the host does not see. attrs:
// plain bytes, copied, at most CHOIR__ONNX_LOOP_BYTES. The function may fail
// with a sentence.
enum { CHOIR__ONNX_LOOP_BYTES = 512 };
typedef choir_status_t (*choir__onnx_loop_t)(const choir__onnx_array_t* srcs,
                                             const choir__onnx_array_t* dsts,
                                             const void* attrs);
// outs: one variable for each destination of these views (dtype and shape
// count). name: long-lived, for errors and profiles.
void choir__onnx_host(choir__onnx_call_t* c, const char* name,
                      choir__onnx_loop_t loop, const void* attrs, size_t bytes,
                      choir_var_t* const* srcs, int32_t src_count,
                      const choir_view_t* dsts, int32_t dst_count,
                      choir_var_t** outs);

// ---- Graphs in attributes (If, Loop, Scan) ----

// Graph attribute `name`; NULL: it failed.
const choir__onnx_graph_t* choir__onnx_body(choir__onnx_call_t* c,
                                            const char* name);
int32_t choir__onnx_body_inputs(const choir__onnx_graph_t* body);
int32_t choir__onnx_body_outputs(const choir__onnx_graph_t* body);
// Runs it; inputs: as many as it has; outputs as well. Each forward runs at
// most 2^20 nodes.
bool choir__onnx_run_body(choir__onnx_call_t* c,
                          const choir__onnx_graph_t* body,
                          const choir__onnx_value_t* inputs,
                          choir__onnx_value_t* outputs);

// ---- The list ----

// Where a node is computed.
typedef enum choir__onnx_where_e {
  CHOIR__ONNX_ANY,   // on the host where all inputs are known, else in the step
  CHOIR__ONNX_HOST,  // on the host always: its result follows from shapes
  CHOIR__ONNX_STEP,  // in the step always: random numbers, gradients
  CHOIR__ONNX_BOTH,  // hands values on as they are (control flow, sequences):
                     // reads c->inputs and sets c->outputs itself
} choir__onnx_where_t;

typedef struct choir__onnx_operator_s {
  const char* domain;  // "": ONNX's own
  const char* name;
  void (*call)(choir__onnx_call_t* c);
  choir__onnx_where_t where;
  uint32_t needs;   // bit i: input i is read by the host, so it is no parameter
  uint32_t states;  // bit i: input i is a state that training does not learn
} choir__onnx_operator_t;

// x W + b: a MatMul and an Add as one (onnx_join.c).
void choir__onnx_layer(choir__onnx_call_t* c);

// In operators/operators.def.
#define CHOIR__ONNX_DECLARE_(domain, Name, function, where, needs, states) \
  void choir__onnx_op_##function(choir__onnx_call_t* c);
#define CHOIR__ONNX_OPERATOR CHOIR__ONNX_DECLARE_
#include "onnx/operators/operators.def"

#endif  // CHOIR_ONNX_ONNX_CALL_DEF_H_
