// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_DTYPE_TRAITS_H_
#define CHOIR_TENSOR_KERNELS_DTYPE_TRAITS_H_

#include "tensor/kernels/half_math.h"

// DTYPE TRAITS: how loops hold elements of each dtype and compute with them.
// CHOIR__FLOATS(X): X(DTYPE) for the floats, CHOIR__NARROW_FLOATS(X) and
// CHOIR__NARROW_FLOATS_TO(X, TO): X(DTYPE), X(DTYPE, TO) for those that are
// widened to be computed with. Each has, for CPUs and GPUs,
//   choir__<DTYPE>_t       an element in memory
//   choir__<DTYPE>_math_t  what formulas compute in
//   choir__<DTYPE>_load    an element as that, exactly
//   choir__<DTYPE>_store   that as an element, rounded once
//   choir__<DTYPE>_round   a double as an element, rounded once

#ifdef __cplusplus
extern "C" {
#endif

#define CHOIR__NARROW_FLOATS(X) X(F16) X(BF16)
#define CHOIR__NARROW_FLOATS_TO(X, TO) X(F16, TO) X(BF16, TO)
#define CHOIR__FLOATS(X) X(F32) X(F64) CHOIR__NARROW_FLOATS(X)

#define CHOIR__FLOAT_TRAITS(DTYPE, type, math, loaded, stored, rounded)  \
  typedef type choir__##DTYPE##_t;                                       \
  typedef math choir__##DTYPE##_math_t;                                  \
  CHOIR__BODY math choir__##DTYPE##_load(type x) { return loaded; }      \
  CHOIR__BODY type choir__##DTYPE##_store(math value) { return stored; } \
  CHOIR__BODY type choir__##DTYPE##_round(double value) { return rounded; }

CHOIR__FLOAT_TRAITS(F32, float, float, x, value, (float)value)
CHOIR__FLOAT_TRAITS(F64, double, double, x, value, value)
CHOIR__FLOAT_TRAITS(F16, uint16_t, float, choir__f16_to(x),
                    choir__f16_from(value),
                    choir__f16_from(choir__round_to_odd(value)))
CHOIR__FLOAT_TRAITS(BF16, uint16_t, float, choir__bf16_to(x),
                    choir__bf16_from(value),
                    choir__bf16_from(choir__round_to_odd(value)))

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_DTYPE_TRAITS_H_
