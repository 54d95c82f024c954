// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_RECURRENT_H_
#define CHOIR_TENSOR_OPS_RECURRENT_H_

#include "tensor/op_def.h"

// What the ops recurrent and recurrent_grad and their kernels share.

typedef struct choir__recurrent_s {
  choir_cell_t cell;
  bool reverse;
  int64_t steps;   // T
  int64_t batch;   // N
  int64_t hidden;  // H
  int64_t gates;   // columns of x: G H
  int64_t kept;    // columns of the second result
  int64_t states;  // S
} choir__recurrent_t;

// W is (H, G H); `steps` any operand whose first two sizes are T and N.
choir__recurrent_t choir__recurrent_of(const choir_recurrent_attrs_t* attrs,
                                       const choir_view_t* steps,
                                       const choir_view_t* w);

// Step `k` in the order of the recurrence, its place among the steps, and where
// `states` has the state before and after it.
typedef struct choir__recurrent_step_s {
  int64_t at, before, after;
} choir__recurrent_step_t;
static inline choir__recurrent_step_t choir__recurrent_step(
    const choir__recurrent_t* sizes, int64_t k) {
  const int64_t at = sizes->reverse ? sizes->steps - 1 - k : k;
  return (choir__recurrent_step_t){at, at + sizes->reverse,
                                   at + !sizes->reverse};
}

// Fails with the place of a length of source 1 that is not 0 .. T.
choir_status_t choir__recurrent_lengths(const choir_record_t* record,
                                        const choir__recurrent_t* sizes,
                                        int64_t* out_lengths);

#endif  // CHOIR_TENSOR_OPS_RECURRENT_H_
