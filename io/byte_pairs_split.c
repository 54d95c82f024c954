// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "io/byte_pairs_internal.h"
#include "io/unicode_classes_internal.h"
#include "io/utf8_internal.h"

// GPT-2's pattern, written out. Its alternatives are tried in this order:
//
//   '(?:[sdmt]|ll|ve|re)   an English ending
//    ?\p{L}+               letters, with a space before them or none
//    ?\p{N}+               numbers, likewise
//    ?[^\s\p{L}\p{N}]+     what is neither, nor a space, likewise
//   \s+(?!\S)              spaces up to the end or up to the last one of them
//   \s+                    that last one

typedef enum kind_e { KIND_OTHER, KIND_LETTER, KIND_NUMBER, KIND_SPACE } kind_t;

static bool is_in(const choir__code_points_t* ranges, size_t count,
                  uint32_t point) {
  size_t low = 0;
  size_t high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (point > ranges[middle].last) {
      low = middle + 1;
    } else if (point < ranges[middle].first) {
      high = middle;
    } else {
      return true;
    }
  }
  return false;
}
#define IS_IN(table, point) \
  is_in(table, sizeof(table) / sizeof(table)[0], point)

// The property White_Space, which is the same in all versions since 6.3.
static bool is_space(uint32_t point) {
  if (point <= 0x20) return point == 0x20 || (point >= 0x09 && point <= 0x0d);
  if (point < 0x1680) return point == 0x85 || point == 0xa0;
  return point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x2028 || point == 0x2029 || point == 0x202f ||
         point == 0x205f || point == 0x3000;
}

// The kind of the first character of a text, and its bytes.
static kind_t read_kind(const char* text, size_t bytes, size_t* out_bytes) {
  uint32_t point;
  *out_bytes = choir__utf8_read(text, bytes, &point);
  if (*out_bytes == 0) {
    *out_bytes = 1;  // not UTF-8: one byte, alone
    return KIND_OTHER;
  }
  if (is_space(point)) return KIND_SPACE;
  if (point < 0x80) {
    if ((point | 0x20) >= 'a' && (point | 0x20) <= 'z') return KIND_LETTER;
    return point >= '0' && point <= '9' ? KIND_NUMBER : KIND_OTHER;
  }
  if (IS_IN(choir__unicode_letters, point)) return KIND_LETTER;
  return IS_IN(choir__unicode_numbers, point) ? KIND_NUMBER : KIND_OTHER;
}

// The bytes of 's, 'd, 'm, 't, 'll, 've or 're at the beginning, or 0.
static size_t ending(const char* text, size_t bytes) {
  if (bytes < 2 || text[0] != '\'') return 0;
  if (memchr("sdmt", text[1], 4)) return 2;
  if (bytes < 3) return 0;
  const char* const pairs[] = {"ll", "ve", "re"};
  for (int k = 0; k < 3; ++k) {
    if (memcmp(text + 1, pairs[k], 2) == 0) return 3;
  }
  return 0;
}

size_t choir__byte_pairs_split(const char* text, size_t bytes) {
  size_t at = ending(text, bytes);
  if (at > 0) return at;
  size_t size;
  kind_t kind = read_kind(text, bytes, &size);
  if (text[0] == ' ' && bytes > 1) {
    size_t next_size;
    const kind_t next = read_kind(text + 1, bytes - 1, &next_size);
    if (next != KIND_SPACE) {
      kind = next;
      size += next_size;
    }
  }
  size_t last = 0;  // where the last character of this kind begins
  at = size;
  while (at < bytes && read_kind(text + at, bytes - at, &size) == kind) {
    last = at;
    at += size;
  }
  // The last one of several spaces goes with the word behind it.
  return kind == KIND_SPACE && at < bytes && last > 0 ? last : at;
}
