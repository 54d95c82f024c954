// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_RANDOM_H_
#define CHOIR_CORE_RANDOM_H_

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Random numbers by counter: Philox4x32-10 (Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). A number depends on its key and its
// place only, never on rank, thread or the order of calls, so every device
// and every number of workers draws the same ones.
//
// Threads: pure functions.

// Which sequence: `seed` is the run's, `stream` the purpose's (a layer, the
// loader), `step` the training step or epoch.
typedef struct choir_random_key_s {
  uint64_t seed;
  uint32_t stream;
  uint32_t step;
} choir_random_key_t;

// The generator itself, for kernels that make many blocks at a time:
// choir_random_block(key, sample, block) is the counter {block, key.step, low
// and high half of sample} under the key that choir_random_philox_key makes
// of seed and stream.
CHOIR_API void choir_random_philox(const uint32_t counter[4],
                                   const uint32_t key[2],
                                   uint32_t out_words[4]);
CHOIR_API void choir_random_philox_key(choir_random_key_t key,
                                       uint32_t out_key[2]);
// Words 4*block .. 4*block+3 of element group `sample`.
CHOIR_API void choir_random_block(choir_random_key_t key, uint64_t sample,
                                  uint32_t block, uint32_t out_words[4]);
// Word `element` of `sample`; element < 2^34.
CHOIR_API uint32_t choir_random_word(choir_random_key_t key, uint64_t sample,
                                     uint64_t element);
// Word -> [0, 1): the upper 24 bits times 2^-24.
CHOIR_API float choir_random_to_uniform(uint32_t word);
// Word -> standard normal, by the inverse of the distribution function in
// f32 arithmetic without libm, so that the bits agree everywhere.
CHOIR_API float choir_random_to_normal(uint32_t word);

// A permutation of 0 .. count-1 at position `index` (below count), without a
// table: a Feistel network on the key with cycle walking.
CHOIR_API uint64_t choir_random_permute(choir_random_key_t key, uint64_t count,
                                        uint64_t index);

// 64-bit FNV-1a over bytes, continued from `hash`; start with
// CHOIR_HASH_START.
#define CHOIR_HASH_START 0xcbf29ce484222325ull
CHOIR_API uint64_t choir_hash_bytes(uint64_t hash, const void* data,
                                    size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_RANDOM_H_
