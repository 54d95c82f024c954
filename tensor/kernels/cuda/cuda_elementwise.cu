// SPDX-License-Identifier: Apache-2.0
// Ops that make each element from the elements at its place, from the formulas
// of cuda_elementwise.def: two kernels each, one for operands that
// lie densely in the same order or are one number, a few elements a thread, and
// one for all others. Built without contraction, so that the bits are the
// CPU's.
//
// Plain enough for the host too, where tests run the threads one after the
// other.
#include "tensor/kernels/cuda/cuda_elementwise.h"

#if defined(__CUDACC__)
#define CHOIR__GPU static __device__ __forceinline__
#define CHOIR__KERNEL(symbol, params_type)          \
  extern "C" __global__ void __launch_bounds__(256) \
      symbol(const __grid_constant__ params_type params)
#define CHOIR__THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#endif

namespace {

typedef choir__cuda_elementwise_t nest_t;
constexpr int kWidth = CHOIR__CUDA_ELEMENTWISE_WIDTH;

// Elements that one access moves.
struct alignas(sizeof(float) * kWidth) Group {
  float at[kWidth];
};

// Source `s` for the group: four neighbours, or one number for all.
CHOIR__GPU Group load(const nest_t& nest, int s, uint32_t group) {
  if (nest.strides[1 + s][1])
    return reinterpret_cast<const Group*>(nest.srcs[s])[group];
  const float x = nest.srcs[s][0];
  Group all;
  for (int i = 0; i < kWidth; ++i) all.at[i] = x;
  return all;
}

// Thread number `thread` makes that many elements from place `thread * kWidth`
// on.
template <typename Formula>
CHOIR__GPU void dense(const nest_t& nest, uint32_t thread) {
  const uint32_t first = thread * kWidth;
  if (first >= nest.count) return;
  if (nest.count - first >= kWidth) {
    const Group a = load(nest, 0, thread);
    const Group b = Formula::kSources > 1 ? load(nest, 1, thread) : a;
    Group* dst = reinterpret_cast<Group*>(nest.dst) + thread;
    Group y;
    if (nest.element.accumulate) y = *dst;
    for (int i = 0; i < kWidth; ++i) {
      const float value = Formula::of(a.at[i], b.at[i], &nest.element);
      y.at[i] = nest.element.accumulate ? y.at[i] + value : value;
    }
    *dst = y;
    return;
  }
  for (uint32_t i = first; i < nest.count; ++i) {
    const float a = nest.srcs[0][i * nest.strides[1][1]];
    const float b =
        Formula::kSources > 1 ? nest.srcs[1][i * nest.strides[2][1]] : a;
    const float value = Formula::of(a, b, &nest.element);
    nest.dst[i] = nest.element.accumulate ? nest.dst[i] + value : value;
  }
}

// Thread number `place` makes the element there.
template <typename Formula>
CHOIR__GPU void strided(const nest_t& nest, uint32_t place) {
  if (place >= nest.count) return;
  int64_t dst = 0, a = 0, b = 0;
  for (int k = nest.ndim - 1; k >= 0; --k) {
    const uint32_t rest = place / nest.shape[k];
    const int64_t index = place - rest * nest.shape[k];
    dst += index * nest.strides[0][k];
    a += index * nest.strides[1][k];
    b += index * nest.strides[2][k];
    place = rest;
  }
  const float value = Formula::of(
      nest.srcs[0][a], Formula::kSources > 1 ? nest.srcs[1][b] : 0.0f,
      &nest.element);
  nest.dst[dst] = nest.element.accumulate ? nest.dst[dst] + value : value;
}

#define CHOIR__UNARY(OP, name, formula)                                     \
  struct name##_formula {                                                   \
    static constexpr int kSources = 1;                                      \
    CHOIR__GPU float of(float x, float, const choir__element_params_t* p) { \
      (void)x;                                                              \
      (void)p;                                                              \
      return formula;                                                       \
    }                                                                       \
  };
#define CHOIR__BINARY(OP, name, formula)                                      \
  struct name##_formula {                                                     \
    static constexpr int kSources = 2;                                        \
    CHOIR__GPU float of(float a, float b, const choir__element_params_t* p) { \
      (void)p;                                                                \
      return formula;                                                         \
    }                                                                         \
  };
#include "tensor/kernels/cuda/cuda_elementwise.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY

}  // namespace

#define CHOIR__UNARY(OP, name, formula)             \
  CHOIR__KERNEL(choir_##name##_dense, nest_t) {     \
    dense<name##_formula>(params, CHOIR__THREAD);   \
  }                                                 \
  CHOIR__KERNEL(choir_##name##_strided, nest_t) {   \
    strided<name##_formula>(params, CHOIR__THREAD); \
  }
#define CHOIR__BINARY(OP, name, formula) CHOIR__UNARY(OP, name, formula)
#include "tensor/kernels/cuda/cuda_elementwise.def"
#undef CHOIR__UNARY
#undef CHOIR__BINARY
