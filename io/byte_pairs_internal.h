// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_BYTE_PAIRS_INTERNAL_H_
#define CHOIR_IO_BYTE_PAIRS_INTERNAL_H_

#include "core/allocator.h"
#include "io/byte_pairs.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the three files of the byte-pair encoding share: byte_pairs_files.c
// reads vocab.json and merges.txt, byte_pairs_split.c splits text into words,
// byte_pairs.c merges the bytes of a word.

// A line of merges.txt.
typedef struct choir__merge_s {
  int32_t left;
  int32_t right;
  int32_t result;
  uint32_t rank;  // from 0
} choir__merge_t;

struct choir_byte_pairs_s {
  choir_allocator_t allocator;
  int32_t count;
  uint8_t* text;           // the tokens' bytes, one after the other, by id
  size_t text_bytes;       //
  size_t* begins;          // count + 1 places in text
  int32_t* by_text;        // ids, sorted by the tokens' bytes
  int32_t byte_ids[256];   // of the tokens of one byte
  choir__merge_t* merges;  // merge_count of them, by left, then by right
  uint32_t* merge_begins;  // count + 1: where those with this left begin
  int32_t* results;        // by rank
  uint32_t merge_count;
};

// Fills in all but the allocator. What was allocated before a failure stays,
// for choir_byte_pairs_destroy.
choir_status_t choir__byte_pairs_read(choir_byte_pairs_t* pairs,
                                      const char* vocab_path,
                                      const char* merges_path) CHOIR_NODISCARD;

// How many bytes the first word of a text has; at least 1, as bytes is.
size_t choir__byte_pairs_split(const char* text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_BYTE_PAIRS_INTERNAL_H_
