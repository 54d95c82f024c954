// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_BLOCK_REDUCE_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_BLOCK_REDUCE_CUH_

#include <math.h>

#include "tensor/kernels/cuda/cuda_code.cuh"

// What many threads find out together. Each goes through its share of the
// elements on its own, into a Piece; pieces become Totals, which are put
// together in a tree: in one order, so that the bits are the same each time.
//
//   none()          the Piece of no elements
//   take(p, x, at)  one more, number `at` of its lane
//   total(p)        the Total of a Piece
//   combine(a, b)      the Total of two

namespace {

// Sums of up to some hundred elements in f32, theirs in double.
struct Sum {
  typedef float Piece;
  typedef double Total;
  CHOIR__GPU_METHOD static Piece none() { return 0.0f; }
  CHOIR__GPU_METHOD static void take(Piece* piece, float x, uint32_t) {
    *piece += x;
  }
  CHOIR__GPU_METHOD static Piece joined(Piece a, Piece b) { return a + b; }
  CHOIR__GPU_METHOD static Total total(Piece piece) { return piece; }
  CHOIR__GPU_METHOD static Total combine(Total a, Total b) { return a + b; }
};

// The largest; a NaN counts as larger than all.
struct Maximum {
  typedef float Piece;
  typedef float Total;
  CHOIR__GPU_METHOD static Piece none() { return -INFINITY; }
  CHOIR__GPU_METHOD static void take(Piece* piece, float x, uint32_t) {
    *piece = joined(x, *piece);
  }
  CHOIR__GPU_METHOD static Piece joined(Piece a, Piece b) {
    return a > b || a != a ? a : b;
  }
  CHOIR__GPU_METHOD static Total total(Piece piece) { return piece; }
  CHOIR__GPU_METHOD static Total combine(Total a, Total b) {
    return joined(a, b);
  }
};

// The place of the first of the largest.
struct Place {
  struct Piece {
    float value;
    uint32_t at;
  };
  typedef Piece Total;
  CHOIR__GPU_METHOD static Piece none() { return {-INFINITY, UINT32_MAX}; }
  CHOIR__GPU_METHOD static void take(Piece* piece, float x, uint32_t at) {
    *piece = joined(*piece, {x, at});
  }
  CHOIR__GPU_METHOD static Piece joined(Piece a, Piece b) {
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (!a_is_nan && a.value != b.value) return a.value > b.value ? a : b;
    return a.at < b.at ? a : b;
  }
  CHOIR__GPU_METHOD static Total total(Piece piece) { return piece; }
  CHOIR__GPU_METHOD static Total combine(Total a, Total b) {
    return joined(a, b);
  }
};

// Total number r of member m is at parts[m * results + r]; leaves that of all
// members at parts[r]. Members: a power of two. A phase for each step.
template <typename Kind>
CHOIR__GPU void block_reduce(typename Kind::Total* parts, uint32_t members,
                             uint32_t results) {
  for (uint32_t half = members / 2; half > 0; half /= 2) {
    const uint32_t pairs = half * results;
    CHOIR__EACH_THREAD(thread) {
      for (uint32_t i = thread; i < pairs; i += CHOIR__CUDA_THREADS)
        parts[i] = Kind::combine(parts[i], parts[i + pairs]);
    }
  }
}

}  // namespace

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_BLOCK_REDUCE_CUH_
