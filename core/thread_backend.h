// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_THREAD_BACKEND_H_
#define CHOIR_CORE_THREAD_BACKEND_H_

#include <pthread.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A thread that runs run(self), for the caller to join or detach; `name` has at
// most 15 letters. Signals stay with the program's own threads, whose handlers
// must not run here. UNAVAILABLE: the system gives none.
CHOIR_API choir_status_t choir__thread_start(const char* name,
                                             void* (*run)(void*), void* self,
                                             pthread_t* out_thread)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_THREAD_BACKEND_H_
