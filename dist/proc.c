// SPDX-License-Identifier: Apache-2.0
#include "dist/proc_internal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- Folders ----

// What the kernel writes.
typedef struct entry_s {
  uint64_t inode;
  int64_t offset;
  uint16_t bytes;
  uint8_t type;
  char name[];
} entry_t;

bool choir__folder_open(choir__folder_t* folder, int parent, const char* name) {
  folder->used = folder->at = 0;
  folder->fd =
      openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return folder->fd >= 0;
}

const char* choir__folder_next(choir__folder_t* folder) {
  if (folder->at >= folder->used) {
    folder->used = syscall(SYS_getdents64, folder->fd, folder->entries,
                           sizeof(folder->entries));
    folder->at = 0;
    if (folder->used <= 0) return NULL;
  }
  const entry_t* entry = (const entry_t*)(void*)(folder->entries + folder->at);
  folder->at += entry->bytes;
  return entry->name;
}

void choir__folder_close(choir__folder_t* folder) { close(folder->fd); }

// ---- Processes ----

// Digits only, as numbers of /proc are.
static int read_number(const char* text) {
  int number = 0;
  for (; *text >= '0' && *text <= '9' && number < 100000000; ++text)
    number = 10 * number + (*text - '0');
  return number;
}

static int open_file(const choir__folder_t* proc,
                     const choir__process_t* process, const char* name) {
  char path[32];
  const size_t used = strlen(process->name);
  memcpy(path, process->name, used);
  path[used] = '/';
  memcpy(path + used + 1, name, strlen(name) + 1);
  return openat(proc->fd, path, O_RDONLY | O_CLOEXEC);
}

// "PID (NAME) STATE PARENT ... EXIT_CODE", where NAME may have anything in it.
static bool read_stat(const choir__folder_t* proc, choir__process_t* process) {
  char text[1024];
  const int fd = open_file(proc, process, "stat");
  if (fd < 0) return false;
  const long bytes = read(fd, text, sizeof(text) - 1);
  close(fd);
  text[bytes > 0 ? bytes : 0] = 0;
  const char* fields = strrchr(text, ')');
  if (!fields || strlen(fields) < 5) return false;
  process->state = fields[2];
  process->parent = (pid_t)read_number(fields + 4);
  process->exit_code = read_number(strrchr(fields, ' ') + 1);
  return true;
}

bool choir__processes_open(choir__folder_t* proc) {
  return choir__folder_open(proc, AT_FDCWD, "/proc");
}

bool choir__processes_next(choir__folder_t* proc,
                           choir__process_t* out_process) {
  for (const char* name; (name = choir__folder_next(proc));) {
    choir__process_t* process = out_process;
    if (strlen(name) >= sizeof(process->name)) continue;
    strcpy(process->name, name);
    process->pid = (pid_t)read_number(name);
    if (process->pid > 0 && read_stat(proc, process)) return true;
  }
  return false;
}

bool choir__process_variable(const choir__folder_t* proc,
                             const choir__process_t* process, const char* name,
                             char* value, size_t value_bytes) {
  enum { MISMATCH = -1 };
  const int name_bytes = (int)strlen(name);
  const int fd = open_file(proc, process, "environ");
  if (fd < 0) return false;
  size_t length = 0;
  int matched = 0;  // characters of the name, in the entry that is read
  bool is_over = false;
  char block[4096];
  for (long bytes; !is_over && (bytes = read(fd, block, sizeof(block))) > 0;) {
    for (long i = 0; i < bytes && !is_over; ++i) {
      if (matched == name_bytes) {
        is_over = !block[i] || length + 1 == value_bytes;
        if (!is_over) value[length++] = block[i];
      } else if (!block[i]) {
        matched = 0;
      } else {
        matched =
            matched >= 0 && block[i] == name[matched] ? matched + 1 : MISMATCH;
      }
    }
  }
  close(fd);
  value[length] = 0;
  return is_over;
}
