// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_KERNELS_PROBLEM_KEY_H_
#define CHOIR_TENSOR_KERNELS_PROBLEM_KEY_H_

#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

// A problem written as plain numbers, for caches of what a library made for it.
// Start with {.count = 0}; words beyond `count` are not looked at.
#define CHOIR__KEY_WORDS 96
typedef struct choir__key_s {
  int64_t words[CHOIR__KEY_WORDS];
  int32_t count;
} choir__key_t;

static inline void choir__key_add(choir__key_t* key, int64_t word) {
  if (key->count < CHOIR__KEY_WORDS) key->words[key->count++] = word;
}
// Shape and strides.
void choir__key_add_view(choir__key_t* key, const choir_view_t* view);
// Fails for a key that may have lost words; `who` starts the message.
choir_status_t choir__key_check(const choir__key_t* key, const char* who)
    CHOIR_NODISCARD;

uint64_t choir__key_hash(const choir__key_t* key);
bool choir__key_equal(const choir__key_t* a, const choir__key_t* b);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_KERNELS_PROBLEM_KEY_H_
