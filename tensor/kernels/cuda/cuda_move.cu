// SPDX-License-Identifier: Apache-2.0
// Copies and fills of elements of any size, casts between all dtypes, with the
// values of core/dtype.h, and the ReLU of floats.
#include "tensor/kernels/cuda/cuda_move.h"

#include "tensor/kernels/cuda/cuda_nest.cuh"
#include "tensor/kernels/half_math.h"

namespace {

typedef choir__cuda_move_t move_t;

// ---- Dtypes: a type each, its real value or its integer ----

typedef float F32_t;
typedef double F64_t;
struct F16_t {
  uint16_t bits;
};
struct BF16_t {
  uint16_t bits;
};
typedef int32_t I32_t;
typedef int64_t I64_t;
typedef uint8_t U8_t;
struct BOOL_t {
  uint8_t bits;
};

CHOIR__GPU double value_of(F32_t x) { return x; }
CHOIR__GPU double value_of(F64_t x) { return x; }
CHOIR__GPU double value_of(F16_t x) { return choir__f16_to(x.bits); }
CHOIR__GPU double value_of(BF16_t x) { return choir__bf16_to(x.bits); }
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
template <typename Value>
CHOIR__GPU void put(Value value, F16_t* y) {
  y->bits = choir__f16_from(choir__round_to_odd(static_cast<double>(value)));
}
template <typename Value>
CHOIR__GPU void put(Value value, BF16_t* y) {
  y->bits = choir__bf16_from(choir__round_to_odd(static_cast<double>(value)));
}
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

// Of the others nothing is added to.
template <typename To>
CHOIR__GPU To sum_of(To, To value) {
  return value;
}
CHOIR__GPU F32_t sum_of(F32_t before, F32_t value) { return before + value; }
CHOIR__GPU F64_t sum_of(F64_t before, F64_t value) { return before + value; }

// ---- What an element becomes ----

template <typename Type>
struct Copy {
  typedef Type To;
  typedef Type From;
  CHOIR__GPU_METHOD static To of(const move_t&, To, From x) { return x; }
};
template <typename Type>
struct Fill {
  typedef Type To;
  typedef void From;
  CHOIR__GPU_METHOD static To of(const move_t& p) {
    return static_cast<To>(p.value);
  }
};
template <typename FromType, typename ToType>
struct Cast {
  typedef ToType To;
  typedef FromType From;
  CHOIR__GPU_METHOD static To of(const move_t& p, To before, From x) {
    To y;
    put(value_of(x), &y);
    return p.accumulate ? sum_of(before, y) : y;
  }
};
template <typename Type>
struct Relu {
  typedef Type To;
  typedef Type From;
  CHOIR__GPU_METHOD static To of(const move_t&, To, From x) {
    return value_of(x) < 0 ? To() : x;
  }
};

// ---- Threads ----

template <typename Kind>
CHOIR__GPU void move_dense(const move_t& p, uint32_t thread) {
  typedef typename Kind::To To;
  typedef typename Kind::From From;
  To* y = static_cast<To*>(p.nest.data[0]);
  const From* x = static_cast<const From*>(p.nest.data[1]);
  const bool is_one = p.nest.strides[1][1] == 0;
  const uint32_t first = thread * kWidth;
  if (first >= p.nest.count) return;
  if (p.nest.count - first < kWidth) {
    for (uint32_t i = first; i < p.nest.count; ++i)
      y[i] = Kind::of(p, y[i], x[is_one ? 0 : i]);
    return;
  }
  GroupOf<From> from;
  if (is_one)
    for (int k = 0; k < kWidth; ++k) from.at[k] = *x;
  else
    from = reinterpret_cast<const GroupOf<From>*>(x)[thread];
  GroupOf<To>* to = reinterpret_cast<GroupOf<To>*>(y) + thread;
  GroupOf<To> values = {};
  if (p.accumulate) values = *to;
  for (int k = 0; k < kWidth; ++k)
    values.at[k] = Kind::of(p, values.at[k], from.at[k]);
  *to = values;
}

template <typename Kind>
CHOIR__GPU void move_strided(const move_t& p, uint32_t place) {
  typedef typename Kind::To To;
  if (place >= p.nest.count) return;
  int64_t offsets[2] = {};
  locate<2>(p.nest, place, offsets);
  To* y = static_cast<To*>(p.nest.data[0]) + offsets[0];
  *y = Kind::of(
      p, *y,
      static_cast<const typename Kind::From*>(p.nest.data[1])[offsets[1]]);
}

template <typename Kind>
CHOIR__GPU void fill_dense(const move_t& p, uint32_t thread) {
  typedef typename Kind::To To;
  To* y = static_cast<To*>(p.nest.data[0]);
  const uint32_t first = thread * kWidth;
  if (first >= p.nest.count) return;
  if (p.nest.count - first < kWidth) {
    for (uint32_t i = first; i < p.nest.count; ++i) y[i] = Kind::of(p);
    return;
  }
  GroupOf<To> values;
  for (int k = 0; k < kWidth; ++k) values.at[k] = Kind::of(p);
  reinterpret_cast<GroupOf<To>*>(y)[thread] = values;
}

template <typename Kind>
CHOIR__GPU void fill_strided(const move_t& p, uint32_t place) {
  if (place >= p.nest.count) return;
  int64_t offsets[1] = {};
  locate<1>(p.nest, place, offsets);
  static_cast<typename Kind::To*>(p.nest.data[0])[offsets[0]] = Kind::of(p);
}

}  // namespace

#define CHOIR__MOVE(bytes, type)                                    \
  CHOIR__KERNEL(choir_copy_##bytes##_dense, choir__cuda_move_t) {   \
    move_dense<Copy<type>>(params, CHOIR__THREAD);                  \
  }                                                                 \
  CHOIR__KERNEL(choir_copy_##bytes##_strided, choir__cuda_move_t) { \
    move_strided<Copy<type>>(params, CHOIR__THREAD);                \
  }                                                                 \
  CHOIR__KERNEL(choir_fill_##bytes##_dense, choir__cuda_move_t) {   \
    fill_dense<Fill<type>>(params, CHOIR__THREAD);                  \
  }                                                                 \
  CHOIR__KERNEL(choir_fill_##bytes##_strided, choir__cuda_move_t) { \
    fill_strided<Fill<type>>(params, CHOIR__THREAD);                \
  }
#define CHOIR__CAST(FROM, TO)                                             \
  CHOIR__KERNEL(choir_cast_##FROM##_##TO##_dense, choir__cuda_move_t) {   \
    move_dense<Cast<FROM##_t, TO##_t>>(params, CHOIR__THREAD);            \
  }                                                                       \
  CHOIR__KERNEL(choir_cast_##FROM##_##TO##_strided, choir__cuda_move_t) { \
    move_strided<Cast<FROM##_t, TO##_t>>(params, CHOIR__THREAD);          \
  }
#define CHOIR__RELU(TYPE)                                          \
  CHOIR__KERNEL(choir_relu_##TYPE##_dense, choir__cuda_move_t) {   \
    move_dense<Relu<TYPE##_t>>(params, CHOIR__THREAD);             \
  }                                                                \
  CHOIR__KERNEL(choir_relu_##TYPE##_strided, choir__cuda_move_t) { \
    move_strided<Relu<TYPE##_t>>(params, CHOIR__THREAD);           \
  }
#include "tensor/kernels/cuda/cuda_move.def"
#undef CHOIR__MOVE
#undef CHOIR__CAST
#undef CHOIR__RELU
