// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_ONNX_ONNX_TWISTER_DEF_H_
#define CHOIR_ONNX_ONNX_TWISTER_DEF_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// MT19937, the generator behind numpy.random.seed, with which ONNX's reference
// draws: M. Matsumoto and T. Nishimura, "Mersenne Twister: A 623-Dimensionally
// Equidistributed Uniform Pseudo-Random Number Generator", 1998. All else in
// Choir draws by core/random.h. For operators (onnx/operators). Not installed.

enum { CHOIR__TWISTER_WORDS = 624 };

typedef struct choir__twister_s {
  uint32_t words[CHOIR__TWISTER_WORDS];
  int32_t used;  // of words, before all of them are made anew
} choir__twister_t;

// As numpy.random.seed(seed), of a whole number.
void choir__twister_seed(choir__twister_t* twister, uint32_t seed);
// The next 32 bits.
uint32_t choir__twister_word(choir__twister_t* twister);
// The next of numpy.random.uniform(0, 1): 53 bits of two words, in [0, 1).
double choir__twister_uniform(choir__twister_t* twister);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_ONNX_ONNX_TWISTER_DEF_H_
