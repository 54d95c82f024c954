// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/problem_key.h"

#include <string.h>

#include "core/random.h"

void choir__key_add_view(choir__key_t* key, const choir_view_t* view) {
  choir__key_add(key, view->dtype);
  choir__key_add(key, view->ndim);
  for (int32_t k = 0; k < view->ndim; k++) {
    choir__key_add(key, view->shape[k]);
    choir__key_add(key, view->strides[k]);
  }
}

choir_status_t choir__key_check(const choir__key_t* key, const char* who) {
  if (key->count < CHOIR__KEY_WORDS) return NULL;
  return CHOIR_ERROR(INTERNAL, "%s: key of more than %d words", who,
                     CHOIR__KEY_WORDS - 1);
}

uint64_t choir__key_hash(const choir__key_t* key) {
  uint64_t hash = CHOIR_HASH_START;
  for (int32_t i = 0; i < key->count; i++) {
    hash = (hash ^ (uint64_t)key->words[i]) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

bool choir__key_equal(const choir__key_t* a, const choir__key_t* b) {
  return a->count == b->count &&
         memcmp(a->words, b->words, (size_t)a->count * sizeof(a->words[0])) ==
             0;
}
