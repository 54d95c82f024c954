// SPDX-License-Identifier: Apache-2.0
// A host behind a link that is much slower than the others', in an elastic run:
// all that it sends and gets is progress, so no deadline passes, and the others
// wait. It is known by whom ranks wait for, which they tell with each beat:
// where one operation lasts for longer than the deadline, and in that time most
// waits between hosts have this one in common.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

// Operations that a rank has come to or, while it computes, will come to.
static uint64_t place_of(const choir_activity_t* activity) {
  return activity->kind < 0 ? activity->sequence + 1 : activity->sequence;
}

static void read_activity(choir_comm_t* comm, int32_t rank,
                          choir_activity_t* out_activity) {
  if (rank == comm->rank)
    choir__activity_read(comm->activity.places[0], out_activity);
  else
    choir__comm_peer_activity(comm, rank, out_activity);
}

// The first operation that not all have finished; 0: some have not come to it,
// or wait for nobody of this communicator.
static uint64_t find_operation(choir_comm_t* comm) {
  choir_activity_t activity;
  uint64_t first = UINT64_MAX;
  bool all_have_come = false;
  for (int32_t r = 0; r < comm->size; ++r) {
    read_activity(comm, r, &activity);
    if (place_of(&activity) > first) continue;
    if (place_of(&activity) < first) all_have_come = true;
    first = place_of(&activity);
    all_have_come = all_have_come && activity.kind >= 0;
  }
  return all_have_come ? first : 0;
}

// Notes a wait between two hosts; of those that may be in the way it leaves the
// ones that all waits have in common. -1: none.
static void note_wait(int32_t a, int32_t b, int32_t* common) {
  if (common[0] == -2) {
    common[0] = a;
    common[1] = b;
    return;
  }
  for (int i = 0; i < 2; ++i)
    if (common[i] != a && common[i] != b) common[i] = -1;
}

// The one host that all waits between hosts in this operation have in common;
// -1: there is none.
static int32_t find_host(choir_comm_t* comm, uint64_t operation) {
  choir_activity_t activity, awaited;
  int32_t common[2] = {-2, -2};
  for (int32_t r = 0; r < comm->size; ++r) {
    read_activity(comm, r, &activity);
    const int32_t peer = activity.waiting_for;
    if (place_of(&activity) != operation || peer < 0 || peer >= comm->size)
      continue;
    read_activity(comm, peer, &awaited);
    if (place_of(&awaited) == operation &&
        comm->peers[r].host_index != comm->peers[peer].host_index)
      note_wait(comm->peers[r].host_index, comm->peers[peer].host_index,
                common);
  }
  const bool is_one = (common[0] < 0) != (common[1] < 0);
  return !is_one ? -1 : common[0] < 0 ? common[1] : common[0];
}

// Whether the others may go on without it.
static bool may_go(const choir_comm_t* comm, int32_t host) {
  int32_t others = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    others += comm->peers[r].host_index != host;
  return 2 * others > comm->size && comm->peers[comm->rank].host_index != host;
}

static void break_by_slow_host(choir_comm_t* comm, int32_t host) {
  choir_comm_fault_t fault = {
      .code = CHOIR_STATUS_TIMEOUT, .origin = comm->rank, .slow = 1 + host};
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->peers[r].host_index == host)
      snprintf(fault.text, sizeof(fault.text),
               "%s has waited %.1f s for what goes to host %s and comes from "
               "there: it is behind a slow link",
               comm->peers[comm->rank].text, comm->watch.slow_seconds,
               comm->peers[r].identity.host);
  choir__comm_break_by(comm, &fault);
}

void choir__comm_watch_slow(choir_comm_t* comm, double elapsed) {
  choir_comm_watch_t* watch = &comm->watch;
  if (!comm->warns || comm->hosts.count < 3) return;
  const uint64_t operation = find_operation(comm);
  if (operation != watch->slow_sequence) watch->slow_seconds = 0;
  watch->slow_sequence = operation;
  const int32_t host = operation ? find_host(comm, operation) : -1;
  if (host >= 0 && watch->slow_seconds <= 0) watch->slow_host = host;
  if (elapsed > 2 * watch->interval) elapsed = 2 * watch->interval;
  if (host < 0 || host != watch->slow_host) elapsed = -elapsed;
  watch->slow_seconds += elapsed;
  if (watch->slow_seconds < 0) watch->slow_seconds = 0;
  if (watch->slow_seconds > comm->deadline && may_go(comm, watch->slow_host))
    break_by_slow_host(comm, watch->slow_host);
}

bool choir__comm_peer_is_slow(choir_comm_t* comm, int32_t rank) {
  pthread_mutex_lock(&comm->faults.mutex);
  const int32_t slow = comm->faults.own.slow;
  pthread_mutex_unlock(&comm->faults.mutex);
  return slow > 0 && comm->peers[rank].host_index == slow - 1;
}
