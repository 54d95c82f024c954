// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_ACTIVITY_INTERNAL_H_
#define CHOIR_DIST_ACTIVITY_INTERNAL_H_

#include <stdatomic.h>

#include "core/base.h"

// What a rank does now, as plain words that any process or signal handler may
// read while they change: noted on the launcher's board, in the shared
// segment or in heartbeats, and turned into text by the reader.

#define CHOIR_COMM_NAME_BYTES 64
#define CHOIR_ACTIVITY_TEXT_BYTES 320

typedef struct choir_activity_s {
  int32_t kind;         // of the collective; -1: computing
  int32_t waiting_for;  // rank, -1: nobody
  uint64_t sequence;    // of this operation, or of the last one
  char name[CHOIR_COMM_NAME_BYTES];
} choir_activity_t;

typedef struct choir_shared_activity_s {
  _Atomic uint32_t version;  // odd while it is written
  _Atomic int32_t kind;
  _Atomic int32_t waiting_for;
  _Atomic uint64_t sequence;
  _Atomic uint64_t name[CHOIR_COMM_NAME_BYTES / 8];
} choir_shared_activity_t;

// Cleared memory is an operation of kind 0: call this first.
void choir__activity_clear(choir_shared_activity_t* shared);
// name may be NULL.
void choir__activity_begin(choir_shared_activity_t* shared, int32_t kind,
                           uint64_t sequence, const char* name);
void choir__activity_wait(choir_shared_activity_t* shared, int32_t rank);
void choir__activity_end(choir_shared_activity_t* shared);
void choir__activity_read(const choir_shared_activity_t* shared,
                          choir_activity_t* out_activity);

// "all_reduce" for a kind.
const char* choir__activity_kind_name(int32_t kind);
// "all_reduce 'x' (operation 5)" or "" when computing. Async-signal-safe;
// returns `text`.
char* choir__activity_print(const choir_activity_t* activity, char* text,
                            size_t text_bytes);
// Appends to a NUL-terminated text, cut at text_bytes. Async-signal-safe.
void choir__text_append(char* text, size_t text_bytes, const char* more);
void choir__text_append_number(char* text, size_t text_bytes, uint64_t number);

#endif  // CHOIR_DIST_ACTIVITY_INTERNAL_H_
