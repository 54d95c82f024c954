// SPDX-License-Identifier: Apache-2.0
// Sparse messages of other ranks. The first two bytes are how many elements
// the receiver has; the checksum is made to fit, as who sends nonsense may send
// a right one.
#include <stdlib.h>
#include <string.h>

#include "dist/compress_internal.h"
#include "dist/compress_kernels_internal.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_COUNT = 4096, CHECKSUM_AT = 4 };

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  static const choir__value_kind_t kinds[] = {
      CHOIR__VALUES_F32, CHOIR__VALUES_F16, CHOIR__VALUES_BITS2,
      CHOIR__VALUES_BITS3, CHOIR__VALUES_BITS4};
  enum { K = 150 };
  if (number >= 2 * (int)(sizeof(kinds) / sizeof(kinds[0]))) return 0;
  const uint16_t count = number % 2 ? 4000 : 160;
  int32_t indices[K];
  float values[K];
  for (int32_t i = 0; i < K; ++i) {
    indices[i] = i * (count / K);
    values[i] = (float)(i - 70) / 8;
  }
  const choir__message_config_t config = {
      .kind = kinds[number / 2], .block = 128, .weight = 64};
  size_t bytes = 0;
  memcpy(out_data, &count, sizeof(count));
  if (choir__message_encode(&config, count, K, indices, values,
                            out_data + sizeof(count), &bytes, NULL, NULL))
    abort();
  return sizeof(count) + bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static _Alignas(8) uint8_t message[CHOIR_FUZZ_MOST_BYTES];
  static int32_t indices[MOST_COUNT];
  static float values[MOST_COUNT], dense[MOST_COUNT + 1];
  uint16_t count;
  if (bytes < sizeof(count) || bytes > sizeof(message)) return 0;
  memcpy(&count, data, sizeof(count));
  count %= MOST_COUNT + 1;
  bytes -= sizeof(count);
  // At the end, so that what lies behind is not the message's.
  uint8_t* start = message + (sizeof(message) - bytes) / 8 * 8;
  memcpy(start, data + sizeof(count), bytes);
  if (bytes >= 2 * CHECKSUM_AT) {
    const uint32_t sum = choir__message_checksum(start, bytes);
    memcpy(start + CHECKSUM_AT, &sum, sizeof(sum));
  }
  choir__message_t opened;
  choir_status_t status = choir__message_open(start, bytes, count, &opened);
  if (!status) {
    if (opened.k > count || opened.count != count) abort();
    status = choir__message_decode(&opened, indices, values);
    for (int64_t i = 0; i < opened.k && !status; ++i)
      if (indices[i] < (i ? indices[i - 1] + 1 : 0) || indices[i] >= count)
        abort();
    choir_status_free(status);
    dense[count] = 5;
    status = choir__message_add(&opened, 0.5f, dense);
    if (dense[count] != 5) abort();
  }
  choir_status_free(status);
  return 0;
}
