// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_IO_IO_INTERNAL_H_
#define CHOIR_IO_IO_INTERNAL_H_

#include "core/status.h"
#include "io/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the files of this layer share: refusals of the system as statuses, file
// access that survives signals and odd files, data sets to be filled.

// The one place where errno values become statuses: "<format ...>: <the
// system's words>". NOT_FOUND for what is not there, OUT_OF_MEMORY,
// INTERNAL for a failing disk, else FAILED_PRECONDITION.
choir_status_t choir__io_status(int error, const char* file, int line,
                                const char* function, const char* format, ...)
    CHOIR_PRINTF(5, 6) CHOIR_NODISCARD;
#define CHOIR__IO_ERROR(error, ...) \
  choir__io_status(error, __FILE__, __LINE__, __func__, __VA_ARGS__)

// Opens a regular file for reading and tells its length. Never hangs on a
// pipe or a device: those are INVALID_ARGUMENT. `where` begins the message.
choir_status_t choir__io_open(const char* where, const char* path, int* out_fd,
                              uint64_t* out_bytes) CHOIR_NODISCARD;

// Reads exactly `bytes` at `offset`, or fails (OUT_OF_RANGE at the end of the
// file).
choir_status_t choir__io_read_at(int fd, const char* where, const char* path,
                                 uint64_t offset, void* data, size_t bytes)
    CHOIR_NODISCARD;

// Writes all of `bytes` at the file's position.
choir_status_t choir__io_write(int fd, const char* path, const void* data,
                               size_t bytes) CHOIR_NODISCARD;

// A data set with memory of its own, for the caller to fill before anybody else
// sees it: count images of shape (channels, height, width), all 0. The sizes
// are at least 1 and their product fits size_t. *out_pixels (count, channels,
// height, width) and *out_labels (count, each to be below class_count) belong
// to the data set.
choir_status_t choir__dataset_create_blank(
    int64_t count, const int64_t shape[3], int64_t class_count,
    uint8_t** out_pixels, int32_t** out_labels, choir_dataset_t** out_dataset)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_IO_IO_INTERNAL_H_
