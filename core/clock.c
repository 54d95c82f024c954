// SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/clock_internal.h"

double choir_clock_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// fork() copies only the calling thread. What was a running thread in the
// parent is a lock that nobody gives back in the child, so the child is told
// at the moment of the fork and everything that would wait asks first.
static atomic_bool threads_started;
static atomic_uint fork_generation;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) {
  if (atomic_load_explicit(&threads_started, memory_order_relaxed))
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
}

static void register_handler(void) { pthread_atfork(NULL, NULL, in_child); }

void choir_threads_started(void) {
  if (atomic_load_explicit(&threads_started, memory_order_relaxed)) return;
  pthread_once(&once, register_handler);
  atomic_store_explicit(&threads_started, true, memory_order_relaxed);
}

uint32_t choir__fork_generation(void) {
  return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

bool choir_process_is_forked_child(void) {
  return choir__fork_generation() != 0;
}

choir_status_t choir__check_not_forked(const char* where) {
  if (!choir_process_is_forked_child()) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "%s: this process was forked after Choir had started "
                     "threads, which the child does not have; fork before the "
                     "first use of Choir, or start the child by exec",
                     where);
}
