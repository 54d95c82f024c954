// SPDX-License-Identifier: Apache-2.0
// The sharded update of ranks that see each other's memory. Each
//   - waits until all have their gradients,
//   - averages its part of them, steps that part and writes the parameters into
//     every rank's memory, stretch by stretch, as long as they are in the
//     cache,
//   - waits until all have.
// That moves little more than half the bytes of an all-reduce and an update of
// everything on every rank. Where a strategy has combined the gradients, the
// average is left out.
#include <stdatomic.h>
#include <string.h>

#include "core/status_backend.h"
#include "dist/comm_shared_def.h"
#include "dist/dist_opt_shards_internal.h"
#include "tensor/cpu_threads_def.h"

// Elements of a stretch, for each thread: gradients of two ranks, parameter and
// a state are half a MiB, which stays in a core's second-level cache.
#define STRETCH (32 << 10)
// Elements of a loop that is worth a thread of its own.
#define GRAIN (4 << 10)
// Up to here a rank's parameters may still be in its caches when the next step
// reads them; what is larger goes past them.
#define CACHED_BYTES ((size_t)8 << 20)

// What a rank's states begin with.
typedef struct head_s {
  _Atomic uint64_t id;  // of these states, the same on all ranks
  _Atomic uint64_t
      ended;  // choir__comm_buffers_made at their end; 0: before it
} head_t;

// What a rank has gradients of.
typedef struct share_s {
  int64_t samples;
  choir__leaves_t leaves;  // none: of a step without micro-shards
} share_t;

// Of a sum over micro-shards: a rank's node, and how often the last two are to
// be added up when it comes.
typedef struct node_s {
  int32_t rank;
  int32_t number;  // 0: where its gradients are; 1: its second
  int32_t sums;
} node_t;

enum { NODES = 2 };  // of a rank at most, where others see them

struct choir__peers_s {
  choir_allocator_t allocator;
  choir_comm_t* comm;
  int32_t size;
  int32_t bucket_count;
  void** grads;    // [bucket_count][size]
  void** values;   // [bucket_count][size]
  void** seconds;  // [bucket_count][size]; NULL: buckets have none
  void** states;   // [size]
  uint64_t id;
  head_t* head;  // of this rank's states; NULL: there are none yet
  int32_t threads;
  int64_t stretch;
  choir_buffer_t* averages;  // of the gradients of one stretch
  share_t own;               // of the step
  share_t* all;              // [size]
  float* weights;         // [size] of ranks with samples, one after the other
  node_t* nodes;          // [size][NODES] of ranks with nodes, likewise
  int32_t node_count;     // 0: none, or not all are in these places
  const float** sources;  // [threads][size] scratch
  choir__sum_term_t* terms;  // [threads][size][NODES] scratch
  bool copies_away;
};

// ---- Life ----

static choir_status_t allocate(const choir__peers_t* peers, size_t bytes,
                               void* out_memory) {
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(peers->allocator, bytes, "memory of peers", &memory));
  *(void**)out_memory = memory;
  return NULL;
}

static size_t places_bytes(const choir__peers_t* peers) {
  return (size_t)peers->bucket_count * (size_t)peers->size * sizeof(void*);
}

static size_t sources_bytes(const choir__peers_t* peers) {
  return (size_t)peers->threads * (size_t)peers->size * sizeof(float*);
}

static size_t terms_bytes(const choir__peers_t* peers) {
  return (size_t)peers->threads * (size_t)peers->size * NODES *
         sizeof(choir__sum_term_t);
}

static choir_status_t make_lists(choir__peers_t* peers) {
  const size_t size = (size_t)peers->size;
  CHOIR_TRY(allocate(peers, places_bytes(peers), &peers->grads));
  CHOIR_TRY(allocate(peers, places_bytes(peers), &peers->values));
  CHOIR_TRY(allocate(peers, size * sizeof(void*), &peers->states));
  CHOIR_TRY(allocate(peers, size * sizeof(share_t), &peers->all));
  CHOIR_TRY(allocate(peers, size * sizeof(float), &peers->weights));
  CHOIR_TRY(allocate(peers, size * NODES * sizeof(node_t), &peers->nodes));
  CHOIR_TRY(allocate(peers, terms_bytes(peers), &peers->terms));
  return allocate(peers, sources_bytes(peers), &peers->sources);
}

// Where all ranks' gradients, parameters or second nodes are.
typedef enum what_e { GRADS, VALUES, SECONDS } what_t;
static choir_status_t look_at_buckets(const choir__peers_t* peers,
                                      const choir_dist_opt_t* dist, what_t what,
                                      void** out_places, bool* out_seen) {
  const size_t bytes = (size_t)peers->bucket_count * sizeof(choir_buffer_t*);
  choir_buffer_t** buffers = NULL;
  CHOIR_TRY(allocate(peers, bytes, &buffers));
  for (int32_t b = 0; b < peers->bucket_count; ++b) {
    const choir__bucket_t* bucket = &dist->buckets[b];
    buffers[b] = what == GRADS    ? bucket->buffer
                 : what == VALUES ? bucket->values
                                  : bucket->second;
  }
  choir_status_t status = choir__comm_shared_look(
      peers->comm, buffers, peers->bucket_count, out_places, out_seen);
  choir_deallocate(peers->allocator, buffers, bytes);
  return status;
}

// Where all ranks' second nodes will be.
static choir_status_t make_seconds(choir__peers_t* peers,
                                   const choir_dist_opt_t* dist) {
  CHOIR_TRY(allocate(peers, places_bytes(peers), &peers->seconds));
  for (int32_t b = 0; b < peers->bucket_count; ++b)
    CHOIR_TRY(choir_comm_buffer_create(
        peers->comm, dist->device,
        (size_t)peers->size * (size_t)dist->buckets[b].part * sizeof(float),
        &dist->buckets[b].second));
  bool seen = false;
  CHOIR_TRY(look_at_buckets(peers, dist, SECONDS, peers->seconds, &seen));
  if (seen) return NULL;
  return CHOIR_ERROR(INTERNAL,
                     "dist_opt: gradients are seen by peers, those of second "
                     "nodes are not");
}

static choir_status_t fill(choir__peers_t* peers, const choir_dist_opt_t* dist,
                           bool* out_seen) {
  CHOIR_TRY(make_lists(peers));
  CHOIR_TRY(look_at_buckets(peers, dist, GRADS, peers->grads, out_seen));
  if (!*out_seen) return NULL;
  if (choir_device_is_reproducible(dist->device))
    CHOIR_TRY(make_seconds(peers, dist));
  return choir_buffer_create(
      dist->device, (size_t)peers->stretch * sizeof(float), &peers->averages);
}

// The answer is the same on every rank.
static bool is_wanted(const choir_dist_opt_t* dist) {
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    if (dist->buckets[b].dtype != CHOIR_DTYPE_F32) return false;
  return dist->config.peer_memory;
}

choir_status_t choir__peers_create(const choir_dist_opt_t* dist,
                                   choir__peers_t** out_peers) {
  *out_peers = NULL;
  if (!is_wanted(dist)) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, sizeof(choir__peers_t),
                           "memory of peers", &memory));
  choir__peers_t* peers = memory;
  peers->allocator = dist->allocator;
  peers->comm = dist->comm;
  peers->size = choir_comm_size(dist->comm);
  peers->bucket_count = dist->bucket_count;
  peers->threads = choir_device_threads(dist->device);
  peers->stretch = (int64_t)STRETCH * peers->threads;
  bool seen = false;
  choir_status_t status = fill(peers, dist, &seen);
  if (status || !seen)
    choir__peers_destroy(peers);
  else
    *out_peers = peers;
  return status;
}

choir_status_t choir__peers_look(choir__peers_t* peers,
                                 const choir__shards_t* shards) {
  const choir_dist_opt_t* dist = shards->dist;
  size_t bytes = 0;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    bytes += (size_t)dist->buckets[b].count * sizeof(float);
  peers->copies_away = bytes > CACHED_BYTES;
  peers->id = choir__comm_buffers_made(peers->comm);
  peers->head = choir_buffer_data(shards->states);
  atomic_store(&peers->head->id, peers->id);
  bool seen = false;
  CHOIR_TRY(choir__comm_shared_look(peers->comm, &shards->states, 1,
                                    peers->states, &seen));
  if (seen)
    CHOIR_TRY(look_at_buckets(peers, dist, VALUES, peers->values, &seen));
  if (seen) return NULL;
  return CHOIR_ERROR(INTERNAL,
                     "dist_opt: gradients are seen by peers, parameters and "
                     "states are not");
}

void choir__peers_destroy(choir__peers_t* peers) {
  if (!peers) return;
  const choir_allocator_t allocator = peers->allocator;
  const size_t size = (size_t)peers->size;
  if (peers->head)
    atomic_store(&peers->head->ended, choir__comm_buffers_made(peers->comm));
  choir_buffer_release(peers->averages);
  choir_deallocate(allocator, peers->grads, places_bytes(peers));
  choir_deallocate(allocator, peers->values, places_bytes(peers));
  choir_deallocate(allocator, peers->states, size * sizeof(void*));
  choir_deallocate(allocator, peers->seconds, places_bytes(peers));
  choir_deallocate(allocator, peers->all, size * sizeof(share_t));
  choir_deallocate(allocator, peers->weights, size * sizeof(float));
  choir_deallocate(allocator, peers->nodes, size * NODES * sizeof(node_t));
  choir_deallocate(allocator, peers->terms, terms_bytes(peers));
  choir_deallocate(allocator, peers->sources, sources_bytes(peers));
  choir_deallocate(allocator, peers, sizeof(*peers));
}

int64_t choir__peers_stretch(const choir__peers_t* peers) {
  return peers->stretch;
}

choir_buffer_t* choir__peers_averages(const choir__peers_t* peers) {
  return peers->averages;
}

choir_status_t choir__peers_states_of(const choir__shards_t* shards,
                                      int32_t rank, const void** out_states) {
  const choir__peers_t* peers = shards->peers;
  *out_states = peers->states[rank];
  head_t* head = peers->states[rank];
  const uint64_t ended = atomic_load(&head->ended);
  if (atomic_load(&head->id) == peers->id &&
      (ended == 0 || ended == choir__comm_buffers_made(peers->comm)))
    return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "dist_opt: gather: %s has let go of its DistOpt, and the "
                     "memory of its states is used again; gather before",
                     choir_comm_peer(peers->comm, rank));
}

// ---- A step ----

typedef struct work_attrs_s {
  choir__shards_t* shards;
  int64_t shard;     // its number
  int64_t is_apart;  // its average
  share_t own;
} work_attrs_t;

static choir__shards_t* shards_of(const choir_record_t* record) {
  return ((const work_attrs_t*)record->attrs)->shards;
}

static const choir__shard_t* shard_of(const choir_record_t* record) {
  const work_attrs_t* attrs = record->attrs;
  return &attrs->shards->items[attrs->shard];
}

static choir_status_t run_count(const choir_record_t* record,
                                choir_stream_t* stream) {
  const work_attrs_t* attrs = record->attrs;
  (void)stream;
  attrs->shards->peers->own = attrs->own;
  return NULL;
}

static void count_at_step(void* attrs, const choir_step_values_t* values) {
  ((work_attrs_t*)attrs)->own.samples = values->sample_count;
}

// The order in which all ranks' nodes are added up, unless one has more than
// others see.
static choir_status_t order_nodes(choir__peers_t* peers) {
  peers->node_count = 0;
  choir__leaves_t* leaves = NULL;
  const size_t bytes = (size_t)peers->size * sizeof(*leaves);
  CHOIR_TRY(allocate(peers, bytes, &leaves));
  for (int32_t r = 0; r < peers->size; ++r) leaves[r] = peers->all[r].leaves;
  choir_status_t status = choir__agree_on_leaves(peers->comm, leaves);
  choir_deallocate(peers->allocator, leaves, bytes);
  CHOIR_TRY(status);
  choir__sum_tree_t tree = {.leaves = peers->own.leaves.all};
  int32_t count = 0;
  for (int32_t r = 0; r < peers->size; ++r) {
    const choir__leaves_t* of = &peers->all[r].leaves;
    const choir__sum_tree_t own =
        choir__sum_tree_of(of->all, of->first, of->end, 0);
    if (own.count > NODES) return NULL;
    for (int32_t k = 0; k < own.count; ++k)
      peers->nodes[count++] =
          (node_t){r, k, choir__sum_tree_push(&tree, own.nodes[k])};
  }
  peers->node_count = count;
  return NULL;
}

static choir_status_t run_weigh(const choir_record_t* record,
                                choir_stream_t* stream) {
  choir__peers_t* peers = shards_of(record)->peers;
  (void)stream;
  if (peers->seconds) {
    choir_status_t status = order_nodes(peers);
    if (status) return choir__status_mark_shared(status, peers->comm);
    if (peers->own.leaves.all > 0)
      choir__sums_set_seen(shards_of(record)->dist->sums,
                           peers->node_count > 0);
  }
  double sum = 0;
  for (int32_t r = 0; r < peers->size; ++r)
    sum += (double)peers->all[r].samples;
  if (!(sum > 0))
    return choir__status_mark_shared(
        CHOIR_ERROR(INVALID_ARGUMENT,
                    "dist_opt: the weights of all ranks add to 0; one must "
                    "have a sample"),
        peers->comm);
  float* weight = peers->weights;
  for (int32_t r = 0; r < peers->size; ++r)
    if (peers->all[r].samples > 0)
      *weight++ = (float)((double)peers->all[r].samples / sum);
  return NULL;
}

static float* elements_in(const choir__peers_t* peers, int32_t rank,
                          const choir__shard_t* shard) {
  void* const* bucket =
      peers->values + (size_t)shard->bucket * (size_t)peers->size;
  return (float*)bucket[rank] + shard->start;
}

// number 1: of the rank's second node.
static float* grads_in(const choir__peers_t* peers, int32_t rank,
                       int32_t number, const choir__shard_t* shard) {
  void* const* bucket = (number == 0 ? peers->grads : peers->seconds) +
                        (size_t)shard->bucket * (size_t)peers->size;
  return (float*)bucket[rank] + shard->start;
}

// What one record does with its shard and the one before.
typedef struct work_s {
  const choir__peers_t* peers;
  const choir__shard_t* average;  // NULL: nothing
  const choir__shard_t* give;     // NULL: nothing
  bool is_apart;                  // the average
  bool adds_up;                   // the sum over micro-shards in its place
  bool is_for_all;                // that sum
  int64_t parts;                  // of threads
} work_t;

// *out_count elements of a shard from *out_begin; none of NULL.
static void part(const work_t* work, const choir__shard_t* shard, int64_t index,
                 int64_t* out_begin, int64_t* out_count) {
  const int64_t count = shard ? shard->count : 0;
  *out_begin = count * index / work->parts;
  *out_count = count * (index + 1) / work->parts - *out_begin;
}

// Elements of the parameter to ranks [first, size).
static void give(const choir__peers_t* peers, const choir__shard_t* shard,
                 int32_t first, int64_t begin, int64_t count) {
  const int32_t rank = choir_comm_rank(peers->comm);
  const float* src = elements_in(peers, rank, shard) + begin;
  const size_t bytes = (size_t)count * sizeof(float);
  for (int32_t r = first; r < peers->size; ++r) {
    if (r == rank) continue;
    float* dst = elements_in(peers, r, shard) + begin;
    if (peers->copies_away)
      choir__comm_copy_away(dst, src, bytes);
    else
      memcpy(dst, src, bytes);
  }
}

// Of ranks with samples, from element `at` of the bucket; how many they are.
static int32_t find_sources(const choir__peers_t* peers, int32_t bucket,
                            int64_t at, const float** sources) {
  void* const* grads = peers->grads + (size_t)bucket * (size_t)peers->size;
  int32_t count = 0;
  for (int32_t r = 0; r < peers->size; ++r)
    if (peers->all[r].samples > 0)
      sources[count++] = (const float*)grads[r] + at;
  return count;
}

static void run_part(const work_t* work, int64_t index) {
  const choir__peers_t* peers = work->peers;
  int64_t begin, count, given_from, given;
  part(work, work->average, index, &begin, &count);
  part(work, work->give, index, &given_from, &given);
  int32_t first = 0;
  if (work->average) {
    const float** sources = peers->sources + index * peers->size;
    const int32_t source_count = find_sources(
        peers, work->average->bucket, work->average->start + begin, sources);
    const int32_t rank = choir_comm_rank(peers->comm);
    float* dst = work->is_apart ? choir_buffer_data(peers->averages)
                                : grads_in(peers, rank, 0, work->average);
    dst += begin;
    if (work->give) {
      first = rank == 0 ? 1 : 0;
      choir__comm_average_and_copy(
          sources, peers->weights, source_count, dst, count,
          elements_in(peers, first, work->give) + given_from,
          elements_in(peers, rank, work->give) + given_from, given);
      ++first;
    } else {
      choir__comm_average(sources, peers->weights, source_count, dst, count);
    }
  }
  if (work->give) give(peers, work->give, first, given_from, given);
}

static void run_parts(void* context, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) run_part(context, i);
}

// No rank reads what another has of its part of the bucket.
static void add_up_part(const work_t* work, int64_t index) {
  const choir__peers_t* peers = work->peers;
  const choir__shard_t* shard = work->average;
  const int32_t rank = choir_comm_rank(peers->comm);
  int64_t begin, count;
  part(work, shard, index, &begin, &count);
  choir__sum_term_t* terms = peers->terms + index * peers->size * NODES;
  for (int32_t k = 0; k < peers->node_count; ++k) {
    const node_t* node = &peers->nodes[k];
    terms[k] = (choir__sum_term_t){
        .at = grads_in(peers, node->rank, node->number, shard) + begin,
        .sums = node->sums};
  }
  float* sum = grads_in(peers, rank, 0, shard) + begin;
  choir__sum_tree_add_up(terms, peers->node_count, NULL, sum, count);
  for (int32_t r = 0; work->is_for_all && r < peers->size; ++r)
    if (r != rank)
      memcpy(grads_in(peers, r, 0, shard) + begin, sum,
             (size_t)count * sizeof(float));
}

static void add_up_parts(void* context, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) add_up_part(context, i);
}

// `count`: elements of the larger of its shards.
static void run_work(work_t* work, int64_t count, choir_stream_t* stream) {
  const int64_t threads = choir__cpu_threads(stream);
  work->parts = count / GRAIN < threads ? count / GRAIN : threads;
  if (work->parts < 1) work->parts = 1;
  choir__cpu_parallel((int32_t)work->parts, work->parts, 1,
                      work->adds_up ? add_up_parts : run_parts, work);
}

// The shard whose parameters go to other ranks beside the average of this one:
// that before it, where they go past the caches. NULL: none.
static const choir__shard_t* given_beside(const choir_record_t* record) {
  const work_attrs_t* attrs = record->attrs;
  return attrs->is_apart && attrs->shards->peers->copies_away &&
                 attrs->shard > 0
             ? shard_of(record) - 1
             : NULL;
}

static choir_status_t run_average(const choir_record_t* record,
                                  choir_stream_t* stream) {
  const choir__shards_t* shards = shards_of(record);
  const choir__peers_t* peers = shards->peers;
  const bool is_sum = peers->own.leaves.all > 0;
  if (is_sum && peers->node_count == 0) return NULL;  // it came by messages
  work_t work = {.peers = peers,
                 .average = shard_of(record),
                 .give = given_beside(record),
                 .is_apart = ((const work_attrs_t*)record->attrs)->is_apart,
                 .adds_up = is_sum,
                 .is_for_all = shards->dist->clip != NULL};
  run_work(&work, work.average->count, stream);
  return NULL;
}

static choir_status_t run_give(const choir_record_t* record,
                               choir_stream_t* stream) {
  work_t work = {.peers = shards_of(record)->peers, .give = shard_of(record)};
  run_work(&work, work.give->count, stream);
  return NULL;
}

static double bytes_given(const choir__shards_t* shards,
                          const choir__shard_t* shard) {
  return shards->peers->size * (double)shard->count * sizeof(float);
}

static void cost_average(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir__shards_t* shards = shards_of(record);
  const choir__shard_t* shard = shard_of(record);
  const choir__shard_t* before = given_beside(record);
  const double ranks = shards->peers->size;
  const double count = (double)shard->count;
  *out_cost = (choir_cost_t){.flops = (2 * ranks - 1) * count,
                             .bytes = (ranks + 1) * count * sizeof(float)};
  if (before) out_cost->bytes += bytes_given(shards, before);
}

static void cost_give(const choir_record_t* record, choir_cost_t* out_cost) {
  *out_cost =
      (choir_cost_t){.bytes = bytes_given(shards_of(record), shard_of(record))};
}

static const choir_kernel_t count_kernel = {.name = "count/dist_opt",
                                            .run = run_count};
static const choir_kernel_t weigh_kernel = {.name = "weigh/dist_opt",
                                            .run = run_weigh};
static const choir_kernel_t average_kernel = {
    .name = "average/dist_opt", .run = run_average, .cost = cost_average};
static const choir_kernel_t give_kernel = {
    .name = "give/dist_opt", .run = run_give, .cost = cost_give};

static choir_status_t submit(choir__shards_t* shards,
                             const choir_kernel_t* kernel, size_t shard,
                             bool is_apart, choir_stream_t* stream) {
  const work_attrs_t attrs = {
      .shards = shards, .shard = (int64_t)shard, .is_apart = is_apart};
  choir_record_t record = {
      .kernel = kernel, .attrs = &attrs, .attrs_bytes = sizeof(attrs)};
  choir_view_t average;
  if (kernel == &average_kernel) {
    const choir__shard_t* item = &shards->items[shard];
    CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 1, &item->count, &average));
    average.buffer = is_apart ? shards->peers->averages
                              : shards->dist->buckets[item->bucket].buffer;
    average.offset = is_apart ? 0 : item->start;
    record.operands = &average;
    record.dst_count = 1;
    record.label = shards->dist->buckets[item->bucket].name;
  }
  return choir_stream_submit(stream, &record);
}

static choir_status_t submit_count(choir__shards_t* shards,
                                   choir_stream_t* stream) {
  const choir_step_t* step = shards->dist->scope_step;
  const work_attrs_t attrs = {
      .shards = shards,
      .own = {step->sample_count,
              choir__leaves_of(step->micro_shard, step->global_count,
                               step->first_sample, step->sample_count)}};
  const choir_record_t record = {.kernel = &count_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = count_at_step};
  return choir_stream_submit(stream, &record);
}

choir_status_t choir__peers_open(choir__shards_t* shards,
                                 const choir_step_values_t* values,
                                 choir_stream_t* stream) {
  choir__peers_t* peers = shards->peers;
  choir_collective_t open = {.kind = CHOIR_COLLECTIVE_ALL_GATHER,
                             .dtype = CHOIR_DTYPE_I64,
                             .count = sizeof(share_t) / sizeof(int64_t),
                             .src = &peers->own,
                             .dst = peers->all,
                             .weight = 1,
                             .in_host_memory = true,
                             .name = "gradients"};
  choir__comm_set_step(&open, values);
  CHOIR_TRY(submit_count(shards, stream));
  CHOIR_TRY(choir_comm_submit(peers->comm, stream, &open));
  return submit(shards, &weigh_kernel, 0, false, stream);
}

choir_status_t choir__peers_average(choir__shards_t* shards,
                                    const choir_step_values_t* values,
                                    choir_stream_t* stream) {
  for (size_t i = 0; i < shards->count; ++i)
    CHOIR_TRY(submit(shards, &average_kernel, i, false, stream));
  if (!shards->dist->has_sums || !shards->dist->clip) return NULL;
  choir_collective_t end = {.kind = CHOIR_COLLECTIVE_BARRIER,
                            .weight = 1,
                            .in_host_memory = true,
                            .name = "sums of gradients"};
  choir__comm_set_step(&end, values);
  return choir_comm_submit(shards->dist->comm, stream, &end);
}

choir_status_t choir__peers_update(choir__shards_t* shards, bool is_apart,
                                   int64_t step, choir_stream_t* stream) {
  for (size_t i = 0; i < shards->count; ++i) {
    if (is_apart) CHOIR_TRY(submit(shards, &average_kernel, i, true, stream));
    CHOIR_TRY(choir__param_shard_update(shards->items[i].update, stream, step));
    // What goes past the caches goes beside the next average.
    if (!is_apart || !shards->peers->copies_away || i + 1 == shards->count)
      CHOIR_TRY(submit(shards, &give_kernel, i, false, stream));
  }
  return NULL;
}

choir_status_t choir__peers_close(choir__shards_t* shards,
                                  const choir_step_values_t* values,
                                  choir_stream_t* stream) {
  choir_collective_t close = {.kind = CHOIR_COLLECTIVE_BARRIER,
                              .weight = 1,
                              .in_host_memory = true,
                              .name = "updated parameters"};
  choir__comm_set_step(&close, values);
  choir__dist_opt_trace_values(shards->dist, -1, stream);
  choir_status_t status = choir_comm_submit(shards->dist->comm, stream, &close);
  choir__dist_opt_trace_nothing(stream);
  return status;
}
