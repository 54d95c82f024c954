// SPDX-License-Identifier: Apache-2.0
#include "dist/activity_internal.h"

#include <string.h>

#include "dist/comm_backend.h"

// A sequence lock of atomic words: the writer never waits, and a reader takes
// a torn picture only after several tries, which is good enough for a text.

// Release stores keep the words behind the odd version, acquire loads keep
// them before the second look at it. There is one writer at a time.
static void activity_open(choir_shared_activity_t* shared) {
  uint32_t version =
      atomic_load_explicit(&shared->version, memory_order_relaxed);
  atomic_store_explicit(&shared->version, version + 1, memory_order_relaxed);
}

static void activity_close(choir_shared_activity_t* shared) {
  uint32_t version =
      atomic_load_explicit(&shared->version, memory_order_relaxed);
  atomic_store_explicit(&shared->version, version + 1, memory_order_release);
}

void choir__activity_clear(choir_shared_activity_t* shared) {
  activity_open(shared);
  atomic_store_explicit(&shared->kind, -1, memory_order_release);
  atomic_store_explicit(&shared->waiting_for, -1, memory_order_release);
  atomic_store_explicit(&shared->sequence, 0, memory_order_release);
  activity_close(shared);
}

void choir__activity_begin(choir_shared_activity_t* shared, int32_t kind,
                           uint64_t sequence, const char* name) {
  uint64_t words[CHOIR_COMM_NAME_BYTES / 8] = {0};
  if (name) {
    size_t bytes = strnlen(name, CHOIR_COMM_NAME_BYTES - 1);
    memcpy(words, name, bytes);
  }
  activity_open(shared);
  atomic_store_explicit(&shared->kind, kind, memory_order_release);
  atomic_store_explicit(&shared->waiting_for, -1, memory_order_release);
  atomic_store_explicit(&shared->sequence, sequence, memory_order_release);
  for (size_t i = 0; i < CHOIR_COMM_NAME_BYTES / 8; ++i)
    atomic_store_explicit(&shared->name[i], words[i], memory_order_release);
  activity_close(shared);
}

void choir__activity_wait(choir_shared_activity_t* shared, int32_t rank) {
  atomic_store_explicit(&shared->waiting_for, rank, memory_order_release);
}

void choir__activity_end(choir_shared_activity_t* shared) {
  activity_open(shared);
  atomic_store_explicit(&shared->kind, -1, memory_order_release);
  atomic_store_explicit(&shared->waiting_for, -1, memory_order_release);
  activity_close(shared);
}

void choir__activity_read(const choir_shared_activity_t* shared,
                          choir_activity_t* out_activity) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    uint32_t before =
        atomic_load_explicit(&shared->version, memory_order_acquire);
    uint64_t words[CHOIR_COMM_NAME_BYTES / 8];
    out_activity->kind =
        atomic_load_explicit(&shared->kind, memory_order_acquire);
    out_activity->waiting_for =
        atomic_load_explicit(&shared->waiting_for, memory_order_acquire);
    out_activity->sequence =
        atomic_load_explicit(&shared->sequence, memory_order_acquire);
    for (size_t i = 0; i < CHOIR_COMM_NAME_BYTES / 8; ++i)
      words[i] = atomic_load_explicit(&shared->name[i], memory_order_acquire);
    memcpy(out_activity->name, words, sizeof(words));
    out_activity->name[CHOIR_COMM_NAME_BYTES - 1] = 0;
    uint32_t after =
        atomic_load_explicit(&shared->version, memory_order_relaxed);
    if (before == after && !(before & 1)) return;
  }
}

const char* choir__activity_kind_name(int32_t kind) {
  static const char* const names[CHOIR_COMM_KIND_COUNT] = {
#define CHOIR_COLLECTIVE_NAME_(ENUM, name) #name,
      CHOIR_COLLECTIVE_LIST(CHOIR_COLLECTIVE_NAME_)
#undef CHOIR_COLLECTIVE_NAME_
          "buffer_create",
      "group",
      "join",
      "finalize",
      "unknown operation",
  };
  if (kind < 0 || kind >= CHOIR_COMM_KIND_COUNT) return "?";
  return names[kind];
}

void choir__text_append(char* text, size_t text_bytes, const char* more) {
  size_t used = strnlen(text, text_bytes);
  while (*more && used + 1 < text_bytes) text[used++] = *more++;
  if (used < text_bytes) text[used] = 0;
}

void choir__text_append_number(char* text, size_t text_bytes, uint64_t number) {
  char digits[24];
  size_t at = sizeof(digits) - 1;
  digits[at] = 0;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number);
  choir__text_append(text, text_bytes, digits + at);
}

char* choir__activity_print(const choir_activity_t* activity, char* text,
                            size_t text_bytes) {
  text[0] = 0;
  if (activity->kind < 0) return text;
  choir__text_append(text, text_bytes,
                     choir__activity_kind_name(activity->kind));
  if (activity->name[0]) {
    choir__text_append(text, text_bytes, " '");
    choir__text_append(text, text_bytes, activity->name);
    choir__text_append(text, text_bytes, "'");
  }
  bool is_pair = activity->kind == CHOIR_COLLECTIVE_SEND ||
                 activity->kind == CHOIR_COLLECTIVE_RECEIVE;
  choir__text_append(text, text_bytes,
                     is_pair ? " (after operation " : " (operation ");
  choir__text_append_number(text, text_bytes, activity->sequence);
  choir__text_append(text, text_bytes, ")");
  return text;
}
