// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_IDX_H_
#define CHOIR_IO_IDX_H_

#include "core/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

// IDX files, the format of MNIST: two zero bytes, an element type, the number
// of dimensions, that many big-endian 32-bit sizes, then the elements row by
// row. Gzipped files are read as they are.
//
//   choir_idx_t images;
//   CHOIR_TRY(choir_idx_read("train-images-idx3-ubyte.gz", 3, 0, &images));
//   ... images.data[(i * images.shape[1] + row) * images.shape[2] + column]
//   choir_idx_clear(&images);
//
// Only unsigned bytes (type 0x08) are read; that is what MNIST and its kin
// have.
//
// Ownership: a plain value that owns its data until choir_idx_clear.
// Threads: different values by different threads.

typedef struct choir_idx_s {
  uint8_t* data;  // row-major, shape[0] * ... * shape[ndim - 1] bytes
  size_t bytes;
  int32_t ndim;
  int64_t shape[CHOIR_MAX_NDIM];
  // Rows that the file has; shape[0] is smaller when a limit cut them.
  int64_t total_rows;
} choir_idx_t;

// Reads `path`, which must have `ndim` (1 to CHOIR_MAX_NDIM) dimensions. With
// limit > 0 only the first `limit` rows (entries of dimension 0) are read and
// what comes after them is not looked at; with 0 all are, and a file that
// ends early or goes on is refused. A failure is one sentence with the file,
// what was found and what was needed: NOT_FOUND (no such file),
// INVALID_ARGUMENT (another kind of file), OUT_OF_RANGE (truncated, trailing
// bytes, or broken compression), OUT_OF_MEMORY. Nothing is kept then. Sizes in
// the header are believed only as far as the file's length allows. Blocks on
// the disk.
CHOIR_API choir_status_t choir_idx_read(const char* path, int32_t ndim,
                                        int64_t limit, choir_idx_t* out_idx)
    CHOIR_NODISCARD;
// Gives the data back and zeroes the value; a zeroed value is fine.
CHOIR_API void choir_idx_clear(choir_idx_t* idx);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_IDX_H_
