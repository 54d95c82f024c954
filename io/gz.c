// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "io/gz_internal.h"
#include "io/io_internal.h"

// zlib's gz functions read plain and gzipped files alike. A header can claim
// any size, so before memory is asked for, the claim is held against the
// file's length.
#define DEFLATE_MAX_RATIO 1032

choir_status_t choir__gz_open(const char* where, const char* path,
                              choir__gz_t* out_gz) {
  *out_gz = (choir__gz_t){.where = where, .path = path};
  int fd;
  CHOIR_TRY(choir__io_open(where, path, &fd, &out_gz->file_bytes));
  out_gz->file = gzdopen(fd, "rb");
  if (!out_gz->file) {
    close(fd);
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no memory to open '%s'", where,
                       path);
  }
  gzbuffer(out_gz->file, 1u << 17);
  return NULL;
}

void choir__gz_close(choir__gz_t* gz) { gzclose_r(gz->file); }

choir_status_t choir__gz_read(choir__gz_t* gz, void* data, size_t bytes,
                              size_t* out_got) {
  uint8_t* to = data;
  *out_got = 0;
  while (*out_got < bytes) {
    size_t left = bytes - *out_got;
    unsigned want = left < (1u << 30) ? (unsigned)left : 1u << 30;
    int got = gzread(gz->file, to + *out_got, want);
    int code = Z_OK;
    const char* text = gzerror(gz->file, &code);
    // Z_BUF_ERROR: the compressed stream stops early, told by the count.
    if (got < 0 ||
        (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)) {
      if (code == Z_ERRNO) {
        return CHOIR__IO_ERROR(errno, "%s: cannot read '%s'", gz->where,
                               gz->path);
      }
      if (code == Z_MEM_ERROR) {
        return CHOIR_ERROR(OUT_OF_MEMORY, "%s: no memory to unpack '%s'",
                           gz->where, gz->path);
      }
      if (code != Z_BUF_ERROR) {
        return CHOIR_ERROR(OUT_OF_RANGE,
                           "%s: '%s' is broken: its gzip stream cannot be "
                           "unpacked (%s)",
                           gz->where, gz->path, text);
      }
    }
    if (got <= 0) return NULL;
    *out_got += (size_t)got;
  }
  return NULL;
}

choir_status_t choir__gz_check_end(choir__gz_t* gz) {
  int code = Z_OK;
  gzerror(gz->file, &code);
  if (code != Z_BUF_ERROR) return NULL;
  return CHOIR_ERROR(OUT_OF_RANGE,
                     "%s: '%s' is truncated: its gzip stream has no end",
                     gz->where, gz->path);
}

uint64_t choir__gz_most_bytes(choir__gz_t* gz) {
  return gz->file_bytes * (gzdirect(gz->file) ? 1 : DEFLATE_MAX_RATIO);
}
