// SPDX-License-Identifier: Apache-2.0
// Values of 2 to 4 bits. Decoding looks them up: a block has at most sixteen
// different ones.
#include <math.h>
#include <string.h>

#include "dist/compress_kernels_internal.h"

enum { HEAD = 8, GROUP = 8, MOST_CODES = 16 };

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

size_t choir__levels_encode(int32_t bits, const float* values, int64_t n,
                            uint8_t* out, float* out_sent) {
  const int levels = 1 << (bits - 1);
  float least = INFINITY;
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = fabsf(values[i]);
    finite &= isfinite(magnitude) != 0;
    least = magnitude < least ? magnitude : least;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (!finite) least = largest = NAN;
  const float width = (largest - least) / (float)levels;
  memcpy(out, &least, sizeof(least));
  memcpy(out + sizeof(least), &width, sizeof(width));
  float table[MOST_CODES];
  make_values(bits, least, width, table);
  uint8_t* codes = out + HEAD;
  for (int64_t start = 0; start < n; start += GROUP) {
    uint32_t group = 0;
    for (int64_t i = start; i < n && i < start + GROUP; ++i) {
      const uint32_t sign = signbit(values[i]) != 0;
      // A width that is 0, by rounding at least, or NaN has one level.
      const float place = width > 0 ? (fabsf(values[i]) - least) / width : 0.0f;
      const uint32_t level =
          place < (float)(levels - 1) ? (uint32_t)place : (uint32_t)levels - 1;
      const uint32_t code = sign << (bits - 1) | level;
      if (out_sent) out_sent[i] = table[code];
      group |= code << (uint32_t)(bits * (i - start));
    }
    memcpy(codes, &group, (size_t)bits);
    codes += bits;
  }
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
