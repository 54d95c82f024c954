// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_ELEMENTWISE_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_ELEMENTWISE_H_

#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/element_formulas.h"

// The loop of a formula over a plane: operand 0 from operand 1, or from 1 and
// 2, and the params are choir__element_params_t. Operand 0 may be one of them.
typedef void (*choir__plane_fn_t)(const choir__plane_t* plane);
choir__plane_fn_t choir__cpu_formula(choir__formula_t formula);

// `count` elements of a float dtype, `step` apart in memory, as f32 side by
// side; and back, rounded once.
void choir__cpu_load_f32(choir_dtype_t dtype, float* to, const void* from,
                         int64_t step, int64_t count);
void choir__cpu_store_f32(choir_dtype_t dtype, void* to, const float* from,
                          int64_t step, int64_t count);

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_ELEMENTWISE_H_
