// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_internal.h"

// Some systems refuse single transfers of 2 GiB and more.
#define TRANSFER_BYTES ((size_t)1 << 30)

static choir_status_code_t code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return CHOIR_STATUS_NOT_FOUND;
    case ENOMEM:
      return CHOIR_STATUS_OUT_OF_MEMORY;
    case EIO:
      return CHOIR_STATUS_INTERNAL;
    default:
      return CHOIR_STATUS_FAILED_PRECONDITION;
  }
}

choir_status_t choir__io_status(int error, const char* file, int line,
                                const char* function, const char* format, ...) {
  va_list args;
  va_start(args, format);
  choir_status_t status =
      choir_status_make_va(code_of(error), file, line, function, format, args);
  va_end(args);
  // The GNU form: returns the text, which need not be in `words`.
  char words[128];
  const char* text = strerror_r(error, words, sizeof words);
  choir_status_t whole =
      choir_status_make(code_of(error), file, line, function, "%s: %s",
                        choir_status_message(status), text);
  choir_status_free(status);
  return whole;
}

choir_status_t choir__io_open(const char* where, const char* path, int* out_fd,
                              uint64_t* out_bytes) {
  *out_fd = -1;
  *out_bytes = 0;
  // Without O_NONBLOCK opening a pipe waits for a writer.
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    return CHOIR__IO_ERROR(errno, "%s: cannot open '%s'", where, path);
  }
  struct stat info;
  if (fstat(fd, &info) != 0) {
    int error = errno;
    close(fd);
    return CHOIR__IO_ERROR(error, "%s: cannot look at '%s'", where, path);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: '%s' is a %s; an ordinary file is needed", where,
                       path, S_ISDIR(info.st_mode) ? "folder" : "special file");
  }
  *out_fd = fd;
  *out_bytes = (uint64_t)info.st_size;
  return NULL;
}

choir_status_t choir__io_read_at(int fd, const char* where, const char* path,
                                 uint64_t offset, void* data, size_t bytes) {
  uint8_t* bytes_left = data;
  while (bytes > 0) {
    size_t want = bytes < TRANSFER_BYTES ? bytes : TRANSFER_BYTES;
    ssize_t got = pread(fd, bytes_left, want, (off_t)offset);
    if (got < 0) {
      if (errno == EINTR) continue;
      return CHOIR__IO_ERROR(errno, "%s: cannot read '%s'", where, path);
    }
    if (got == 0) {
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "%s: '%s' ends at byte %llu; %zu more bytes are "
                         "needed",
                         where, path, (unsigned long long)offset, bytes);
    }
    bytes_left += got;
    offset += (uint64_t)got;
    bytes -= (size_t)got;
  }
  return NULL;
}

choir_status_t choir__io_write(int fd, const char* path, const void* data,
                               size_t bytes) {
  const uint8_t* bytes_left = data;
  while (bytes > 0) {
    size_t want = bytes < TRANSFER_BYTES ? bytes : TRANSFER_BYTES;
    ssize_t put = write(fd, bytes_left, want);
    if (put < 0) {
      if (errno == EINTR) continue;
      return CHOIR__IO_ERROR(errno, "cannot write '%s'", path);
    }
    if (put == 0) {
      return CHOIR_ERROR(FAILED_PRECONDITION,
                         "cannot write '%s': the disk takes no more bytes",
                         path);
    }
    bytes_left += put;
    bytes -= (size_t)put;
  }
  return NULL;
}
