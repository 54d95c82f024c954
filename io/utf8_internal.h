// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_UTF8_INTERNAL_H_
#define CHOIR_IO_UTF8_INTERNAL_H_

#include "core/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// The code point that `text` begins with and how many of its `bytes` encode it:
// 1 to 4, or 0 where no well-formed character stands (surrogates and overlong
// forms are none). *out_point is 0 then.
size_t choir__utf8_read(const char* text, size_t bytes, uint32_t* out_point);

// Writes the bytes of a code point and returns how many.
size_t choir__utf8_write(uint32_t point, char out_text[4]);

// Whether `text` consists of well-formed characters.
bool choir__utf8_is_valid(const char* text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_UTF8_INTERNAL_H_
