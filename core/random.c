// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include "core/random_backend.h"

void choir_random_philox(const uint32_t counter[4], const uint32_t key[2],
                         uint32_t out_words[4]) {
  choir__philox(counter, key, out_words);
}

// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a
// bijection, so different seeds of one stream never share a key.
static uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void choir_random_philox_key(choir_random_key_t key, uint32_t out_key[2]) {
  uint64_t mixed =
      mix64(key.seed + 0x9e3779b97f4a7c15ull * ((uint64_t)key.stream + 1));
  out_key[0] = (uint32_t)mixed;
  out_key[1] = (uint32_t)(mixed >> 32);
}

void choir_random_block(choir_random_key_t key, uint64_t sample, uint32_t block,
                        uint32_t out_words[4]) {
  // 224 bits of place against 128 of counter and 64 of key: step, sample and
  // block fill the counter exactly, seed and stream are mixed into the key.
  uint32_t counter[4] = {block, key.step, (uint32_t)sample,
                         (uint32_t)(sample >> 32)};
  uint32_t philox_key[2];
  choir_random_philox_key(key, philox_key);
  choir_random_philox(counter, philox_key, out_words);
}

uint32_t choir_random_word(choir_random_key_t key, uint64_t sample,
                           uint64_t element) {
  uint32_t words[4];
  choir_random_block(key, sample, (uint32_t)(element / 4), words);
  return words[element % 4];
}

float choir_random_to_uniform(uint32_t word) {
  return choir__word_to_uniform(word);
}

float choir_random_to_normal(uint32_t word) {
  return choir__word_to_normal(word);
}

// ---- Permutation ----

static uint32_t mix32(uint32_t x) {
  // The finalizer of MurmurHash3 (Appleby).
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

enum { FEISTEL_ROUNDS = 8 };

uint64_t choir_random_permute(choir_random_key_t key, uint64_t count,
                              uint64_t index) {
  if (count < 2) return 0;
  index %= count;
  // Round keys from the counter's far end, where no sample ever is.
  uint32_t round_keys[FEISTEL_ROUNDS];
  choir_random_block(key, UINT64_MAX, 0, round_keys);
  choir_random_block(key, UINT64_MAX, 1, round_keys + 4);
  // The smallest even number of bits that holds count - 1: fewer than 4
  // numbers for each wanted one, so the walk below is short.
  uint32_t bits = 64u - (uint32_t)__builtin_clzll(count - 1);
  uint32_t half = (bits + 1) / 2;
  uint64_t mask = ((uint64_t)1 << half) - 1;
  // A Feistel network is a bijection of 0 .. 4^half - 1 whatever its round
  // function is. Following it until it comes back below count makes it one of
  // 0 .. count - 1 (Black and Rogaway, "Ciphers with Arbitrary Finite
  // Domains", 2002, section 4).
  uint64_t place = index;
  do {
    uint32_t left = (uint32_t)(place >> half);
    uint32_t right = (uint32_t)(place & mask);
    for (int round = 0; round < FEISTEL_ROUNDS; ++round) {
      uint32_t mixed = mix32(right ^ round_keys[round]);
      // The mixed word's upper half holds as much as its lower one; folding
      // keeps both for short halves.
      uint32_t next = left ^ ((mixed ^ (mixed >> 16)) & (uint32_t)mask);
      left = right;
      right = next;
    }
    place = ((uint64_t)left << half) | right;
  } while (place >= count);
  return place;
}

uint64_t choir_hash_bytes(uint64_t hash, const void* data, size_t bytes) {
  const unsigned char* byte = data;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3ull;
  return hash;
}
