// SPDX-License-Identifier: Apache-2.0
// Values of 2 to 4 bits. Decoding looks them up: a block has at most sixteen
// different ones.
#include <math.h>
#include <string.h>

#include "dist/compress_kernels_internal.h"

enum { HEAD = 8, GROUP = 8, MOST_CODES = 16, MOST_BLOCK = 1024 };

static size_t codes_bytes(int32_t bits, int64_t n) {
  return (size_t)((n + GROUP - 1) / GROUP) * (size_t)bits;
}

size_t choir__levels_bytes(int32_t bits, int32_t block, int64_t n) {
  return (size_t)((n + block - 1) / block) * HEAD + codes_bytes(bits, n);
}

// What each code stands for.
static void make_values(int32_t bits, float least, float width,
                        float table[MOST_CODES]) {
  const int levels = 1 << (bits - 1);
  for (int j = 0; j < levels; ++j) {
    table[j] = fmaf((float)j + 0.5f, width, least);
    table[levels + j] = -table[j];
  }
}

static int32_t magnitude(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffff;
}

// The smallest and the largest magnitude; NaN for both where one is not finite.
// Magnitudes are in the order of their bits, and integers are what compilers
// compare many of at a time.
static void find_range(const float* values, int64_t n, float* out_least,
                       float* out_largest) {
  const int32_t infinity = 0x7f800000;
  int32_t least = infinity;
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = magnitude(values[i]);
    least = key < least ? key : least;
    largest = key > largest ? key : largest;
  }
  if (largest >= infinity) {
    *out_least = *out_largest = NAN;
    return;
  }
  memcpy(out_least, &least, sizeof(least));
  memcpy(out_largest, &largest, sizeof(largest));
}

static void find_codes(int32_t bits, const float* values, int64_t n,
                       float least, float width, uint32_t* codes) {
  const int32_t highest = (1 << (bits - 1)) - 1;
  // Values that differ by less than f32 can tell a width have one level.
  const float divisor = width > 0 ? width : INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    // As many as there are levels for the largest; twice as many at most where
    // the width is subnormal.
    int32_t level = (int32_t)((fabsf(values[i]) - least) / divisor);
    level = level < highest ? level : highest;
    uint32_t sign;
    memcpy(&sign, values + i, sizeof(sign));
    codes[i] = sign >> 31 << (bits - 1) | (uint32_t)level;
  }
}

size_t choir__levels_encode(int32_t bits, const float* values, int64_t n,
                            uint8_t* out, float* out_sent) {
  float least;
  float largest;
  find_range(values, n, &least, &largest);
  const float width = (largest - least) / (float)(1 << (bits - 1));
  memcpy(out, &least, sizeof(least));
  memcpy(out + sizeof(least), &width, sizeof(width));
  float table[MOST_CODES];
  make_values(bits, least, width, table);
  // The last group is filled up with code 0, as is a block without levels.
  uint32_t codes[MOST_BLOCK] = {0};
  if (!isnan(width)) find_codes(bits, values, n, least, width, codes);
  uint8_t* next = out + HEAD;
  for (int64_t start = 0; start < n; start += GROUP) {
    uint32_t group = 0;
    for (int i = 0; i < GROUP; ++i) group |= codes[start + i] << (bits * i);
    memcpy(next, &group, (size_t)bits);
    next += bits;
  }
  for (int64_t i = 0; out_sent && i < n; ++i) out_sent[i] = table[codes[i]];
  return HEAD + codes_bytes(bits, n);
}

size_t choir__levels_decode(int32_t bits, const uint8_t* bytes, int64_t n,
                            float* out_values) {
  float head[2];
  memcpy(head, bytes, sizeof(head));
  float table[MOST_CODES];
  make_values(bits, head[0], head[1], table);
  const uint8_t* codes = bytes + HEAD;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t start = 0; start < n; start += GROUP) {
    uint32_t group = 0;
    memcpy(&group, codes, (size_t)bits);
    codes += bits;
    for (int64_t i = start; i < n && i < start + GROUP; ++i)
      out_values[i] = table[group >> (uint32_t)(bits * (i - start)) & mask];
  }
  return HEAD + codes_bytes(bits, n);
}
