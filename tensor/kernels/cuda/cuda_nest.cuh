// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_CUH_
#define CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_CUH_

#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"
#include "tensor/kernels/cuda/cuda_nest.h"

// The threads' side of a nest. `body(x)` is called for each place, with x[i]
// the element of operand i there if it is read, else 0; what it leaves in x[i]
// is stored if that is written. A body says how many operands there are at
// most: kOperands.

namespace {

typedef choir__cuda_nest_t nest_t;

CHOIR__GPU float* operand(const nest_t& nest, int number) {
  return static_cast<float*>(nest.data[number]);
}

CHOIR__GPU bool is_in(uint32_t mask, int operand) {
  return (mask >> operand & 1u) != 0;
}

// All operands' elements at one place, offsets[i] from their first.
template <typename Body>
CHOIR__GPU void element(const nest_t& nest, const Body& body,
                        const int64_t* offsets) {
  float x[Body::kOperands] = {};
  for (int o = 0; o < Body::kOperands; ++o)
    if (is_in(nest.read, o)) x[o] = operand(nest, o)[offsets[o]];
  body(x);
  for (int o = 0; o < Body::kOperands; ++o)
    if (is_in(nest.written, o)) operand(nest, o)[offsets[o]] = x[o];
}

// Thread number `thread` takes kWidth elements from place thread * kWidth on.
template <typename Body>
CHOIR__GPU void dense(const nest_t& nest, const Body& body, uint32_t thread) {
  const uint32_t first = thread * kWidth;
  if (first >= nest.count) return;
  if (nest.count - first < kWidth) {
    for (uint32_t i = first; i < nest.count; ++i) {
      int64_t offsets[Body::kOperands];
      for (int o = 0; o < Body::kOperands; ++o)
        offsets[o] = i * nest.strides[o][1];
      element(nest, body, offsets);
    }
    return;
  }
  Group groups[Body::kOperands] = {};
  for (int o = 0; o < Body::kOperands; ++o) {
    if (!is_in(nest.read, o)) continue;
    if (nest.strides[o][1] != 0) {
      groups[o] = static_cast<const Group*>(nest.data[o])[thread];
    } else {
      for (int i = 0; i < kWidth; ++i) groups[o].at[i] = *operand(nest, o);
    }
  }
  for (int i = 0; i < kWidth; ++i) {
    float x[Body::kOperands];
    for (int o = 0; o < Body::kOperands; ++o) x[o] = groups[o].at[i];
    body(x);
    for (int o = 0; o < Body::kOperands; ++o) groups[o].at[i] = x[o];
  }
  for (int o = 0; o < Body::kOperands; ++o)
    if (is_in(nest.written, o))
      static_cast<Group*>(nest.data[o])[thread] = groups[o];
}

// Adds to offsets[i] how far the place is from operand i's first element.
template <int kOperands>
CHOIR__GPU void locate(const nest_t& nest, uint32_t place, int64_t* offsets) {
  for (int k = nest.ndim - 1; k >= 0; --k) {
    const uint32_t rest = place / nest.shape[k];
    const int64_t index = place - rest * nest.shape[k];
    for (int o = 0; o < kOperands; ++o)
      offsets[o] += index * nest.strides[o][k];
    place = rest;
  }
}

// Thread number `place` takes the element there.
template <typename Body>
CHOIR__GPU void strided(const nest_t& nest, const Body& body, uint32_t place) {
  if (place >= nest.count) return;
  int64_t offsets[Body::kOperands] = {};
  locate<Body::kOperands>(nest, place, offsets);
  element(nest, body, offsets);
}

}  // namespace

#endif  // CHOIR_TENSOR_KERNELS_CUDA_CUDA_NEST_CUH_
