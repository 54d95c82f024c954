// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#include "core/memory_internal.h"
#include "core/status_backend.h"

// A failure is one struct with its origin text inside and the message beside
// it. The origin is written when it arises and at each hand-over, not when it
// is asked for, so that reading a status never allocates and never fails. File
// names may come from callers whose strings do not last (ctypes), so they are
// copied.

enum { MAX_HAND_OVERS = 8, ORIGIN_BYTES = 1024 };

struct choir_status_s {
  choir_status_code_t code;
  int hand_overs;
  size_t message_bytes;  // with the NUL
  char* message;
  choir_allocator_t allocator;
  const void* shared_by;  // see status_backend.h; NULL: by nobody
  bool is_deferred;       // likewise
  size_t origin_length;
  char origin[ORIGIN_BYTES];
};

// What is returned when there is no memory for a status. Never written to and
// never freed, so it may be handed out any number of times.
static char out_of_memory_message[] =
    "choir: no memory left, not even for an error message; needs more memory";
static struct choir_status_s out_of_memory = {
    .code = CHOIR_STATUS_OUT_OF_MEMORY,
    .message = out_of_memory_message,
    .origin = "unknown",
};

static void append_origin(choir_status_t status, const char* prefix,
                          const char* file, int line) {
  size_t left = ORIGIN_BYTES - status->origin_length;
  int wanted = snprintf(status->origin + status->origin_length, left, "%s%s:%d",
                        prefix, file ? file : "?", line);
  if (wanted < 0) return;
  status->origin_length += (size_t)wanted < left ? (size_t)wanted : left - 1;
}

// A formatted text from `allocator`, or NULL.
static char* format_text(choir_allocator_t allocator, const char* prefix,
                         const char* suffix, size_t* out_bytes) {
  size_t prefix_length = strlen(prefix);
  size_t suffix_length = strlen(suffix);
  size_t bytes = prefix_length + suffix_length + 1;
  char* text = allocator.alloc(allocator.self, bytes, 1);
  if (!text) return NULL;
  memcpy(text, prefix, prefix_length);
  memcpy(text + prefix_length, suffix, suffix_length + 1);
  *out_bytes = bytes;
  return text;
}

choir_status_t choir_status_make_va(choir_status_code_t code, const char* file,
                                    int line, const char* function,
                                    const char* format, va_list args) {
  // A failure must never look like OK.
  if (code == CHOIR_STATUS_OK) code = CHOIR_STATUS_INTERNAL;
  choir_allocator_t allocator = choir__allocator_peek_default();
  va_list measure;
  va_copy(measure, args);
  int length = vsnprintf(NULL, 0, format ? format : "", measure);
  va_end(measure);
  if (length < 0) length = 0;

  struct choir_status_s* status = allocator.alloc(
      allocator.self, sizeof(*status), _Alignof(struct choir_status_s));
  if (!status) return &out_of_memory;
  memset(status, 0, sizeof(*status));
  status->code = code;
  status->allocator = allocator;
  status->message_bytes = (size_t)length + 1;
  status->message = allocator.alloc(allocator.self, status->message_bytes, 1);
  if (!status->message) {
    allocator.free(allocator.self, status, sizeof(*status),
                   _Alignof(struct choir_status_s));
    return &out_of_memory;
  }
  status->message[0] = '\0';
  if (format) vsnprintf(status->message, status->message_bytes, format, args);

  append_origin(status, "", file, line);
  if (function) {
    size_t left = ORIGIN_BYTES - status->origin_length;
    int wanted = snprintf(status->origin + status->origin_length, left,
                          " in %s", function);
    if (wanted > 0) {
      status->origin_length +=
          (size_t)wanted < left ? (size_t)wanted : left - 1;
    }
  }
  return status;
}

choir_status_t choir_status_make(choir_status_code_t code, const char* file,
                                 int line, const char* function,
                                 const char* format, ...) {
  va_list args;
  va_start(args, format);
  choir_status_t status =
      choir_status_make_va(code, file, line, function, format, args);
  va_end(args);
  return status;
}

choir_status_t choir_status_annotate(choir_status_t status, const char* file,
                                     int line, const char* format, ...) {
  if (!status || status == &out_of_memory) return status;
  if (status->hand_overs < MAX_HAND_OVERS) {
    ++status->hand_overs;
    append_origin(status, ", via ", file, line);
  }
  if (!format) return status;

  // The note is a part of a sentence; what does not fit is cut.
  char note[512];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(note, sizeof(note) - 2, format, args);
  va_end(args);
  if (length < 0) return status;
  strcat(note, ": ");
  size_t bytes = 0;
  char* message = format_text(status->allocator, note, status->message, &bytes);
  // Without memory the sentence stays as it was: less said, nothing lost.
  if (!message) return status;
  status->allocator.free(status->allocator.self, status->message,
                         status->message_bytes, 1);
  status->message = message;
  status->message_bytes = bytes;
  return status;
}

choir_status_code_t choir_status_code(choir_status_t status) {
  return status ? status->code : CHOIR_STATUS_OK;
}

const char* choir_status_message(choir_status_t status) {
  return status ? status->message : "ok";
}

const char* choir_status_origin(choir_status_t status) {
  return status ? status->origin : "";
}

const char* choir_status_code_text(choir_status_code_t code) {
  switch (code) {
#define CHOIR_STATUS_TEXT_(name, value, text) \
  case CHOIR_STATUS_##name:                   \
    return text;
    CHOIR_STATUS_LIST(CHOIR_STATUS_TEXT_)
#undef CHOIR_STATUS_TEXT_
  }
  return "unknown status code";
}

void choir_status_free(choir_status_t status) {
  if (!status || status == &out_of_memory) return;
  choir_allocator_t allocator = status->allocator;
  allocator.free(allocator.self, status->message, status->message_bytes, 1);
  allocator.free(allocator.self, status, sizeof(*status),
                 _Alignof(struct choir_status_s));
}

choir_status_t choir_status_clone(choir_status_t status) {
  if (!status || status == &out_of_memory) return status;
  choir_allocator_t allocator = status->allocator;
  struct choir_status_s* copy = allocator.alloc(
      allocator.self, sizeof(*copy), _Alignof(struct choir_status_s));
  if (!copy) return &out_of_memory;
  *copy = *status;
  copy->message =
      format_text(allocator, "", status->message, &copy->message_bytes);
  if (!copy->message) {
    allocator.free(allocator.self, copy, sizeof(*copy),
                   _Alignof(struct choir_status_s));
    return &out_of_memory;
  }
  return copy;
}

choir_status_t choir_status_join(choir_status_t first, choir_status_t second) {
  if (!first) return second;
  choir_status_free(second);
  return first;
}

choir_status_t choir__status_mark_shared(choir_status_t status,
                                         const void* group) {
  if (status && status != &out_of_memory) status->shared_by = group;
  return status;
}

bool choir__status_is_shared(choir_status_t status, const void* group) {
  return status && status->shared_by == group;
}

choir_status_t choir__status_mark_deferred(choir_status_t status) {
  if (status && status != &out_of_memory) status->is_deferred = true;
  return status;
}

bool choir__status_is_deferred(choir_status_t status) {
  return status && status->is_deferred;
}
