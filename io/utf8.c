// SPDX-License-Identifier: Apache-2.0
#include "io/utf8_internal.h"

size_t choir__utf8_read(const char* text, size_t bytes, uint32_t* out_code) {
  const uint8_t* at = (const uint8_t*)text;
  const uint8_t lead = at[0];
  *out_code = lead;
  if (lead < 0x80) return 1;
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead < 0xc2 || lead > 0xf4 || bytes < size) return 0;
  // The second byte's range depends on the first: no number has two forms,
  // none is half of a pair of UTF-16 or above 10ffff.
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (at[1] < low || at[1] > high) return 0;
  uint32_t code = lead & (0x7fu >> size);
  for (size_t k = 1; k < size; ++k) {
    if (at[k] < 0x80 || at[k] > 0xbf) return 0;
    code = code << 6 | (at[k] & 0x3fu);
  }
  *out_code = code;
  return size;
}

size_t choir__utf8_write(uint32_t code, char out_text[4]) {
  if (code < 0x80) {
    out_text[0] = (char)code;
    return 1;
  }
  const size_t size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t k = size - 1; k > 0; --k, code >>= 6)
    out_text[k] = (char)(0x80u | (code & 0x3fu));
  out_text[0] = (char)(code | (0xf00u >> size & 0xf0u));
  return size;
}
