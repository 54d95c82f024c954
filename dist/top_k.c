// SPDX-License-Identifier: Apache-2.0
// A sample tells a magnitude above which there are a little more than k
// elements; one pass collects those; among them the k-th is found by radix. The
// sample is only a guess: when too few or too many are collected, the radix
// search goes over all elements instead, with the same result.
#include <math.h>
#include <string.h>

#include "dist/top_k_internal.h"

enum {
  SMALL_SAMPLE = 4096,
  LARGE_SAMPLE = 16384,
  LARGE_COUNT = 1 << 20,  // from here the large sample
  // The 31 bits of a magnitude in three digits.
  DIGITS = 3,
  BINS = 2048,
  LANES = 4,  // histograms beside each other: equal digits in a row do not wait
};

static const int digit_shift[DIGITS] = {20, 10, 0};
static const uint32_t digit_mask[DIGITS] = {0x7ff, 0x3ff, 0x3ff};

typedef struct scratch_s {
  uint32_t bins[LANES][BINS];
  uint32_t sample[LARGE_SAMPLE];
} scratch_t;

static uint32_t key_at(const void* words, int64_t i) {
  uint32_t bits;
  memcpy(&bits, (const char*)words + (size_t)i * sizeof(bits), sizeof(bits));
  return bits & 0x7fffffffu;
}

// ---- The k-th largest key ----

static void count_digits(scratch_t* scratch, const void* words, int64_t count,
                         int digit, uint32_t prefix) {
  memset(scratch->bins, 0, sizeof(scratch->bins));
  const int shift = digit_shift[digit];
  if (digit == 0) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
      for (int lane = 0; lane < LANES; ++lane)
        ++scratch->bins[lane][key_at(words, i + lane) >> shift];
    for (; i < count; ++i) ++scratch->bins[0][key_at(words, i) >> shift];
    return;
  }
  const int above = digit_shift[digit - 1];
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = key_at(words, i);
    if (key >> above == prefix)
      ++scratch->bins[i % LANES][key >> shift & digit_mask[digit]];
  }
}

// 1 <= k <= count. *out_greater: how many are larger.
static uint32_t find_kth(scratch_t* scratch, const void* words, int64_t count,
                         int64_t k, int64_t* out_greater) {
  uint32_t prefix = 0;
  int64_t greater = 0;
  for (int digit = 0; digit < DIGITS; ++digit) {
    count_digits(scratch, words, count, digit, prefix);
    uint32_t bin = digit_mask[digit];
    for (;; --bin) {
      int64_t here = 0;
      for (int lane = 0; lane < LANES; ++lane) here += scratch->bins[lane][bin];
      if (greater + here >= k || bin == 0) break;
      greater += here;
    }
    const int width = digit ? digit_shift[digit - 1] - digit_shift[digit] : 11;
    prefix = prefix << width | bin;
  }
  *out_greater = greater;
  return prefix;
}

// ---- Collecting ----

static int64_t collect(const float* src, int64_t count, uint32_t least,
                       int64_t most, int32_t* out_indices, uint32_t* out_bits) {
  return choir__top_k_collect_rest(src, 0, count, least, most, 0, out_indices,
                                   out_bits);
}

choir__top_k_collect_t choir__top_k_collect_plain(void) { return collect; }

choir__top_k_collect_t choir__top_k_collect_best(void) {
  choir__top_k_collect_t best = choir__top_k_collect_avx512();
  if (!best) best = choir__top_k_collect_avx2();
  return best ? best : collect;
}

// Of `words` (indices NULL: they are all of src) those above `limit`, and so
// many of those at it that there are k. Without branches that depend on the
// data.
static void emit(const void* words, const int32_t* indices, uint32_t limit,
                 int64_t greater, int64_t k, int32_t* out_indices,
                 float* out_values) {
  int64_t ties = k - greater;
  for (int64_t i = 0, found = 0; found < k; ++i) {
    const uint32_t key = key_at(words, i);
    const bool is_tie = key == limit;
    out_indices[found] = indices ? indices[i] : (int32_t)i;
    if (out_values)
      memcpy(out_values + found, (const char*)words + (size_t)i * sizeof(float),
             sizeof(float));
    found += (key > limit) | (is_tie & (ties > 0));
    ties -= is_tie;
  }
}

// ---- The guess ----

// Room for what a sample may let through beyond k.
static int64_t most_candidates(int64_t count, int64_t k) {
  const int64_t most = 2 * k + 8192;
  return most < count ? most : count;
}

static int64_t sample_size(int64_t count) {
  return count < LARGE_COUNT ? SMALL_SAMPLE : LARGE_SAMPLE;
}

// A key that likely has a little more than k keys at or above it; 0 when a
// sample helps little.
static uint32_t guess_limit(scratch_t* scratch, const float* src, int64_t count,
                            int64_t k) {
  const int64_t size = sample_size(count);
  const double share = (double)k / (double)count;
  // Four standard deviations: too few about once in thirty thousand calls.
  const double rank =
      (double)size * share + 4 * sqrt((double)size * share * (1 - share)) + 1;
  if (count < 4 * size || rank > (double)size / 4) return 0;
  const int64_t stride = count / size;
  // One of each stretch, at a place that follows no pattern of the data, but
  // the same in every run.
  uint32_t place = 0x9e3779b9u;
  for (int64_t i = 0; i < size; ++i) {
    place = place * 1664525u + 1013904223u;
    const int64_t within = (int64_t)((uint64_t)place * (uint64_t)stride >> 32);
    scratch->sample[i] = key_at(src, i * stride + within);
  }
  int64_t greater;
  return find_kth(scratch, scratch->sample, size, (int64_t)rank, &greater);
}

static bool take_candidates(scratch_t* scratch, const float* src, int64_t count,
                            int64_t k, int32_t* out_indices,
                            float* out_values) {
  const uint32_t least = guess_limit(scratch, src, count, k);
  if (least == 0) return false;
  const int64_t most = most_candidates(count, k);
  uint32_t* bits = (uint32_t*)(void*)(scratch + 1);
  int32_t* indices = (int32_t*)(void*)(bits + most + CHOIR__TOP_K_SLACK);
  const int64_t found =
      choir__top_k_collect_best()(src, count, least, most, indices, bits);
  if (found < k || found > most) return false;
  int64_t greater;
  const uint32_t limit = find_kth(scratch, bits, found, k, &greater);
  emit(bits, indices, limit, greater, k, out_indices, out_values);
  return true;
}

static bool is_valid(int64_t count, int64_t k) {
  return k >= 0 && k <= count && count <= INT32_MAX;
}

size_t choir__top_k_scratch_bytes(int64_t count, int64_t k) {
  if (!is_valid(count, k)) return 0;
  const size_t room =
      (size_t)most_candidates(count, k) + (size_t)CHOIR__TOP_K_SLACK;
  return sizeof(scratch_t) + room * (sizeof(uint32_t) + sizeof(int32_t));
}

choir_status_t choir__top_k(const float* src, int64_t count, int64_t k,
                            void* scratch, int32_t* out_indices,
                            float* out_values) {
  if (!is_valid(count, k))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "top_k: k is %lld of %lld elements; 0 .. count are "
                       "allowed, of 2^31 - 1 at most",
                       (long long)k, (long long)count);
  if (k == 0) return NULL;
  if (!src || !scratch || !out_indices)
    return CHOIR_ERROR(INVALID_ARGUMENT, "top_k: %s is NULL",
                       !src       ? "src"
                       : !scratch ? "scratch"
                                  : "out_indices");
  if (take_candidates(scratch, src, count, k, out_indices, out_values))
    return NULL;
  int64_t greater;
  const uint32_t limit = find_kth(scratch, src, count, k, &greater);
  emit(src, NULL, limit, greater, k, out_indices, out_values);
  return NULL;
}
