// SPDX-License-Identifier: Apache-2.0
// A communicator over MPI's non-blocking point-to-point calls: post, test,
// sleep a little, look at the deadline. No call of MPI's blocks, so no peer
// can hang this rank.
//
// Messages of each kind between two ranks have a tag of their own and arrive
// in order. Heartbeats and faults are short messages from the watch thread;
// one mutex keeps MPI to one thread at a time.
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/algorithms/direct.h"
#include "dist/backends/mpi/mpi_internal.h"

typedef choir_comm_operation_t operation_t;

// Larger messages gain nothing from going with the header.
#define EXCHANGE_BYTES ((size_t)16 << 10)
// Nor do data of which each peer needs a share only, beyond what a message
// costs anyway.
#define EXCHANGE_SHARE_BYTES ((size_t)1 << 10)

// How a wait goes on: look, then yield, then sleep ever longer, but never for
// more than a share of what was waited already.
#define POLL_COUNT 100
#define YIELD_SECONDS 1e-3
#define SLEEP_SHARE 0.1
#define MAX_SLEEP 1e-3

// After a fault: time for the messages that tell it.
#define BROADCAST_SECONDS 0.2
// After this rank left: time for one that waits for it to say so.
#define WAITING_PEER_SECONDS 0.3

typedef struct control_message_s {
  int32_t has_fault;
  int32_t reserved_;
  choir_activity_t activity;
  choir_comm_fault_t fault;
} control_message_t;
// All of a heartbeat.
enum { HEARTBEAT_BYTES = offsetof(control_message_t, fault) };
_Static_assert(HEARTBEAT_BYTES == 88,
               "docs/algorithms.md tells how long a beat is");

// What passes between this rank and one peer beside the operations.
struct choir_mpi_control_s {
  control_message_t in;
  control_message_t out;
  control_message_t fault_out;
  choir_mpi_request_t in_request;
  choir_mpi_request_t out_request;
  choir_mpi_request_t fault_request;
  bool in_posted;
  bool out_posted;
  bool fault_posted;
  choir_activity_t activity;  // the peer's, as last heard
};

static choir_mpi_comm_t* as_mpi(choir_comm_t* comm) {
  return (choir_mpi_comm_t*)comm;
}

static void lock(choir_mpi_comm_t* mpi) {
  pthread_mutex_lock(&mpi->world->mutex);
}
static void unlock(choir_mpi_comm_t* mpi) {
  pthread_mutex_unlock(&mpi->world->mutex);
}

static choir_status_t break_by_code(choir_mpi_comm_t* mpi, int32_t peer,
                                    int code) {
  char text[200];
  mpi->world->shim->error_text(code, text, sizeof(text));
  choir__comm_note_follower();
  return choir__comm_break(&mpi->base, CHOIR_STATUS_ABORTED, "MPI lost %s: %s",
                           mpi->base.peers[peer].text, text);
}

static void note_life(choir_mpi_comm_t* mpi, int32_t rank) {
  atomic_fetch_add(&mpi->world->received[mpi->world_ranks[rank]], 1);
}

// ---- Posting and waiting ----

typedef struct progress_s {
  int32_t open;   // requests not done
  int32_t moved;  // done since the last look
  int32_t peer;   // of the first open one; receives first
  int code;
  int32_t code_peer;
} progress_t;

static progress_t test_pending(choir_mpi_comm_t* mpi) {
  progress_t progress = {.peer = -1};
  bool peer_is_receive = false;
  lock(mpi);
  for (int32_t i = 0; i < mpi->pending_count; ++i) {
    choir_mpi_pending_t* pending = &mpi->pending[i];
    if (pending->done) continue;
    int done = 0;
    int code = mpi->world->shim->test(&pending->request, &done);
    if (code && !progress.code) {
      progress.code = code;
      progress.code_peer = pending->peer;
    }
    pending->done = done;
    progress.moved += done;
    if (done && pending->is_receive && !code) note_life(mpi, pending->peer);
    if (done) continue;
    ++progress.open;
    if (progress.peer < 0 || (pending->is_receive && !peer_is_receive)) {
      progress.peer = pending->peer;
      peer_is_receive = pending->is_receive;
    }
  }
  unlock(mpi);
  return progress;
}

// Of an operation that is given up: MPI must not write into memory that the
// caller or this communicator frees. Messages that were sent cannot be taken
// back; they get a moment.
static void cancel_pending(choir_mpi_comm_t* mpi) {
  lock(mpi);
  for (int32_t i = 0; i < mpi->pending_count; ++i)
    if (!mpi->pending[i].done && mpi->pending[i].is_receive)
      mpi->world->shim->cancel(&mpi->pending[i].request);
  unlock(mpi);
  double end = choir_clock_seconds() + 0.05;
  while (test_pending(mpi).open > 0 && choir_clock_seconds() < end)
    sched_yield();
  mpi->pending_count = 0;
}

static choir_mpi_pending_t* add_pending(choir_mpi_comm_t* mpi, int32_t peer,
                                        bool is_receive) {
  choir_mpi_pending_t* pending = &mpi->pending[mpi->pending_count++];
  *pending = (choir_mpi_pending_t){.peer = peer, .is_receive = is_receive};
  return pending;
}

static choir_status_t post(choir_comm_t* comm, int32_t peer, int32_t kind,
                           void* data, size_t bytes, bool is_receive) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  const choir_mpi_shim_t* shim = mpi->world->shim;
  const int32_t rank = mpi->world_ranks[peer];
  const int tag = mpi->tag + kind;
  for (size_t done = 0; done < bytes;) {
    size_t left = bytes - done;
    int now =
        (int)(left < CHOIR_MPI_MESSAGE_BYTES ? left : CHOIR_MPI_MESSAGE_BYTES);
    void* at = (char*)data + done;
    choir_mpi_pending_t* pending = add_pending(mpi, peer, is_receive);
    lock(mpi);
    int code = is_receive ? shim->irecv(at, now, rank, tag, &pending->request)
                          : shim->isend(at, now, rank, tag, &pending->request);
    unlock(mpi);
    if (code) {
      --mpi->pending_count;
      cancel_pending(mpi);
      return break_by_code(mpi, peer, code);
    }
    done += (size_t)now;
  }
  return NULL;
}

static void sleep_seconds(double seconds) {
  struct timespec time = {0, (long)(seconds * 1e9)};
  nanosleep(&time, NULL);
}

static choir_status_t wait_slowly(choir_mpi_comm_t* mpi, int32_t peer) {
  choir_comm_t* comm = &mpi->base;
  choir_comm_wait_t wait;
  choir__comm_wait_begin(comm, &wait, peer);
  for (;;) {
    bool over = choir__comm_wait_is_over(comm, &wait);
    progress_t progress = test_pending(mpi);
    if (progress.code) {
      choir__comm_wait_end(comm, &wait);
      cancel_pending(mpi);
      return break_by_code(mpi, progress.code_peer, progress.code);
    }
    if (progress.open == 0) break;
    if (over) {
      choir_status_t status = choir__comm_wait_fail(comm, &wait);
      cancel_pending(mpi);
      return status;
    }
    if (progress.moved) {
      choir__comm_wait_progress(comm, &wait, progress.peer);
    } else if (wait.waited < YIELD_SECONDS) {
      sched_yield();
    } else {
      double seconds = wait.waited * SLEEP_SHARE;
      sleep_seconds(seconds < MAX_SLEEP ? seconds : MAX_SLEEP);
    }
  }
  choir__comm_wait_end(comm, &wait);
  return NULL;
}

static choir_status_t mpi_wait(choir_comm_t* comm) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  const operation_t* running = mpi->base.run.operation;
  int looks = running && running->may_spin ? POLL_COUNT : 1;
  progress_t progress = {0};
  for (int i = 0; i < looks; ++i) {
    progress = test_pending(mpi);
    if (progress.open == 0 || progress.code) break;
  }
  if (progress.open > 0 || progress.code)
    CHOIR_TRY(wait_slowly(mpi, progress.peer < 0 ? 0 : progress.peer));
  mpi->pending_count = 0;
  return NULL;
}

// ---- Messages ----

static choir_comm_message_t* mpi_stage(choir_comm_t* comm) {
  return (choir_comm_message_t*)(void*)as_mpi(comm)->out_message;
}

static choir_status_t mpi_exchange(choir_comm_t* comm, size_t bytes) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  size_t own_bytes = sizeof(choir_comm_message_t) + bytes;
  for (int32_t r = 0; r < comm->size; ++r) {
    unsigned char* in = mpi->in_messages + (size_t)r * mpi->message_stride;
    comm->messages[r] = (const choir_comm_message_t*)(void*)in;
    if (r == comm->rank) continue;
    CHOIR_TRY(post(comm, r, CHOIR_COMM_CHANNEL_EXCHANGE, in,
                   mpi->message_stride, true));
    CHOIR_TRY(post(comm, r, CHOIR_COMM_CHANNEL_EXCHANGE, mpi->out_message,
                   own_bytes, false));
  }
  comm->messages[comm->rank] = mpi_stage(comm);
  return mpi_wait(comm);
}

// ---- Heartbeats and faults ----

static void receive_control(choir_mpi_comm_t* mpi, int32_t rank) {
  choir_mpi_control_t* control = &mpi->controls[rank];
  // A few at most: a peer that was held up sends its beats together.
  for (int i = 0; i < 4; ++i) {
    if (control->in_posted) {
      if (!choir_mpi_is_over(mpi->world, &control->in_request)) return;
      control->in_posted = false;
      note_life(mpi, rank);
      if (control->in.has_fault)
        choir__comm_note_fault(&mpi->base, &control->in.fault);
      else
        control->activity = control->in.activity;
    }
    control->in_posted = !mpi->world->shim->irecv(
        &control->in, sizeof(control->in), mpi->world_ranks[rank],
        mpi->tag + CHOIR_MPI_CONTROL, &control->in_request);
    if (!control->in_posted) return;
  }
}

static void send_heartbeat(choir_mpi_comm_t* mpi, int32_t rank,
                           const choir_activity_t* activity) {
  choir_mpi_control_t* control = &mpi->controls[rank];
  if (control->out_posted &&
      !choir_mpi_is_over(mpi->world, &control->out_request))
    return;
  control->out = (control_message_t){.activity = *activity};
  control->out_posted = !mpi->world->shim->isend(
      &control->out, HEARTBEAT_BYTES, mpi->world_ranks[rank],
      mpi->tag + CHOIR_MPI_CONTROL, &control->out_request);
}

static void mpi_poll_faults(choir_comm_t* comm) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  if (!mpi->controls) return;
  lock(mpi);
  for (int32_t r = 0; r < comm->size; ++r)
    if (r != comm->rank) receive_control(mpi, r);
  unlock(mpi);
}

static void mpi_heartbeat(choir_comm_t* comm, double seconds) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  if (!atomic_load(&comm->faults.broken)) {
    choir_activity_t activity;
    choir__activity_read(comm->activity.places[0], &activity);
    lock(mpi);
    for (int32_t r = 0; r < comm->size; ++r) {
      if (r == comm->rank) continue;
      send_heartbeat(mpi, r, &activity);
      receive_control(mpi, r);
      atomic_store(&comm->peers[r].beat,
                   atomic_load(&mpi->world->received[mpi->world_ranks[r]]));
    }
    unlock(mpi);
  }
  struct pollfd wake = {.fd = comm->watch.wake_fd, .events = POLLIN};
  poll(&wake, 1, (int)(seconds * 1e3) + 1);
}

static void mpi_broadcast_fault(choir_comm_t* comm,
                                const choir_comm_fault_t* fault) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  if (!mpi->controls) return;
  double end = choir_clock_seconds() + BROADCAST_SECONDS;
  bool open = true;
  for (bool first = true; open && choir_clock_seconds() < end; first = false) {
    open = false;
    lock(mpi);
    for (int32_t r = 0; r < comm->size; ++r) {
      choir_mpi_control_t* control = &mpi->controls[r];
      if (r == comm->rank) continue;
      if (first) {
        control->fault_out =
            (control_message_t){.has_fault = 1, .fault = *fault};
        control->fault_posted = !mpi->world->shim->isend(
            &control->fault_out, sizeof(control->fault_out),
            mpi->world_ranks[r], mpi->tag + CHOIR_MPI_CONTROL,
            &control->fault_request);
      }
      if (control->fault_posted &&
          choir_mpi_is_over(mpi->world, &control->fault_request))
        control->fault_posted = false;
      open = open || control->fault_posted;
    }
    unlock(mpi);
    if (open) sched_yield();
  }
}

static void mpi_peer_activity(choir_comm_t* comm, int32_t rank,
                              choir_activity_t* out_activity) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  lock(mpi);
  *out_activity = mpi->controls[rank].activity;
  unlock(mpi);
}

// ---- Life ----

// Whether all heartbeats have left the memory that they are sent from, which is
// about to be freed.
static bool drain_heartbeats(choir_mpi_comm_t* mpi) {
  bool open = false;
  for (int32_t r = 0; r < mpi->base.size; ++r) {
    choir_mpi_control_t* control = &mpi->controls[r];
    if (control->out_posted &&
        choir_mpi_is_over(mpi->world, &control->out_request))
      control->out_posted = false;
    open = open || control->out_posted;
  }
  return !open;
}

static void end_controls(choir_mpi_comm_t* mpi) {
  if (!mpi->controls || !mpi->world->shim->is_running()) return;
  lock(mpi);
  for (int32_t r = 0; r < mpi->base.size; ++r) {
    choir_mpi_control_t* control = &mpi->controls[r];
    if (!control->in_posted) continue;
    mpi->world->shim->cancel(&control->in_request);
    choir_mpi_is_over(mpi->world, &control->in_request);
    control->in_posted = false;
  }
  double end = choir_clock_seconds() + BROADCAST_SECONDS;
  while (!drain_heartbeats(mpi) && choir_clock_seconds() < end) sched_yield();
  unlock(mpi);
}

// Tells peers that this rank leaves a communicator in which they may wait for
// it. False: it is finalized or broken.
static bool broadcast_leaving(choir_mpi_comm_t* mpi) {
  choir_comm_t* comm = &mpi->base;
  if (!mpi->world || comm->size == 1 || comm->run.finalized ||
      atomic_load(&comm->faults.broken) || !mpi->controls)
    return false;
  choir_comm_fault_t fault = {.code = CHOIR_STATUS_ABORTED,
                              .origin = comm->rank};
  choir__text_append(fault.text, sizeof(fault.text),
                     comm->peers[comm->rank].text);
  choir__text_append(fault.text, sizeof(fault.text),
                     " left the communicator without finalize");
  mpi_broadcast_fault(comm, &fault);
  return true;
}

// Communicators over MPI that are not released yet: those that are not
// finalized when the program ends broadcast that they leave, as MPI does not
// tell peers of it (over shared memory the kernel closes the sockets).
static struct {
  pthread_mutex_t mutex;
  choir_mpi_comm_t* first;
} joined_comms = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// After the broadcast that this rank leaves. A peer that was waiting for it
// fails, broadcasts that fault with this rank as its origin, and does not come
// to MPI_Finalize, in which this process would wait for it. A peer that leaves
// likewise answers nothing.
static bool peer_was_waiting(choir_comm_t* comm) {
  const double end = choir_clock_seconds() + WAITING_PEER_SECONDS;
  while (choir_clock_seconds() < end) {
    mpi_poll_faults(comm);
    if (atomic_load(&comm->faults.peer_broken))
      return comm->faults.peer.origin == comm->rank;
    sleep_seconds(MAX_SLEEP);
  }
  return false;
}

// This process ends MPI: communicators that are not finalized leave, and no
// thread of theirs calls MPI any more.
static void leave_all(void) {
  pthread_mutex_lock(&joined_comms.mutex);
  for (choir_mpi_comm_t* mpi = joined_comms.first; mpi;
       mpi = mpi->next_joined) {
    if (!mpi->world->shim->is_running()) continue;
    if (broadcast_leaving(mpi) && peer_was_waiting(&mpi->base))
      choir_mpi_skip_finalize();
    // Neither its thread nor its operations may call MPI when that is over.
    choir__comm_watch_stop(&mpi->base);
    if (pthread_mutex_trylock(&mpi->base.run.mutex)) {
      choir_mpi_skip_finalize();  // an operation of another thread does
      continue;
    }
    mpi->base.run.finalized = true;
    end_controls(mpi);
    pthread_mutex_unlock(&mpi->base.run.mutex);
  }
  pthread_mutex_unlock(&joined_comms.mutex);
}

static void note_joined(choir_mpi_comm_t* mpi) {
  pthread_mutex_lock(&joined_comms.mutex);
  mpi->next_joined = joined_comms.first;
  joined_comms.first = mpi;
  pthread_mutex_unlock(&joined_comms.mutex);
}

static void forget_joined(choir_mpi_comm_t* mpi) {
  pthread_mutex_lock(&joined_comms.mutex);
  choir_mpi_comm_t** at = &joined_comms.first;
  while (*at && *at != mpi) at = &(*at)->next_joined;
  if (*at) *at = mpi->next_joined;
  pthread_mutex_unlock(&joined_comms.mutex);
}

static void mpi_destroy(choir_comm_t* comm) {
  choir_mpi_comm_t* mpi = as_mpi(comm);
  forget_joined(mpi);
  if (mpi->world) end_controls(mpi);
  broadcast_leaving(mpi);
  if (mpi->memory)
    comm->allocator.free(comm->allocator.self, mpi->memory, mpi->memory_bytes,
                         64);
  choir__comm_deallocate(comm);
}

static void mpi_describe(choir_comm_t* comm, const operation_t* operation,
                         choir_comm_header_t* header) {
  (void)comm;
  if (operation->kind == CHOIR_COMM_KIND_GROUP)
    header->src_place = (uint64_t)choir_mpi_world_next_context();
}

static choir_status_t mpi_group(choir_comm_t* comm,
                                const choir_comm_config_t* config,
                                const int32_t* ranks, uint64_t context,
                                choir_comm_t** out_group);

static void mpi_finalize(choir_comm_t* comm) { end_controls(as_mpi(comm)); }

static const choir_comm_vtable_t mpi_vtable = {
    .name = "mpi",
    .destroy = mpi_destroy,
    .stage = mpi_stage,
    .exchange = mpi_exchange,
    .describe = mpi_describe,
    .large = CHOIR__DIRECT_LARGE,
    .group = mpi_group,
    .pair = choir__direct_pair,
    .post = post,
    .wait = mpi_wait,
    .heartbeat = mpi_heartbeat,
    .poll_faults = mpi_poll_faults,
    .broadcast_fault = mpi_broadcast_fault,
    .peer_activity = mpi_peer_activity,
    .finalize = mpi_finalize,
};

static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

static choir_status_t allocate_memory(choir_mpi_comm_t* mpi) {
  choir_comm_t* comm = &mpi->base;
  size_t size = (size_t)comm->size;
  comm->sizes.exchange = EXCHANGE_BYTES;
  comm->sizes.with_header = EXCHANGE_BYTES;
  comm->sizes.share_with_header = EXCHANGE_SHARE_BYTES;
  mpi->message_stride =
      round_up(sizeof(choir_comm_message_t) + comm->sizes.exchange);
  size_t messages = (size + 1) * mpi->message_stride;
  size_t controls = round_up(size * sizeof(choir_mpi_control_t));
  size_t pending = CHOIR_MPI_PENDING * size * sizeof(choir_mpi_pending_t);
  size_t ranks = size * sizeof(int32_t);
  size_t cleared = round_up(messages + controls + pending + ranks);
  mpi->memory_bytes = cleared + CHOIR_COMM_WORK_BYTES(comm->sizes.round, size);
  mpi->memory =
      comm->allocator.alloc(comm->allocator.self, mpi->memory_bytes, 64);
  if (!mpi->memory)
    return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for %zu bytes",
                       mpi->memory_bytes);
  memset(mpi->memory, 0, cleared);
  mpi->out_message = mpi->memory;
  mpi->in_messages = mpi->memory + mpi->message_stride;
  mpi->controls = (choir_mpi_control_t*)(void*)(mpi->memory + messages);
  for (size_t r = 0; r < size; ++r) mpi->controls[r].activity.kind = -1;
  mpi->pending =
      (choir_mpi_pending_t*)(void*)(mpi->memory + messages + controls);
  mpi->world_ranks = (int32_t*)(mpi->pending + CHOIR_MPI_PENDING * size);
  comm->work = mpi->memory + cleared;
  for (int32_t r = 0; r < comm->size; ++r) mpi->world_ranks[r] = r;
  return NULL;
}

static choir_status_t check_world(const choir_mpi_world_t* world,
                                  const choir_comm_config_t* config) {
  if (world->rank == config->rank && world->size == config->size) return NULL;
  return CHOIR_ERROR(
      INVALID_ARGUMENT,
      "this is rank %d of %d, but for MPI it is rank %d of %d; start the "
      "program with mpiexec -n %d",
      config->rank, config->size, world->rank, world->size, config->size);
}

static choir_status_t missing_error(choir_mpi_comm_t* mpi, double waited) {
  choir_comm_t* comm = &mpi->base;
  const choir_comm_identity_t* own = &comm->peers[comm->rank].identity;
  memset(comm->flags, 0, (size_t)comm->size);
  int32_t count = 0;
  for (int32_t i = 0; i < mpi->pending_count; ++i) {
    const choir_mpi_pending_t* pending = &mpi->pending[i];
    if (pending->done || !pending->is_receive) continue;
    comm->flags[pending->peer] = true;
    ++count;
  }
  char ranks[128];
  choir__comm_rank_list(comm->flags, comm->size, ranks, sizeof(ranks));
  return CHOIR_ERROR(TIMEOUT,
                     "rank %d (host %s, pid %d) waited %.1f s at the start; %s "
                     "of %d %s not come",
                     comm->rank, own->host, own->pid, waited, ranks, comm->size,
                     count == 1 ? "has" : "have");
}

// Everybody tells everybody who they are.
static choir_status_t exchange_identities(choir_mpi_comm_t* mpi,
                                          const choir_comm_config_t* config) {
  choir_comm_t* comm = &mpi->base;
  choir__comm_identify(config, &comm->peers[comm->rank].identity);
  comm->peers[comm->rank].identity.context = choir_mpi_world_next_context();
  // For failures before ranks know more of each other.
  for (int32_t r = 0; r < comm->size; ++r)
    snprintf(comm->peers[r].text, sizeof(comm->peers[r].text), "rank %d", r);
  for (int32_t r = 0; r < comm->size; ++r) {
    if (r == comm->rank) continue;
    choir_comm_identity_t* theirs = &comm->peers[r].identity;
    CHOIR_TRY(
        post(comm, r, CHOIR_MPI_HANDSHAKE, theirs, sizeof(*theirs), true));
    CHOIR_TRY(post(comm, r, CHOIR_MPI_HANDSHAKE,
                   &comm->peers[comm->rank].identity, sizeof(*theirs), false));
  }
  double start = choir_clock_seconds();
  for (;;) {
    progress_t progress = test_pending(mpi);
    double waited = choir_clock_seconds() - start;
    if (progress.code) {
      cancel_pending(mpi);
      return break_by_code(mpi, progress.code_peer, progress.code);
    }
    if (progress.open == 0) break;
    if (waited > config->deadline) {
      choir_mpi_skip_finalize();
      choir_status_t status = missing_error(mpi, waited);
      cancel_pending(mpi);
      return status;
    }
    if (waited < YIELD_SECONDS)
      sched_yield();
    else
      sleep_seconds(MAX_SLEEP);
  }
  mpi->pending_count = 0;
  choir__comm_map_hosts(comm);
  return NULL;
}

static choir_status_t take_context(choir_mpi_comm_t* mpi, uint64_t context) {
  CHOIR_TRY(choir_mpi_world_take_context(context));
  mpi->tag = CHOIR_MPI_TAGS * (int)context;
  return NULL;
}

static choir_status_t join(choir_mpi_comm_t* mpi,
                           const choir_comm_config_t* config) {
  CHOIR_TRY(choir_mpi_world_open(config->deadline, leave_all, &mpi->world));
  CHOIR_TRY(check_world(mpi->world, config));
  CHOIR_TRY(allocate_memory(mpi));
  mpi->base.watch.has_heartbeat = mpi->world->has_own_thread;
  CHOIR_TRY(exchange_identities(mpi, config));
  choir_mpi_world_note(config, mpi->base.peers);
  int32_t context = 0;
  for (int32_t r = 0; r < config->size; ++r)
    if (mpi->base.peers[r].identity.context > context)
      context = mpi->base.peers[r].identity.context;
  return take_context(mpi, (uint64_t)context);
}

static choir_status_t join_group(choir_mpi_comm_t* mpi,
                                 const choir_mpi_comm_t* parent,
                                 const choir_comm_config_t* config,
                                 const int32_t* ranks, uint64_t context) {
  mpi->world = parent->world;
  CHOIR_TRY(allocate_memory(mpi));
  for (int32_t r = 0; r < config->size; ++r)
    mpi->world_ranks[r] = parent->world_ranks[ranks[r]];
  mpi->base.watch.has_heartbeat = mpi->world->has_own_thread;
  CHOIR_TRY(take_context(mpi, context));
  return exchange_identities(mpi, config);
}

static choir_status_t joined(choir_comm_t** out_comm, choir_status_t status) {
  choir_comm_t* comm = *out_comm;
  if (!status) {
    note_joined(as_mpi(comm));
    return NULL;
  }
  comm->run.finalized = true;  // nobody joined, nobody to tell
  mpi_destroy(comm);
  *out_comm = NULL;
  return choir_status_annotate(status, __FILE__, __LINE__, "comm mpi");
}

choir_status_t choir_mpi_comm_join(const choir_comm_config_t* config,
                                   choir_comm_t** out_comm) {
  CHOIR_TRY(choir__comm_allocate(&mpi_vtable, sizeof(choir_mpi_comm_t), config,
                                 out_comm));
  return joined(out_comm, join(as_mpi(*out_comm), config));
}

static choir_status_t mpi_group(choir_comm_t* comm,
                                const choir_comm_config_t* config,
                                const int32_t* ranks, uint64_t context,
                                choir_comm_t** out_group) {
  bool one_host = true;
  for (int32_t r = 1; r < config->size; ++r)
    one_host = one_host && comm->peers[ranks[r]].host_index ==
                               comm->peers[ranks[0]].host_index;
  if (one_host) return choir_shm_comm_join(config, out_group);
  CHOIR_TRY(choir__comm_allocate(&mpi_vtable, sizeof(choir_mpi_comm_t), config,
                                 out_group));
  return joined(out_group, join_group(as_mpi(*out_group), as_mpi(comm), config,
                                      ranks, context));
}

static choir_status_t share_id(choir_comm_t* comm, choir_comm_id_t* out_id) {
  choir_comm_message_t* message = mpi_stage(comm);
  if (comm->rank == 0) CHOIR_TRY(choir_comm_id_make(out_id));
  memcpy(message->data, out_id, sizeof(*out_id));
  CHOIR_TRY(mpi_exchange(comm, sizeof(*out_id)));
  memcpy(out_id, comm->messages[0]->data, sizeof(*out_id));
  return NULL;
}

choir_status_t choir_mpi_comm_rendezvous(const choir_comm_config_t* config,
                                         choir_comm_id_t* out_id,
                                         bool* out_one_host) {
  memset(out_id, 0, sizeof(*out_id));
  *out_one_host = false;
  choir_comm_t* comm = NULL;
  CHOIR_TRY(choir_mpi_comm_join(config, &comm));
  if (!comm) return CHOIR_ERROR(INTERNAL, "comm mpi: nobody joined");
  *out_one_host = comm->hosts.count == 1;
  choir_status_t status = *out_one_host ? share_id(comm, out_id) : NULL;
  comm->run.finalized = true;  // it has served; no peer waits for it any more
  mpi_destroy(comm);
  return status;
}
