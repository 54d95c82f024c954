// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_BYTE_PAIRS_H_
#define CHOIR_IO_BYTE_PAIRS_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// GPT-2's byte-pair encoding: text to ids of tokens and back, from the files
// vocab.json and merges.txt as Hugging Face has them.
//
//   choir_byte_pairs_t* pairs;
//   CHOIR_TRY(choir_byte_pairs_open("vocab.json", "merges.txt", &pairs));
//   size_t count;
//   CHOIR_TRY(choir_byte_pairs_encode(pairs, text, bytes, ids, bytes, &count));
//   choir_byte_pairs_destroy(pairs);
//
// Text is split into words by GPT-2's pattern
//
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// with the letters and numbers of Unicode 16, as tiktoken 0.14 has them. Each
// word begins as one token for each byte. Of its neighbouring tokens the pair
// with the lowest rank (the first line in merges.txt; of equal pairs the first
// in the word) becomes one token, until no pair of the word has a line. A word
// of n bytes takes n log n steps.
//
// Text may be any bytes: each byte that belongs to no well-formed UTF-8
// character is split as a character that is no letter, number or space.
// Special tokens, as GPT-2's "<|endoftext|>", have an id and are decoded to
// their text; in a text that is encoded they are text as any other (tiktoken's
// encode_ordinary).
//
// Ownership: unique. Threads: encoding, decoding and questions only read the
// object, so that several threads may ask the same one.

typedef struct choir_byte_pairs_s choir_byte_pairs_t;

// vocab.json: an object {"token": id, ...}. Each byte of a token is written as
// the character that GPT-2's byte-to-unicode table has for it (a space as
// U+0120). The ids are 0 to count - 1, each once, and every single byte is a
// token. merges.txt: a first line "#version..." or none, then lines "left
// right" by rank; left, right and both together are tokens. The files are not
// trusted. A failure is one sentence with the file and the line or token:
// NOT_FOUND (no such file), INVALID_ARGUMENT (something else than this in it),
// OUT_OF_MEMORY. Memory stays in proportion to the files' lengths. Blocks on
// the disk.
CHOIR_API choir_status_t choir_byte_pairs_open(const char* vocab_path,
                                               const char* merges_path,
                                               choir_byte_pairs_t** out_pairs)
    CHOIR_NODISCARD;
// Accepts NULL.
CHOIR_API void choir_byte_pairs_destroy(choir_byte_pairs_t* pairs);

// Ids are from 0 to below this.
CHOIR_API int64_t choir_byte_pairs_count(const choir_byte_pairs_t* pairs);
// The id of the token with these bytes ("<|endoftext|>"), or -1.
CHOIR_API int32_t choir_byte_pairs_find(const choir_byte_pairs_t* pairs,
                                        const char* token, size_t bytes);

// The ids of a text into `out_ids`, which has room for `room` of them; there
// are never more than `bytes`. NULL: they are only counted. OUT_OF_RANGE when
// there are more than `room` (*out_count tells how many), or a word has 2^31
// bytes or more; OUT_OF_MEMORY.
CHOIR_API choir_status_t choir_byte_pairs_encode(
    const choir_byte_pairs_t* pairs, const char* text, size_t bytes,
    int32_t* out_ids, size_t room, size_t* out_count) CHOIR_NODISCARD;
// The bytes of these ids into `out_text`, without a NUL behind them. NULL: they
// are only counted. OUT_OF_RANGE for an id that is none, or when there are more
// than `room` bytes (*out_bytes tells how many). A part of the ids of a text
// may end within a character.
CHOIR_API choir_status_t choir_byte_pairs_decode(
    const choir_byte_pairs_t* pairs, const int32_t* ids, size_t count,
    char* out_text, size_t room, size_t* out_bytes) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_BYTE_PAIRS_H_
