// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_

#include <math.h>

#include "core/body_backend.h"
#include "core/random.h"

// The numbers of core/random.h, drawn many blocks at a time.

enum {
  CHOIR__DRAW_BLOCKS = 16,
  CHOIR__DRAW_WORDS = 4 * CHOIR__DRAW_BLOCKS,
};

typedef struct choir__draws_s {
  uint32_t key[2];
  uint32_t step;
} choir__draws_t;

static inline choir__draws_t choir__draws_of(int64_t seed, int64_t stream,
                                             int64_t step) {
  const choir_random_key_t key = {(uint64_t)seed, (uint32_t)stream,
                                  (uint32_t)step};
  choir__draws_t draws = {.step = key.step};
  choir_random_philox_key(key, draws.key);
  return draws;
}

// Words 4 * block .. 4 * block + CHOIR__DRAW_WORDS - 1 of `sample`:
// choir_random_block for as many blocks, with each step of a round done for all
// of them.
CHOIR__BODY void choir__draw_words(const choir__draws_t* draws, uint64_t sample,
                                   uint32_t block, uint32_t* words) {
  uint32_t c0[CHOIR__DRAW_BLOCKS], c1[CHOIR__DRAW_BLOCKS];
  uint32_t c2[CHOIR__DRAW_BLOCKS], c3[CHOIR__DRAW_BLOCKS];
  uint32_t k0 = draws->key[0], k1 = draws->key[1];
  for (uint32_t j = 0; j < CHOIR__DRAW_BLOCKS; j++) {
    c0[j] = block + j;
    c1[j] = draws->step;
    c2[j] = (uint32_t)sample;
    c3[j] = (uint32_t)(sample >> 32);
  }
  for (int round = 0; round < 10; round++) {
    for (int j = 0; j < CHOIR__DRAW_BLOCKS; j++) {
      const uint64_t product0 = (uint64_t)0xd2511f53u * c0[j];
      const uint64_t product1 = (uint64_t)0xcd9e8d57u * c2[j];
      c0[j] = (uint32_t)(product1 >> 32) ^ c1[j] ^ k0;
      c1[j] = (uint32_t)product1;
      c2[j] = (uint32_t)(product0 >> 32) ^ c3[j] ^ k1;
      c3[j] = (uint32_t)product0;
    }
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  for (int j = 0; j < CHOIR__DRAW_BLOCKS; j++) {
    words[4 * j] = c0[j];
    words[4 * j + 1] = c1[j];
    words[4 * j + 2] = c2[j];
    words[4 * j + 3] = c3[j];
  }
}

// Dropout keeps an element whose word's upper 24 bits are at least this: u >=
// ratio for u = (word >> 8) 2^-24, in integers.
static inline uint32_t choir__draw_threshold(double ratio) {
  return (uint32_t)ceil(ratio * 0x1p24);
}

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_
