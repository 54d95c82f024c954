// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_CONTROL_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_CONTROL_INTERNAL_H_

#include "onnx/operators/onnx_sequences_internal.h"

// What If, Loop, Scan and SequenceMap share.

// A body that has these numbers of inputs and results at least; NULL: it
// failed. inputs -1: any.
const choir__onnx_graph_t* choir__onnx_checked_body(choir__onnx_call_t* c,
                                                    const char* name,
                                                    int64_t inputs,
                                                    int64_t outputs);
// Runs it once more in a loop, which counts as a node and for its values.
bool choir__onnx_run_pass(choir__onnx_call_t* c,
                          const choir__onnx_graph_t* body,
                          const choir__onnx_value_t* inputs,
                          choir__onnx_value_t* outputs);
// Entry k along `axis`, which goes, of a tensor, where that is computed.
choir__onnx_value_t choir__onnx_entry(choir__onnx_call_t* c,
                                      choir__onnx_value_t* x, int64_t axis,
                                      int64_t k);
// No entries, along `axis`, of what result k of the body "body" is declared as.
choir__onnx_value_t choir__onnx_no_entries(choir__onnx_call_t* c, int32_t k,
                                           int64_t axis);

// A list that grows.
typedef struct choir__onnx_list_s {
  choir__onnx_value_t* items;
  int64_t count, capacity;
} choir__onnx_list_t;
bool choir__onnx_append(choir__onnx_call_t* c, choir__onnx_list_t* list,
                        choir__onnx_value_t value);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_CONTROL_INTERNAL_H_
