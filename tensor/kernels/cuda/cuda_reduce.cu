// SPDX-License-Identifier: Apache-2.0
// Sums, means, maxima and their places over one dimension or all. Which thread
// adds what follows from the shape and the layout alone, and so do the bits.
//
// Three kernels each: `rows`, whose threads go along lanes; `columns` for lanes
// that lie side by side, whose threads stand beside each other and go across;
// `finish` for lanes that several blocks shared.
#include "tensor/kernels/cuda/cuda_reduce.h"

#include "tensor/kernels/cuda/cuda_block_reduce.cuh"
#include "tensor/kernels/cuda/cuda_dims.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"
#include "tensor/kernels/half_math.h"

namespace {

typedef choir__cuda_reduce_t reduce_t;

// ---- Elements ----

// `half` is the same for all: no thread goes another way than its neighbours.
CHOIR__GPU float read(const reduce_t& p, const void* data, int64_t at) {
  if (p.half == 0) return static_cast<const float*>(data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return p.half == CHOIR__CUDA_F16 ? choir__f16_to(bits) : choir__bf16_to(bits);
}
// Rounds once.
CHOIR__GPU void write(const reduce_t& p, int64_t at, double value) {
  if (p.half == 0) {
    static_cast<float*>(p.y)[at] = static_cast<float>(value);
    return;
  }
  const float odd = choir__round_to_odd(value);
  static_cast<uint16_t*>(p.y)[at] =
      p.half == CHOIR__CUDA_F16 ? choir__f16_from(odd) : choir__bf16_from(odd);
}

// ---- Results ----

CHOIR__GPU void store(const reduce_t& p, int64_t at, double sum) {
  const double value = sum / p.divisor;
  write(p, at, p.accumulate ? read(p, p.y, at) + value : value);
}
CHOIR__GPU void store(const reduce_t& p, int64_t at, float most) {
  write(p, at, p.accumulate ? read(p, p.y, at) + most : most);
}
CHOIR__GPU void store(const reduce_t& p, int64_t at, Place::Total first) {
  static_cast<int64_t*>(p.y)[at] = first.at;
}

template <typename Total>
CHOIR__GPU void leave(const reduce_t& p, uint32_t lane, uint32_t chunk,
                      Total total) {
  if (p.chunks > 1) {
    static_cast<Total*>(
        p.totals)[static_cast<int64_t>(lane) * p.chunks + chunk] = total;
  } else {
    store(p, offset_of(p.lanes, p.lanes.dst, lane), total);
  }
}

// What is added of an element.
CHOIR__GPU float term(const reduce_t& p, float x) {
  return p.squares ? x * x : x;
}

// ---- Shares ----

// Where a chunk begins and ends.
struct Range {
  uint32_t begin;
  uint32_t end;
};
CHOIR__GPU Range range_of(const reduce_t& p, uint32_t chunk) {
  const uint32_t begin = chunk * p.chunk_elements;
  const uint32_t left = p.lane_elements - begin;
  return {begin, begin + (left < p.chunk_elements ? left : p.chunk_elements)};
}

// One member's share of a lane's chunk.
template <typename Kind>
CHOIR__GPU typename Kind::Piece along(const reduce_t& p, int64_t start,
                                      Range range, uint32_t member) {
  typename Kind::Piece piece = Kind::none();
  uint32_t i = range.begin + member;
  if (p.by_groups) {
    const float* x = static_cast<const float*>(p.x) + start;
    typename Kind::Piece pieces[kWidth];
    for (int k = 0; k < kWidth; ++k) pieces[k] = Kind::none();
    i = range.begin + member * kWidth;
    for (; i + kWidth <= range.end; i += p.members * kWidth) {
      const Group group = *reinterpret_cast<const Group*>(x + i);
      for (int k = 0; k < kWidth; ++k)
        Kind::take(&pieces[k], term(p, group.at[k]),
                   i + static_cast<uint32_t>(k));
    }
    piece = Kind::joined(Kind::joined(pieces[0], pieces[1]),
                         Kind::joined(pieces[2], pieces[3]));
    // What is no group is one member's.
    for (; i < range.end; ++i) Kind::take(&piece, term(p, x[i]), i);
    return piece;
  }
  if (p.lane.ndim == 1) {
    for (; i < range.end; i += p.members)
      Kind::take(&piece, term(p, read(p, p.x, start + i * p.lane.src[0])), i);
  } else {
    for (; i < range.end; i += p.members)
      Kind::take(
          &piece,
          term(p, read(p, p.x, start + offset_of(p.lane, p.lane.src, i))), i);
  }
  return piece;
}

// ---- Blocks ----

template <typename Kind>
CHOIR__GPU void rows(const reduce_t& p, uint32_t block) {
  CHOIR__SHARED typename Kind::Total parts[CHOIR__CUDA_THREADS];
  const uint32_t lanes = CHOIR__CUDA_THREADS / p.members;
  const uint32_t chunk = block % p.chunks;
  const uint32_t first = block / p.chunks * lanes;
  CHOIR__EACH_THREAD(thread) {
    const uint32_t own = thread / p.members;
    const uint32_t member = thread % p.members;
    typename Kind::Piece piece = Kind::none();
    if (first + own < p.lane_count)
      piece = along<Kind>(p, offset_of(p.lanes, p.lanes.src, first + own),
                          range_of(p, chunk), member);
    parts[member * lanes + own] = Kind::total(piece);
  }
  block_reduce<Kind>(parts, p.members, lanes);
  CHOIR__EACH_THREAD(thread) {
    if (thread < lanes && first + thread < p.lane_count)
      leave(p, first + thread, chunk, parts[thread]);
  }
}

// `each`: columns of one thread, 1 or kWidth.
template <typename Kind, int each>
CHOIR__GPU void columns(const reduce_t& p, uint32_t block) {
  CHOIR__SHARED typename Kind::Total parts[CHOIR__CUDA_THREADS * each];
  const uint32_t wide = CHOIR__CUDA_THREADS / p.members;
  const uint32_t results = wide * each;
  const uint32_t chunk = block % p.chunks;
  const uint32_t first = block / p.chunks % p.stripes * results;
  const uint32_t lane = block / p.chunks / p.stripes * p.columns + first;
  CHOIR__EACH_THREAD(thread) {
    const uint32_t own = thread % wide * each;
    const uint32_t member = thread / wide;
    typename Kind::Piece pieces[each];
    for (int k = 0; k < each; ++k) pieces[k] = Kind::none();
    if (first + own < p.columns) {
      const int64_t start = offset_of(p.lanes, p.lanes.src, lane + own);
      const Range range = range_of(p, chunk);
      for (uint32_t i = range.begin + member; i < range.end; i += p.members) {
        const int64_t at = start + offset_of(p.lane, p.lane.src, i);
        if (each == kWidth) {
          const Group group = *reinterpret_cast<const Group*>(
              static_cast<const float*>(p.x) + at);
          for (int k = 0; k < each; ++k)
            Kind::take(&pieces[k], term(p, group.at[k % kWidth]), i);
        } else {
          Kind::take(&pieces[0], term(p, read(p, p.x, at)), i);
        }
      }
    }
    for (int k = 0; k < each; ++k)
      parts[member * results + own + static_cast<uint32_t>(k)] =
          Kind::total(pieces[k]);
  }
  block_reduce<Kind>(parts, p.members, results);
  CHOIR__EACH_THREAD(thread) {
    for (uint32_t i = thread; i < results && first + i < p.columns;
         i += CHOIR__CUDA_THREADS)
      leave(p, lane + i, chunk, parts[i]);
  }
}

// Totals of `chunks` blocks, of lanes that a block takes as `rows` does.
template <typename Kind>
CHOIR__GPU void finish(const reduce_t& p, uint32_t block) {
  typedef typename Kind::Total Total;
  CHOIR__SHARED Total parts[CHOIR__CUDA_THREADS];
  const uint32_t lanes = CHOIR__CUDA_THREADS / p.members;
  const uint32_t first = block * lanes;
  CHOIR__EACH_THREAD(thread) {
    const uint32_t lane = first + thread / p.members;
    const uint32_t member = thread % p.members;
    Total total = Kind::total(Kind::none());
    if (lane < p.lane_count) {
      const Total* totals = static_cast<const Total*>(p.totals) +
                            static_cast<int64_t>(lane) * p.chunks;
      for (uint32_t i = member; i < p.chunks; i += p.members)
        total = Kind::combine(total, totals[i]);
    }
    parts[member * lanes + thread / p.members] = total;
  }
  block_reduce<Kind>(parts, p.members, lanes);
  CHOIR__EACH_THREAD(thread) {
    const uint32_t lane = first + thread;
    if (thread < lanes && lane < p.lane_count)
      store(p, offset_of(p.lanes, p.lanes.dst, lane), parts[thread]);
  }
}

}  // namespace

#define REDUCTION(name, Kind)                                         \
  CHOIR__BLOCK_KERNEL(choir_##name##_rows, choir__cuda_reduce_t) {    \
    rows<Kind>(params, CHOIR__BLOCK);                                 \
  }                                                                   \
  CHOIR__BLOCK_KERNEL(choir_##name##_columns, choir__cuda_reduce_t) { \
    columns<Kind, 1>(params, CHOIR__BLOCK);                           \
  }                                                                   \
  CHOIR__BLOCK_KERNEL(choir_##name##_wide, choir__cuda_reduce_t) {    \
    columns<Kind, kWidth>(params, CHOIR__BLOCK);                      \
  }                                                                   \
  CHOIR__BLOCK_KERNEL(choir_##name##_finish, choir__cuda_reduce_t) {  \
    finish<Kind>(params, CHOIR__BLOCK);                               \
  }
REDUCTION(sum, Sum)
REDUCTION(max, Maximum)
REDUCTION(argmax, Place)
#undef REDUCTION
