// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_
#define CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_

#include "tensor/kernels/element_formulas.h"
#include "tensor/op_def.h"

// What the elementwise kernels of all families ask of a record.

static inline choir__element_params_t choir__element_params(
    const choir_record_t* record) {
  choir__element_params_t params = {.accumulate = record->accumulate};
  const double* numbers = (const double*)record->attrs;
  for (size_t i = 0; i < 2 && (i + 1) * sizeof(double) <= record->attrs_bytes;
       ++i)
    params.number[i] = numbers[i];
  return params;
}

// The op's formula; CHOIR__FORMULA_COUNT: it has none.
static inline choir__formula_t choir__formula_of(choir_op_t op) {
  static const choir_op_t ops[] = {
#define CHOIR__FORMULA(OP, name, sources, formula, ...) CHOIR_OP_##OP,
#include "tensor/elementwise.def"
  };
  int formula = 0;
  while (formula < CHOIR__FORMULA_COUNT && ops[formula] != op) ++formula;
  return (choir__formula_t)formula;
}

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_
