// SPDX-License-Identifier: Apache-2.0
#include "io/idx.h"

#include <stdio.h>
#include <string.h>

#include "io/gz_internal.h"

#define IDX_UNSIGNED_BYTE 0x08
// "4294967295 x " for each dimension.
#define SHAPE_TEXT_BYTES (CHOIR_MAX_NDIM * 13 + 1)

static const char* print_shape(const choir_idx_t* idx, int64_t rows,
                               char text[SHAPE_TEXT_BYTES]) {
  size_t used = 0;
  for (int32_t k = 0; k < idx->ndim; ++k) {
    used +=
        (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, "%s%lld",
                         k ? " x " : "", (long long)(k ? idx->shape[k] : rows));
  }
  return text;
}

static choir_status_t read_header(choir__gz_t* source, int32_t ndim,
                                  choir_idx_t* out_idx) {
  uint8_t bytes[4 + 4 * CHOIR_MAX_NDIM];
  size_t got;
  CHOIR_TRY(choir__gz_read(source, bytes, 4, &got));
  if (got < 4) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "idx: '%s' ends after %zu bytes; the header of an IDX "
                       "file has %d",
                       source->path, got, 4 + 4 * ndim);
  }
  if (bytes[0] != 0 || bytes[1] != 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "idx: '%s' begins with bytes %02x %02x; an IDX file "
                       "begins with 00 00",
                       source->path, bytes[0], bytes[1]);
  }
  if (bytes[2] != IDX_UNSIGNED_BYTE) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "idx: '%s' has elements of type 0x%02x; 0x08 (unsigned "
                       "byte) is needed",
                       source->path, bytes[2]);
  }
  if (bytes[3] != ndim) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "idx: '%s' has %d dimensions; %d are needed",
                       source->path, bytes[3], ndim);
  }
  CHOIR_TRY(choir__gz_read(source, bytes + 4, 4 * (size_t)ndim, &got));
  if (got < 4 * (size_t)ndim) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "idx: '%s' ends after %zu bytes; its header has %d",
                       source->path, 4 + got, 4 + 4 * ndim);
  }
  out_idx->ndim = ndim;
  for (int32_t k = 0; k < ndim; ++k) {
    const uint8_t* size = bytes + 4 + 4 * k;
    out_idx->shape[k] =
        (int64_t)((uint32_t)size[0] << 24 | (uint32_t)size[1] << 16 |
                  (uint32_t)size[2] << 8 | size[3]);
  }
  out_idx->total_rows = out_idx->shape[0];
  return NULL;
}

static choir_status_t read_all(choir__gz_t* source, int32_t ndim, int64_t limit,
                               choir_idx_t* out_idx) {
  CHOIR_TRY(read_header(source, ndim, out_idx));
  char shape[SHAPE_TEXT_BYTES];
  const int64_t total_rows = out_idx->total_rows;
  if (limit > 0 && limit < total_rows) out_idx->shape[0] = limit;
  const bool whole = out_idx->shape[0] == total_rows;

  size_t row_bytes = 1;
  bool fits = true;
  for (int32_t k = 1; k < ndim; ++k) {
    fits = fits && !__builtin_mul_overflow(row_bytes, (size_t)out_idx->shape[k],
                                           &row_bytes);
  }
  fits = fits && !__builtin_mul_overflow(row_bytes, (size_t)out_idx->shape[0],
                                         &out_idx->bytes);
  if (!fits || out_idx->bytes > choir__gz_most_bytes(source)) {
    out_idx->bytes = 0;
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "idx: '%s' is truncated: its header promises %s bytes, "
                       "more than its %llu bytes can hold",
                       source->path, print_shape(out_idx, total_rows, shape),
                       (unsigned long long)source->file_bytes);
  }

  size_t got = 0;
  if (out_idx->bytes > 0) {
    void* memory;
    CHOIR_TRY_NOTE(choir_allocate(choir_allocator_default(), out_idx->bytes,
                                  "its elements", &memory),
                   "idx: '%s'", source->path);
    out_idx->data = memory;
    CHOIR_TRY(choir__gz_read(source, out_idx->data, out_idx->bytes, &got));
  }
  if (got < out_idx->bytes) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "idx: '%s' is truncated: it has %zu of the %zu bytes "
                       "that are needed (its header promises %s)",
                       source->path, got, out_idx->bytes,
                       print_shape(out_idx, total_rows, shape));
  }
  if (!whole) return NULL;

  // Reading on also makes zlib compare its checksum.
  uint8_t extra;
  CHOIR_TRY(choir__gz_read(source, &extra, 1, &got));
  if (got > 0) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "idx: '%s' goes on after the %zu bytes that its header "
                       "promises (%s)",
                       source->path, out_idx->bytes,
                       print_shape(out_idx, total_rows, shape));
  }
  return choir__gz_check_end(source);
}

choir_status_t choir_idx_read(const char* path, int32_t ndim, int64_t limit,
                              choir_idx_t* out_idx) {
  memset(out_idx, 0, sizeof *out_idx);
  if (!path || ndim < 1 || ndim > CHOIR_MAX_NDIM || limit < 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "idx: path '%s', %d dimensions, limit %lld; a path, 1 "
                       "to %d dimensions and no negative limit are needed",
                       path ? path : "(null)", ndim, (long long)limit,
                       CHOIR_MAX_NDIM);
  }
  choir__gz_t source;
  CHOIR_TRY(choir__gz_open("idx", path, &source));
  choir_status_t status = read_all(&source, ndim, limit, out_idx);
  choir__gz_close(&source);
  if (status) choir_idx_clear(out_idx);
  return status;
}

void choir_idx_clear(choir_idx_t* idx) {
  if (idx->data) {
    choir_deallocate(choir_allocator_default(), idx->data, idx->bytes);
  }
  memset(idx, 0, sizeof *idx);
}
