// SPDX-License-Identifier: Apache-2.0
// GPT-2's files, and texts for them. The first byte is which: a vocabulary,
// whose merges are those of `lines`; merges, of the vocabulary that is made
// here; or a text and ids for both.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/byte_pairs.h"
#include "tests/fuzz/fuzz.h"

static const char lines[] = "#version: 0.2\na b\nab ab\n\xc4\xa0 a\n";

// All bytes, and what `lines` make of them.
static size_t make_vocabulary(char* text) {
  size_t used = 0;
  int other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int prints =
        (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    used += (size_t)sprintf(text + used, "%c\"\\u%04x\":%d", byte ? ',' : '{',
                            prints ? byte : other++, byte);
  }
  return used + (size_t)sprintf(text + used,
                                ",\"ab\":256,\"abab\":257,\"\\u0120a\":258}");
}

// The path of a file with these bytes, beside that of choir_fuzz_file.
static const char* second_file(const void* data, size_t bytes) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  }
  if (fd < 0 || ftruncate(fd, 0) ||
      pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
    abort();
  return path;
}

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  char text[CHOIR_FUZZ_MOST_BYTES];
  size_t bytes = 0;
  if (number == 0) bytes = make_vocabulary(text);
  if (number == 1) bytes = sizeof(lines) - 1;
  if (number == 1) memcpy(text, lines, bytes);
  if (number == 2)
    bytes =
        (size_t)sprintf(text, "it's  ab abab\xc3\xa4\xe2\x80\x83%s 12", "\xff");
  if (number > 2) return 0;
  out_data[0] = (uint8_t)number;
  memcpy(out_data + 1, text, bytes);
  return bytes + 1;
}

// A text and back, and its bytes as ids.
static void use(const choir_byte_pairs_t* pairs, const uint8_t* data,
                size_t bytes) {
  int32_t* ids = malloc((bytes + 1) * sizeof(*ids));
  char* text = malloc(bytes + 1);
  size_t count;
  size_t back;
  if (!ids || !text) abort();
  if (choir_byte_pairs_encode(pairs, (const char*)data, bytes, ids, bytes,
                              &count) ||
      choir_byte_pairs_decode(pairs, ids, count, text, bytes, &back) ||
      back != bytes || memcmp(text, data, bytes) != 0)
    abort();
  count = bytes / sizeof(*ids);
  memcpy(ids, data, count * sizeof(*ids));
  choir_status_free(
      choir_byte_pairs_decode(pairs, ids, count, text, bytes, &back));
  free(ids);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static char vocabulary[CHOIR_FUZZ_MOST_BYTES];
  static size_t vocabulary_bytes;
  static choir_byte_pairs_t* good;
  if (!good) {
    vocabulary_bytes = make_vocabulary(vocabulary);
    if (choir_byte_pairs_open(
            choir_fuzz_file((const uint8_t*)vocabulary, vocabulary_bytes),
            second_file(lines, sizeof(lines) - 1), &good))
      abort();
  }
  if (bytes < 1) return 0;
  if (data[0] % 3 == 2) {
    use(good, data + 1, bytes - 1);
    return 0;
  }
  const char* given = choir_fuzz_file(data + 1, bytes - 1);
  choir_byte_pairs_t* pairs;
  choir_status_t status =
      data[0] % 3 == 0
          ? choir_byte_pairs_open(given, second_file(lines, sizeof(lines) - 1),
                                  &pairs)
          : choir_byte_pairs_open(second_file(vocabulary, vocabulary_bytes),
                                  given, &pairs);
  if (!status) use(pairs, data, bytes);
  if (status && pairs) abort();
  choir_status_free(status);
  choir_byte_pairs_destroy(pairs);
  return 0;
}
