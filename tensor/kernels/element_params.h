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

#endif  // CHOIR_TENSOR_KERNELS_ELEMENT_PARAMS_H_
