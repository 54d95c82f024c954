// SPDX-License-Identifier: Apache-2.0
// Copies and fills of elements of any size, casts between all dtypes, with the
// values of core/dtype.h, and the ReLU of floats.
#include "tensor/kernels/cuda/cuda_move.h"

#include "tensor/kernels/cuda/cuda_dtypes.cuh"
#include "tensor/kernels/cuda/cuda_nest.cuh"

namespace {

typedef choir__cuda_move_t move_t;

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

CHOIR__GPU uint64_t bits_at(const void* data, int32_t bytes, int64_t offset) {
  switch (bytes) {
    case 1:
      return static_cast<const uint8_t*>(data)[offset];
    case 2:
      return static_cast<const uint16_t*>(data)[offset];
    case 4:
      return static_cast<const uint32_t*>(data)[offset];
    default:
      return static_cast<const uint64_t*>(data)[offset];
  }
}

template <typename Type>
CHOIR__GPU void choose(const move_t& p, uint32_t place) {
  if (place >= p.nest.count) return;
  int64_t offsets[4] = {};
  locate<4>(p.nest, place, offsets);
  const bool is_true =
      (bits_at(p.nest.data[1], p.condition_bytes, offsets[1]) & p.value) != 0;
  const int chosen = is_true ? 2 : 3;
  static_cast<Type*>(p.nest.data[0])[offsets[0]] =
      static_cast<const Type*>(p.nest.data[chosen])[offsets[chosen]];
}

}  // namespace

#define CHOIR__MOVE(bytes, type)                                    \
  CHOIR__KERNEL(choir_where_##bytes, choir__cuda_move_t) {          \
    choose<type>(params, CHOIR__THREAD);                            \
  }                                                                 \
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
