// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CHAIN_H_
#define CHOIR_TENSOR_KERNELS_CHAIN_H_

#include "tensor/kernels/element_formulas.h"

#ifdef __cplusplus
extern "C" {
#endif

// A chain: formulas that one record runs for each element, one after the other,
// in the place of a record for each. What one step makes and another takes is a
// value, which need not be in memory. The record's operands are f32 and lie
// flat: element e of each is e elements behind its first, but those of one
// element, which is the same for all e. A destination may be a source, whole.
//
// Made by tensor/fusions/chains.c, run by what tensor/kernels/chain_kernel.h
// names.

enum {
  CHOIR__CHAIN_STEPS = 8,
  CHOIR__CHAIN_VALUES = 4,  // at a time
  CHOIR__CHAIN_OPERANDS = 12,
};

typedef struct choir__chain_step_s {
  int32_t formula;  // choir__formula_t
  // Where its elements are: a value or, from CHOIR__CHAIN_VALUES on, an operand
  // of the record. Both are the same for a formula of one element.
  int32_t left;
  int32_t right;
  int32_t value;  // becomes the result; may be one that it takes
  int32_t store;  // the operand that becomes it too; -1: none
  choir__element_params_t params;
} choir__chain_step_t;

// The attributes of a chain's record.
typedef struct choir__chain_s {
  uint32_t singles;  // bit i: operand i is one element
  int32_t step_count;
  choir__chain_step_t steps[CHOIR__CHAIN_STEPS];
} choir__chain_t;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_CHAIN_H_
