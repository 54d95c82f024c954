// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_STATUS_BACKEND_H_
#define CHOIR_CORE_STATUS_BACKEND_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A failure that several processes have, each in its own status, because all
// of them came to it from the same data: no other process has to be told of it.
// `group` stands for those processes (a communicator) and is only compared.
// Notes, clones and joins keep the mark. The status that stands for a lack of
// memory cannot be marked.

// Marks `status`, which may be NULL, and returns it.
choir_status_t choir__status_mark_shared(choir_status_t status,
                                         const void* group) CHOIR_NODISCARD;
bool choir__status_is_shared(choir_status_t status, const void* group);

// A failure of work that was submitted before the call that returns it: what
// was submitted since then did not run. The mark is kept likewise.

// Marks `status`, which may be NULL, and returns it.
choir_status_t choir__status_mark_deferred(choir_status_t status)
    CHOIR_NODISCARD;
bool choir__status_is_deferred(choir_status_t status);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_STATUS_BACKEND_H_
