// SPDX-License-Identifier: Apache-2.0
// Chains of elementwise ops in one launch: each thread goes through the steps
// with a few elements. All threads are at the same step, so the choice of its
// formula is one for all. Values are in registers.
//
// Plain enough for the host too, where tests run the threads one after the
// other.
#include "tensor/kernels/cuda/cuda_chain.h"

#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"

namespace {

// Elements side by side, moved by one access.
template <int kElements>
struct alignas(sizeof(float) * kElements) Pack {
  float at[kElements];
};

// What a step takes, from element number `first` on. A register has no address
// to be found by: all values are looked at.
template <int kElements>
CHOIR__GPU Pack<kElements> chain_operand(const choir__cuda_chain_t& params,
                                         const Pack<kElements>* values,
                                         int32_t place, uint32_t first) {
  Pack<kElements> x = {};
  const int32_t operand = place - CHOIR__CHAIN_VALUES;
  if (operand < 0) {
    for (int v = 0; v < CHOIR__CHAIN_VALUES; ++v)
      if (v == place) x = values[v];
    return x;
  }
  const float* data = static_cast<const float*>(params.data[operand]);
  if (params.chain.singles >> operand & 1u) {
    for (int i = 0; i < kElements; ++i) x.at[i] = *data;
    return x;
  }
  return *reinterpret_cast<const Pack<kElements>*>(data + first);
}

template <int kElements>
CHOIR__GPU Pack<kElements> chain_result(const choir__chain_step_t& step,
                                        const Pack<kElements>& left,
                                        const Pack<kElements>& right) {
  Pack<kElements> y = {};
  const choir__element_params_t* p = &step.params;
  (void)p;
  switch (step.formula) {
#define CHOIR__FORMULA(OP, name, sources, formula, ...)   \
  case CHOIR__FORMULA_##OP:                               \
    for (int i = 0; i < kElements; ++i) {                 \
      const float x = left.at[i], a = x, b = right.at[i]; \
      (void)a, (void)b;                                   \
      y.at[i] = formula;                                  \
    }                                                     \
    break;
#include "tensor/elementwise.def"
  }
  return y;
}

template <int kElements>
CHOIR__GPU void chain_run(const choir__cuda_chain_t& params, uint32_t first) {
  Pack<kElements> values[CHOIR__CHAIN_VALUES] = {};
  for (int32_t s = 0; s < params.chain.step_count; ++s) {
    const choir__chain_step_t& step = params.chain.steps[s];
    const Pack<kElements> left =
        chain_operand(params, values, step.left, first);
    const Pack<kElements> right =
        step.right == step.left
            ? left
            : chain_operand(params, values, step.right, first);
    const Pack<kElements> y = chain_result(step, left, right);
    for (int v = 0; v < CHOIR__CHAIN_VALUES; ++v)
      if (v == step.value) values[v] = y;
    if (step.store < 0) continue;
    float* data = static_cast<float*>(params.data[step.store]);
    *reinterpret_cast<Pack<kElements>*>(data + first) = y;
  }
}

}  // namespace

// Operands are aligned to kWidth elements.
CHOIR__KERNEL(choir_chain_dense, choir__cuda_chain_t) {
  const uint32_t first = CHOIR__THREAD * kWidth;
  if (first >= params.count) return;
  if (params.count - first >= kWidth) {
    chain_run<kWidth>(params, first);
  } else {
    for (uint32_t i = first; i < params.count; ++i) chain_run<1>(params, i);
  }
}

CHOIR__KERNEL(choir_chain_single, choir__cuda_chain_t) {
  const uint32_t place = CHOIR__THREAD;
  if (place < params.count) chain_run<1>(params, place);
}
