// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_GZ_INTERNAL_H_
#define CHOIR_IO_GZ_INTERNAL_H_

#include "core/status.h"

// A file that is gzipped or not, read alike.

typedef struct choir__gz_s {
  struct gzFile_s* file;  // zlib's
  const char* where;      // begins messages
  const char* path;
  uint64_t file_bytes;  // of the file as it lies on the disk
} choir__gz_t;

// where and path are borrowed until the close. A pipe or a device is
// INVALID_ARGUMENT.
choir_status_t choir__gz_open(const char* where, const char* path,
                              choir__gz_t* out_gz) CHOIR_NODISCARD;
void choir__gz_close(choir__gz_t* gz);

// Reads up to `bytes`; fewer at the end of the file. OUT_OF_RANGE: the stream
// cannot be unpacked.
choir_status_t choir__gz_read(choir__gz_t* gz, void* data, size_t bytes,
                              size_t* out_got) CHOIR_NODISCARD;
// After a read that came to the end: OUT_OF_RANGE if the stream stops early.
choir_status_t choir__gz_check_end(choir__gz_t* gz) CHOIR_NODISCARD;
// The most that the file can hold: deflate never shrinks more than 1032 : 1.
// After the first read.
uint64_t choir__gz_most_bytes(choir__gz_t* gz);

#endif  // CHOIR_IO_GZ_INTERNAL_H_
