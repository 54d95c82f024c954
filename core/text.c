// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/text_internal.h"

void choir__text_init(choir__text_t* text) {
  *text = (choir__text_t){.start = malloc(256), .capacity = 256};
  text->failed = !text->start;
  if (text->start) text->start[0] = '\0';
}

void choir__text_put(choir__text_t* text, const char* format, ...) {
  while (!text->failed) {
    const size_t room = text->capacity - text->used;
    va_list args;
    va_start(args, format);
    const int wanted = vsnprintf(text->start + text->used, room, format, args);
    va_end(args);
    if (wanted >= 0 && (size_t)wanted < room) {
      text->used += (size_t)wanted;
      return;
    }
    const size_t capacity =
        2 * text->capacity + (wanted > 0 ? (size_t)wanted : 0);
    char* start = wanted < 0 ? NULL : realloc(text->start, capacity);
    text->failed = !start;
    if (!start) return;
    text->start = start;
    text->capacity = capacity;
  }
}

choir_status_t choir__text_take(choir__text_t* text, const char* where,
                                char** out_text) {
  *out_text = text->failed ? NULL : text->start;
  if (*out_text) return NULL;
  free(text->start);
  return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no memory for the text", where);
}
