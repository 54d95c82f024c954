// SPDX-License-Identifier: Apache-2.0
// Several ranks on each of several hosts: large data go within a host by its
// own communicator, and between hosts from leader to leader, so that each pair
// of hosts exchanges them once, not once per rank.
//
// A host's leader is its lowest rank; hosts are in order of their leaders. Sums
// are taken within each host in rank order, then over hosts. Data go in
// stretches, so that ranks that wait for their leader see it move.
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

#define STRETCH_BYTES ((size_t)1 << 20)
// Of one rank's part in a stretch that has parts of all ranks.
#define LEAST_WINDOW ((size_t)4096)

typedef struct hosts_s {
  choir_comm_layer_t base;  // first
  choir_comm_t* local;      // ranks of this host
  choir_comm_t* leaders;    // NULL on ranks that are none
  int32_t* ranks;           // [2 * size]: those of local, those of leaders
  char* memory;             // memory_bytes
  size_t bytes;             // of all this
} hosts_t;

static hosts_t* hosts_of(const choir_comm_t* comm) {
  return (hosts_t*)comm->layers[CHOIR_COMM_LAYER_HOSTS];
}

static size_t window_bytes(const choir_comm_t* comm) {
  size_t window = STRETCH_BYTES / (size_t)comm->size;
  return window < LEAST_WINDOW ? LEAST_WINDOW : window;
}

// What the host gathered, then what all hosts did.
static size_t memory_bytes(const choir_comm_t* comm) {
  size_t stretch = window_bytes(comm) * (size_t)comm->size;
  return 2 * (stretch > STRETCH_BYTES ? stretch : STRETCH_BYTES);
}

// ---- Steps ----

// One operation of a group. Its failure is the communicator's: ranks are not at
// the same place any more.
static choir_status_t run_in(choir_comm_t* comm, choir_comm_t* group,
                             const choir_collective_t* c) {
  choir_status_t status = choir__comm_execute(group, (int32_t)c->kind, c, NULL,
                                              comm->run.operation->is_blocking);
  return status ? choir__comm_break_by_group(comm, group, status) : NULL;
}

static choir_status_t broadcast_in(choir_comm_t* comm, choir_comm_t* group,
                                   void* data, int64_t count,
                                   choir_dtype_t dtype, int32_t root) {
  const choir_collective_t c = {.kind = CHOIR_COLLECTIVE_BROADCAST,
                                .dtype = dtype,
                                .root = root,
                                .count = count,
                                .src = data,
                                .dst = data,
                                .weight = 1};
  return group->size == 1 ? NULL : run_in(comm, group, &c);
}

static int32_t own_host(const choir_comm_t* comm) {
  return comm->peers[comm->rank].host_index;
}

static double host_weight(const choir_comm_t* comm) {
  double sum = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->peers[r].host_index == own_host(comm))
      sum += comm->headers[r].weight;
  return sum;
}

// One stretch of all_reduce or reduce. `data` is where this rank has results.
static choir_status_t reduce_stretch(choir_comm_t* comm,
                                     const operation_t* operation,
                                     const void* src, void* data,
                                     int64_t count) {
  const choir_collective_t* c = &operation->collective;
  const hosts_t* hosts = hosts_of(comm);
  const bool to_all = c->kind == CHOIR_COLLECTIVE_ALL_REDUCE;
  const double weight = host_weight(comm);
  choir_collective_t within = *c;
  within.name = NULL;     // compared already
  within.tensors = NULL;  // side by side in src by now
  within.count_at = NULL;
  within.kind = CHOIR_COLLECTIVE_REDUCE;
  within.root = 0;
  within.count = count;
  within.src = src;
  within.dst = data;
  within.postscale = 1;
  // A host without samples has no average, and adds nothing to that of all.
  if (c->op != CHOIR_REDUCE_AVERAGE || weight > 0)
    CHOIR_TRY(run_in(comm, hosts->local, &within));
  const int32_t host = to_all ? -1 : comm->peers[c->root].host_index;
  if (hosts->leaders) {
    choir_collective_t between = within;
    between.kind = c->kind;
    between.root = host;
    between.src = between.dst = data;
    between.weight = weight;
    between.prescale = 1;
    between.postscale = c->postscale;
    CHOIR_TRY(run_in(comm, hosts->leaders, &between));
  }
  if (!to_all && host != own_host(comm)) return NULL;
  return broadcast_in(comm, hosts->local, data, count, c->dtype, 0);
}

static choir_status_t reduce(choir_comm_t* comm, const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const bool takes = choir__collective_room(comm, operation) > 0;
  const size_t e = operation->element_bytes;
  const int64_t stretch = (int64_t)(STRETCH_BYTES / e);
  for (int64_t done = 0; done < c->count; done += stretch) {
    const char* src = (const char*)c->src + (size_t)done * e;
    char* data =
        takes ? (char*)c->dst + (size_t)done * e : hosts_of(comm)->memory;
    CHOIR_TRY(reduce_stretch(comm, operation, src, data,
                             choir__comm_stretch(c->count, done, stretch)));
  }
  return NULL;
}

static choir_status_t broadcast(choir_comm_t* comm,
                                const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const hosts_t* hosts = hosts_of(comm);
  const choir_comm_peer_t* root = &comm->peers[c->root];
  const bool is_here = root->host_index == own_host(comm);
  const size_t e = operation->element_bytes;
  const int64_t stretch = (int64_t)(STRETCH_BYTES / e);
  for (int64_t done = 0; done < c->count; done += stretch) {
    const int64_t n = choir__comm_stretch(c->count, done, stretch);
    char* data = (char*)c->dst + (size_t)done * e;
    if (is_here)
      CHOIR_TRY(broadcast_in(comm, hosts->local, data, n, c->dtype,
                             root->local_rank));
    if (hosts->leaders)
      CHOIR_TRY(broadcast_in(comm, hosts->leaders, data, n, c->dtype,
                             root->host_index));
    if (!is_here)
      CHOIR_TRY(broadcast_in(comm, hosts->local, data, n, c->dtype, 0));
  }
  return NULL;
}

// ---- Gathering ----

// Bytes of rank r's src in the stretch from `done` on.
static size_t window_of(const choir_comm_t* comm, size_t element_bytes,
                        int32_t r, size_t done) {
  if (!comm->moves.open[r]) return 0;
  return (size_t)choir__comm_stretch(
      (int64_t)((size_t)comm->moves.total[r] * element_bytes), (int64_t)done,
      (int64_t)window_bytes(comm));
}

// From hosts' order to ranks' places in dst.
static void place_windows(choir_comm_t* comm, const operation_t* operation,
                          const char* all, size_t done) {
  const size_t e = operation->element_bytes;
  char* dst = operation->collective.dst;
  for (int32_t host = 0; host < comm->hosts.count; ++host) {
    for (int32_t r = 0; r < comm->size; ++r) {
      if (comm->peers[r].host_index != host) continue;
      const size_t n = window_of(comm, e, r, done);
      if (n && r != comm->rank)
        memcpy(dst + (size_t)comm->moves.recv_at[r] * e + done, all, n);
      all += n;
    }
  }
}

static choir_status_t gather_stretch(choir_comm_t* comm,
                                     const operation_t* operation,
                                     size_t done) {
  const choir_collective_t* c = &operation->collective;
  const size_t e = operation->element_bytes;
  const hosts_t* hosts = hosts_of(comm);
  char* of_host = hosts->memory;
  char* of_all = of_host + memory_bytes(comm) / 2;
  int64_t host_total = 0;
  int64_t total = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    const int64_t n = (int64_t)window_of(comm, e, r, done);
    total += n;
    if (comm->peers[r].host_index == own_host(comm)) host_total += n;
  }
  const size_t own = window_of(comm, e, comm->rank, done);
  const choir_collective_t within = {
      .kind = CHOIR_COLLECTIVE_GATHER_V,
      .dtype = CHOIR_DTYPE_U8,
      .count = (int64_t)own,
      .src = own ? (const char*)c->src + done : NULL,
      .dst = of_host,
      .weight = 1,
      .capacity = host_total};
  CHOIR_TRY(run_in(comm, hosts->local, &within));
  if (hosts->leaders) {
    choir_collective_t between = within;
    between.kind = CHOIR_COLLECTIVE_ALL_GATHER_V;
    between.count = host_total;
    between.src = of_host;
    between.dst = of_all;
    between.capacity = total;
    CHOIR_TRY(run_in(comm, hosts->leaders, &between));
  }
  CHOIR_TRY(broadcast_in(comm, hosts->local, of_all, total, CHOIR_DTYPE_U8, 0));
  place_windows(comm, operation, of_all, done);
  return NULL;
}

static choir_status_t gather(choir_comm_t* comm, const operation_t* operation) {
  size_t most = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    const size_t total =
        (size_t)comm->moves.total[r] * operation->element_bytes;
    if (comm->moves.open[r] && total > most) most = total;
  }
  for (size_t done = 0; done < most; done += window_bytes(comm))
    CHOIR_TRY(gather_stretch(comm, operation, done));
  return NULL;
}

// ---- The layer ----

typedef choir_status_t (*run_t)(choir_comm_t* comm,
                                const operation_t* operation);

static run_t run_of(int32_t kind) {
  static const run_t runs[CHOIR_COMM_KIND_COUNT] = {
      [CHOIR_COLLECTIVE_ALL_REDUCE] = reduce,
      [CHOIR_COLLECTIVE_BROADCAST] = broadcast,
      [CHOIR_COLLECTIVE_ALL_GATHER] = gather,
      [CHOIR_COLLECTIVE_ALL_GATHER_V] = gather,
      [CHOIR_COLLECTIVE_REDUCE] = reduce,
  };
  return runs[kind];
}

static bool hosts_takes(const choir_comm_t* comm, const operation_t* operation,
                        char* reason) {
  (void)comm;
  (void)reason;
  const choir_collective_t* c = &operation->collective;
  // Averages of integers are those of the exact sum over all ranks.
  const bool is_exact = choir__collective(operation->kind)->reduces &&
                        c->op == CHOIR_REDUCE_AVERAGE &&
                        !choir_dtype_is_float(c->dtype);
  return run_of(operation->kind) && !is_exact;
}

static choir_status_t hosts_run(choir_comm_t* comm,
                                const operation_t* operation) {
  return run_of(operation->kind)(comm, operation);
}

static void hosts_note_fault(choir_comm_t* comm,
                             const choir_comm_fault_t* fault) {
  const hosts_t* hosts = hosts_of(comm);
  if (hosts->local) choir__comm_note_fault(hosts->local, fault);
  if (hosts->leaders) choir__comm_note_fault(hosts->leaders, fault);
}

// Ranks of this host may wait in the group that they exchange in.
static void hosts_abort(choir_comm_t* comm) {
  const hosts_t* hosts = hosts_of(comm);
  if (hosts->local) choir__comm_break_by(hosts->local, &comm->faults.own);
  if (hosts->leaders) choir__comm_break_by(hosts->leaders, &comm->faults.own);
}

static choir_status_t hosts_finalize(choir_comm_t* comm) {
  const hosts_t* hosts = hosts_of(comm);
  choir_comm_t* const groups[] = {hosts->local, hosts->leaders};
  for (int i = 0; i < 2; ++i) {
    choir_status_t status = groups[i] ? choir_comm_finalize(groups[i]) : NULL;
    if (status) return choir__comm_break_by_group(comm, groups[i], status);
  }
  return NULL;
}

static void hosts_destroy(choir_comm_t* comm) {
  hosts_t* hosts = hosts_of(comm);
  comm->layers[CHOIR_COMM_LAYER_HOSTS] = NULL;
  choir_comm_release(hosts->local);
  choir_comm_release(hosts->leaders);
  choir_deallocate(comm->allocator, hosts, hosts->bytes);
}

static const choir_comm_layer_vtable_t hosts_vtable = {
    .takes = hosts_takes,
    .run = hosts_run,
    .note_fault = hosts_note_fault,
    .abort = hosts_abort,
    .finalize = hosts_finalize,
    .destroy = hosts_destroy,
};

// ---- Start ----

// Groups that nobody else sees: their sentences name this communicator's ranks,
// and the launcher's board keeps to its operations.
static choir_status_t open_group(choir_comm_t* comm, const int32_t* ranks,
                                 int32_t count, choir_comm_t** out_group) {
  choir_comm_t* group = NULL;
  CHOIR_TRY(choir__comm_make_group(comm, ranks, count, &group));
  if (!group) return NULL;
  *out_group = group;
  group->activity.places[1] = NULL;
  group->outer.comm = comm;
  group->outer.ranks = ranks;
  for (int32_t i = 0; i < count; ++i)
    memcpy(group->peers[i].text, comm->peers[ranks[i]].text,
           sizeof(group->peers[i].text));
  return choir__comm_watch_start(group);
}

// All ranks agree on the groups of all hosts.
static choir_status_t open_groups(choir_comm_t* comm, hosts_t* hosts) {
  int32_t* others = hosts->ranks + comm->size;
  for (int32_t host = 0; host < comm->hosts.count; ++host) {
    int32_t* ranks = host == own_host(comm) ? hosts->ranks : others;
    int32_t count = 0;
    for (int32_t r = 0; r < comm->size; ++r)
      if (comm->peers[r].host_index == host) ranks[count++] = r;
    CHOIR_TRY(open_group(comm, ranks, count, &hosts->local));
  }
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->peers[r].local_rank == 0) others[count++] = r;
  return open_group(comm, others, count, &hosts->leaders);
}

choir_status_t choir__comm_hosts_open(choir_comm_t* comm) {
  if (comm->hosts.count == 1 || comm->hosts.count == comm->size) return NULL;
  const size_t ranks_bytes = 2 * (size_t)comm->size * sizeof(int32_t);
  const size_t memory_at = (sizeof(hosts_t) + ranks_bytes + 63) / 64 * 64;
  const size_t bytes = memory_at + memory_bytes(comm);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(comm->allocator, bytes, "exchange between hosts",
                           &memory));
  hosts_t* hosts = memory;
  *hosts = (hosts_t){.base.vtable = &hosts_vtable,
                     .ranks = (int32_t*)(void*)(hosts + 1),
                     .memory = (char*)memory + memory_at,
                     .bytes = bytes};
  comm->layers[CHOIR_COMM_LAYER_HOSTS] = &hosts->base;
  CHOIR_TRY(open_groups(comm, hosts));
  // Operations count from 1 for the program.
  comm->run.sequence = 0;
  // What goes with the header goes to each rank by itself.
  comm->sizes.with_header = comm->sizes.share_with_header;
  return NULL;
}
