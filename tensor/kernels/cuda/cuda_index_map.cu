// SPDX-License-Identifier: Apache-2.0
// Index maps on a GPU: a thread makes one element of the destination. Where
// several places point to it, it takes them in the order of the op's reference,
// so that the bits are the CPU's. An index that is none fails the launch.
#include "tensor/kernels/cuda/cuda_index_map.h"

#include "tensor/kernels/cuda/cuda_dtypes.cuh"

namespace {

typedef choir__cuda_index_map_t map_t;
typedef choir__index_axes_t axes_t;

// Where the operands have element number `number` of the axes.
struct IndexSpot {
  int64_t index[CHOIR__INDEX_AXES];
  int64_t at[CHOIR__INDEX_OPERANDS];
};
CHOIR__GPU IndexSpot index_spot(const axes_t& axes, uint32_t number) {
  IndexSpot spot = {};
  for (int k = axes.ndim - 1; k >= 0; --k) {
    const uint32_t size = static_cast<uint32_t>(axes.shape[k]);
    const uint32_t rest = number / size;
    spot.index[k] = number - rest * size;
    for (int i = 0; i < CHOIR__INDEX_OPERANDS; ++i)
      spot.at[i] += spot.index[k] * axes.strides[k][i];
    number = rest;
  }
  return spot;
}

CHOIR__GPU int64_t index_at(const map_t& map, int64_t offset) {
  if (!map.indices) return 0;
  int64_t index = map.is_long
                      ? static_cast<const int64_t*>(map.indices)[offset]
                      : static_cast<const int32_t*>(map.indices)[offset];
  if (index < 0) index += map.axis_size;
  if (index >= 0 && index < map.axis_size) return index;
  CHOIR__FAIL();
  return 0;
}

// ---- Lists of the indices that point to each element ----

CHOIR__GPU void clear_lists(const map_t& map, uint32_t thread) {
  if (thread < map.head_count) map.heads[thread] = -1;
  if (thread < map.index_count) map.next[thread] = -1;
}

// An index finds the one before it in its lane that points to the same element,
// or is the first of a list; of those whose last alone counts, it is the head
// if it finds none behind it.
CHOIR__GPU void link_index(const map_t& map, uint32_t number) {
  if (number >= map.index_count) return;
  const IndexSpot spot = index_spot(map.index_axes, number);
  const int64_t index = index_at(map, spot.at[CHOIR__AT_INDEX]);
  const uint32_t place = number / map.lane_step % map.lane_size;
  const uint32_t others = map.is_sum ? place : map.lane_size - 1 - place;
  uint32_t other = number;
  for (uint32_t i = 0; i < others; ++i) {
    other = map.is_sum ? other - map.lane_step : other + map.lane_step;
    const IndexSpot there = index_spot(map.index_axes, other);
    if (index_at(map, there.at[CHOIR__AT_INDEX]) != index) continue;
    if (map.is_sum) map.next[other] = static_cast<int32_t>(number);
    return;
  }
  map.heads[spot.at[CHOIR__AT_HEAD] + index] = static_cast<int32_t>(number);
}

// ---- Elements of the destination ----

// The sum of two elements: of floats rounded once, of integers modulo 2^n.
template <typename Type>
CHOIR__GPU Type added(Type a, Type b) {
  Type sum;
  put(value_of(a) + value_of(b), &sum);
  return sum;
}
CHOIR__GPU I32_t added(I32_t a, I32_t b) {
  return static_cast<I32_t>(static_cast<uint32_t>(a) +
                            static_cast<uint32_t>(b));
}
CHOIR__GPU I64_t added(I64_t a, I64_t b) {
  return static_cast<I64_t>(static_cast<uint64_t>(a) +
                            static_cast<uint64_t>(b));
}
CHOIR__GPU U8_t added(U8_t a, U8_t b) { return static_cast<U8_t>(a + b); }

template <typename Type>
CHOIR__GPU void write_element(const map_t& map, Type* y, Type x) {
  *y = map.accumulate ? added(*y, x) : x;
}

// The element at `offset`; without memory, the one that has these bits.
template <typename Type>
CHOIR__GPU Type read_element(const void* data, uint64_t bits, int64_t offset) {
  if (data) return static_cast<const Type*>(data)[offset];
  Type element;
  memcpy(&element, &bits, sizeof(element));
  return element;
}

template <typename Type>
CHOIR__GPU void pull(const map_t& map, uint32_t number) {
  if (number >= map.count) return;
  const IndexSpot spot = index_spot(map.axes, number);
  int64_t from = spot.at[CHOIR__AT_ELEMENT];
  bool is_none = false;
  for (int k = 0; k < map.axes.ndim; ++k) {
    if (map.axes.rules[k].each == 0) continue;
    const int64_t element =
        choir__rule_element(&map.axes.rules[k], spot.index[k]);
    is_none = is_none || element < 0;
    from += element * map.axes.rule_stride[k];
  }
  if (map.heads) {
    // All dimensions are the indices': the place's number is theirs.
    const IndexSpot own = index_spot(map.index_axes, number);
    const int64_t index = index_at(map, own.at[CHOIR__AT_INDEX]);
    is_none = map.heads[own.at[CHOIR__AT_HEAD] + index] !=
              static_cast<int32_t>(number);
    from += index * map.axis_stride;
  } else {
    from += index_at(map, spot.at[CHOIR__AT_INDEX]) * map.axis_stride;
  }
  write_element(map, static_cast<Type*>(map.places) + spot.at[CHOIR__AT_PLACE],
                is_none
                    ? read_element<Type>(nullptr, map.other_value, 0)
                    : read_element<Type>(map.elements, map.other_value, from));
}

// The sum of the places that rules lead to the element: in each dimension with
// a rule the first such place, then the next ones as an odometer counts.
template <typename Type>
CHOIR__GPU double ruled_sum(const map_t& map, const IndexSpot& spot) {
  const axes_t& axes = map.axes;
  int64_t place[CHOIR__INDEX_AXES] = {};
  for (int k = 0; k < axes.ndim; ++k) {
    if (axes.rules[k].each == 0) continue;
    place[k] = choir__rule_next(&axes.rules[k], spot.index[k], 0);
    if (place[k] >= axes.rule_places[k]) return 0;
  }
  double sum = 0;
  for (int k = 0; k >= 0;) {
    int64_t from = spot.at[CHOIR__AT_PLACE];
    for (int i = 0; i < axes.ndim; ++i) from += place[i] * axes.rule_stride[i];
    sum += static_cast<double>(
        value_of(static_cast<const Type*>(map.places)[from]));
    for (k = axes.ndim - 1; k >= 0; --k) {
      if (axes.rules[k].each == 0) continue;
      place[k] = choir__rule_next(&axes.rules[k], spot.index[k], place[k] + 1);
      if (place[k] < axes.rule_places[k]) break;
      place[k] = choir__rule_next(&axes.rules[k], spot.index[k], 0);
    }
  }
  return sum;
}

template <typename Type>
CHOIR__GPU double listed_sum(const map_t& map, const IndexSpot& spot) {
  double sum = 0;
  for (int32_t n = map.heads[spot.at[CHOIR__AT_HEAD]]; n >= 0;
       n = map.next[n]) {
    const IndexSpot index =
        index_spot(map.index_axes, static_cast<uint32_t>(n));
    const int64_t from = spot.at[CHOIR__AT_PLACE] + index.at[CHOIR__AT_PLACE];
    sum += static_cast<double>(
        value_of(static_cast<const Type*>(map.places)[from]));
  }
  return sum;
}

template <typename Type>
CHOIR__GPU void make_element(const map_t& map, uint32_t number) {
  if (number >= map.count) return;
  const IndexSpot spot = index_spot(map.axes, number);
  Type* y = static_cast<Type*>(map.elements) + spot.at[CHOIR__AT_ELEMENT];
  if (map.is_sum) {
    double sum =
        map.heads ? listed_sum<Type>(map, spot) : ruled_sum<Type>(map, spot);
    if (map.accumulate) sum += static_cast<double>(value_of(*y));
    put(sum, y);
    return;
  }
  const int32_t last = map.heads[spot.at[CHOIR__AT_HEAD]];
  const int64_t from =
      last < 0 ? spot.at[CHOIR__AT_OTHER]
               : index_spot(map.index_axes, static_cast<uint32_t>(last))
                     .at[CHOIR__AT_PLACE];
  write_element(map, y,
                last < 0
                    ? read_element<Type>(map.others, map.other_value, from)
                    : read_element<Type>(map.places, map.place_value, from));
}

}  // namespace

CHOIR__KERNEL(choir_index_clear, choir__cuda_index_map_t) {
  clear_lists(params, CHOIR__THREAD);
}
CHOIR__KERNEL(choir_index_link, choir__cuda_index_map_t) {
  link_index(params, CHOIR__THREAD);
}
#define INDEX_KERNELS(DTYPE)                                         \
  CHOIR__KERNEL(choir_index_pull_##DTYPE, choir__cuda_index_map_t) { \
    pull<DTYPE##_t>(params, CHOIR__THREAD);                          \
  }                                                                  \
  CHOIR__KERNEL(choir_index_make_##DTYPE, choir__cuda_index_map_t) { \
    make_element<DTYPE##_t>(params, CHOIR__THREAD);                  \
  }
CHOIR__FLOATS(INDEX_KERNELS)
INDEX_KERNELS(I32)
INDEX_KERNELS(I64)
INDEX_KERNELS(U8)
INDEX_KERNELS(BOOL)
#undef INDEX_KERNELS
