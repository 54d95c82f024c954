// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_TOKENS_H_
#define CHOIR_IO_TOKENS_H_

#include "io/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

// Tokens: a long row of numbers below a vocabulary, which a language model
// learns to go on with. They are a text's characters, bytes or byte pairs, in
// memory, or a file of token ids, of which only what is asked for is read.
// Windows of them are a data set for the loader (io/loader.h):
//
//   choir_tokens_t* text;
//   CHOIR_TRY(choir_tokens_open_text("play.txt.gz", CHOIR_TEXT_CHARACTERS,
//                                    &text));
//   choir_windows_t windows = {.length = 64, .stride = 1};
//   CHOIR_TRY(choir_dataset_create_windows(text, &windows, &dataset));
//
// Ownership: shared. Threads: never changes after it is made, so any thread
// may read it.

typedef struct choir_tokens_s choir_tokens_t;

typedef enum choir_text_unit_e {
  // A token for each character of a UTF-8 text. The vocabulary is those that
  // the text has, in the order of their code points.
  CHOIR_TEXT_CHARACTERS = 0,
  // A token for each byte of any file; the vocabulary is 256.
  CHOIR_TEXT_BYTES = 1,
} choir_text_unit_t;

// Opens a text, gzipped or not. NOT_FOUND: no such file. INVALID_ARGUMENT: it
// is empty, or not UTF-8 where characters are asked for (the message tells at
// which byte). OUT_OF_RANGE: its gzip stream is cut or broken. Blocks on the
// disk.
CHOIR_API choir_status_t choir_tokens_open_text(const char* path,
                                                choir_text_unit_t unit,
                                                choir_tokens_t** out_tokens)
    CHOIR_NODISCARD;

// Opens a text so by GPT-2's byte-pair encoding, whose files are vocab_path and
// merges_path (io/byte_pairs.h, which tells what fails of them). The vocabulary
// is that of these files, whatever the text has, and the text may be any bytes.
// For a moment 4 bytes of memory are taken for each byte of the text.
CHOIR_API choir_status_t choir_tokens_open_byte_pairs(
    const char* path, const char* vocab_path, const char* merges_path,
    choir_tokens_t** out_tokens) CHOIR_NODISCARD;

// Opens a file of token ids, little-endian: of 2 bytes each, as nanoGPT writes
// them, or of 4, as id_bytes says; or with the header that llm.c writes, 256
// numbers of 32 bits, of which the first says what the ids are (20240520: 2
// bytes, 20240801: 4) and the third how many. id_bytes 0: as the header says,
// or 2 without one. The file may be of any size and must not be written to
// while it is open. vocabulary: ids are below it, which is checked where they
// are read. NOT_FOUND: no such file. INVALID_ARGUMENT: it is empty, no whole
// number of ids, or not as its header says; id_bytes or vocabulary (1 to 2^31 -
// 1) is none. Blocks on the disk.
CHOIR_API choir_status_t choir_tokens_open_ids(const char* path,
                                               int32_t id_bytes,
                                               int64_t vocabulary,
                                               choir_tokens_t** out_tokens)
    CHOIR_NODISCARD;

CHOIR_API void choir_tokens_retain(choir_tokens_t* tokens);
CHOIR_API void choir_tokens_release(choir_tokens_t* tokens);

CHOIR_API int64_t choir_tokens_count(const choir_tokens_t* tokens);
// Ids are below it.
CHOIR_API int64_t choir_tokens_vocabulary(const choir_tokens_t* tokens);

// Reads ids [first, first + count). OUT_OF_RANGE: there are not as many, or an
// id is not below the vocabulary (the message has file, place and id); or the
// file became shorter. Blocks on the disk.
CHOIR_API choir_status_t choir_tokens_read(const choir_tokens_t* tokens,
                                           int64_t first, int64_t count,
                                           int32_t* out_ids) CHOIR_NODISCARD;

// Of a text: the bytes of one token, as many as *out_bytes (at least 1; of
// characters and bytes at most 4), lent. NULL for an id that there is not, and
// of a file of ids.
CHOIR_API const char* choir_tokens_text(const choir_tokens_t* tokens,
                                        int32_t id, size_t* out_bytes);
// Of a text: the ids of another one of `bytes` bytes, *out_count of them;
// out_ids (bytes) is the caller's. Of characters INVALID_ARGUMENT: the first
// text has no such one (it is named), or this one is not UTF-8.
// FAILED_PRECONDITION: of a file of ids.
CHOIR_API choir_status_t choir_tokens_encode(const choir_tokens_t* tokens,
                                             const char* text, size_t bytes,
                                             int32_t* out_ids,
                                             int64_t* out_count)
    CHOIR_NODISCARD;

// Windows of `length` tokens, the next one beginning `stride` tokens further:
// x is the window and y what begins one token later. They are taken of tokens
// [first, first + count); count 0: of all from first on.
typedef struct choir_windows_s {
  int64_t first;
  int64_t count;
  int64_t length;
  int64_t stride;  // 1: every window; length: none overlap
} choir_windows_t;

// The data set of these windows, which keeps the tokens alive.
// INVALID_ARGUMENT: a number is out of range, or there are too few tokens for
// one window.
CHOIR_API choir_status_t choir_dataset_create_windows(
    choir_tokens_t* tokens, const choir_windows_t* windows,
    choir_dataset_t** out_dataset) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_TOKENS_H_
