// SPDX-License-Identifier: Apache-2.0
// Batch norm in three steps: two sums of each channel in pieces, the pieces
// added up, and what each element becomes. The sums are of x and of its
// squares, or of the gradient and of it times x's distance from the mean; all
// are taken in double, in which a square of f32 is exact, so that one pass over
// x is enough for the variance.
#include "tensor/kernels/cuda/cuda_batch_norm.h"

#include <math.h>

#include "tensor/kernels/cuda/cuda_block_reduce.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"

namespace {

typedef choir__cuda_batch_norm_t norm_t;

struct Pair {
  double first;
  double second;
};
struct Pairs {
  typedef Pair Total;
  CHOIR__GPU_METHOD static Pair combine(const Pair& a, const Pair& b) {
    return {a.first + b.first, a.second + b.second};
  }
};

CHOIR__GPU float inverse_of(const norm_t& p, float variance) {
  return 1.0f / sqrtf(variance + p.epsilon);
}

CHOIR__GPU void put(const norm_t& p, float* at, float value) {
  *at = p.accumulate ? *at + value : value;
}

// ---- Elements of a thread: `each` of one row, 1 or a group ----

template <int each>
struct alignas(sizeof(float) * each) Few {
  float at[each];
};
// Zeros of an operand that there is not.
template <int each>
CHOIR__GPU Few<each> take(const float* data, uint32_t i) {
  return data ? *reinterpret_cast<const Few<each>*>(data + i) : Few<each>{};
}
template <int each>
CHOIR__GPU void leave(const norm_t& p, float* data, uint32_t i,
                      Few<each> values) {
  Few<each>* to = reinterpret_cast<Few<each>*>(data + i);
  if (p.accumulate) {
    const Few<each> before = *to;
    for (int k = 0; k < each; ++k) values.at[k] = before.at[k] + values.at[k];
  }
  *to = values;
}

// One element of the images.
struct Given {
  float x;
  float residual;
  float dy;
  float dy2;
};
template <int each>
struct Operands {
  Few<each> x, residual, dy, dy2;
  CHOIR__GPU_METHOD Operands(const norm_t& p, uint32_t i)
      : x(take<each>(p.x, i)),
        residual(take<each>(p.residual, i)),
        dy(take<each>(p.dy, i)),
        dy2(take<each>(p.dy2, i)) {}
  CHOIR__GPU_METHOD Given at(int k) const {
    return {x.at[k], residual.at[k], dy.at[k], dy2.at[k]};
  }
};

// ---- What is summed, in channel `c` ----

struct Moments {
  CHOIR__GPU_METHOD static Pair of(const norm_t&, const Given& given,
                                   uint32_t) {
    const double x = given.x;
    return {x, x * x};
  }
};

// (x - mean) factor + bias
CHOIR__GPU float normalised(const norm_t& p, float x, uint32_t c, float mean,
                            float variance) {
  const float factor = p.scale[c] * inverse_of(p, variance);
  return (x - mean) * factor + p.bias[c];
}

// The gradient that reaches the normalised x.
struct Plain {
  CHOIR__GPU_METHOD static float of(const norm_t&, const Given& given,
                                    uint32_t) {
    return given.dy;
  }
};
CHOIR__GPU float both_gradients(const norm_t& p, const Given& given) {
  return p.dy2 ? given.dy + given.dy2 : given.dy;
}
// Through a ReLU whose result is worked out again, as the forward pass did.
struct Recomputed {
  CHOIR__GPU_METHOD static float of(const norm_t& p, const Given& given,
                                    uint32_t c) {
    const float y = normalised(p, given.x, c, p.mean[c], p.variance[c]);
    return y > 0.0f ? both_gradients(p, given) : 0.0f;
  }
};
// Through one whose result is there.
struct Kept {
  CHOIR__GPU_METHOD static float of(const norm_t& p, const Given& given,
                                    uint32_t) {
    return given.residual > 0.0f ? both_gradients(p, given) : 0.0f;
  }
};

template <typename Gradient>
struct Slopes {
  CHOIR__GPU_METHOD static Pair of(const norm_t& p, const Given& given,
                                   uint32_t c) {
    const double gradient = Gradient::of(p, given, c);
    const double normal = (given.x - p.mean[c]) * inverse_of(p, p.variance[c]);
    return {gradient * normal, gradient};
  }
};

// ---- Sums ----

// One chunk of a stripe of channels: neighbouring threads take neighbouring
// channels.
template <typename Summand>
CHOIR__GPU void sum_chunk(const norm_t& p, uint32_t block) {
  CHOIR__SHARED Pair parts[CHOIR__CUDA_THREADS];
  const uint32_t wide = CHOIR__CUDA_THREADS / p.members;
  const uint32_t chunk = block / p.stripes;
  const uint32_t first = block % p.stripes * wide;
  CHOIR__EACH_THREAD(thread) {
    const uint32_t c = first + thread % wide;
    const uint32_t begin = chunk * p.chunk_rows;
    const uint32_t left = p.rows - begin;
    const uint32_t end = begin + (left < p.chunk_rows ? left : p.chunk_rows);
    Pair sum = {0, 0};
    if (c < p.channels)
      for (uint32_t r = begin + thread / wide; r < end; r += p.members)
        sum = Pairs::combine(
            sum, Summand::of(p, Operands<1>(p, r * p.channels + c).at(0), c));
    parts[thread] = sum;
  }
  block_reduce<Pairs>(parts, p.members, wide);
  CHOIR__EACH_THREAD(thread) {
    if (thread < wide && first + thread < p.channels)
      reinterpret_cast<Pair*>(p.parts)[chunk * p.channels + first + thread] =
          parts[thread];
  }
}

// All chunks of a stripe, in the same way.
CHOIR__GPU void sum_parts(const norm_t& p, uint32_t block, Pair* parts) {
  const uint32_t wide = CHOIR__CUDA_THREADS / p.members;
  CHOIR__EACH_THREAD(thread) {
    const uint32_t c = block * wide + thread % wide;
    Pair sum = {0, 0};
    if (c < p.channels)
      for (uint32_t i = thread / wide; i < p.chunks; i += p.members)
        sum = Pairs::combine(
            sum, reinterpret_cast<const Pair*>(p.parts)[i * p.channels + c]);
    parts[thread] = sum;
  }
  block_reduce<Pairs>(parts, p.members, wide);
}

// ---- Elements ----

// The first element of a thread; false: there is none.
template <int each>
CHOIR__GPU bool find(const norm_t& p, uint32_t thread, uint32_t* out_first) {
  *out_first = thread * each;
  return thread < p.rows * p.channels / each;
}

template <int each, bool is_relu>
CHOIR__GPU void normalise(const norm_t& p, uint32_t thread) {
  uint32_t i;
  if (!find<each>(p, thread, &i)) return;
  const Operands<each> operands(p, i);
  Few<each> y;
  for (int k = 0; k < each; ++k) {
    const uint32_t c = i % p.channels + static_cast<uint32_t>(k);
    float value = normalised(p, operands.x.at[k], c, p.moments[2 * c],
                             p.moments[2 * c + 1]);
    if (is_relu && p.residual) value += operands.residual.at[k];
    if (is_relu) value = value < 0.0f ? 0.0f : value;  // a NaN stays one
    y.at[k] = value;
  }
  leave<each>(p, p.y, i, y);
}

// By what was learnt of the channels before.
template <int each>
CHOIR__GPU void infer(const norm_t& p, uint32_t thread) {
  uint32_t i;
  if (!find<each>(p, thread, &i)) return;
  const Few<each> x = take<each>(p.x, i);
  Few<each> y;
  for (int k = 0; k < each; ++k) {
    const uint32_t c = i % p.channels + static_cast<uint32_t>(k);
    y.at[k] = normalised(p, x.at[k], c, p.mean[c], p.variance[c]);
  }
  leave<each>(p, p.y, i, y);
}

// dx = scale inverse (g - mean(g) - normal mean(g normal))
template <int each, typename Gradient>
CHOIR__GPU void differentiate(const norm_t& p, uint32_t thread) {
  uint32_t i;
  if (!find<each>(p, thread, &i)) return;
  const Operands<each> operands(p, i);
  Few<each> dx, gradients;
  for (int k = 0; k < each; ++k) {
    const uint32_t c = i % p.channels + static_cast<uint32_t>(k);
    const float inverse = inverse_of(p, p.variance[c]);
    const float gradient = Gradient::of(p, operands.at(k), c);
    const float normal = (operands.x.at[k] - p.mean[c]) * inverse;
    gradients.at[k] = gradient;
    dx.at[k] = p.scale[c] * inverse *
               (gradient - p.moments[2 * c + 1] - normal * p.moments[2 * c]);
  }
  leave<each>(p, p.y, i, dx);
  if (p.dresidual) leave<each>(p, p.dresidual, i, gradients);
}

}  // namespace

#define SUMS(name, Summand)                                            \
  CHOIR__BLOCK_KERNEL(choir_##name##_sums, choir__cuda_batch_norm_t) { \
    sum_chunk<Summand>(params, CHOIR__BLOCK);                          \
  }
#define ELEMENTS(name, one, group)                                  \
  CHOIR__KERNEL(choir_##name, choir__cuda_batch_norm_t) {           \
    one(params, CHOIR__THREAD);                                     \
  }                                                                 \
  CHOIR__KERNEL(choir_##name##_grouped, choir__cuda_batch_norm_t) { \
    group(params, CHOIR__THREAD);                                   \
  }
SUMS(batch_norm, Moments)
SUMS(batch_norm_grad, Slopes<Plain>)
SUMS(batch_norm_relu_grad, Slopes<Recomputed>)
SUMS(batch_norm_add_relu_grad, Slopes<Kept>)
ELEMENTS(batch_norm, (normalise<1, false>), (normalise<kWidth, false>))
ELEMENTS(batch_norm_relu, (normalise<1, true>), (normalise<kWidth, true>))
ELEMENTS(batch_norm_infer, infer<1>, infer<kWidth>)
ELEMENTS(batch_norm_grad, (differentiate<1, Plain>),
         (differentiate<kWidth, Plain>))
ELEMENTS(batch_norm_relu_grad, (differentiate<1, Recomputed>),
         (differentiate<kWidth, Recomputed>))
ELEMENTS(batch_norm_add_relu_grad, (differentiate<1, Kept>),
         (differentiate<kWidth, Kept>))
#undef SUMS
#undef ELEMENTS

// Sums of x and its squares: mean and variance.
CHOIR__BLOCK_KERNEL(choir_batch_norm_moments, choir__cuda_batch_norm_t) {
  CHOIR__SHARED Pair parts[CHOIR__CUDA_THREADS];
  sum_parts(params, CHOIR__BLOCK, parts);
  CHOIR__EACH_THREAD(thread) {
    const uint32_t wide = CHOIR__CUDA_THREADS / params.members;
    const uint32_t c = CHOIR__BLOCK * wide + thread;
    if (thread < wide && c < params.channels) {
      const double mean = parts[thread].first / params.rows;
      const double variance = parts[thread].second / params.rows - mean * mean;
      params.moments[2 * c] = static_cast<float>(mean);
      // What is left of rounding may be below 0; a NaN stays one.
      params.moments[2 * c + 1] =
          variance < 0 ? 0.0f : static_cast<float>(variance);
      put(params, params.first + c, params.moments[2 * c]);
      put(params, params.second + c, params.moments[2 * c + 1]);
    }
  }
}

// Sums of g normal and g: dscale and dbias, and their means.
CHOIR__BLOCK_KERNEL(choir_batch_norm_gradients, choir__cuda_batch_norm_t) {
  CHOIR__SHARED Pair parts[CHOIR__CUDA_THREADS];
  sum_parts(params, CHOIR__BLOCK, parts);
  CHOIR__EACH_THREAD(thread) {
    const uint32_t wide = CHOIR__CUDA_THREADS / params.members;
    const uint32_t c = CHOIR__BLOCK * wide + thread;
    if (thread < wide && c < params.channels) {
      const Pair sums = parts[thread];
      params.moments[2 * c] = static_cast<float>(sums.first / params.rows);
      params.moments[2 * c + 1] = static_cast<float>(sums.second / params.rows);
      put(params, params.first + c, static_cast<float>(sums.first));
      put(params, params.second + c, static_cast<float>(sums.second));
    }
  }
}
