// SPDX-License-Identifier: Apache-2.0
#include "io/utf8_internal.h"

size_t choir__utf8_read(const char* text, size_t bytes, uint32_t* out_point) {
  const uint8_t* at = (const uint8_t*)text;
  *out_point = 0;
  if (bytes == 0) return 0;
  if (*at < 0x80) {
    *out_point = *at;
    return 1;
  }
  // The Unicode standard, table 3-7: the second byte's range depends on the
  // first.
  size_t more;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (*at >= 0xc2 && *at <= 0xdf) {
    more = 1;
  } else if (*at >= 0xe0 && *at <= 0xef) {
    more = 2;
    if (*at == 0xe0) low = 0xa0;
    if (*at == 0xed) high = 0x9f;
  } else if (*at >= 0xf0 && *at <= 0xf4) {
    more = 3;
    if (*at == 0xf0) low = 0x90;
    if (*at == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (bytes <= more || at[1] < low || at[1] > high) return 0;
  uint32_t point = *at & (0x3fu >> more);
  for (size_t k = 1; k <= more; ++k) {
    if (at[k] < 0x80 || at[k] > 0xbf) return 0;
    point = point << 6 | (at[k] & 0x3fu);
  }
  *out_point = point;
  return more + 1;
}

size_t choir__utf8_write(uint32_t point, char out_text[4]) {
  if (point < 0x80) {
    out_text[0] = (char)point;
    return 1;
  }
  const size_t size = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  for (size_t k = size - 1; k > 0; --k, point >>= 6)
    out_text[k] = (char)(0x80u | (point & 0x3fu));
  // As many leading ones as bytes.
  out_text[0] = (char)(point | (0xf00u >> size & 0xf0u));
  return size;
}

bool choir__utf8_is_valid(const char* text, size_t bytes) {
  size_t at = 0;
  while (at < bytes) {
    uint32_t point;
    const size_t size = choir__utf8_read(text + at, bytes - at, &point);
    if (size == 0) return false;
    at += size;
  }
  return true;
}
