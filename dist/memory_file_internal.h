// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_MEMORY_FILE_INTERNAL_H_
#define CHOIR_DIST_MEMORY_FILE_INTERNAL_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Memory that processes share as a file without a name.

// `bytes` above 0, all of which the kernel has given, of a size that nobody can
// change: a process that maps them gets no SIGBUS, unless another who has the
// file gives pages back (punches holes) and memory has run out since.
// OUT_OF_MEMORY, and no signal, also where the limit on the size of files
// (ulimit -f) is lower.
choir_status_t choir__memory_file_create(const char* name, size_t bytes,
                                         int* out_fd) CHOIR_NODISCARD;

// Whether `fd`, which another process gave, is such a file of at least `bytes`.
choir_status_t choir__memory_file_check(int fd, size_t bytes) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_MEMORY_FILE_INTERNAL_H_
