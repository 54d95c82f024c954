// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RANDOM_BACKEND_H_
#define CHOIR_CORE_RANDOM_BACKEND_H_

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/body_backend.h"

// The formulas of core/random.h, for loops of hosts and threads of GPUs: one
// definition, so that all draw the same numbers.

#ifdef __cplusplus
extern "C" {
#endif

// ---- Philox4x32-10 (Salmon et al., SC 2011, section 3.3) ----

CHOIR__BODY void choir__philox(const uint32_t counter[4], const uint32_t key[2],
                               uint32_t out_words[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = (uint64_t)0xd2511f53u * c0;
    uint64_t product1 = (uint64_t)0xcd9e8d57u * c2;
    c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)product1;
    c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)product0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  out_words[0] = c0;
  out_words[1] = c1;
  out_words[2] = c2;
  out_words[3] = c3;
}

CHOIR__BODY float choir__word_to_uniform(uint32_t word) {
  return (float)(word >> 8) * 0x1p-24f;
}

// ---- Normal ----

// log(x) for a normal x > 0. x = m * 2^e with m in [sqrt(1/2), sqrt(2)); then
// log(m) = s - s^2/2 + s^3 P(s), s = m - 1, P as in Cephes' logf (Moshier).
// Correct to about one unit in the last place, which is far more than the
// tail below needs, and the same everywhere, which libm's logf is not.
CHOIR__BODY float choir__normal_log(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  // Adding this moves the cut between exponents from 1 to sqrt(1/2).
  uint32_t moved = bits + (0x3f800000u - 0x3f3504f3u);
  int32_t exponent = (int32_t)(moved >> 23) - 127;
  bits = (moved & 0x007fffffu) + 0x3f3504f3u;
  float m;
  memcpy(&m, &bits, sizeof(m));
  float e = (float)exponent;
  float s = m - 1.0f;
  float z = s * s;
  float p = 7.0376836292e-2f;
  p = fmaf(p, s, -1.1514610310e-1f);
  p = fmaf(p, s, 1.1676998740e-1f);
  p = fmaf(p, s, -1.2420140846e-1f);
  p = fmaf(p, s, 1.4249322787e-1f);
  p = fmaf(p, s, -1.6668057665e-1f);
  p = fmaf(p, s, 2.0000714765e-1f);
  p = fmaf(p, s, -2.4999993993e-1f);
  p = fmaf(p, s, 3.3333331174e-1f);
  float y = p * s * z;
  // ln 2 in two parts, the first with room for the exponent's bits.
  y = fmaf(e, -2.12194440e-4f, y);
  y = fmaf(-0.5f, z, y);
  return fmaf(e, 0.693359375f, s + y);
}

CHOIR__BODY float choir__word_to_normal(uint32_t word) {
  // u = (word + 1/2) * 2^-32 lies strictly inside (0, 1). Both ends are
  // treated alike: `odd` = 2 * min(word, ~word) + 1 is 2^33 times the distance
  // of u from the nearer end, so word and ~word give opposite numbers.
  bool upper = word >= 0x80000000u;
  uint32_t odd = 2u * (upper ? ~word : word) + 1u;  // 1 .. 2^32 - 1
  // |u - 1/2|, from exact integers so that small normals keep all their bits.
  // (odd = 2^32 - 1 gives 1: the two middle words.)
  float q = (float)(uint32_t)(0u - odd) * 0x1p-33f;
  // Wichura, "Algorithm AS 241: The Percentage Points of the Normal
  // Distribution", Applied Statistics 37 (1988), PPND7: relative error 1e-7.
  // Its third range (u below exp(-25)) is out of a 32-bit word's reach.
  float value;
  if (q <= 0.425f) {
    float r = fmaf(-q, q, 0.180625f);
    float a = 59.109374720f;
    a = fmaf(a, r, 159.29113202f);
    a = fmaf(a, r, 50.434271938f);
    a = fmaf(a, r, 3.3871327179f);
    float b = 67.187563600f;
    b = fmaf(b, r, 78.757757664f);
    b = fmaf(b, r, 17.895169469f);
    b = fmaf(b, r, 1.0f);
    value = q * a / b;
  } else {
    float r = sqrtf(-choir__normal_log((float)odd * 0x1p-33f)) - 1.6f;
    float c = 0.17023821103f;
    c = fmaf(c, r, 1.3067284816f);
    c = fmaf(c, r, 2.7568153900f);
    c = fmaf(c, r, 1.4234372777f);
    float d = 0.12021132975f;
    d = fmaf(d, r, 0.73700164250f);
    d = fmaf(d, r, 1.0f);
    value = c / d;
  }
  return upper ? value : -value;
}

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RANDOM_BACKEND_H_
