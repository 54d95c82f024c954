// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_
#define CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_

#include <math.h>

#include "core/random.h"

// The numbers of core/random.h, drawn many blocks at a time
// (cpu_draws_loops.inc).

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

// Dropout keeps an element whose word's upper 24 bits are at least this: u >=
// ratio for u = (word >> 8) 2^-24, in integers.
static inline uint32_t choir__draw_threshold(double ratio) {
  return (uint32_t)ceil(ratio * 0x1p24);
}

#endif  // CHOIR_TENSOR_KERNELS_CPU_CPU_DRAWS_H_
