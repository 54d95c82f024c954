// SPDX-License-Identifier: Apache-2.0
// A host behind a link that is much slower than the others', in an elastic run:
// all that it sends and gets is progress, so no deadline passes, and the others
// wait. It is known by whom ranks wait for, which they tell with each beat:
// where one operation lasts for longer than the deadline, and most of the time
// all waits between hosts have this one in common.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

// Operations that a rank has come to or, while it computes, will come to.
static uint64_t place_of(const choir_activity_t* activity) {
  return activity->kind < 0 ? activity->sequence + 1 : activity->sequence;
}

static void read_activity(choir_comm_t* comm, int32_t rank,
                          choir_activity_t* out_activity) {
  *out_activity = (choir_activity_t){.kind = -1, .waiting_for = -1};
  if (rank == comm->rank)
    choir__activity_read(comm->activity.places[0], out_activity);
  else if (comm->vtable->peer_activity)
    comm->vtable->peer_activity(comm, rank, out_activity);
}

// The first operation that not all have finished; 0: some have not come to it.
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

// All its ranks have only just come. The others were not slow until then.
static bool is_new(const choir_comm_t* comm, int32_t host) {
  const int32_t old = comm->size - atomic_load(&comm->watch.newcomers);
  int32_t first = 0;
  while (first < comm->size && comm->peers[first].host_index != host) ++first;
  return first >= old && first < comm->size;
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

// Who waits for this rank waits for the newcomer that this rank waits for.
static bool waits_for_newcomer(const choir_comm_t* comm, int32_t waiting_host,
                               const choir_activity_t* awaited) {
  const int32_t peer = awaited->waiting_for;
  return peer >= 0 && peer < comm->size &&
         comm->peers[peer].host_index != waiting_host &&
         is_new(comm, comm->peers[peer].host_index);
}

// The hosts that all waits between hosts in this operation have in common.
static void find_hosts(choir_comm_t* comm, uint64_t operation,
                       int32_t out_common[2]) {
  choir_activity_t activity, awaited;
  out_common[0] = out_common[1] = -2;
  for (int32_t r = 0; r < comm->size; ++r) {
    read_activity(comm, r, &activity);
    const int32_t peer = activity.waiting_for;
    if (place_of(&activity) != operation || peer < 0 || peer >= comm->size)
      continue;
    read_activity(comm, peer, &awaited);
    const int32_t host = comm->peers[r].host_index;
    if (place_of(&awaited) == operation &&
        host != comm->peers[peer].host_index &&
        !waits_for_newcomer(comm, host, &awaited))
      note_wait(host, comm->peers[peer].host_index, out_common);
  }
  for (int i = 0; i < 2; ++i)
    if (is_new(comm, out_common[1 - i]) && !is_new(comm, out_common[i]))
      out_common[i] = -1;
}

static void note_slow(choir_comm_t* comm, uint64_t operation, double elapsed) {
  int32_t common[2];
  find_hosts(comm, operation, common);
  for (int32_t r = 0; r < comm->size; ++r) {
    choir_comm_peer_t* peer = &comm->peers[r];
    const int32_t host = peer->host_index;
    const bool is_common = host == common[0] || host == common[1];
    if (operation != comm->watch.slow_sequence) peer->slow = 0;
    peer->slow += is_common ? elapsed : -elapsed;
    if (peer->slow < 0) peer->slow = 0;
  }
  comm->watch.slow_sequence = operation;
}

// The host that held the operation up for longer than the deadline, and clearly
// longer than any other, as the last waits may be between two; -1: none.
static int32_t find_slow_host(const choir_comm_t* comm) {
  int32_t slowest = 0;
  for (int32_t r = 1; r < comm->size; ++r)
    if (comm->peers[r].slow > comm->peers[slowest].slow) slowest = r;
  const double most = comm->peers[slowest].slow;
  const int32_t host = comm->peers[slowest].host_index;
  const double limit = atomic_load(&comm->watch.slow_limit);
  bool is_clear = most > limit;
  for (int32_t r = 0; r < comm->size; ++r)
    is_clear = is_clear && (comm->peers[r].host_index == host ||
                            comm->peers[r].slow < most - limit / 4);
  return is_clear ? host : -1;
}

// Whether the others may go on without it.
static bool may_go(const choir_comm_t* comm, int32_t host) {
  int32_t others = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    others += comm->peers[r].host_index != host;
  return 2 * others > comm->size && comm->peers[comm->rank].host_index != host;
}

static void describe(const choir_comm_t* comm, int32_t host,
                     choir_comm_fault_t* out_fault) {
  *out_fault = (choir_comm_fault_t){
      .code = CHOIR_STATUS_TIMEOUT, .origin = comm->rank, .slow = 1 + host};
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->peers[r].host_index == host)
      snprintf(out_fault->text, sizeof(out_fault->text),
               "%s has waited %.1f s for what goes to host %s and comes from "
               "there: it is behind a slow link",
               comm->peers[comm->rank].text, comm->peers[r].slow,
               comm->peers[r].identity.host);
}

void choir__comm_watch_hosts(choir_comm_t* comm, int32_t newcomers) {
  atomic_store(&comm->watch.newcomers, newcomers);
  atomic_store(&comm->watch.slow_limit, comm->deadline);
}

bool choir__comm_watch_slow(choir_comm_t* comm, double elapsed,
                            choir_comm_fault_t* out_fault) {
  const double most = 2 * comm->watch.interval;
  if (atomic_load(&comm->watch.slow_limit) <= 0 || comm->hosts.count < 3)
    return false;
  note_slow(comm, find_operation(comm), elapsed < most ? elapsed : most);
  const int32_t host = find_slow_host(comm);
  if (host < 0 || !may_go(comm, host)) return false;
  describe(comm, host, out_fault);
  return true;
}

bool choir__comm_peer_is_slow(choir_comm_t* comm, int32_t rank) {
  pthread_mutex_lock(&comm->faults.mutex);
  const int32_t slow = comm->faults.own.slow;
  pthread_mutex_unlock(&comm->faults.mutex);
  return slow > 0 && comm->peers[rank].host_index == slow - 1;
}
