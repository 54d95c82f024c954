// SPDX-License-Identifier: Apache-2.0
// Optimizer steps, by the entry of each (tensor/optimizers.h):
// every rank applies them itself, so their bits are those of all other
// processors.
#include "tensor/kernels/cuda/cuda_optimizer.h"

#include "tensor/kernels/cuda/cuda_nest.cuh"

namespace {

#define CHOIR__UPDATE(T, NAME, name, states, doc)           \
  struct name##_update {                                    \
    static constexpr int kOperands = 2 + states;            \
    const choir__##name##_f32_t* factors;                   \
    CHOIR__GPU_METHOD void operator()(float* x) const {     \
      choir__##name##_step_f32(factors, &x[0], x[1], &x[2], \
                               &x[states > 1 ? 3 : 2]);     \
    }                                                       \
  };
CHOIR_OPTIMIZER_LIST(CHOIR__UPDATE, )
#undef CHOIR__UPDATE

// What the block is of: the last whose blocks begin here or before.
template <typename Params>
CHOIR__GPU const choir__cuda_update_t& update_of(const Params& params,
                                                 uint32_t block) {
  uint32_t low = 0, high = params.count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (params.updates[middle].first_block <= block)
      low = middle;
    else
      high = middle;
  }
  return params.updates[low];
}

// The elements of one block as a dense nest; whether groups are aligned.
template <int kOperands>
CHOIR__GPU bool share_of(const choir__cuda_update_t& update, uint32_t block,
                         nest_t* nest) {
  const uint32_t most = CHOIR__CUDA_UPDATE_SHARE;
  const uint32_t first = (block - update.first_block) * most;
  const uint32_t rest = update.count - first;
  uint64_t places = 0;
  nest->count = rest < most ? rest : most;
  nest->read = 0;
  for (int o = 0; o < kOperands; ++o) {
    nest->strides[o][1] = 1;
    nest->data[o] = nullptr;
    if (!update.data[o]) continue;
    nest->data[o] = static_cast<float*>(update.data[o]) + first;
    nest->read |= 1u << o;
    places |= reinterpret_cast<uintptr_t>(nest->data[o]);
  }
  nest->written = nest->read & ~2u;  // all but the gradient
  return places % sizeof(Group) == 0;
}

// Thread number `thread` of all blocks.
template <typename Params, typename Body>
CHOIR__GPU void many(const Params& params, const Body& body, uint32_t thread) {
  const uint32_t block = thread / CHOIR__CUDA_THREADS;
  nest_t nest;
  const bool is_aligned =
      share_of<Body::kOperands>(update_of(params, block), block, &nest);
  uint32_t place = thread % CHOIR__CUDA_THREADS;
  if (is_aligned) {
    for (; place * kWidth < nest.count; place += CHOIR__CUDA_THREADS)
      dense(nest, body, place);
    return;
  }
  for (; place < nest.count; place += CHOIR__CUDA_THREADS) {
    int64_t offsets[Body::kOperands];
    for (int o = 0; o < Body::kOperands; ++o) offsets[o] = place;
    element(nest, body, offsets);
  }
}

}  // namespace

#define CHOIR__UPDATE(T, NAME, name, states, doc)                          \
  CHOIR__KERNEL(choir_##name##_update_dense, choir__cuda_##name##_t) {     \
    dense(params.nest, name##_update{&params.factors}, CHOIR__THREAD);     \
  }                                                                        \
  CHOIR__KERNEL(choir_##name##_update_strided, choir__cuda_##name##_t) {   \
    strided(params.nest, name##_update{&params.factors}, CHOIR__THREAD);   \
  }                                                                        \
  CHOIR__KERNEL(choir_##name##_update_many, choir__cuda_##name##_many_t) { \
    many(params, name##_update{&params.factors}, CHOIR__THREAD);           \
  }
CHOIR_OPTIMIZER_LIST(CHOIR__UPDATE, )
#undef CHOIR__UPDATE
