// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_PROC_INTERNAL_H_
#define CHOIR_DIST_PROC_INTERNAL_H_

#include <sys/types.h>

#include "core/base.h"

// Folders, and processes as /proc shows them: by system calls alone, so that a
// process forked from one with threads can read them (guard.c).

typedef struct choir__folder_s {
  int fd;
  long used;
  long at;
  _Alignas(8) char entries[4096];
} choir__folder_t;

// `name` in the open folder `parent` (AT_FDCWD: in the current one); a symbolic
// link is none. Close it after success.
bool choir__folder_open(choir__folder_t* folder, int parent, const char* name);
// The next name, valid until the next call; NULL: there are no more.
const char* choir__folder_next(choir__folder_t* folder);
void choir__folder_close(choir__folder_t* folder);

typedef struct choir__process_s {
  char name[12];  // its folder's: the digits of `pid`
  pid_t pid;
  pid_t parent;
  char state;     // 'R' runs, 'T' is stopped, 'Z' has ended and is not reaped
  int exit_code;  // of 'Z', as waitpid gives it
} choir__process_t;

// Opens /proc. The next process there is; false: there are no more.
bool choir__processes_open(choir__folder_t* proc);
bool choir__processes_next(choir__folder_t* proc,
                           choir__process_t* out_process);
// The value of a variable, `name` being "NAME=", in the environment that a
// process was started with; cut at value_bytes. False: it has none, or it may
// not be seen.
bool choir__process_variable(const choir__folder_t* proc,
                             const choir__process_t* process, const char* name,
                             char* value, size_t value_bytes);

#endif  // CHOIR_DIST_PROC_INTERNAL_H_
