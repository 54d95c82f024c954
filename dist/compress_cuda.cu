// SPDX-License-Identifier: Apache-2.0
// What compress_kernels.inc does on a CPU: the same formulas, whose bits do not
// depend on the processor.
#include "dist/compress_cuda_kernels_internal.h"
#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"
#include "tensor/kernels/half_math.h"

namespace {

typedef choir__cuda_half_t half_params_t;
typedef choir__cuda_pass_t pass_t;
typedef GroupOf<uint16_t> Halves;

CHOIR__GPU uint32_t magnitude(float x) {
  return static_cast<uint32_t>(choir__math_bits(x)) & 0x7fffffffu;
}

// ---- 16 bits ----

struct F16 {
  CHOIR__GPU_METHOD static uint16_t from(float x) { return choir__f16_from(x); }
  CHOIR__GPU_METHOD static float to(uint16_t x) { return choir__f16_to(x); }
};
struct BF16 {
  CHOIR__GPU_METHOD static uint16_t from(float x) {
    return choir__bf16_from(x);
  }
  CHOIR__GPU_METHOD static float to(uint16_t x) { return choir__bf16_to(x); }
};

CHOIR__GPU float clip(const half_params_t& p, float x, uint32_t* clipped) {
  const float y = x * p.scale;
  if (magnitude(y) <= magnitude(p.limit) || magnitude(x) >= 0x7f800000u)
    return y;
  ++*clipped;
  return copysignf(p.limit, y);
}

template <typename Type>
CHOIR__GPU void encode(const half_params_t& p, uint32_t thread) {
  const uint64_t first = static_cast<uint64_t>(thread) * kWidth;
  if (first >= p.count) return;
  uint32_t clipped = 0;
  if (p.count - first < kWidth) {
    for (uint64_t i = first; i < p.count; ++i)
      p.halves[i] = Type::from(clip(p, p.floats[i], &clipped));
  } else {
    const Group x = reinterpret_cast<const Group*>(p.floats)[thread];
    Halves y = {};
    for (int k = 0; k < kWidth; ++k)
      y.at[k] = Type::from(clip(p, x.at[k], &clipped));
    reinterpret_cast<Halves*>(p.halves)[thread] = y;
  }
  if (clipped > 0) CHOIR__COUNT(p.clipped, clipped);
}

template <typename Type>
CHOIR__GPU void decode(const half_params_t& p, uint32_t thread) {
  const uint64_t first = static_cast<uint64_t>(thread) * kWidth;
  if (first >= p.count) return;
  if (p.count - first < kWidth) {
    for (uint64_t i = first; i < p.count; ++i)
      p.floats[i] = Type::to(p.halves[i]) * p.scale;
    return;
  }
  const Halves x = reinterpret_cast<const Halves*>(p.halves)[thread];
  Group y = {};
  for (int k = 0; k < kWidth; ++k) y.at[k] = Type::to(x.at[k]) * p.scale;
  reinterpret_cast<Group*>(p.floats)[thread] = y;
}

// ---- Dense and sparse arrays ----

CHOIR__GPU void add_residual(const pass_t& p, uint32_t thread) {
  const uint64_t first = static_cast<uint64_t>(thread) * kWidth;
  if (first >= p.count) return;
  if (p.count - first < kWidth) {
    for (uint64_t i = first; i < p.count; ++i)
      p.y[i] = fmaf(p.factor, p.y[i], p.x[i]);
    return;
  }
  const Group x = reinterpret_cast<const Group*>(p.x)[thread];
  Group* place = reinterpret_cast<Group*>(p.y) + thread;
  Group y = *place;
  for (int k = 0; k < kWidth; ++k) y.at[k] = fmaf(p.factor, y.at[k], x.at[k]);
  *place = y;
}

CHOIR__GPU void add_momentum(const choir__cuda_momentum_t& p, float gradient,
                             float* u, float* v) {
  *u = fmaf(p.momentum, *u, p.factor * gradient);
  *v += *u;
}
CHOIR__GPU void add_momenta(const choir__cuda_momentum_t& p, uint32_t thread) {
  const uint64_t first = static_cast<uint64_t>(thread) * kWidth;
  if (first >= p.count) return;
  if (p.count - first < kWidth) {
    for (uint64_t i = first; i < p.count; ++i)
      add_momentum(p, p.gradient[i], p.u + i, p.v + i);
    return;
  }
  const Group gradient = reinterpret_cast<const Group*>(p.gradient)[thread];
  Group u = reinterpret_cast<Group*>(p.u)[thread];
  Group v = reinterpret_cast<Group*>(p.v)[thread];
  for (int k = 0; k < kWidth; ++k)
    add_momentum(p, gradient.at[k], &u.at[k], &v.at[k]);
  reinterpret_cast<Group*>(p.u)[thread] = u;
  reinterpret_cast<Group*>(p.v)[thread] = v;
}

CHOIR__GPU void clear(const pass_t& p, uint32_t thread) {
  const uint64_t first = static_cast<uint64_t>(thread) * kWidth;
  if (first >= p.count) return;
  if (p.count - first < kWidth) {
    for (uint64_t i = first; i < p.count; ++i) p.y[i] = 0;
    return;
  }
  reinterpret_cast<Group*>(p.y)[thread] = Group();
}

CHOIR__GPU void subtract_sent(const pass_t& p, uint32_t thread) {
  if (thread >= p.count) return;
  float* y = p.y + p.indices[thread];
  const float rest = *y - p.x[thread];
  *y = magnitude(rest) < 0x7f800000u ? rest : 0;
}

CHOIR__GPU void mask(const pass_t& p, uint32_t thread) {
  if (thread < p.count) p.y[p.indices[thread]] = 0;
}

CHOIR__GPU void scatter_add(const pass_t& p, uint32_t thread) {
  if (thread >= p.count) return;
  float* y = p.y + p.indices[thread];
  *y = fmaf(p.factor, p.x[thread], *y);
}

}  // namespace

CHOIR__KERNEL(choir_f16_encode, choir__cuda_half_t) {
  encode<F16>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_f16_decode, choir__cuda_half_t) {
  decode<F16>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_bf16_encode, choir__cuda_half_t) {
  encode<BF16>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_bf16_decode, choir__cuda_half_t) {
  decode<BF16>(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_residual_add, choir__cuda_pass_t) {
  add_residual(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_residual_subtract, choir__cuda_pass_t) {
  subtract_sent(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_residual_mask, choir__cuda_pass_t) {
  mask(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_momentum_add, choir__cuda_momentum_t) {
  add_momenta(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_scatter_add, choir__cuda_pass_t) {
  scatter_add(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_clear, choir__cuda_pass_t) { clear(params, CHOIR__THREAD); }
