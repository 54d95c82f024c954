// SPDX-License-Identifier: Apache-2.0
// Random fills and dropout, by the formulas of core/random_backend.h: the bits
// are those of all other processors. A thread draws a block, four words.
#include "tensor/kernels/cuda/cuda_random.h"

#include "core/random_backend.h"
#include "tensor/kernels/cuda/cuda_dims.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"

namespace {

typedef choir__cuda_random_t random_t;

struct Uniform {
  static constexpr bool kReads = false;
  CHOIR__GPU_METHOD static float of(const random_t& p, uint32_t word, float) {
    return fmaf(p.range, choir__word_to_uniform(word), p.low);
  }
};
struct Normal {
  static constexpr bool kReads = false;
  CHOIR__GPU_METHOD static float of(const random_t& p, uint32_t word, float) {
    return fmaf(p.range, choir__word_to_normal(word), p.low);
  }
};
// A dropped element is 0 even where x is no number.
struct Dropout {
  static constexpr bool kReads = true;
  CHOIR__GPU_METHOD static float of(const random_t& p, uint32_t word, float x) {
    return word >> 8 >= p.threshold ? x * p.factor : 0.0f;
  }
};

template <typename Kind>
CHOIR__GPU void draw(const random_t& p, uint32_t thread) {
  const uint32_t blocks = (p.sample_size + kWidth - 1) / kWidth;
  const uint32_t sample = thread / blocks;
  const uint32_t block = thread % blocks;
  if (sample >= p.samples) return;
  const uint64_t number = p.first_sample + sample;
  const uint32_t counter[4] = {block, p.step, static_cast<uint32_t>(number),
                               static_cast<uint32_t>(number >> 32)};
  uint32_t words[kWidth];
  choir__philox(counter, p.key, words);
  const uint32_t first = block * kWidth;
  const uint32_t place = sample * p.sample_size + first;
  if (p.by_groups) {
    Group x = {};
    if (Kind::kReads) x = *reinterpret_cast<const Group*>(p.x + place);
    Group* y = reinterpret_cast<Group*>(p.y + place);
    Group values = {};
    if (p.accumulate) values = *y;
    for (int k = 0; k < kWidth; ++k) {
      const float value = Kind::of(p, words[k], x.at[k]);
      values.at[k] = p.accumulate ? values.at[k] + value : value;
    }
    *y = values;
    return;
  }
  for (uint32_t k = 0; k < kWidth && first + k < p.sample_size; ++k) {
    float x = 0;
    if (Kind::kReads) x = p.x[offset_of(p.dims, p.dims.src, place + k)];
    float* y = p.y + offset_of(p.dims, p.dims.dst, place + k);
    const float value = Kind::of(p, words[k], x);
    *y = p.accumulate ? *y + value : value;
  }
}

}  // namespace

CHOIR__KERNEL(choir_random_uniform, choir__cuda_random_t) {
  draw<Uniform>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_random_normal, choir__cuda_random_t) {
  draw<Normal>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_dropout, choir__cuda_random_t) {
  draw<Dropout>(params, CHOIR__THREAD);
}
