// SPDX-License-Identifier: Apache-2.0
// What every communicator has: its memory, who the ranks are, references.
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dist/board_internal.h"
#include "dist/comm_internal.h"

// ---- Who the ranks are ----

static void list_cores(uint64_t cores[CHOIR_COMM_MAX_CORES / 64]) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool is_known = !sched_getaffinity(0, sizeof(set), &set);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  for (int core = 0; core < CHOIR_COMM_MAX_CORES; ++core)
    if (is_known ? CPU_ISSET(core, &set) : core < online)
      cores[core / 64] |= (uint64_t)1 << core % 64;
}

static int32_t count_local_cores(const choir_comm_t* comm) {
  int32_t count = 0;
  for (int word = 0; word < CHOIR_COMM_MAX_CORES / 64; ++word) {
    uint64_t cores = 0;
    for (int32_t r = 0; r < comm->size; ++r)
      if (comm->peers[r].host_index == comm->peers[comm->rank].host_index)
        cores |= comm->peers[r].identity.cores[word];
    count += __builtin_popcountll(cores);
  }
  return count;
}

void choir__comm_identify(const choir_comm_config_t* config,
                          choir_comm_identity_t* out_identity) {
  memset(out_identity, 0, sizeof(*out_identity));
  out_identity->rank = config->rank;
  out_identity->size = config->size;
  out_identity->pid = (int32_t)getpid();
  list_cores(out_identity->cores);
  // $CHOIR_HOST: a name in place of the host's, in messages and to tell hosts
  // apart. Not set: the host's name.
  const char* named = getenv("CHOIR_HOST");
  if (named && named[0])
    snprintf(out_identity->host, sizeof(out_identity->host), "%s", named);
  else if (gethostname(out_identity->host, sizeof(out_identity->host) - 1))
    strcpy(out_identity->host, "?");
  FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (!file) return;
  if (fgets(out_identity->boot, sizeof(out_identity->boot), file))
    out_identity->boot[strcspn(out_identity->boot, "\n")] = 0;
  fclose(file);
}

static bool same_host(const choir_comm_identity_t* a,
                      const choir_comm_identity_t* b) {
  return !strcmp(a->host, b->host) && !strcmp(a->boot, b->boot);
}

void choir__comm_map_hosts(choir_comm_t* comm) {
  choir_comm_peer_t* peers = comm->peers;
  comm->hosts.count = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    choir_comm_identity_t* who = &peers[r].identity;
    who->host[sizeof(who->host) - 1] = 0;
    who->boot[sizeof(who->boot) - 1] = 0;
    snprintf(peers[r].text, sizeof(peers[r].text), "rank %d (host %s, pid %d)",
             r, who->host, who->pid);
    peers[r].host_index = -1;
    for (int32_t q = 0; q < r; ++q) {
      if (!same_host(&peers[q].identity, who)) continue;
      peers[r].host_index = peers[q].host_index;
      ++peers[r].local_rank;
    }
    if (peers[r].host_index < 0) peers[r].host_index = comm->hosts.count++;
  }
  comm->hosts.local_cores = count_local_cores(comm);
  comm->hosts.oversubscribed =
      choir_comm_local_size(comm) > comm->hosts.local_cores;
}

const char* choir__comm_rank_list(const bool* flags, int32_t size, char* text,
                                  size_t text_bytes) {
  int32_t total = 0;
  for (int32_t r = 0; r < size; ++r) total += flags[r];
  text[0] = 0;
  choir__text_append(text, text_bytes, total == 1 ? "rank " : "ranks ");
  int32_t told = 0;
  for (int32_t r = 0; r < size; ++r) {
    if (!flags[r]) continue;
    if (told)
      choir__text_append(text, text_bytes, told + 1 == total ? " and " : ", ");
    // Enough to act on; a list of a thousand helps nobody.
    if (told == 8 && total > 9) {
      char more[32];
      snprintf(more, sizeof(more), "%d more", total - told);
      choir__text_append(text, text_bytes, more);
      break;
    }
    choir__text_append_number(text, text_bytes, (uint64_t)r);
    ++told;
  }
  return text;
}

// Of messages inside backends' structs.
enum { STRUCT_ALIGNMENT = 64 };

choir_status_t choir__comm_allocate(const choir_comm_vtable_t* vtable,
                                    size_t struct_bytes,
                                    const choir_comm_config_t* config,
                                    choir_comm_t** out_comm) {
  *out_comm = NULL;
  choir_allocator_t allocator = choir_allocator_default();
  size_t size = (size_t)config->size;
  size_t peers_at = (struct_bytes + 63) / 64 * 64;
  size_t headers_at = peers_at + size * sizeof(choir_comm_peer_t);
  size_t messages_at = headers_at + size * sizeof(choir_comm_header_t);
  size_t total =
      messages_at + size * (4 * sizeof(void*) + 6 * sizeof(int64_t) +
                            sizeof(double) + sizeof(float) + 5 * sizeof(bool));
  void* memory = allocator.alloc(allocator.self, total, STRUCT_ALIGNMENT);
  if (!memory)
    return CHOIR_ERROR(OUT_OF_MEMORY, "communicator: no memory for %zu bytes",
                       total);
  memset(memory, 0, total);
  choir_comm_t* comm = memory;
  char* bytes = memory;
  comm->vtable = vtable;
  comm->allocator = allocator;
  comm->struct_bytes = total;
  comm->sizes.round = CHOIR_COMM_ROUND_BYTES;
  comm->rank = config->rank;
  comm->size = config->size;
  comm->hosts.count = 1;
  comm->deadline = config->deadline;
  comm->segment_bytes = config->segment_bytes;
  comm->silence = config->silence > 0 ? config->silence : config->deadline;
  comm->peers = (choir_comm_peer_t*)(void*)(bytes + peers_at);
  comm->headers = (choir_comm_header_t*)(void*)(bytes + headers_at);
  comm->messages = (const choir_comm_message_t**)(void*)(bytes + messages_at);
  comm->sums.sources = (const void**)(comm->messages + size);
  comm->sums.destinations = (void**)(comm->sums.sources + size);
  int64_t* numbers = (int64_t*)(comm->sums.destinations + size);
  comm->moves = (choir_comm_moves_t){.send_count = numbers,
                                     .send_at = numbers + size,
                                     .recv_count = numbers + 2 * size,
                                     .recv_at = numbers + 3 * size,
                                     .their_at = numbers + 4 * size,
                                     .total = numbers + 5 * size};
  comm->sums.shares_f64 = (double*)(numbers + 6 * size);
  comm->sums.shares = (float*)(comm->sums.shares_f64 + size);
  comm->flags = (bool*)(comm->sums.shares + size);
  comm->moves.open = comm->flags + 2 * size;
  comm->joins.joined = comm->flags + 3 * size;
  comm->joins.was_joined = comm->flags + 4 * size;
  comm->watch.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  atomic_store(&comm->ref_count, 1);
  pthread_mutex_init(&comm->run.mutex, NULL);
  pthread_mutex_init(&comm->faults.mutex, NULL);
  choir__activity_clear(&comm->activity.own);
  comm->activity.places[0] = &comm->activity.own;
  choir_board_slot_t* slot = choir__board_slot();
  if (slot) comm->activity.places[1] = &slot->activity;
  if (config->device) {
    choir_device_retain(config->device);
    comm->device = config->device;
  }
  if (comm->watch.wake_fd < 0) {
    choir__comm_deallocate(comm);
    return CHOIR_ERROR(UNAVAILABLE, "communicator: eventfd: %s",
                       strerror(errno));
  }
  *out_comm = comm;
  return NULL;
}

void choir__comm_deallocate(choir_comm_t* comm) {
  choir_comm_scratch_t* const scratches[] = {
      &comm->packed, &comm->joins.zero_message, &comm->joins.zeros};
  for (size_t i = 0; i < sizeof(scratches) / sizeof(scratches[0]); ++i)
    choir_deallocate(comm->allocator, scratches[i]->data, scratches[i]->bytes);
  if (comm->watch.wake_fd >= 0) close(comm->watch.wake_fd);
  if (comm->device) choir_device_release(comm->device);
  pthread_mutex_destroy(&comm->run.mutex);
  pthread_mutex_destroy(&comm->faults.mutex);
  choir_allocator_t allocator = comm->allocator;
  allocator.free(allocator.self, comm, comm->struct_bytes, STRUCT_ALIGNMENT);
}

void choir_comm_retain(choir_comm_t* comm) {
  if (comm) atomic_fetch_add(&comm->ref_count, 1);
}

void choir_comm_release(choir_comm_t* comm) {
  if (!comm || atomic_fetch_sub(&comm->ref_count, 1) != 1) return;
  if (atomic_load(&comm->async.started))
    choir_comm_abort(comm, "released while asynchronous work was under way");
  if (comm->async.stream) choir_stream_release(comm->async.stream);
  choir__comm_watch_stop(comm);
  for (int i = 0; i < CHOIR_COMM_LAYER_COUNT; ++i)
    if (comm->layers[i]) comm->layers[i]->vtable->destroy(comm);
  comm->vtable->destroy(comm);
}

// ---- Memory ----

choir_status_t choir__comm_reserve(choir_comm_t* comm,
                                   choir_comm_scratch_t* scratch, size_t bytes,
                                   const char* what) {
  if (bytes <= scratch->bytes) return NULL;
  choir_deallocate(comm->allocator, scratch->data, scratch->bytes);
  *scratch = (choir_comm_scratch_t){0};
  CHOIR_TRY(choir_allocate(comm->allocator, bytes, what, &scratch->data));
  memset(scratch->data, 0, bytes);
  scratch->bytes = bytes;
  return NULL;
}

choir_status_t choir__comm_buffer_cleared(choir_device_t* device, size_t bytes,
                                          choir_buffer_t** out_buffer) {
  static const char zeros[65536];
  CHOIR_TRY(choir_buffer_create(device, bytes, out_buffer));
  if (choir_device_is_host(device)) {
    memset(choir_buffer_data(*out_buffer), 0, bytes);
    return NULL;
  }
  choir_status_t status = NULL;
  for (size_t at = 0; at < bytes && !status; at += sizeof(zeros))
    status = choir_buffer_write(
        *out_buffer, choir_device_stream(device), at, zeros,
        bytes - at < sizeof(zeros) ? bytes - at : sizeof(zeros));
  if (!status) return NULL;
  choir_buffer_release(*out_buffer);
  *out_buffer = NULL;
  return status;
}

// ---- Queries ----

int32_t choir_comm_rank(const choir_comm_t* comm) { return comm->rank; }
int32_t choir_comm_size(const choir_comm_t* comm) { return comm->size; }
bool choir_comm_is_newcomer(const choir_comm_t* comm) {
  return comm->is_newcomer;
}

int32_t choir_comm_local_rank(const choir_comm_t* comm) {
  return comm->peers[comm->rank].local_rank;
}

int32_t choir_comm_local_size(const choir_comm_t* comm) {
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    count += comm->peers[r].host_index == comm->peers[comm->rank].host_index;
  return count;
}

int32_t choir_comm_host_index(const choir_comm_t* comm) {
  return comm->peers[comm->rank].host_index;
}

int32_t choir_comm_host_count(const choir_comm_t* comm) {
  return comm->hosts.count;
}

int32_t choir_comm_local_cores(const choir_comm_t* comm) {
  return comm->hosts.local_cores;
}

const char* choir_comm_backend(const choir_comm_t* comm) {
  const choir_comm_layer_t* plane = comm->layers[CHOIR_COMM_LAYER_PLANE];
  return plane ? plane->vtable->name : comm->vtable->name;
}

const char* choir_comm_peer(const choir_comm_t* comm, int32_t rank) {
  if (rank < 0 || rank >= comm->size) return "no such rank";
  return comm->peers[rank].text;
}

const char* choir_comm_host(const choir_comm_t* comm, int32_t rank) {
  if (rank < 0 || rank >= comm->size) return "no such rank";
  return comm->peers[rank].identity.host;
}

const char* choir_comm_activity(const choir_comm_t* comm) {
  choir_activity_t activity;
  choir__activity_read(comm->activity.places[0], &activity);
  // Scratch, not state: what a communicator is does not change.
  char* text = ((choir_comm_t*)comm)->activity.text;
  choir__activity_print(&activity, text, CHOIR_ACTIVITY_TEXT_BYTES);
  int32_t peer = activity.waiting_for;
  if (text[0] && peer >= 0 && peer < comm->size) {
    choir__text_append(text, CHOIR_ACTIVITY_TEXT_BYTES, ", waiting for ");
    choir__text_append(text, CHOIR_ACTIVITY_TEXT_BYTES, comm->peers[peer].text);
  }
  return text;
}

uint64_t choir_comm_staged_bytes(const choir_comm_t* comm) {
  return atomic_load(&comm->staged_bytes);
}
