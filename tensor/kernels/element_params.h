// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_
#define CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_

#include "tensor/kernels/element_formulas.h"
#include "tensor/op_def.h"

// What the elementwise kernels of all families ask of a record.

static inline choir__element_params_t choir__element_params(
    choir_op_t op, const choir_record_t* record) {
  choir__element_params_t params = {.accumulate = record->accumulate};
  if (op == CHOIR_OP_SCALE) {
    const choir_scale_attrs_t* attrs =
        (const choir_scale_attrs_t*)record->attrs;
    params.factor = (float)attrs->factor;
    params.shift = (float)attrs->shift;
  }
  if (op == CHOIR_OP_FILL)
    params.shift = (float)((const choir_fill_attrs_t*)record->attrs)->value;
  return params;
}

// The op's formula; CHOIR__FORMULA_COUNT: it has none.
static inline choir__formula_t choir__formula_of(choir_op_t op) {
  static const choir_op_t ops[] = {
#define CHOIR__UNARY(OP, name, formula) CHOIR_OP_##OP,
#define CHOIR__BINARY(OP, name, formula) CHOIR_OP_##OP,
#include "tensor/kernels/element_formulas.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
  };
  int formula = 0;
  while (formula < CHOIR__FORMULA_COUNT && ops[formula] != op) ++formula;
  return (choir__formula_t)formula;
}

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_
