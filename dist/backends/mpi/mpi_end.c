// SPDX-License-Identifier: Apache-2.0
// The end of MPI in all ranks. MPI_Finalize waits for all of them without limit
// and without a word, so before it each rank sends the others that it has
// ended, and waits for theirs with the limits of the communicators. A rank that
// waits asks those that have not ended whether they live; the thread that owns
// MPI answers, whatever the program does meanwhile.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "dist/backends/mpi/mpi_internal.h"

// In context 0, in which else only ranks that join have messages.
enum { END_TAG = CHOIR_MPI_CONTROL };

typedef enum control_e {
  CONTROL_NONE = 0,
  CONTROL_ASK,    // are you there?
  CONTROL_HERE,   // yes
  CONTROL_ENDED,  // the sender has come to its end
} control_t;

// A wait slice longer than this was this process standing still.
static const double max_slice = 1.0;

struct choir_mpi_peer_s {
  char text[CHOIR_COMM_HOST_BYTES + 64];  // "" before ranks have met
  int32_t in;
  int32_t out;
  bool in_posted;
  bool out_posted;
  bool owes_answer;  // it asked
  bool owes_end;     // CONTROL_ENDED is still to be sent
  bool has_ended;
  choir_mpi_request_t in_request;
  choir_mpi_request_t out_request;
  double silent;  // seconds, of a wait
  double asked;   // seconds since it was asked
};

choir_status_t choir_mpi_end_open(choir_mpi_world_t* world) {
  if (world->size == 1) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_allocator_default(),
                           (size_t)world->size * sizeof(choir_mpi_peer_t),
                           "peers", &memory));
  world->peers = memory;
  return NULL;
}

void choir_mpi_end_name(choir_mpi_world_t* world,
                        const choir_comm_peer_t* peers) {
  if (!world->peers) return;
  pthread_mutex_lock(&world->mutex);
  for (int32_t r = 0; r < world->size; ++r)
    memcpy(world->peers[r].text, peers[r].text, sizeof(peers[r].text));
  pthread_mutex_unlock(&world->mutex);
}

static void note_control(choir_mpi_peer_t* peer) {
  peer->silent = 0;
  peer->owes_answer = peer->owes_answer || peer->in == CONTROL_ASK;
  peer->has_ended = peer->has_ended || peer->in == CONTROL_ENDED;
}

static void receive_control(choir_mpi_world_t* world, int32_t rank) {
  choir_mpi_peer_t* peer = &world->peers[rank];
  if (peer->in_posted && choir_mpi_is_over(world, &peer->in_request)) {
    peer->in_posted = false;
    note_control(peer);
  }
  // Again, also after CONTROL_ENDED: a peer that waits at its end asks.
  if (peer->in_posted) return;
  peer->in_posted = !world->shim->irecv(&peer->in, sizeof(peer->in), rank,
                                        END_TAG, &peer->in_request);
}

static void send_control(choir_mpi_world_t* world, int32_t rank,
                         control_t control) {
  choir_mpi_peer_t* peer = &world->peers[rank];
  if (peer->out_posted && choir_mpi_is_over(world, &peer->out_request))
    peer->out_posted = false;
  if (peer->out_posted) return;
  if (peer->owes_end)
    control = CONTROL_ENDED;
  else if (control == CONTROL_NONE && peer->owes_answer)
    control = CONTROL_HERE;
  if (control == CONTROL_NONE) return;
  if (control == CONTROL_ENDED) peer->owes_end = false;
  peer->owes_answer = false;
  peer->out = (int32_t)control;
  peer->out_posted = !world->shim->isend(&peer->out, sizeof(peer->out), rank,
                                         END_TAG, &peer->out_request);
}

void choir_mpi_end_answer(choir_mpi_world_t* world) {
  if (!world->peers) return;
  pthread_mutex_lock(&world->mutex);
  for (int32_t r = 0; r < world->size; ++r) {
    if (r == world->rank) continue;
    receive_control(world, r);
    send_control(world, r, CONTROL_NONE);
  }
  pthread_mutex_unlock(&world->mutex);
}

// Receives from all peers and sends what is due. Returns, of the peers that
// have not ended, the one that was silent for longest; else one to which
// something is still to be sent; else -1.
static int32_t poll_peers(choir_mpi_world_t* world, double slice,
                          double interval, double* out_silent) {
  int32_t first = -1;
  int32_t owed = -1;
  pthread_mutex_lock(&world->mutex);
  for (int32_t r = 0; r < world->size; ++r) {
    if (r == world->rank) continue;
    choir_mpi_peer_t* peer = &world->peers[r];
    peer->silent += slice;
    peer->asked += slice;
    receive_control(world, r);
    bool asks = !peer->has_ended && peer->asked >= interval;
    if (asks) peer->asked = 0;
    send_control(world, r, asks ? CONTROL_ASK : CONTROL_NONE);
    if (peer->owes_end || peer->out_posted) owed = r;
    if (!peer->has_ended &&
        (first < 0 || peer->silent > world->peers[first].silent))
      first = r;
  }
  if (first < 0) first = owed;
  *out_silent = first < 0 ? 0 : world->peers[first].silent;
  pthread_mutex_unlock(&world->mutex);
  return first;
}

static const char* name_of(const choir_mpi_world_t* world, int32_t rank,
                           char text[32]) {
  if (world->peers[rank].text[0]) return world->peers[rank].text;
  snprintf(text, 32, "rank %d", rank);
  return text;
}

// silent: seconds; 0: the peer lives.
static choir_status_t fail(const choir_mpi_world_t* world, int32_t rank,
                           double waited, double silent) {
  char own[32], other[32], state[128];
  if (silent > 0)
    snprintf(state, sizeof(state),
             "has given no sign of life for %.1f s (" CHOIR_COMM_SILENCE_TEXT
             ")",
             silent);
  else
    snprintf(state, sizeof(state), "is alive but has not come");
  return CHOIR_ERROR(TIMEOUT,
                     "the end of the program: %s waited %.1f s for %s, which "
                     "%s",
                     name_of(world, world->rank, own), waited,
                     name_of(world, rank, other), state);
}

choir_status_t choir_mpi_end_wait(choir_mpi_world_t* world, double deadline,
                                  double silence, double* out_waited) {
  *out_waited = 0;
  if (!world->peers) return NULL;
  double limit = silence < deadline ? silence : deadline;
  double interval = limit / 10 < 0.25 ? limit / 10 : 0.25;
  pthread_mutex_lock(&world->mutex);
  for (int32_t r = 0; r < world->size; ++r) {
    world->peers[r].owes_end = r != world->rank;
    world->peers[r].silent = world->peers[r].asked = 0;
  }
  pthread_mutex_unlock(&world->mutex);
  double last = choir_clock_seconds();
  double slice = 0;
  double silent;
  for (int32_t rank;
       (rank = poll_peers(world, slice, interval, &silent)) >= 0;) {
    bool is_silent = silent > limit || silent > 4 * interval + 0.2;
    if (silent > limit || *out_waited > deadline)
      return fail(world, rank, *out_waited, is_silent ? silent : 0);
    struct timespec pause = {0, *out_waited < 0.01 ? 100000 : 2000000};
    nanosleep(&pause, NULL);
    double now = choir_clock_seconds();
    slice = now - last < max_slice ? now - last : max_slice;
    last = now;
    *out_waited += slice;
  }
  return NULL;
}

void choir_mpi_end_close(choir_mpi_world_t* world) {
  for (int32_t r = 0; world->peers && r < world->size; ++r) {
    choir_mpi_peer_t* peer = &world->peers[r];
    if (!peer->in_posted) continue;
    world->shim->cancel(&peer->in_request);
    choir_mpi_is_over(world, &peer->in_request);
    peer->in_posted = false;
  }
}
