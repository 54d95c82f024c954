// SPDX-License-Identifier: Apache-2.0
// Life of a communicator: the launcher's choice, joining, memory, the end.
#include "dist/comm.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/clock.h"
#include "dist/board_internal.h"
#include "dist/comm_internal.h"

// ---- Configuration ----

choir_status_t choir_comm_id_make(choir_comm_id_t* out_id) {
  if (!out_id) return CHOIR_ERROR(INVALID_ARGUMENT, "comm_id_make: NULL");
  memset(out_id, 0, sizeof(*out_id));
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
    return CHOIR_ERROR(UNAVAILABLE, "comm_id_make: no random numbers: %s",
                       strerror(errno));
  sodium_bin2hex(out_id->text, sizeof(out_id->text), bytes, sizeof(bytes));
  return NULL;
}

static const struct {
  const char* name;
  choir_comm_join_t join;
} backends[] = {
#define CHOIR_COMM_BACKEND(name) {#name, choir_##name##_comm_join},
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
};

static const char* const known_backends = "auto"
#define CHOIR_COMM_BACKEND(name) ", " #name
#include "dist/backends/backends.def"
#undef CHOIR_COMM_BACKEND
    ;

static choir_comm_join_t find_backend(const char* name) {
  for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); ++i)
    if (!strcmp(backends[i].name, name)) return backends[i].join;
  return NULL;
}

static choir_status_t check_config(const choir_comm_config_t* config) {
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: rank is %d and size is %d; ranks are 0 .. size-1",
                       config->rank, config->size);
  if (!(config->deadline > 0) || isinf(config->deadline))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: deadline is %g s; it must be above 0",
                       config->deadline);
  if (!(config->silence >= 0))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm: silence is %g s; it must be 0 or more",
                       config->silence);
  if (choir_process_is_forked_child())
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "comm: this process was forked after Choir had started "
                       "threads; start it by exec");
  return NULL;
}

static choir_status_t need_id(const choir_comm_config_t* config) {
  if (choir__comm_id_is_valid(&config->id)) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "comm %s: the id has %zu characters (it is a secret, "
                     "and not shown); %d ranks need the same 32 hexadecimal "
                     "digits (choir_comm_id_make in one of them), or a "
                     "launcher that sets it",
                     config->backend,
                     strnlen(config->id.text, sizeof(config->id.text)),
                     config->size);
}

static choir_status_t choose_tcp(choir_comm_config_t* config) {
  config->backend = "tcp";
  if (config->size == 1) return NULL;
  if (!config->rendezvous[0])
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "comm tcp: there is no rendezvous; %d ranks need the "
                       "same HOST:PORT (CHOIR_RENDEZVOUS), where rank 0 "
                       "listens while they join",
                       config->size);
  return need_id(config);
}

// Replaces "auto", and finds the id that shm needs where only MPI can.
static choir_status_t choose_backend(choir_comm_config_t* config) {
  bool is_auto = !strcmp(config->backend, "auto");
  bool is_mpi = getenv("OMPI_COMM_WORLD_SIZE") && !config->id.text[0];
  bool is_tcp = !strcmp(config->backend, "tcp");
  bool wants_shm = is_auto || !strcmp(config->backend, "shm");
  if (is_auto && config->size == 1) {
    config->backend = "self";
    return NULL;
  }
  if (is_tcp || (is_auto && config->rendezvous[0])) return choose_tcp(config);
  if (!wants_shm) return NULL;
  if (!config->id.text[0] && config->size == 1)
    return choir_comm_id_make(&config->id);
  if (is_mpi) {
    bool one_host = false;
    CHOIR_TRY(choir_mpi_comm_rendezvous(config, &config->id, &one_host));
    if (!one_host && !is_auto)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "comm shm: the ranks are on several hosts; use mpi");
    config->backend = one_host ? "shm" : "mpi";
    return NULL;
  }
  config->backend = "shm";
  return need_id(config);
}

// ---- Joining ----

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
  comm->host_count = 0;
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
    if (peers[r].host_index < 0) peers[r].host_index = comm->host_count++;
  }
  comm->local_cores = count_local_cores(comm);
  comm->oversubscribed = choir_comm_local_size(comm) > comm->local_cores;
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
  comm->round_bytes = CHOIR_COMM_ROUND_BYTES;
  comm->rank = config->rank;
  comm->size = config->size;
  comm->host_count = 1;
  comm->deadline = config->deadline;
  comm->segment_bytes = config->segment_bytes;
  comm->silence = config->silence > 0 ? config->silence : config->deadline;
  comm->peers = (choir_comm_peer_t*)(void*)(bytes + peers_at);
  comm->headers = (choir_comm_header_t*)(void*)(bytes + headers_at);
  comm->messages = (const choir_comm_message_t**)(void*)(bytes + messages_at);
  comm->sources = (const void**)(comm->messages + size);
  comm->destinations = (void**)(comm->sources + size);
  int64_t* numbers = (int64_t*)(comm->destinations + size);
  comm->moves = (choir_comm_moves_t){.send_count = numbers,
                                     .send_at = numbers + size,
                                     .recv_count = numbers + 2 * size,
                                     .recv_at = numbers + 3 * size,
                                     .their_at = numbers + 4 * size,
                                     .total = numbers + 5 * size};
  comm->shares_f64 = (double*)(numbers + 6 * size);
  comm->shares = (float*)(comm->shares_f64 + size);
  comm->flags = (bool*)(comm->shares + size);
  comm->moves.open = comm->flags + 2 * size;
  comm->joined = comm->flags + 3 * size;
  comm->was_joined = comm->flags + 4 * size;
  comm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  atomic_store(&comm->ref_count, 1);
  pthread_mutex_init(&comm->run_mutex, NULL);
  pthread_mutex_init(&comm->fault_mutex, NULL);
  choir__activity_clear(&comm->own_activity);
  comm->activities[0] = &comm->own_activity;
  choir_board_slot_t* slot = choir__board_slot();
  if (slot) comm->activities[1] = &slot->activity;
  if (config->device) {
    choir_device_retain(config->device);
    comm->device = config->device;
  }
  if (comm->wake_fd < 0) {
    choir__comm_deallocate(comm);
    return CHOIR_ERROR(UNAVAILABLE, "communicator: eventfd: %s",
                       strerror(errno));
  }
  *out_comm = comm;
  return NULL;
}

void choir__comm_deallocate(choir_comm_t* comm) {
  choir__comm_tensors_free(comm);
  choir__comm_staged_free(comm);
  choir__comm_join_free(comm);
  if (comm->wake_fd >= 0) close(comm->wake_fd);
  if (comm->device) choir_device_release(comm->device);
  pthread_mutex_destroy(&comm->run_mutex);
  pthread_mutex_destroy(&comm->fault_mutex);
  choir_allocator_t allocator = comm->allocator;
  allocator.free(allocator.self, comm, comm->struct_bytes, STRUCT_ALIGNMENT);
}

static choir_status_t join(choir_comm_config_t* config,
                           choir_comm_t** out_comm) {
  const bool is_auto = !strcmp(config->backend, "auto");
  CHOIR_TRY(choose_backend(config));
  CHOIR_TRY(find_backend(config->backend)(config, out_comm));
  const bool is_tcp = !strcmp(config->backend, "tcp");
  if (!is_auto || !is_tcp || (*out_comm)->host_count > 1) return NULL;
  // Who meet at an address know only then that they are on one host.
  choir_comm_t* met = *out_comm;
  config->backend = "shm";
  choir_status_t status = find_backend("shm")(config, out_comm);
  choir_comm_release(met);
  return status;
}

choir_status_t choir_comm_create(const choir_comm_config_t* config,
                                 choir_comm_t** out_comm) {
  if (!out_comm) return CHOIR_ERROR(INVALID_ARGUMENT, "comm: out_comm is NULL");
  *out_comm = NULL;
  if (!config) return CHOIR_ERROR(INVALID_ARGUMENT, "comm: config is NULL");
  choir_comm_config_t chosen = *config;
  if (!chosen.backend) chosen.backend = "auto";
  CHOIR_TRY(check_config(&chosen));
  bool is_known =
      !strcmp(chosen.backend, "auto") || find_backend(chosen.backend);
  if (!is_known)
    return CHOIR_ERROR(NOT_FOUND, "comm '%s' is unknown; known are: %s",
                       chosen.backend, known_backends);
  CHOIR_TRY(join(&chosen, out_comm));
  return choir__comm_start_up(out_comm);
}

choir_status_t choir__comm_join_host(const choir_comm_config_t* config,
                                     choir_comm_t** out_comm) {
  choir_comm_config_t host = *config;
  host.backend = "auto";
  return join(&host, out_comm);
}

choir_status_t choir__comm_start_up(choir_comm_t** comm) {
  // First: the watch looks at the groups.
  choir_status_t status = choir__comm_hosts_open(*comm);
  if (!status) status = choir__comm_watch_start(*comm);
  if (!status && (*comm)->plane) status = (*comm)->plane->vtable->open(*comm);
  if (!status) return NULL;
  choir_comm_release(*comm);
  *comm = NULL;
  return status;
}

// ---- End ----

void choir_comm_retain(choir_comm_t* comm) {
  if (comm) atomic_fetch_add(&comm->ref_count, 1);
}

void choir_comm_release(choir_comm_t* comm) {
  if (!comm || atomic_fetch_sub(&comm->ref_count, 1) != 1) return;
  if (atomic_load(&comm->started))
    choir_comm_abort(comm, "released while asynchronous work was under way");
  if (comm->background) choir_stream_release(comm->background);
  choir__comm_watch_stop(comm);
  choir__comm_hosts_close(comm);
  if (comm->plane) comm->plane->vtable->destroy(comm);
  comm->vtable->destroy(comm);
}

choir_status_t choir_comm_finalize(choir_comm_t* comm) {
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "finalize: comm is NULL");
  if (comm->finalized) return NULL;
  choir__comm_drain(comm);
  choir_collective_t nothing = {0};
  if (comm->plane) {
    // Nobody ends it before all are here, or leaves before all have.
    CHOIR_TRY(choir__comm_execute(comm, CHOIR_COMM_KIND_FINALIZE, &nothing,
                                  NULL, true));
    CHOIR_TRY(comm->plane->vtable->finalize(comm));
  }
  CHOIR_TRY(choir__comm_hosts_finalize(comm));
  CHOIR_TRY(choir__comm_execute(comm, CHOIR_COMM_KIND_FINALIZE, &nothing, NULL,
                                true));
  comm->finalized = true;
  choir__comm_watch_stop(comm);
  if (comm->vtable->finalize) comm->vtable->finalize(comm);
  return NULL;
}

choir_status_t choir_comm_shutdown(void) { return choir_mpi_world_close(); }

// ---- Queries ----

int32_t choir_comm_rank(const choir_comm_t* comm) { return comm->rank; }
int32_t choir_comm_size(const choir_comm_t* comm) { return comm->size; }

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
  return comm->host_count;
}

int32_t choir_comm_local_cores(const choir_comm_t* comm) {
  return comm->local_cores;
}

const char* choir_comm_backend(const choir_comm_t* comm) {
  return comm->plane ? comm->plane->vtable->name : comm->vtable->name;
}

const char* choir_comm_peer(const choir_comm_t* comm, int32_t rank) {
  if (rank < 0 || rank >= comm->size) return "no such rank";
  return comm->peers[rank].text;
}

const char* choir_comm_activity(const choir_comm_t* comm) {
  choir_activity_t activity;
  choir__activity_read(comm->activities[0], &activity);
  // Scratch, not state: what a communicator is does not change.
  char* text = ((choir_comm_t*)comm)->activity_text;
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

// ---- Memory ----

static void free_own_memory(void* context, void* data) {
  choir_comm_t* comm = context;
  comm->vtable->buffer_free(comm, data);
  choir_comm_release(comm);
}

static choir_status_t wrap_own_memory(choir_comm_t* comm,
                                      choir_device_t* device, size_t bytes,
                                      choir_buffer_t** out_buffer) {
  void* data = comm->vtable->buffer_alloc(comm, bytes);
  if (!data)
    return CHOIR_ERROR(INTERNAL, "buffer_create: no room for %zu bytes", bytes);
  memset(data, 0, bytes);
  choir_comm_retain(comm);
  choir_status_t status =
      choir_buffer_wrap(device, data, bytes, free_own_memory, comm, out_buffer);
  if (status) free_own_memory(comm, data);
  return status;
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

static choir_status_t check_buffer(const choir_device_t* device, size_t bytes,
                                   choir_buffer_t* const* out_buffer) {
  if (!out_buffer)
    return CHOIR_ERROR(INVALID_ARGUMENT, "buffer_create: out_buffer is NULL");
  if (!device)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "buffer_create: device is NULL, and the communicator was "
        "made without one");
  if (bytes == 0 || bytes > (size_t)INT64_MAX / 2)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "buffer_create: %zu bytes; it must be above 0", bytes);
  return NULL;
}

choir_status_t choir_comm_buffer_create(choir_comm_t* comm,
                                        choir_device_t* device, size_t bytes,
                                        choir_buffer_t** out_buffer) {
  if (out_buffer) *out_buffer = NULL;
  if (!comm)
    return CHOIR_ERROR(INVALID_ARGUMENT, "buffer_create: comm is NULL");
  if (!device) device = comm->device;
  const bool is_own_memory =
      comm->vtable->buffer_alloc && (!device || choir_device_is_host(device));
  choir_status_t wrong = check_buffer(device, bytes, out_buffer);
  if (wrong)
    return is_own_memory
               ? choir__comm_refuse(comm, CHOIR_COMM_KIND_BUFFER, NULL, wrong)
               : wrong;
  if (!is_own_memory)
    return choir__comm_buffer_cleared(device, bytes, out_buffer);
  choir__comm_drain(comm);
  ++comm->buffers_made;
  choir_collective_t request = {.count = (int64_t)bytes};
  CHOIR_TRY(
      choir__comm_execute(comm, CHOIR_COMM_KIND_BUFFER, &request, NULL, true));
  return wrap_own_memory(comm, device, bytes, out_buffer);
}
