// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_OPERATORS_ONNX_CONSTANTS_INTERNAL_H_
#define CHOIR_ONNX_OPERATORS_ONNX_CONSTANTS_INTERNAL_H_

#include "onnx/operators/onnx_sizes_internal.h"

// Constants that operators make, and linear maps by them.

// x with its axis `axis` multiplied by a matrix: y[.., r, ..] = sum over k of
// matrix[r * size + k] x[.., k, ..]. Gradients flow to x, of a floating-point
// dtype.
choir_var_t* choir__onnx_along(choir__onnx_call_t* c, choir_var_t* x,
                               int32_t axis, int64_t rows,
                               const double* matrix);
// Cleared memory for rows * columns numbers; NULL: it failed.
double* choir__onnx_matrix(choir__onnx_call_t* c, int64_t rows,
                           int64_t columns);
// A constant of `dtype` with these numbers.
choir_var_t* choir__onnx_numbers(choir__onnx_call_t* c, choir_dtype_t dtype,
                                 int32_t ndim, const int64_t* shape,
                                 const double* numbers);
// A constant in which all elements are `value`; it takes no memory.
choir_var_t* choir__onnx_filled(choir__onnx_call_t* c, choir_dtype_t dtype,
                                int32_t ndim, const int64_t* shape,
                                double value);
// Scales and the like beside an x of this dtype: as it, but F32 stays beside
// numbers of 16 bits.
choir_var_t* choir__onnx_beside(choir__onnx_call_t* c, choir_var_t* var,
                                choir_dtype_t dtype);
// factor x + shift.
choir_var_t* choir__onnx_line(choir__onnx_call_t* c, choir_var_t* x,
                              double factor, double shift);

#endif  // CHOIR_ONNX_OPERATORS_ONNX_CONSTANTS_INTERNAL_H_
