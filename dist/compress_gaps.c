// SPDX-License-Identifier: Apache-2.0
// Golomb codes with a power of two as the parameter, in words of 64 bits.
#include <string.h>

#include "dist/compress_kernels_internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "messages are written as words of a little-endian machine"
#endif

enum { WORD_BITS = 56 };  // a word at any bit of a byte holds so many

int32_t choir__gaps_rice(int64_t count, int64_t k) {
  int32_t rice = 0;
  if (k > 0)
    while ((count - k) >> (rice + 1) >= k) ++rice;
  return rice;
}

size_t choir__gaps_most_bytes(int64_t count, int64_t k, int32_t rice) {
  const int64_t bits = k * (1 + rice) + (k > 0 ? (count - k) >> rice : 0);
  return (size_t)((bits + 7) / 8);
}

typedef struct writer_s {
  uint8_t* out;
  uint64_t word;
  int filled;  // bits of `word`, below 8 between calls
} writer_t;

// bits <= WORD_BITS.
static void put(writer_t* writer, uint64_t value, int bits) {
  writer->word |= value << writer->filled;
  writer->filled += bits;
  memcpy(writer->out, &writer->word, sizeof(writer->word));
  writer->out += writer->filled >> 3;
  writer->word >>= writer->filled & ~7;
  writer->filled &= 7;
}

choir_status_t choir__gaps_encode(int64_t count, int64_t k, int32_t rice,
                                  const int32_t* indices, uint8_t* gaps,
                                  size_t* out_bytes) {
  writer_t writer = {gaps, 0, 0};
  int64_t last = -1;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t index = indices[i];
    if (index <= last || index >= count)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "sparse message: index %lld of %lld is %lld after "
                         "%lld; indices must increase and be below %lld",
                         (long long)i, (long long)k, (long long)index,
                         (long long)last, (long long)count);
    const uint64_t gap = (uint64_t)(index - last - 1);
    last = index;
    uint64_t zeros = gap >> rice;
    for (; zeros + 1 + (uint64_t)rice > WORD_BITS; zeros -= 24)
      put(&writer, 0, 24);
    const uint64_t low = gap & (((uint64_t)1 << rice) - 1);
    put(&writer, (low << 1 | 1) << zeros, (int)zeros + 1 + rice);
  }
  *out_bytes = (size_t)(writer.out - gaps) + (writer.filled > 0);
  return NULL;
}

// 57 bits or more from this one on; zeros behind the end.
static uint64_t peek(const choir__gaps_reader_t* reader, uint64_t bit) {
  const size_t at = (size_t)(bit >> 3);
  uint64_t word = 0;
  if (at + sizeof(word) <= reader->bytes)
    memcpy(&word, reader->gaps + at, sizeof(word));
  else if (at < reader->bytes)
    memcpy(&word, reader->gaps + at, reader->bytes - at);
  return word >> (bit & 7);
}

static choir_status_t check_end(const choir__gaps_reader_t* reader) {
  const uint64_t bits = (uint64_t)reader->bytes * 8;
  if (reader->bit + 8 <= bits ||
      (reader->bit < bits && peek(reader, reader->bit)))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: %zu bytes of gaps, of which %lld "
                       "indices take %llu bits; no more may follow",
                       reader->bytes, (long long)reader->k,
                       (unsigned long long)reader->bit);
  return NULL;
}

static choir_status_t decode_one(choir__gaps_reader_t* reader,
                                 int32_t* out_index) {
  const uint64_t end = (uint64_t)reader->bytes * 8;
  uint64_t zeros = 0;
  uint64_t word = peek(reader, reader->bit);
  while (word == 0 && reader->bit < end) {
    // So many peek gives for certain.
    zeros += WORD_BITS;
    reader->bit += WORD_BITS;
    word = peek(reader, reader->bit);
  }
  const uint64_t more = word ? (uint64_t)__builtin_ctzll(word) : 0;
  reader->bit += more + 1;
  const uint64_t low =
      peek(reader, reader->bit) & (((uint64_t)1 << reader->rice) - 1);
  reader->bit += (uint64_t)reader->rice;
  if (reader->bit > end)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: the %zu bytes of gaps end in index "
                       "%lld of %lld",
                       reader->bytes, (long long)reader->done,
                       (long long)reader->k);
  const uint64_t high = zeros + more;
  const uint64_t left = (uint64_t)(reader->count - reader->index - 1);
  if (high > left >> reader->rice || (high << reader->rice | low) >= left)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: the gap after index %lld leads out of "
                       "%lld elements",
                       (long long)reader->index, (long long)reader->count);
  reader->index += (int64_t)(high << reader->rice | low) + 1;
  ++reader->done;
  *out_index = (int32_t)reader->index;
  return NULL;
}

choir_status_t choir__gaps_decode(choir__gaps_reader_t* reader, int64_t n,
                                  int32_t* out_indices) {
  for (int64_t i = 0; i < n; ++i)
    CHOIR_TRY(decode_one(reader, out_indices + i));
  return reader->done == reader->k ? check_end(reader) : NULL;
}
