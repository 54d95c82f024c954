// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_RECURRENT_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_RECURRENT_INTERNAL_H_

#include "onnx/operators/onnx_sequences_internal.h"

// RNN, LSTM and GRU: a node as numbers, and one of its directions.

typedef enum choir__onnx_net_e {
  CHOIR__ONNX_RNN,
  CHOIR__ONNX_LSTM,
  CHOIR__ONNX_GRU,
} choir__onnx_net_t;

typedef struct choir__onnx_activation_s {
  int32_t kind;  // number in the table of names
  double alpha, beta;
} choir__onnx_activation_t;

typedef struct choir__onnx_recurrent_s {
  choir__onnx_net_t net;
  int64_t gates, steps, batch, hidden, directions;
  choir_dtype_t dtype;
  bool batch_first;
  bool is_reverse;         // direction 0
  bool is_coupled;         // LSTM: the forget gate is 1 - the input gate
  bool is_reset_last;      // GRU: linear_before_reset
  double clip;             // 0: none
  choir_var_t* x;          // (steps batch, size)
  choir_var_t* lengths;    // (batch), I32; NULL: all steps
  choir_var_t* states[2];  // h, c (directions, batch, hidden), or NULL
  choir__onnx_activation_t activations[2][3];
} choir__onnx_recurrent_t;

// A direction's parameters, and what it gives.
typedef struct choir__onnx_direction_s {
  bool is_reverse;
  const choir__onnx_activation_t* activations;
  choir_var_t* w;         // (gates hidden, size)
  choir_var_t* r;         // (gates hidden, hidden)
  choir_var_t *wb, *rb;   // (gates hidden), or NULL
  choir_var_t* p;         // (3 hidden), or NULL
  choir_var_t* start[2];  // h, c (batch, hidden)
  choir_var_t* y;         // (steps, batch, hidden)
  choir_var_t* last[2];   // h, c (batch, hidden)
} choir__onnx_direction_t;

// From the attributes activations, activation_alpha and activation_beta.
bool choir__onnx_read_activations(choir__onnx_call_t* c,
                                  choir__onnx_recurrent_t* n);
// Whether a direction's are the op's own, and which cell that is.
bool choir__onnx_plain_cell(const choir__onnx_recurrent_t* n,
                            const choir__onnx_direction_t* d,
                            choir_cell_t* out_cell);
choir_var_t* choir__onnx_activate(choir__onnx_call_t* c,
                                  const choir__onnx_activation_t* activation,
                                  choir_var_t* x);
// A direction of any form, step by step.
void choir__onnx_run_steps(choir__onnx_call_t* c,
                           const choir__onnx_recurrent_t* n,
                           choir__onnx_direction_t* d);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_RECURRENT_INTERNAL_H_
