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

static choir_status_t check_one(const char* path, bool may_be_sticky) {
  struct stat info;
  if (lstat(path, &info))
    return CHOIR_ERROR(UNAVAILABLE, "%s: %s", path, strerror(errno));
  if (S_ISLNK(info.st_mode))
    return CHOIR_ERROR(UNAVAILABLE, "%s is a symbolic link", path);
  if (info.st_uid != 0 && info.st_uid != geteuid())
    return CHOIR_ERROR(UNAVAILABLE,
                       "%s belongs to uid %u, neither to root nor to this user",
                       path, (unsigned)info.st_uid);
  if (others_write(&info) && !(may_be_sticky && (info.st_mode & S_ISVTX)))
    return CHOIR_ERROR(UNAVAILABLE, "other users can write to %s", path);
  return NULL;
}

choir_status_t choir__path_check_trusted(const char* path) {
  char at[PATH_MAX];
  if (path[0] != '/' || snprintf(at, sizeof(at), "%s", path) >= PATH_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%.200s is no absolute path", path);
  CHOIR_TRY(check_one(at, false));
  for (bool is_own_folder = true;; is_own_folder = false) {
    char* slash = strrchr(at, '/');
    slash[slash == at] = 0;  // the root keeps its slash
    CHOIR_TRY(check_one(at, !is_own_folder));
    if (!at[1]) return NULL;
  }
}
