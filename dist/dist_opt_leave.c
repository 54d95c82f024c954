// SPDX-License-Identifier: Apache-2.0
// Whether this rank is to leave an elastic run: by its program, or by SIGTERM
// where nobody else handles that.
#include <pthread.h>
#include <signal.h>

#include "dist/dist_opt_parts_internal.h"

// Of the process: how many watch for it, and whether it has come since.
static struct {
  pthread_mutex_t mutex;
  int watchers;
  atomic_bool has_come;
} terminate = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// Of a launcher that ends all workers it is what it was without a handler.
static void on_terminate(int number) {
  if (choir__membership_is_ended())
    raise(number);
  else
    atomic_store(&terminate.has_come, true);
}

static bool has_handler(void (*handler)(int)) {
  struct sigaction now;
  return !sigaction(SIGTERM, NULL, &now) && now.sa_handler == handler;
}

// A second one ends the process, as nobody handles it any more.
void choir__leave_watch(choir_dist_opt_t* dist) {
  const struct sigaction action = {.sa_handler = on_terminate,
                                   .sa_flags = SA_RESTART | SA_RESETHAND};
  pthread_mutex_lock(&terminate.mutex);
  if (terminate.watchers > 0) {
    dist->watches_terminate = true;
  } else if (has_handler(SIG_DFL)) {
    dist->watches_terminate = !sigaction(SIGTERM, &action, NULL);
  }
  terminate.watchers += dist->watches_terminate;
  pthread_mutex_unlock(&terminate.mutex);
}

void choir__leave_forget(choir_dist_opt_t* dist) {
  if (!dist->watches_terminate) return;
  pthread_mutex_lock(&terminate.mutex);
  if (--terminate.watchers == 0) {
    const struct sigaction action = {.sa_handler = SIG_DFL};
    if (has_handler(on_terminate)) sigaction(SIGTERM, &action, NULL);
    atomic_store(&terminate.has_come, false);
  }
  pthread_mutex_unlock(&terminate.mutex);
}

void choir_dist_opt_leave(choir_dist_opt_t* dist_opt) {
  if (dist_opt) atomic_store(&dist_opt->is_leaving, true);
}

bool choir__leave_is_asked(const choir_dist_opt_t* dist) {
  return atomic_load(&dist->is_leaving) ||
         (dist->watches_terminate && atomic_load(&terminate.has_come));
}
