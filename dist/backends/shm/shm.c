// SPDX-License-Identifier: Apache-2.0
// Collectives over shared memory.
//
// Everything rests on one primitive, the phase: each rank counts how often it
// came to a synchronisation, and waits until all others counted as far. A
// rank's message goes to bank `phase % 2` of its slot: it may be overwritten
// two phases later, because peers that came to the phase between have read it.
// The count is the first word of that bank, so that one cache line brings it
// and the header; it is a futex.
#include "dist/backends/shm/shm_internal.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/profile.h"

// About 20 microseconds of looking before a rank sleeps, when every rank has
// a core of its own.
#define SPIN_COUNT 600
// Then others may run first: to be woken from sleep takes tens of microseconds.
// About half a millisecond where nobody else wants the core, the usual
// difference between two ranks' steps; less where ranks share cores. A
// background thread's core belongs to computing, which a yield would give
// milliseconds: it sleeps. So does one whose core other programs want: each of
// its yields gives them milliseconds.
#define YIELD_COUNT 1000
#define YIELD_COUNT_SHARED 30
static const double yield_seconds = 0.005;
#define SLICE_NANOSECONDS 50000000L

// Sums of more than this in shared memory are taken where they lie: a second
// synchronisation is quicker than copying all to all ranks.
#define DIRECT_BYTES 512

typedef choir_comm_operation_t operation_t;

static choir_shm_comm_t* as_shm(choir_comm_t* comm) {
  return (choir_shm_comm_t*)comm;
}

// ---- Phases ----

static void futex_wake(_Atomic uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint32_t* word, uint32_t seen) {
  struct timespec slice = {0, SLICE_NANOSECONDS};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0);
}

static choir_comm_message_t* bank(const choir_shm_comm_t* shm, int32_t rank,
                                  uint32_t phase) {
  unsigned char* slot = (unsigned char*)choir_shm_slot(shm, rank);
  return (choir_comm_message_t*)(void*)(slot +
                                        (shm->slot_stride -
                                         (1 + phase % 2) * shm->bank_stride));
}

static void wake_all(const choir_shm_comm_t* shm) {
  for (int32_t r = 0; r < shm->base.size; ++r)
    for (uint32_t phase = 0; phase < 2; ++phase)
      futex_wake(&bank(shm, r, phase)->header.arrived);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Phases wrap around; ranks are never more than two apart.
static bool has_come(_Atomic uint32_t* arrived, uint32_t phase) {
  uint32_t theirs = atomic_load_explicit(arrived, memory_order_acquire);
  return (int32_t)(theirs - phase) >= 0;
}

static choir_status_t wait_asleep(choir_shm_comm_t* shm, int32_t rank,
                                  uint32_t phase) {
  choir_shm_slot_t* slot = choir_shm_slot(shm, rank);
  _Atomic uint32_t* arrived = &bank(shm, rank, phase)->header.arrived;
  choir_comm_t* comm = &shm->base;
  choir_comm_wait_t wait;
  choir__comm_wait_begin(comm, &wait, rank);
  for (;;) {
    bool over = choir__comm_wait_is_over(comm, &wait);
    uint32_t seen = atomic_load(arrived);
    if ((int32_t)(seen - phase) >= 0) break;
    if (over) return choir__comm_wait_fail(comm, &wait);
    atomic_fetch_add(&slot->waiters, 1);
    futex_wait(arrived, seen);
    atomic_fetch_sub(&slot->waiters, 1);
  }
  choir__comm_wait_end(comm, &wait);
  return NULL;
}

// Lets others run for a while; whether it came.
static bool comes_by_yielding(choir_shm_comm_t* shm, int32_t rank,
                              uint32_t phase) {
  _Atomic uint32_t* arrived = &bank(shm, rank, phase)->header.arrived;
  const int yields =
      shm->base.hosts.oversubscribed ? YIELD_COUNT_SHARED : YIELD_COUNT;
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_WAIT);
  const double end = choir_clock_seconds() + yield_seconds;
  bool came = has_come(arrived, phase);
  for (int i = 0; !came && i < yields && choir_clock_seconds() <= end; ++i) {
    sched_yield();
    came = has_come(arrived, phase);
  }
  choir_span_end(&span, "wait", shm->base.peers[rank].text, NULL);
  return came;
}

static choir_status_t wait_for(choir_shm_comm_t* shm, int32_t rank,
                               uint32_t phase) {
  _Atomic uint32_t* arrived = &bank(shm, rank, phase)->header.arrived;
  const operation_t* running = shm->base.run.operation;
  if (running && running->may_spin) {
    for (int i = 0; i < SPIN_COUNT; ++i) {
      if (has_come(arrived, phase)) return NULL;
      relax();
    }
  }
  if ((!running || running->is_blocking) && comes_by_yielding(shm, rank, phase))
    return NULL;
  return wait_asleep(shm, rank, phase);
}

choir_status_t choir_shm_sync(choir_shm_comm_t* shm) {
  choir_shm_slot_t* own = choir_shm_slot(shm, shm->base.rank);
  uint32_t phase = ++shm->phase;
  _Atomic uint32_t* arrived = &bank(shm, shm->base.rank, phase)->header.arrived;
  // Sequentially consistent, as the waiters' count and read of the phase: one
  // of both sides sees the other.
  atomic_store(arrived, phase);
  if (atomic_load(&own->waiters)) futex_wake(arrived);
  for (int32_t r = 0; r < shm->base.size; ++r)
    if (r != shm->base.rank) CHOIR_TRY(wait_for(shm, r, phase));
  return NULL;
}

// ---- Messages ----

static choir_comm_message_t* shm_stage(choir_comm_t* comm) {
  return bank(as_shm(comm), comm->rank, as_shm(comm)->phase + 1);
}

static choir_status_t shm_exchange(choir_comm_t* comm, size_t bytes) {
  (void)bytes;
  choir_shm_comm_t* shm = as_shm(comm);
  CHOIR_TRY(choir_shm_sync(shm));
  for (int32_t r = 0; r < comm->size; ++r)
    comm->messages[r] = bank(shm, r, shm->phase);
  return NULL;
}

// ---- Collectives ----

static void shm_describe(choir_comm_t* comm, const operation_t* operation,
                         choir_comm_header_t* header) {
  const choir_collective_t* c = &operation->collective;
  int64_t bytes = choir__comm_payload_bytes(comm, operation);
  if (bytes <= 0) return;
  choir_shm_comm_t* shm = as_shm(comm);
  header->src_place = choir_shm_place(shm, c->src, (size_t)bytes);
  if (operation->kind == CHOIR_COLLECTIVE_ALL_REDUCE ||
      operation->kind == CHOIR_COLLECTIVE_BROADCAST ||
      (operation->kind == CHOIR_COLLECTIVE_REDUCE && comm->rank == c->root))
    header->dst_place = c->dst == c->src
                            ? header->src_place
                            : choir_shm_place(shm, c->dst, (size_t)bytes);
  header->is_direct = operation->kind == CHOIR_COLLECTIVE_ALL_REDUCE &&
                      header->src_place && header->dst_place &&
                      bytes > DIRECT_BYTES;
}

static bool all_sources_shared(const choir_comm_t* comm) {
  for (int32_t r = 0; r < comm->size; ++r)
    if (!comm->headers[r].src_place) return false;
  return true;
}

// all_reduce has a result on every rank, reduce on its root only.
static bool takes_result(const operation_t* operation, int32_t rank) {
  return operation->kind == CHOIR_COLLECTIVE_ALL_REDUCE ||
         rank == operation->collective.root;
}

static bool all_destinations_shared(const choir_comm_t* comm,
                                    const operation_t* operation) {
  for (int32_t r = 0; r < comm->size; ++r)
    if (takes_result(operation, r) && !comm->headers[r].dst_place) return false;
  return true;
}

static const char* source_of(choir_comm_t* comm, int32_t rank) {
  return choir_shm_at(as_shm(comm), rank, comm->headers[rank].src_place);
}

// Every rank sums its part of all ranks' memory and writes it to all ranks'
// memory (reduce: the root's): each byte is read once and written once for each
// of them.
static choir_status_t all_reduce_in_place(choir_comm_t* comm,
                                          const operation_t* operation) {
  choir_shm_comm_t* shm = as_shm(comm);
  size_t e = operation->element_bytes;
  int64_t start, count;
  int32_t destination_count = 0;
  choir__comm_part(operation->collective.count, e, comm->rank, comm->size,
                   &start, &count);
  for (int32_t r = 0; r < comm->size; ++r) {
    comm->sums.sources[r] = source_of(comm, r) + (size_t)start * e;
    if (takes_result(operation, r))
      comm->sums.destinations[destination_count++] =
          (char*)choir_shm_at(shm, r, comm->headers[r].dst_place) +
          (size_t)start * e;
  }
  choir__comm_reduce(comm, operation, comm->sums.sources,
                     comm->sums.destinations, destination_count, count);
  return choir_shm_sync(shm);
}

// Private memory goes through the banks: each rank gives the others their
// parts, sums its own and gives the result.
static choir_status_t all_reduce_staged(choir_comm_t* comm,
                                        const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  bool takes = takes_result(operation, comm->rank);
  size_t e = operation->element_bytes;
  int64_t round = (int64_t)(comm->sizes.exchange / e);
  for (int64_t done = 0; done < c->count; done += round) {
    int64_t n = choir__comm_stretch(c->count, done, round);
    const char* src = (const char*)c->src + (size_t)done * e;
    char* dst = takes ? (char*)c->dst + (size_t)done * e : NULL;
    int64_t start, count;
    unsigned char* out = shm_stage(comm)->data;
    for (int32_t r = 0; r < comm->size; ++r) {
      choir__comm_part(n, e, r, comm->size, &start, &count);
      if (r != comm->rank)
        memcpy(out + (size_t)start * e, src + (size_t)start * e,
               (size_t)count * e);
    }
    CHOIR_TRY(shm_exchange(comm, 0));
    choir__comm_part(n, e, comm->rank, comm->size, &start, &count);
    size_t at = (size_t)start * e;
    for (int32_t r = 0; r < comm->size; ++r)
      comm->sums.sources[r] = r == comm->rank
                                  ? (const void*)(src + at)
                                  : (const void*)(comm->messages[r]->data + at);
    comm->sums.destinations[0] = shm_stage(comm)->data + at;
    if (takes) comm->sums.destinations[1] = dst + at;
    choir__comm_reduce(comm, operation, comm->sums.sources,
                       comm->sums.destinations, takes ? 2 : 1, count);
    CHOIR_TRY(shm_exchange(comm, 0));
    for (int32_t r = 0; takes && r < comm->size; ++r) {
      choir__comm_part(n, e, r, comm->size, &start, &count);
      if (r != comm->rank)
        memcpy(dst + (size_t)start * e,
               comm->messages[r]->data + (size_t)start * e, (size_t)count * e);
    }
  }
  return NULL;
}

static choir_status_t shm_all_reduce(choir_comm_t* comm,
                                     const operation_t* operation) {
  bool shared =
      all_sources_shared(comm) && all_destinations_shared(comm, operation);
  return shared ? all_reduce_in_place(comm, operation)
                : all_reduce_staged(comm, operation);
}

static choir_status_t shm_broadcast(choir_comm_t* comm,
                                    const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  uint64_t place = comm->headers[c->root].dst_place;
  if (!place) return choir__comm_run_rounds(comm, operation, false);
  if (comm->rank != c->root)
    memcpy(c->dst, choir_shm_at(as_shm(comm), c->root, place),
           (size_t)c->count * operation->element_bytes);
  return choir_shm_sync(as_shm(comm));
}

// Shared sources are read where they lie; the others go through the banks.
static choir_status_t shm_move(choir_comm_t* comm,
                               const operation_t* operation) {
  const choir_comm_moves_t* moves = &comm->moves;
  size_t e = operation->element_bytes;
  bool staged = false;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (!moves->open[r]) continue;
    if (!comm->headers[r].src_place) {
      staged = true;
      continue;
    }
    moves->open[r] = false;
    if (r == comm->rank || moves->recv_count[r] == 0) continue;
    memcpy((char*)operation->collective.dst + (size_t)moves->recv_at[r] * e,
           source_of(comm, r) + (size_t)moves->their_at[r] * e,
           (size_t)moves->recv_count[r] * e);
  }
  // Whoever comes to the next phase has read what is shared.
  return staged ? choir__comm_move_rounds(comm, operation)
                : choir_shm_sync(as_shm(comm));
}

static choir_status_t shm_reduce_scatter(choir_comm_t* comm,
                                         const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  if (!all_sources_shared(comm))
    return choir__comm_run_rounds(comm, operation, false);
  int64_t start, count;
  choir_comm_share(choir__comm_shared_count(comm, operation), comm->rank,
                   comm->size, &start, &count);
  for (int32_t r = 0; r < comm->size; ++r)
    comm->sums.sources[r] =
        source_of(comm, r) + (size_t)start * operation->element_bytes;
  void* dst = c->dst;
  choir__comm_reduce(comm, operation, comm->sums.sources, &dst, 1, count);
  return choir_shm_sync(as_shm(comm));
}

// ---- Pairs ----

// Through the socket between two ranks, which otherwise carries files only.
#define PACKET_BYTES ((size_t)32 << 10)

typedef struct transfer_s {
  const char* out;
  size_t out_bytes;
  char* in;
  size_t in_bytes;
} transfer_t;

static size_t packet_of(size_t bytes) {
  return bytes < PACKET_BYTES ? bytes : PACKET_BYTES;
}

// Sends and takes what goes without waiting; true if something did.
static bool move_packets(int socket, transfer_t* transfer) {
  bool moved = false;
  if (transfer->out_bytes) {
    ssize_t n = send(socket, transfer->out, packet_of(transfer->out_bytes),
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      transfer->out += n;
      transfer->out_bytes -= (size_t)n;
      moved = true;
    }
  }
  if (transfer->in_bytes) {
    ssize_t n =
        recv(socket, transfer->in, packet_of(transfer->in_bytes), MSG_DONTWAIT);
    if (n > 0) {
      transfer->in += n;
      transfer->in_bytes -= (size_t)n;
      moved = true;
    }
  }
  return moved;
}

static choir_status_t shm_pair(choir_comm_t* comm, int32_t peer,
                               const void* out, size_t out_bytes, void* in,
                               size_t in_bytes) {
  transfer_t transfer = {out, out_bytes, in, in_bytes};
  struct pollfd ready = {.fd = as_shm(comm)->sockets[peer]};
  choir_comm_wait_t wait;
  choir__comm_wait_begin(comm, &wait, peer);
  while (transfer.out_bytes || transfer.in_bytes) {
    bool over = choir__comm_wait_is_over(comm, &wait);
    if (move_packets(ready.fd, &transfer)) {
      choir__comm_wait_progress(comm, &wait, peer);
      continue;
    }
    if (over) return choir__comm_wait_fail(comm, &wait);
    ready.events = (short)((transfer.out_bytes ? POLLOUT : 0) |
                           (transfer.in_bytes ? POLLIN : 0));
    // A socket that has ended is always ready; the watch tells of it soon.
    if (poll(&ready, 1, 50) > 0 && (ready.revents & (POLLHUP | POLLERR)))
      usleep(1000);
  }
  choir__comm_wait_end(comm, &wait);
  return NULL;
}

// ---- Watching ----

void choir_shm_poll_sockets(choir_shm_comm_t* shm, int timeout_ms) {
  choir_comm_t* comm = &shm->base;
  struct pollfd* polls = shm->polls;
  if (poll(polls, (nfds_t)comm->size + 1, timeout_ms) <= 0) return;
  bool woken = false;
  for (int32_t r = 0; r < comm->size; ++r) {
    // Peers send nothing while they are joined but what is asked of them.
    if (!(polls[r].revents & (POLLHUP | POLLRDHUP | POLLERR))) continue;
    polls[r].fd = -1;
    bool left = atomic_load(&choir_shm_slot(shm, r)->left);
    atomic_store(&comm->peers[r].presence,
                 left ? CHOIR_COMM_PEER_LEFT : CHOIR_COMM_PEER_GONE);
    woken = true;
  }
  if (woken) wake_all(shm);
}

static void shm_poll_faults(choir_comm_t* comm) {
  choir_shm_comm_t* shm = as_shm(comm);
  // Alone there is nobody to look at, and no watch that would.
  if (!comm->watch.started && comm->size > 1) choir_shm_poll_sockets(shm, 0);
  for (int32_t r = 0; r < comm->size; ++r) {
    choir_shm_slot_t* slot = choir_shm_slot(shm, r);
    if (r != comm->rank && atomic_load(&slot->fault_ready) == 2)
      choir__comm_note_fault(comm, &slot->fault);
  }
}

static void shm_heartbeat(choir_comm_t* comm, double seconds) {
  choir_shm_comm_t* shm = as_shm(comm);
  atomic_fetch_add(&choir_shm_slot(shm, comm->rank)->beat, 1);
  choir_shm_poll_sockets(shm, (int)(seconds * 1e3) + 1);
  for (int32_t r = 0; r < comm->size; ++r)
    atomic_store(&comm->peers[r].beat,
                 atomic_load(&choir_shm_slot(shm, r)->beat));
}

static void shm_broadcast_fault(choir_comm_t* comm,
                                const choir_comm_fault_t* fault) {
  choir_shm_comm_t* shm = as_shm(comm);
  choir_shm_slot_t* own = choir_shm_slot(shm, comm->rank);
  own->fault = *fault;
  atomic_store(&own->fault_ready, 2);
  wake_all(shm);
}

static void shm_peer_activity(choir_comm_t* comm, int32_t rank,
                              choir_activity_t* out_activity) {
  choir__activity_read(&choir_shm_slot(as_shm(comm), rank)->activity,
                       out_activity);
}

// ---- Life ----

static void shm_destroy(choir_comm_t* comm) {
  choir_shm_comm_t* shm = as_shm(comm);
  if (shm->control) {
    atomic_store(&choir_shm_slot(shm, comm->rank)->left, 1);
    wake_all(shm);
  }
  choir_shm_disconnect(shm);
  choir_shm_free_memory(shm);
  choir__comm_deallocate(comm);
}

static choir_status_t shm_group(choir_comm_t* comm,
                                const choir_comm_config_t* config,
                                const int32_t* ranks, uint64_t context,
                                choir_comm_t** out_group) {
  (void)comm;
  (void)ranks;
  (void)context;
  return choir_shm_comm_join(config, out_group);
}

static uint64_t shm_buffer_place(choir_comm_t* comm, const void* data,
                                 size_t bytes) {
  return choir_shm_place(as_shm(comm), data, bytes);
}

static void* shm_buffer_at(choir_comm_t* comm, int32_t rank, uint64_t place) {
  return choir_shm_at(as_shm(comm), rank, place);
}

static const choir_comm_vtable_t shm_vtable = {
    .name = "shm",
    .destroy = shm_destroy,
    .stage = shm_stage,
    .exchange = shm_exchange,
    .describe = shm_describe,
    .large =
        {
            [CHOIR_COLLECTIVE_ALL_REDUCE] = shm_all_reduce,
            [CHOIR_COLLECTIVE_BROADCAST] = shm_broadcast,
            [CHOIR_COLLECTIVE_ALL_GATHER] = shm_move,
            [CHOIR_COLLECTIVE_REDUCE_SCATTER] = shm_reduce_scatter,
            [CHOIR_COLLECTIVE_ALL_GATHER_V] = shm_move,
            [CHOIR_COLLECTIVE_REDUCE_SCATTER_V] = shm_reduce_scatter,
            [CHOIR_COLLECTIVE_REDUCE] = shm_all_reduce,
            [CHOIR_COLLECTIVE_GATHER] = shm_move,
            [CHOIR_COLLECTIVE_GATHER_V] = shm_move,
            [CHOIR_COLLECTIVE_SCATTER] = shm_move,
            [CHOIR_COLLECTIVE_SCATTER_V] = shm_move,
            [CHOIR_COLLECTIVE_ALL_TO_ALL] = shm_move,
            [CHOIR_COLLECTIVE_ALL_TO_ALL_V] = shm_move,
        },
    .buffer_has_room = choir_shm_buffer_has_room,
    .buffer_grow = choir_shm_buffer_grow,
    .buffer_alloc = choir_shm_buffer_alloc,
    .buffer_free = choir_shm_buffer_free,
    .buffer_place = shm_buffer_place,
    .buffer_at = shm_buffer_at,
    .group = shm_group,
    .pair = shm_pair,
    .heartbeat = shm_heartbeat,
    .poll_faults = shm_poll_faults,
    .broadcast_fault = shm_broadcast_fault,
    .peer_activity = shm_peer_activity,
};

static choir_status_t join(choir_shm_comm_t* shm,
                           const choir_comm_config_t* config) {
  CHOIR_TRY(choir_shm_connect(shm, config));
  choir__comm_map_hosts(&shm->base);
  shm->base.activity.places[0] = &choir_shm_slot(shm, shm->base.rank)->activity;
  choir__activity_clear(shm->base.activity.places[0]);
  shm->base.watch.has_heartbeat = true;
  CHOIR_TRY(choir_shm_sync(shm));
  if (config->segment_bytes == 0) return NULL;
  return choir_shm_buffer_grow(&shm->base, config->segment_bytes);
}

choir_status_t choir_shm_comm_join(const choir_comm_config_t* config,
                                   choir_comm_t** out_comm) {
  CHOIR_TRY(choir__comm_allocate(&shm_vtable, sizeof(choir_shm_comm_t), config,
                                 out_comm));
  choir_shm_comm_t* shm = as_shm(*out_comm);
  shm->listener = -1;
  pthread_mutex_init(&shm->block_mutex, NULL);
  shm->segment_bytes = config->segment_bytes;
  choir_status_t status = join(shm, config);
  if (!status) return NULL;
  shm_destroy(&shm->base);
  *out_comm = NULL;
  return choir_status_annotate(status, __FILE__, __LINE__, "comm shm");
}
