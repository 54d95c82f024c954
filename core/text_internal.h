// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_TEXT_INTERNAL_H_
#define CHOIR_CORE_TEXT_INTERNAL_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A text that grows, in the C library's memory: C and Python callers free() it
// without knowing an allocator.
typedef struct choir__text_s {
  char* start;
  size_t used;
  size_t capacity;
  bool failed;  // no memory; what follows is dropped
} choir__text_t;

void choir__text_init(choir__text_t* text);
void choir__text_put(choir__text_t* text, const char* format, ...)
    CHOIR_PRINTF(2, 3);
// Hands the text out, or OUT_OF_MEMORY with `where`.
choir_status_t choir__text_take(choir__text_t* text, const char* where,
                                char** out_text) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_TEXT_INTERNAL_H_
