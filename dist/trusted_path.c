// SPDX-License-Identifier: Apache-2.0
#include "dist/trusted_path_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Debian and others give each user a group of his own, of the same number, and
// let it write.
static bool is_own_group(gid_t group) {
  return group == 0 || (group == getegid() && group == (gid_t)geteuid());
}

static bool others_write(const struct stat* info) {
  return (info->st_mode & S_IWOTH) ||
         ((info->st_mode & S_IWGRP) && !is_own_group(info->st_gid));
}

// Whether `uid` stands for all users that this process's user namespace does
// not know (user_namespaces(7)), as root's folders do in the sandbox that Bazel
// makes for who is not root.
static bool is_unmapped(uid_t uid) {
  unsigned overflow = 65534, first, beyond, count;
  FILE* file = fopen("/proc/sys/kernel/overflowuid", "re");
  if (file) {
    if (fscanf(file, "%u", &overflow) != 1) overflow = 65534;
    fclose(file);
  }
  if (uid != overflow) return false;
  file = fopen("/proc/self/uid_map", "re");
  if (!file) return false;
  bool is_mapped = false;
  while (fscanf(file, "%u %u %u", &first, &beyond, &count) == 3)
    is_mapped |= uid >= first && uid - first < count;
  fclose(file);
  return !is_mapped;
}

// `is_near`: the file, and its own folder.
static choir_status_t check_one(const char* path, bool is_near) {
  struct stat info;
  if (lstat(path, &info))
    return CHOIR_ERROR(UNAVAILABLE, "%s: %s", path, strerror(errno));
  if (S_ISLNK(info.st_mode))
    return CHOIR_ERROR(UNAVAILABLE, "%s is a symbolic link", path);
  if (info.st_uid != 0 && info.st_uid != geteuid() &&
      (is_near || !is_unmapped(info.st_uid)))
    return CHOIR_ERROR(UNAVAILABLE,
                       "%s belongs to uid %u, neither to root nor to this user",
                       path, (unsigned)info.st_uid);
  if (others_write(&info) && (is_near || !(info.st_mode & S_ISVTX)))
    return CHOIR_ERROR(UNAVAILABLE, "other users can write to %s", path);
  return NULL;
}

choir_status_t choir__path_check_trusted(const char* path) {
  char at[PATH_MAX];
  if (path[0] != '/' || snprintf(at, sizeof(at), "%s", path) >= PATH_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%.200s is no absolute path", path);
  CHOIR_TRY(check_one(at, true));
  for (bool is_own_folder = true;; is_own_folder = false) {
    char* slash = strrchr(at, '/');
    slash[slash == at] = 0;  // the root keeps its slash
    CHOIR_TRY(check_one(at, is_own_folder));
    if (!at[1]) return NULL;
  }
}
