// SPDX-License-Identifier: Apache-2.0
// MT19937. Names in comments are the paper's.
#include "onnx/onnx_twister_def.h"

enum { WORDS = CHOIR__TWISTER_WORDS, MIDDLE = 397 };

// By the recurrence that its authors gave in 2002 in place of the paper's.
void choir__twister_seed(choir__twister_t* twister, uint32_t seed) {
  twister->words[0] = seed;
  for (uint32_t i = 1; i < WORDS; ++i) {
    const uint32_t before = twister->words[i - 1];
    twister->words[i] = 1812433253u * (before ^ (before >> 30)) + i;
  }
  twister->used = WORDS;
}

// x_{k+n} = x_{k+m} xor (upper bit of x_k, lower 31 bits of x_{k+1}) A, for
// all n words.
static void make_words(choir__twister_t* twister) {
  uint32_t* x = twister->words;
  for (int32_t k = 0; k < WORDS; ++k) {
    const uint32_t joined =
        (x[k] & 0x80000000u) | (x[(k + 1) % WORDS] & 0x7fffffffu);
    const uint32_t a = joined & 1 ? 0x9908b0dfu : 0;
    x[k] = x[(k + MIDDLE) % WORDS] ^ (joined >> 1) ^ a;
  }
  twister->used = 0;
}

uint32_t choir__twister_word(choir__twister_t* twister) {
  if (twister->used >= WORDS) make_words(twister);
  uint32_t y = twister->words[twister->used++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double choir__twister_uniform(choir__twister_t* twister) {
  const uint32_t high = choir__twister_word(twister) >> 5;  // 27 bits
  const uint32_t low = choir__twister_word(twister) >> 6;   // 26 bits
  return (high * 67108864.0 + low) / 9007199254740992.0;
}
