// SPDX-License-Identifier: Apache-2.0
// How a communicator breaks: waits with limits, what peers told, and the
// watch thread that beats and notes the beats of others.
//
// A fault is a sentence about the cause. The rank that finds it hands it to
// all others, which return the same sentence behind their own operation's
// name, so that everybody tells the cause and nobody each other's failure.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/thread_backend.h"
#include "dist/board_internal.h"
#include "dist/comm_internal.h"

// A wait slice longer than this was this process standing still (stopped, or
// the machine asleep), which is no peer's fault.
static const double max_slice = 1.0;

// ---- Breaking ----

// Of this process, for its end.
static atomic_bool any_broke;
static atomic_bool is_follower;

bool choir__comm_any_broke(void) { return atomic_load(&any_broke); }
bool choir__comm_is_follower(void) { return atomic_load(&is_follower); }
void choir__comm_note_follower(void) { atomic_store(&is_follower, true); }

// With fault_mutex held: the running operation, for whoever returns next.
static void fault_note_operation(choir_comm_t* comm) {
  if (comm->faults.operation[0]) return;
  choir_activity_t activity;
  choir__activity_read(comm->activity.places[0], &activity);
  choir__activity_print(&activity, comm->faults.operation,
                        sizeof(comm->faults.operation));
}

static void fault_note_on_board(choir_comm_t* comm) {
  choir_board_slot_t* slot = choir__board_slot();
  if (!slot || atomic_load(&slot->fault_code)) return;
  choir_activity_t activity;
  choir__activity_read(comm->activity.places[0], &activity);
  slot->fault_waiting_for = activity.waiting_for;
  snprintf(slot->fault_operation, sizeof(slot->fault_operation), "%s",
           comm->faults.operation);
  snprintf(slot->fault_text, sizeof(slot->fault_text), "%s",
           comm->faults.own.text);
  atomic_store(&slot->fault_code, comm->faults.own.code);
}

void choir__comm_break_by(choir_comm_t* comm, const choir_comm_fault_t* fault) {
  pthread_mutex_lock(&comm->faults.mutex);
  bool first = !atomic_load(&comm->faults.broken);
  if (first) {
    comm->faults.own = *fault;
    fault_note_operation(comm);
    fault_note_on_board(comm);
    atomic_store(&comm->faults.broken, true);
  }
  pthread_mutex_unlock(&comm->faults.mutex);
  if (!first) return;
  atomic_store(&any_broke, true);
  if (comm->vtable->broadcast_fault)
    comm->vtable->broadcast_fault(comm, &comm->faults.own);
  for (int i = 0; i < CHOIR_COMM_LAYER_COUNT; ++i)
    if (comm->layers[i]) comm->layers[i]->vtable->abort(comm);
}

choir_status_t choir__comm_fault_status(choir_comm_t* comm) {
  pthread_mutex_lock(&comm->faults.mutex);
  fault_note_operation(comm);
  choir_status_code_t code = (choir_status_code_t)comm->faults.own.code;
  const char* operation = comm->faults.operation;
  choir_status_t status =
      choir_status_make(code, __FILE__, __LINE__, __func__, "%s%s%s", operation,
                        operation[0] ? ": " : "", comm->faults.own.text);
  pthread_mutex_unlock(&comm->faults.mutex);
  return status;
}

choir_status_t choir__comm_break(choir_comm_t* comm, choir_status_code_t code,
                                 const char* format, ...) {
  choir_comm_fault_t fault = {.code = (int32_t)code, .origin = comm->rank};
  va_list args;
  va_start(args, format);
  vsnprintf(fault.text, sizeof(fault.text), format, args);
  va_end(args);
  choir__comm_break_by(comm, &fault);
  return choir__comm_fault_status(comm);
}

choir_status_t choir__comm_break_by_group(choir_comm_t* comm,
                                          choir_comm_t* group,
                                          choir_status_t status) {
  choir_comm_fault_t fault = {.code = (int32_t)choir_status_code(status),
                              .origin = comm->rank};
  snprintf(fault.text, sizeof(fault.text), "%s", choir_status_message(status));
  choir_status_free(status);
  pthread_mutex_lock(&group->faults.mutex);
  if (atomic_load(&group->faults.broken)) fault = group->faults.own;
  pthread_mutex_unlock(&group->faults.mutex);
  choir__comm_break_by(comm, &fault);
  return choir__comm_fault_status(comm);
}

choir_status_t choir__comm_break_by_message(choir_comm_t* comm, int32_t rank) {
  return choir__comm_break(
      comm, CHOIR_STATUS_INTERNAL,
      "the message of %s is none that a rank sends: another version of Choir, "
      "or bytes that changed on the way",
      comm->peers[rank].text);
}

void choir__comm_note_fault(choir_comm_t* comm,
                            const choir_comm_fault_t* fault) {
  pthread_mutex_lock(&comm->faults.mutex);
  if (!atomic_load(&comm->faults.peer_broken)) {
    comm->faults.peer = *fault;
    comm->faults.peer.text[sizeof(fault->text) - 1] = 0;
    if (comm->faults.peer.code <= CHOIR_STATUS_OK ||
        comm->faults.peer.code > CHOIR_STATUS_INTERNAL)
      comm->faults.peer.code = CHOIR_STATUS_ABORTED;
    atomic_store(&comm->faults.peer_broken, true);
  }
  pthread_mutex_unlock(&comm->faults.mutex);
  for (int i = 0; i < CHOIR_COMM_LAYER_COUNT; ++i)
    if (comm->layers[i] && comm->layers[i]->vtable->note_fault)
      comm->layers[i]->vtable->note_fault(comm, fault);
}

void choir_comm_abort(choir_comm_t* comm, const char* why) {
  if (!comm) return;
  choir_status_free(choir__comm_break(
      comm, CHOIR_STATUS_ABORTED, "%s aborted: %s",
      comm->peers[comm->rank].text, why && why[0] ? why : "no reason given"));
}

static void note_waiting(choir_comm_t* comm, int32_t rank) {
  for (int i = 0; i < 2; ++i)
    if (comm->activity.places[i])
      choir__activity_wait(comm->activity.places[i], rank);
  if (comm->outer.comm)
    note_waiting(comm->outer.comm, rank < 0 ? -1 : comm->outer.ranks[rank]);
}

// The first peer that is not there any more, or -1.
static int32_t find_missing_peer(const choir_comm_t* comm) {
  for (int32_t r = 0; r < comm->size; ++r)
    if (atomic_load(&comm->peers[r].presence) != CHOIR_COMM_PEER_HERE) return r;
  return -1;
}

// By the fault that a peer broadcast.
static choir_status_t break_by_peer_fault(choir_comm_t* comm) {
  pthread_mutex_lock(&comm->faults.mutex);
  choir_comm_fault_t fault = comm->faults.peer;
  pthread_mutex_unlock(&comm->faults.mutex);
  if (fault.origin != comm->rank) choir__comm_note_follower();
  choir__comm_break_by(comm, &fault);
  return choir__comm_fault_status(comm);
}

static choir_status_t break_by_missing_peer(choir_comm_t* comm, int32_t rank) {
  // It may have told why since the last look, and then left.
  if (comm->vtable->poll_faults) comm->vtable->poll_faults(comm);
  if (atomic_load(&comm->faults.peer_broken)) return break_by_peer_fault(comm);
  const char* peer = comm->peers[rank].text;
  note_waiting(comm, rank);  // for the launcher: it was needed
  choir__comm_note_follower();
  if (atomic_load(&comm->peers[rank].presence) == CHOIR_COMM_PEER_LEFT)
    return choir__comm_break(comm, CHOIR_STATUS_ABORTED,
                             "%s left the communicator without finalize", peer);
  return choir__comm_break(
      comm, CHOIR_STATUS_ABORTED,
      "%s is gone: its process was killed or ended too early", peer);
}

choir_status_t choir__comm_check_peers(choir_comm_t* comm) {
  if (comm->vtable->poll_faults) comm->vtable->poll_faults(comm);
  if (atomic_load(&comm->faults.peer_broken)) return break_by_peer_fault(comm);
  int32_t missing = find_missing_peer(comm);
  return missing < 0 ? NULL : break_by_missing_peer(comm, missing);
}

choir_status_t choir_comm_poll_error(choir_comm_t* comm) {
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "poll_error: comm is NULL");
  if (atomic_load(&comm->faults.broken)) return choir__comm_fault_status(comm);
  return comm->run.finalized ? NULL : choir__comm_check_peers(comm);
}

// ---- Waiting ----

static void end_span(const choir_comm_t* comm, const choir_comm_wait_t* wait) {
  choir_span_end(&wait->span, "wait", comm->peers[wait->rank].text, NULL);
}

void choir__comm_wait_begin(choir_comm_t* comm, choir_comm_wait_t* wait,
                            int32_t rank) {
  wait->rank = rank;
  wait->last = choir_clock_seconds();
  wait->waited = 0;
  wait->has_told = false;
  wait->span = choir_span_begin(CHOIR_SPAN_WAIT);
  note_waiting(comm, rank);
}

void choir__comm_wait_progress(choir_comm_t* comm, choir_comm_wait_t* wait,
                               int32_t rank) {
  wait->waited = 0;
  if (rank == wait->rank) return;
  end_span(comm, wait);
  wait->span = choir_span_begin(CHOIR_SPAN_WAIT);
  wait->rank = rank;
  note_waiting(comm, rank);
}

void choir__comm_wait_end(choir_comm_t* comm, choir_comm_wait_t* wait) {
  end_span(comm, wait);
  note_waiting(comm, -1);
}

static double peer_silence(const choir_comm_t* comm, int32_t rank) {
  if (!comm->watch.has_heartbeat) return 0;
  return 1e-3 * atomic_load(&comm->peers[rank].silent_ms);
}

bool choir__comm_peer_is_silent(const choir_comm_t* comm, int32_t rank) {
  return peer_silence(comm, rank) > comm->silence;
}

bool choir__comm_peer_is_late(choir_comm_t* comm, int32_t rank) {
  pthread_mutex_lock(&comm->faults.mutex);
  const bool was_late = atomic_load(&comm->faults.broken) &&
                        comm->faults.own.code == CHOIR_STATUS_TIMEOUT;
  pthread_mutex_unlock(&comm->faults.mutex);
  choir_activity_t activity;
  if (was_late) choir__comm_peer_activity(comm, rank, &activity);
  return was_late && activity.sequence < comm->run.sequence;
}

// A peer that missed several beats is more than late.
static bool is_silent(const choir_comm_t* comm, int32_t rank) {
  return choir__comm_peer_is_silent(comm, rank) ||
         peer_silence(comm, rank) > 4 * comm->watch.interval + 0.2;
}

// Where the awaited peer is in this operation itself, or in one before it, it
// waits for another: one that is silent, or has not come there.
static int32_t find_culprit(choir_comm_t* comm, int32_t awaited) {
  choir_activity_t activity;
  choir__comm_peer_activity(comm, awaited, &activity);
  const uint64_t place = activity.sequence;
  if (activity.kind < 0 || place > comm->run.sequence ||
      choir__collective(activity.kind)->is_pair)
    return awaited;
  for (int32_t r = 0; r < comm->size; ++r)
    if (r != comm->rank && is_silent(comm, r)) return r;
  for (int32_t r = 0; r < comm->size; ++r) {
    choir__comm_peer_activity(comm, r, &activity);
    if (r != comm->rank && activity.sequence < place) return r;
  }
  return awaited;
}

// One rank tells it for all that wait.
static void tell_late(choir_comm_t* comm, choir_comm_wait_t* wait) {
  wait->has_told = true;
  const int32_t late = find_culprit(comm, wait->rank);
  if (comm->rank != (late == 0 ? 1 : 0)) return;
  choir_log(CHOIR_LOG_WARNING, "dist",
            "%s is late: %s has waited %.1f s for it, and waits for %.1f s",
            comm->peers[late].text, comm->peers[comm->rank].text, wait->waited,
            comm->deadline);
}

bool choir__comm_wait_is_over(choir_comm_t* comm, choir_comm_wait_t* wait) {
  double now = choir_clock_seconds();
  double slice = now - wait->last;
  wait->last = now;
  wait->waited += slice < max_slice ? slice : max_slice;
  if (comm->warns && !wait->has_told && wait->waited > comm->deadline / 2)
    tell_late(comm, wait);
  if (comm->vtable->poll_faults) comm->vtable->poll_faults(comm);
  return atomic_load(&comm->faults.broken) ||
         atomic_load(&comm->faults.peer_broken) ||
         find_missing_peer(comm) >= 0 || wait->waited > comm->deadline ||
         peer_silence(comm, wait->rank) > comm->silence;
}

bool choir__comm_wait_is_late(const choir_comm_t* comm,
                              const choir_comm_wait_t* wait) {
  return !atomic_load(&comm->faults.broken) &&
         !atomic_load(&comm->faults.peer_broken) &&
         find_missing_peer(comm) < 0 && !is_silent(comm, wait->rank) &&
         wait->waited > comm->deadline;
}

static choir_status_t break_by_silence(choir_comm_t* comm,
                                       const choir_comm_wait_t* wait) {
  return choir__comm_break(
      comm, CHOIR_STATUS_TIMEOUT,
      "%s waited %.1f s for %s, which has given no sign of life for %.1f s "
      "(" CHOIR_COMM_SILENCE_TEXT ")",
      comm->peers[comm->rank].text, wait->waited, comm->peers[wait->rank].text,
      peer_silence(comm, wait->rank));
}

void choir__comm_peer_activity(choir_comm_t* comm, int32_t rank,
                               choir_activity_t* out_activity) {
  *out_activity = (choir_activity_t){.kind = -1, .waiting_for = -1};
  if (comm->vtable->peer_activity)
    comm->vtable->peer_activity(comm, rank, out_activity);
  out_activity->name[sizeof(out_activity->name) - 1] = 0;
  if (out_activity->kind < -1 || out_activity->kind >= CHOIR_COMM_KIND_COUNT)
    out_activity->kind = CHOIR_COMM_KIND_UNKNOWN;
}

static choir_status_t break_by_deadline(choir_comm_t* comm,
                                        const choir_comm_wait_t* wait) {
  choir_activity_t activity;
  choir__comm_peer_activity(comm, wait->rank, &activity);
  // An operation of two ranks has no number that tells whether a peer is in it.
  const bool is_pair = comm->run.operation &&
                       choir__collective(comm->run.operation->kind)->is_pair;
  char doing[CHOIR_ACTIVITY_TEXT_BYTES];
  char state[CHOIR_ACTIVITY_TEXT_BYTES + 64];
  choir__activity_print(&activity, doing, sizeof(doing));
  if (activity.kind < 0 && activity.sequence == 0) {
    snprintf(state, sizeof(state), "it has run no operation yet");
  } else if (activity.kind < 0) {
    snprintf(state, sizeof(state), "it computes since operation %llu",
             (unsigned long long)activity.sequence);
  } else if (activity.sequence == comm->run.sequence && !is_pair) {
    snprintf(state, sizeof(state), "it is in the same operation");
  } else {
    snprintf(state, sizeof(state), "it is in %s", doing);
  }
  bool same =
      activity.kind >= 0 && activity.sequence == comm->run.sequence && !is_pair;
  return choir__comm_break(
      comm, CHOIR_STATUS_TIMEOUT, "%s waited %.1f s for %s, which is %s%s; %s",
      comm->peers[comm->rank].text, wait->waited, comm->peers[wait->rank].text,
      comm->watch.has_heartbeat ? "alive but " : "not known to be alive and ",
      same ? "makes no progress" : "has not come to this operation", state);
}

choir_status_t choir__comm_wait_fail(choir_comm_t* comm,
                                     choir_comm_wait_t* wait) {
  choir_status_t status;
  int32_t missing = find_missing_peer(comm);
  if (atomic_load(&comm->faults.broken)) {
    status = choir__comm_fault_status(comm);
  } else if (atomic_load(&comm->faults.peer_broken)) {
    status = break_by_peer_fault(comm);
  } else if (missing >= 0) {
    status = break_by_missing_peer(comm, missing);
  } else {
    wait->rank = find_culprit(comm, wait->rank);
    note_waiting(comm, wait->rank);
    status = is_silent(comm, wait->rank) ? break_by_silence(comm, wait)
                                         : break_by_deadline(comm, wait);
  }
  choir__comm_wait_end(comm, wait);
  return status;
}

// ---- The watch thread ----

static void watch_note_beats(choir_comm_t* comm, double elapsed) {
  // Time in which this process stood still is no silence of others.
  double limit = 2 * comm->watch.interval;
  if (elapsed > limit) elapsed = limit;
  for (int32_t r = 0; r < comm->size; ++r) {
    choir_comm_peer_t* peer = &comm->peers[r];
    uint64_t beat = atomic_load(&peer->beat);
    peer->silent = beat == peer->last_beat ? peer->silent + elapsed : 0;
    peer->last_beat = beat;
    if (r == comm->rank) peer->silent = 0;
    atomic_store(&peer->silent_ms, (uint32_t)(peer->silent * 1e3));
  }
}

static void* watch_main(void* argument) {
  choir_comm_t* comm = argument;
  double last = choir_clock_seconds();
  while (!atomic_load(&comm->watch.stops)) {
    comm->vtable->heartbeat(comm, comm->watch.interval);
    double now = choir_clock_seconds();
    watch_note_beats(comm, now - last);
    choir_comm_fault_t fault;
    if (choir__comm_watch_slow(comm, now - last, &fault))
      choir__comm_break_by(comm, &fault);
    last = now;
    for (int i = 0; i < CHOIR_COMM_LAYER_COUNT; ++i)
      if (comm->layers[i] && comm->layers[i]->vtable->poll_faults)
        comm->layers[i]->vtable->poll_faults(comm);
  }
  return NULL;
}

choir_status_t choir__comm_watch_start(choir_comm_t* comm) {
  if (!comm->vtable->heartbeat || !comm->watch.has_heartbeat || comm->size == 1)
    return NULL;
  double limit =
      comm->silence < comm->deadline ? comm->silence : comm->deadline;
  comm->watch.interval = limit / 10;
  const double most =
      comm->watch.beat_seconds > 0 ? comm->watch.beat_seconds : 0.25;
  if (comm->watch.interval > most) comm->watch.interval = most;
  if (comm->watch.interval < 0.01) comm->watch.interval = 0.01;
  CHOIR_TRY_NOTE(
      choir__thread_start("choir-watch", watch_main, comm, &comm->watch.thread),
      "communicator");
  comm->watch.started = true;
  return NULL;
}

void choir__comm_watch_stop(choir_comm_t* comm) {
  if (!comm->watch.started) return;
  atomic_store(&comm->watch.stops, true);
  eventfd_write(comm->watch.wake_fd, 1);
  pthread_join(comm->watch.thread, NULL);
  comm->watch.started = false;
}
