// SPDX-License-Identifier: Apache-2.0
#include "dist/memory_file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

// The kernel tells of the limit on the size of files by a signal, whose default
// is to end the process, before the call returns EFBIG.
static int allocate_without_signal(int fd, size_t bytes) {
  sigset_t set, pending, before;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  sigpending(&pending);
  int error;
  do {
    error = posix_fallocate(fd, 0, (off_t)bytes);
  } while (error == EINTR);
  const struct timespec now = {0, 0};
  if (error == EFBIG && !sigismember(&pending, SIGXFSZ))
    sigtimedwait(&set, NULL, &now);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

static choir_status_t allocation_error(size_t bytes, int error) {
  struct rlimit limit;
  if (error == EFBIG && !getrlimit(RLIMIT_FSIZE, &limit) &&
      limit.rlim_cur < bytes)
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "shared memory: %zu bytes are needed; the limit on the "
                       "size of files, which holds for it too, is %llu bytes; "
                       "raise it (ulimit -f)",
                       bytes, (unsigned long long)limit.rlim_cur);
  return CHOIR_ERROR(OUT_OF_MEMORY, "shared memory: %zu bytes: %s", bytes,
                     strerror(error));
}

choir_status_t choir__memory_file_create(const char* name, size_t bytes,
                                         int* out_fd) {
  *out_fd = -1;
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return CHOIR_ERROR(UNAVAILABLE, "shared memory: memfd_create: %s",
                       strerror(errno));
  const int error = allocate_without_signal(fd, bytes);
  if (error) {
    close(fd);
    return allocation_error(bytes, error);
  }
  if (fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL)) {
    choir_status_t status = CHOIR_ERROR(
        UNAVAILABLE, "shared memory: F_ADD_SEALS: %s", strerror(errno));
    close(fd);
    return status;
  }
  *out_fd = fd;
  return NULL;
}

choir_status_t choir__memory_file_check(int fd, size_t bytes) {
  struct stat info;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &info) ||
      info.st_size < 0 || (size_t)info.st_size < bytes)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "shared memory: what was handed over is not %zu bytes "
                       "of memory of a fixed size",
                       bytes);
  return NULL;
}
