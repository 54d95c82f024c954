// SPDX-License-Identifier: Apache-2.0
// Waits for NCCL and the GPU: what NCCL says of itself, and the operations that
// the GPU was given.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/backends/nccl/nccl_internal.h"

// ---- NCCL's state ----

choir_status_t choir__nccl_break(choir_comm_t* comm,
                                 choir__nccl_result_t result,
                                 const char* what) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  char last[200] = "";
  pthread_mutex_lock(&plane->lock);
  // Of this thread's and all others' errors NCCL keeps the last one's text.
  const char* text = plane->nccl->ncclGetLastError(plane->handle);
  if (text) snprintf(last, sizeof(last), "%s", text);
  pthread_mutex_unlock(&plane->lock);
  last[strcspn(last, "\n")] = 0;
  return choir__comm_break(
      comm, CHOIR_STATUS_ABORTED, "%s: NCCL failed at %s: %s%s%s",
      comm->peers[comm->rank].text, what,
      plane->nccl->ncclGetErrorString(result), last[0] ? ", " : "", last);
}

// IN_PROGRESS also where there is no handle any more: the communicator is
// broken, or about to be.
choir__nccl_result_t choir__nccl_state(nccl_plane_t* plane) {
  choir__nccl_result_t state = CHOIR__NCCL_IN_PROGRESS;
  pthread_mutex_lock(&plane->lock);
  if (plane->handle) {
    const choir__nccl_result_t result =
        plane->nccl->ncclCommGetAsyncError(plane->handle, &state);
    if (result != CHOIR__NCCL_SUCCESS) state = result;
  }
  pthread_mutex_unlock(&plane->lock);
  return state;
}

// A wait for the GPUs of all ranks is over without what was waited for.
static choir_status_t fail_wait(choir_comm_t* comm, choir_comm_wait_t* wait,
                                const char* what) {
  choir_status_t status = choir__comm_check_peers(comm);
  if (status || atomic_load(&comm->faults.broken) ||
      !choir__comm_wait_is_late(comm, wait)) {
    choir_status_free(status);
    return choir__comm_wait_fail(comm, wait);
  }
  choir__comm_wait_end(comm, wait);
  return choir__comm_break(comm, CHOIR_STATUS_TIMEOUT,
                           "%s waited %.1f s for NCCL %s; no rank is known to "
                           "be gone",
                           comm->peers[comm->rank].text, wait->waited, what);
}

choir_status_t choir__nccl_await(choir_comm_t* comm, const char* what) {
  enum { FAST = 200 };
  nccl_plane_t* plane = choir__nccl_plane(comm);
  choir_comm_wait_t wait;
  choir__nccl_result_t state = choir__nccl_state(plane);
  for (int turn = 0; state == CHOIR__NCCL_IN_PROGRESS; ++turn) {
    if (turn == FAST)
      choir__comm_wait_begin(comm, &wait, (comm->rank + 1) % comm->size);
    if (turn >= FAST && choir__comm_wait_is_over(comm, &wait))
      return fail_wait(comm, &wait, what);
    usleep(turn < FAST ? 10 : 1000);
    state = choir__nccl_state(plane);
    if (turn >= FAST && state != CHOIR__NCCL_IN_PROGRESS)
      choir__comm_wait_end(comm, &wait);
  }
  return state == CHOIR__NCCL_SUCCESS ? NULL
                                      : choir__nccl_break(comm, state, what);
}

// ---- What the GPU was given ----

// Forgets what is done. Under the lock.
static void drop_done(nccl_plane_t* plane) {
  while (plane->count > 0 &&
         choir_event_is_reached(plane->pending[plane->first].after)) {
    plane->first = (plane->first + 1) % NCCL_PENDING;
    --plane->count;
  }
}

static int32_t count_pending(nccl_plane_t* plane) {
  pthread_mutex_lock(&plane->lock);
  drop_done(plane);
  const int32_t count = plane->count;
  pthread_mutex_unlock(&plane->lock);
  return count;
}

// Until no more than `most` operations are left. The watch tells which of them
// takes too long.
choir_status_t choir__nccl_await_pending(choir_comm_t* comm, int32_t most) {
  nccl_plane_t* plane = choir__nccl_plane(comm);
  while (count_pending(plane) > most) {
    if (atomic_load(&comm->faults.broken))
      return choir__comm_fault_status(comm);
    usleep(100);
  }
  return NULL;
}

// The oldest operation, if its stream came to it and is not past it; else "".
double choir__nccl_stuck_seconds(nccl_plane_t* plane,
                                 char text[CHOIR_ACTIVITY_TEXT_BYTES]) {
  double seconds = 0;
  text[0] = 0;
  pthread_mutex_lock(&plane->lock);
  drop_done(plane);
  if (plane->count > 0) {
    nccl_pending_t* oldest = &plane->pending[plane->first];
    const double now = choir_clock_seconds();
    if (!oldest->since && choir_event_is_reached(oldest->before))
      oldest->since = now;
    if (oldest->since) {
      seconds = now - oldest->since;
      memcpy(text, oldest->text, CHOIR_ACTIVITY_TEXT_BYTES);
    }
  }
  pthread_mutex_unlock(&plane->lock);
  return seconds;
}

void choir__nccl_forget_events(nccl_pending_t* pending) {
  choir_event_release(pending->before);
  choir_event_release(pending->after);
  pending->before = pending->after = NULL;
  pending->device = NULL;
}
