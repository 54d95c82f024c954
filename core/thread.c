// SPDX-License-Identifier: Apache-2.0
#include "core/thread_backend.h"

#include <signal.h>
#include <string.h>

#include "core/clock.h"

choir_status_t choir__thread_start(const char* name, void* (*run)(void*),
                                   void* self, pthread_t* out_thread) {
  choir_threads_started();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(out_thread, NULL, run, self);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    return CHOIR_ERROR(UNAVAILABLE, "the system gives no thread for %s: %s",
                       name, strerror(error));
  pthread_setname_np(*out_thread, name);
  return NULL;
}
