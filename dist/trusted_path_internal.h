// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_TRUSTED_PATH_INTERNAL_H_
#define CHOIR_DIST_TRUSTED_PATH_INTERNAL_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether nobody but root and this user can have put the file `path` there or
// can replace it: it and all folders above it belong to one of them, and no
// other can write to them. Folders above its own may be like /tmp, where all
// write and only owners remove (sticky), or belong to a user whom this
// process's user namespace does not know, as all of root's do in some; a group
// that has the user's own number counts as the user. `path` is absolute and has
// no symbolic links (realpath). A failure names the first that is wrong, from
// the file up.
choir_status_t choir__path_check_trusted(const char* path) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_TRUSTED_PATH_INTERNAL_H_
