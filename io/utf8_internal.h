// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_UTF8_INTERNAL_H_
#define CHOIR_IO_UTF8_INTERNAL_H_

#include "core/base.h"

// Bytes of the character at `text`, of which there is at least one byte, and
// its code point; 0: these bytes are no UTF-8 (Unicode, table 3-7).
size_t choir__utf8_read(const char* text, size_t bytes, uint32_t* out_code);
// Writes a code point's bytes and returns how many.
size_t choir__utf8_write(uint32_t code, char out_text[4]);

#endif  // CHOIR_IO_UTF8_INTERNAL_H_
