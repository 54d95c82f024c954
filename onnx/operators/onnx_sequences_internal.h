// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_SEQUENCES_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_SEQUENCES_INTERNAL_H_

#include "onnx/onnx_internal.h"

// What operators of sequences, of control flow and of recurrent networks share.

// The values, their order kept, one behind the other along `axis`; any number
// from one on.
choir_var_t* choir__onnx_join(choir__onnx_call_t* c, choir_var_t* const* vars,
                              int64_t count, int64_t axis);
// The same along a new axis `axis`, from 0 to the number of dimensions; a
// negative one counts from the result's end.
choir_var_t* choir__onnx_stack(choir__onnx_call_t* c, choir_var_t* const* vars,
                               int64_t count, int64_t axis);
// Zeros of this shape.
choir_var_t* choir__onnx_zeros(choir__onnx_call_t* c, choir_dtype_t dtype,
                               int32_t ndim, const int64_t* shape);
// Counts work that goes beyond a node's against the nodes that a forward may
// run. False: it failed.
bool choir__onnx_charge(choir__onnx_call_t* c, int64_t nodes);
// An operator of both places goes on in one of them: the host's (is_known) or
// the step's. The call keeps the place where it began for the core, so each
// operator that calls this ends with what it returned.
bool choir__onnx_go_to(choir__onnx_call_t* c, bool is_known);
// A value as a variable of c->scope; NULL: it is no tensor.
choir_var_t* choir__onnx_take(choir__onnx_call_t* c,
                              choir__onnx_value_t* value);
// Sets result i to a value as it is.
void choir__onnx_give(choir__onnx_call_t* c, int32_t i,
                      choir__onnx_value_t value);
// `count` values, empty; NULL: it failed.
choir__onnx_value_t* choir__onnx_make_items(choir__onnx_call_t* c,
                                            int64_t count);
// The values joined along `axis`, or stacked along a new one (makes_axis), as
// one; where all of them are known, so is the result.
choir__onnx_value_t choir__onnx_stack_values(choir__onnx_call_t* c,
                                             choir__onnx_value_t* values,
                                             int64_t count, int64_t axis,
                                             bool makes_axis);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_SEQUENCES_INTERNAL_H_
