// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_DTYPES_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_DTYPES_CUH_

#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/dtype_traits.h"

// A type for each dtype, <DTYPE>_t, its value, a real number or an integer, and
// what becomes of a value, as core/dtype.h says.

namespace {

typedef float F32_t;
typedef double F64_t;
typedef int32_t I32_t;
typedef int64_t I64_t;
typedef uint8_t U8_t;
struct BOOL_t {
  uint8_t bits;
};

CHOIR__GPU double value_of(F32_t x) { return x; }
CHOIR__GPU double value_of(F64_t x) { return x; }
CHOIR__GPU int64_t value_of(I32_t x) { return x; }
CHOIR__GPU int64_t value_of(I64_t x) { return x; }
CHOIR__GPU int64_t value_of(U8_t x) { return x; }
CHOIR__GPU int64_t value_of(BOOL_t x) { return x.bits; }

// Truncated towards zero, between the ends; no number gives 0. `last`: the
// smallest double that is `high` or more.
CHOIR__GPU int64_t truncated(double value, int64_t low, int64_t high,
                             double last) {
  if (value != value) return 0;
  if (value <= static_cast<double>(low)) return low;
  if (value >= last) return high;
  return static_cast<int64_t>(value);
}
CHOIR__GPU int64_t truncated(int64_t value, int64_t low, int64_t high, double) {
  return value < low ? low : value > high ? high : value;
}

// An integer goes to f32 at once: by way of a double it would be rounded twice.
template <typename Value>
CHOIR__GPU void put(Value value, F32_t* y) {
  *y = static_cast<float>(value);
}
template <typename Value>
CHOIR__GPU void put(Value value, F64_t* y) {
  *y = static_cast<double>(value);
}
#define NARROW_FLOAT(DTYPE)                                       \
  struct DTYPE##_t {                                              \
    choir__##DTYPE##_t bits;                                      \
  };                                                              \
  CHOIR__GPU double value_of(DTYPE##_t x) {                       \
    return choir__##DTYPE##_load(x.bits);                         \
  }                                                               \
  template <typename Value>                                       \
  CHOIR__GPU void put(Value value, DTYPE##_t* y) {                \
    y->bits = choir__##DTYPE##_round(static_cast<double>(value)); \
  }
CHOIR__NARROW_FLOATS(NARROW_FLOAT)
#undef NARROW_FLOAT
template <typename Value>
CHOIR__GPU void put(Value value, I32_t* y) {
  *y = static_cast<I32_t>(truncated(value, INT32_MIN, INT32_MAX, 2147483647.0));
}
template <typename Value>
CHOIR__GPU void put(Value value, I64_t* y) {
  *y = truncated(value, INT64_MIN, INT64_MAX, 9223372036854775808.0);
}
template <typename Value>
CHOIR__GPU void put(Value value, U8_t* y) {
  *y = static_cast<U8_t>(truncated(value, 0, 255, 255.0));
}
template <typename Value>
CHOIR__GPU void put(Value value, BOOL_t* y) {
  y->bits = value != 0;
}

}  // namespace

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_DTYPES_CUH_
