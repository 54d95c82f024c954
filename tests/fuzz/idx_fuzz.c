// SPDX-License-Identifier: Apache-2.0
// Files of images in MNIST's format, plain and compressed. The first byte is
// how they are asked for.
#include <stdlib.h>
#include <string.h>

#include "io/idx.h"
#include "tests/fuzz/fuzz.h"

// gzip of a file with 2 labels, 7 and 2.
static const uint8_t compressed[] = {
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff,
    0x63, 0x60, 0xe0, 0x60, 0x64, 0x60, 0x60, 0x60, 0x62, 0x67,
    0x02, 0x00, 0xf2, 0x5b, 0xd3, 0x34, 0x0a, 0x00, 0x00, 0x00};

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  static const uint8_t labels[] = {1, 0, 0, 8, 1, 0, 0, 0, 2, 7, 2};
  static const uint8_t images[] = {3, 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,
                                   0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8};
  if (number == 0) memcpy(out_data, labels, sizeof(labels));
  if (number == 0) return sizeof(labels);
  if (number == 1) memcpy(out_data, images, sizeof(images));
  if (number == 1) return sizeof(images);
  if (number > 2) return 0;
  out_data[0] = 1;
  memcpy(out_data + 1, compressed, sizeof(compressed));
  return 1 + sizeof(compressed);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  choir_idx_t idx = {0};
  const int64_t limit = data[0] >> 4;
  choir_status_t status = choir_idx_read(choir_fuzz_file(data + 1, bytes - 1),
                                         data[0] & 15, limit, &idx);
  if (!status) {
    size_t count = 1;
    for (int32_t i = 0; i < idx.ndim; ++i) count *= (size_t)idx.shape[i];
    if (count != idx.bytes) abort();
    // All of it is there.
    unsigned sum = 0;
    for (size_t i = 0; i < idx.bytes; ++i) sum += idx.data[i];
    if (sum > 255 * idx.bytes) abort();
  } else if (idx.data) {
    abort();
  }
  choir_status_free(status);
  choir_idx_clear(&idx);
  return 0;
}
