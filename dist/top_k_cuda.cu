// SPDX-License-Identifier: Apache-2.0
// Radix selection in order of index. The first pass counts high digits, and so
// finds the digit of the k-th largest key; the second lists, chunk by chunk,
// the elements from that digit on, and counts the lower digits of those that
// have it: then the limit is known, and the rest goes over the lists. Counts
// are of whole numbers, which any threads may add to; where something is put
// follows from sums over all threads before, so that results lie in order.
#include "dist/top_k_cuda_kernels_internal.h"
#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"
#include "tensor/kernels/element_math.h"

namespace {

typedef choir__cuda_top_k_t top_k_t;

constexpr uint32_t kThreads = CHOIR__CUDA_THREADS;
constexpr uint32_t kChunk = CHOIR__TOP_K_CHUNK;
constexpr uint32_t kBins = CHOIR__TOP_K_BINS;
constexpr uint32_t kHighBins = CHOIR__TOP_K_HIGH_BINS;
constexpr uint32_t kLowBits = CHOIR__TOP_K_LOW_BITS;

CHOIR__GPU uint32_t key_of(float x) {
  return static_cast<uint32_t>(choir__math_bits(x)) & 0x7fffffffu;
}
CHOIR__GPU uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// ---- Sums over threads ----

// A number of each thread; two of them, so that a step reads one and writes the
// other.
struct Sums {
  uint32_t at[2][kThreads];
  // Of the threads before number i.
  CHOIR__GPU_METHOD uint32_t before(uint32_t i) const {
    return i > 0 ? at[0][i - 1] : 0;
  }
};

// sums->at[0][i] becomes the sum up to i. A phase for each step.
CHOIR__GPU void add_up(Sums* sums) {
  int from = 0;
  for (uint32_t step = 1; step < kThreads; step *= 2, from = 1 - from) {
    CHOIR__EACH_THREAD(i) {
      const uint32_t more = i >= step ? sums->at[from][i - step] : 0;
      sums->at[1 - from][i] = sums->at[from][i] + more;
    }
  }
}
static_assert(kThreads == 256, "an even number of steps ends where it began");

// ---- Counts of digits ----

// Equal digits in a row are counted as one: gradients have many zeros.
struct Tally {
  uint32_t* bins;
  uint32_t bin;
  uint32_t count;
  CHOIR__GPU_METHOD void take(uint32_t other) {
    if (other != bin) put();
    bin = other;
    ++count;
  }
  CHOIR__GPU_METHOD void put() {
    if (count > 0) CHOIR__COUNT(bins + bin, count);
    count = 0;
  }
};

// From the last of the bins on, the one that has the k-th element, and how many
// elements are behind it. Phases.
struct Bin {
  uint32_t number;
  uint32_t above;
};
template <uint32_t kCount>
CHOIR__GPU void find_bin(const uint32_t* bins, uint32_t k, Sums* sums,
                         Bin* out_bin) {
  constexpr uint32_t kOwn = kCount / kThreads;
  CHOIR__EACH_THREAD(i) {
    uint32_t sum = 0;
    for (uint32_t j = 1; j <= kOwn; ++j) sum += bins[kCount - i * kOwn - j];
    sums->at[0][i] = sum;
    if (i == 0) *out_bin = {0, 0};
  }
  add_up(sums);
  CHOIR__EACH_THREAD(i) {
    uint32_t above = sums->before(i);
    if (above < k && k <= sums->at[0][i]) {
      uint32_t bin = kCount - i * kOwn - 1;
      while (above + bins[bin] < k) above += bins[bin--];
      *out_bin = {bin, above};
    }
  }
}

// ---- What is chosen ----

CHOIR__GPU bool is_by_threshold(const top_k_t& p) { return p.k == 0; }

// Of the chunk's listed places, a thread's own, in order.
struct Own {
  uint32_t first;
  uint32_t end;
};
CHOIR__GPU Own own_listed(const top_k_t& p, uint32_t chunk, uint32_t thread) {
  const uint32_t count = p.listed_count[chunk];
  const uint32_t each = (count + kThreads - 1) / kThreads;
  const uint32_t first = least(thread * each, count);
  return {first, least(first + each, count)};
}
CHOIR__GPU Own own_elements(const top_k_t& p, uint32_t chunk, uint32_t thread) {
  constexpr uint32_t kEach = kChunk / kThreads;
  const uint32_t first = least(chunk * kChunk + thread * kEach, p.count);
  return {first, least(first + kEach, p.count)};
}
// take(index, x) for each of the thread's own, in order.
template <typename Take>
CHOIR__GPU void each_element(const top_k_t& p, uint32_t chunk, uint32_t thread,
                             Take take) {
  const Own own = own_elements(p, chunk, thread);
  uint32_t at = own.first;
  for (; at + kWidth <= own.end; at += kWidth) {
    const Group x = reinterpret_cast<const Group*>(p.src)[at / kWidth];
    for (uint32_t k = 0; k < kWidth; ++k) take(at + k, x.at[k]);
  }
  for (; at < own.end; ++at) take(at, p.src[at]);
}
CHOIR__GPU Own own_chunks(const top_k_t& p, uint32_t thread) {
  const uint32_t each = (p.chunks + kThreads - 1) / kThreads;
  const uint32_t first = least(thread * each, p.chunks);
  return {first, least(first + each, p.chunks)};
}

CHOIR__GPU uint32_t listed_at(const top_k_t& p, uint32_t chunk, uint32_t i) {
  return chunk * kChunk + p.listed[chunk * kChunk + i];
}

// 1 for a key above the limit, 2^16 for one at it.
CHOIR__GPU uint32_t counted(uint32_t key, uint32_t limit) {
  return key > limit ? 1u : key == limit ? 1u << 16 : 0u;
}
CHOIR__GPU uint32_t count_listed(const top_k_t& p, uint32_t chunk,
                                 const Own& own) {
  uint32_t count = 0;
  for (uint32_t i = own.first; i < own.end; ++i)
    count += counted(key_of(p.src[listed_at(p, chunk, i)]), p.limit->limit);
  return count;
}

}  // namespace

// ---- Kernels, in their order ----

CHOIR__BLOCK_KERNEL(choir_top_k_high, choir__cuda_top_k_t) {
  CHOIR__SHARED uint32_t bins[kHighBins];
  CHOIR__EACH_THREAD(i) {
    for (uint32_t b = i; b < kHighBins; b += kThreads) bins[b] = 0;
  }
  CHOIR__EACH_THREAD(i) {
    Tally tally = {bins, 0, 0};
    const uint32_t groups = params.count / kWidth;
    for (uint32_t g = CHOIR__BLOCK * kThreads + i; g < groups;
         g += params.blocks * kThreads) {
      const Group x = reinterpret_cast<const Group*>(params.src)[g];
      for (int k = 0; k < kWidth; ++k) tally.take(key_of(x.at[k]) >> kLowBits);
    }
    // Those that fill no group.
    const uint32_t last = groups * kWidth + i;
    if (CHOIR__BLOCK == 0 && last < params.count)
      tally.take(key_of(params.src[last]) >> kLowBits);
    tally.put();
  }
  CHOIR__EACH_THREAD(i) {
    for (uint32_t b = i; b < kHighBins; b += kThreads)
      if (bins[b] > 0) CHOIR__COUNT(params.high + b, bins[b]);
  }
}

// One block.
CHOIR__BLOCK_KERNEL(choir_top_k_least, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums sums;
  CHOIR__SHARED Bin bin;
  find_bin<kHighBins>(params.high, params.k, &sums, &bin);
  CHOIR__EACH_THREAD(i) {
    if (i == 0) {
      params.limit->least = bin.number << kLowBits;
      params.limit->above = bin.above;
    }
  }
}

// In place of both, one thread.
CHOIR__KERNEL(choir_top_k_threshold, choir__cuda_top_k_t) {
  if (CHOIR__THREAD == 0)
    *params.limit = {params.threshold, 0, params.threshold, UINT32_MAX, 0};
}

// A block for each chunk.
CHOIR__BLOCK_KERNEL(choir_top_k_list, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums sums;
  CHOIR__EACH_THREAD(i) {
    const uint32_t from = params.limit->least;
    uint32_t count = 0;
    each_element(params, CHOIR__BLOCK, i,
                 [&](uint32_t, float x) { count += key_of(x) >= from; });
    sums.at[0][i] = count;
  }
  add_up(&sums);
  CHOIR__EACH_THREAD(i) {
    const uint32_t from = params.limit->least;
    Tally middle = {params.middle, 0, 0};
    Tally lower = {params.lower, 0, 0};
    uint16_t* place = params.listed + CHOIR__BLOCK * kChunk + sums.before(i);
    each_element(params, CHOIR__BLOCK, i, [&](uint32_t at, float x) {
      const uint32_t key = key_of(x);
      if (key < from) return;
      *place++ = static_cast<uint16_t>(at - CHOIR__BLOCK * kChunk);
      if (is_by_threshold(params) || key >> kLowBits != from >> kLowBits)
        return;
      const uint32_t digits = key & (kBins * kBins - 1);
      middle.take(digits / kBins);
      lower.take(digits);
    });
    middle.put();
    lower.put();
    if (i == kThreads - 1) params.listed_count[CHOIR__BLOCK] = sums.at[0][i];
  }
}

// One block; by k.
CHOIR__BLOCK_KERNEL(choir_top_k_limit, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums sums;
  CHOIR__SHARED Bin middle;
  CHOIR__SHARED Bin low;
  const uint32_t wanted = params.k - params.limit->above;
  find_bin<kBins>(params.middle, wanted, &sums, &middle);
  find_bin<kBins>(params.lower + middle.number * kBins, wanted - middle.above,
                  &sums, &low);
  CHOIR__EACH_THREAD(i) {
    if (i == 0) {
      params.limit->limit =
          params.limit->least + middle.number * kBins + low.number;
      params.limit->ties = wanted - middle.above - low.above;
    }
  }
}

// A block for each chunk.
CHOIR__BLOCK_KERNEL(choir_top_k_count, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums sums;
  CHOIR__EACH_THREAD(i) {
    sums.at[0][i] =
        count_listed(params, CHOIR__BLOCK, own_listed(params, CHOIR__BLOCK, i));
  }
  add_up(&sums);
  CHOIR__EACH_THREAD(i) {
    if (i == kThreads - 1) params.counts[CHOIR__BLOCK] = sums.at[0][i];
  }
}

// One block.
CHOIR__BLOCK_KERNEL(choir_top_k_place, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums larger;
  CHOIR__SHARED Sums ties;
  CHOIR__EACH_THREAD(i) {
    const Own own = own_chunks(params, i);
    larger.at[0][i] = 0;
    ties.at[0][i] = 0;
    for (uint32_t chunk = own.first; chunk < own.end; ++chunk) {
      larger.at[0][i] += params.counts[chunk] & 0xffffu;
      ties.at[0][i] += params.counts[chunk] >> 16;
    }
  }
  add_up(&larger);
  add_up(&ties);
  CHOIR__EACH_THREAD(i) {
    const Own own = own_chunks(params, i);
    uint32_t larger_before = larger.before(i);
    uint32_t ties_before = ties.before(i);
    for (uint32_t chunk = own.first; chunk < own.end; ++chunk) {
      params.larger_before[chunk] = larger_before;
      params.ties_before[chunk] = ties_before;
      larger_before += params.counts[chunk] & 0xffffu;
      ties_before += params.counts[chunk] >> 16;
    }
    if (i == kThreads - 1)
      params.limit->found =
          larger.at[0][i] + least(ties.at[0][i], params.limit->ties);
  }
}

// A block for each chunk.
CHOIR__BLOCK_KERNEL(choir_top_k_pick, choir__cuda_top_k_t) {
  CHOIR__SHARED Sums sums;
  CHOIR__EACH_THREAD(i) {
    sums.at[0][i] =
        count_listed(params, CHOIR__BLOCK, own_listed(params, CHOIR__BLOCK, i));
  }
  add_up(&sums);
  CHOIR__EACH_THREAD(i) {
    const Own own = own_listed(params, CHOIR__BLOCK, i);
    const uint32_t limit = params.limit->limit;
    const uint32_t allowed = params.limit->ties;
    uint32_t larger =
        params.larger_before[CHOIR__BLOCK] + (sums.before(i) & 0xffffu);
    uint32_t ties = params.ties_before[CHOIR__BLOCK] + (sums.before(i) >> 16);
    for (uint32_t j = own.first; j < own.end; ++j) {
      const uint32_t at = listed_at(params, CHOIR__BLOCK, j);
      const float x = params.src[at];
      const uint32_t count = counted(key_of(x), limit);
      if ((count & 0xffffu) > 0 || (count > 0 && ties < allowed)) {
        const uint32_t place = larger + least(ties, allowed);
        params.indices[place] = static_cast<int32_t>(at);
        params.values[place] = x;
      }
      larger += count & 0xffffu;
      ties += count >> 16;
    }
  }
}
