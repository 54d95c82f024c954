// SPDX-License-Identifier: Apache-2.0
// Gradients of all ranks as one sum over the step's micro-shards
// (docs/reproducible.md). A rank's micro-shards are a few nodes of the sum's
// tree, each with a place for every gradient. Every rank gives the nodes'
// elements that are of another's part of a bucket to that rank, which adds up
// what the tree says, and then all get the sums, where not this rank alone
// updates its part: where a rank has one node, the bytes of an all-reduce.
// Nodes that are rounded travel with 16 bits.
#include <string.h>

#include "dist/comm_shared_def.h"
#include "dist/dist_opt_parts_internal.h"

enum {
  // In front of what a rank gives to another: floats of a cache line.
  HEAD = 16,
  // Of a rank, beside the first: 2 log2 of 2^32 micro-shards.
  MOST_PARTS = 64,
};

static choir__leaves_t leaves_of(const choir_step_t* step) {
  return choir__leaves_of(step->micro_shard, step->global_count,
                          step->first_sample, step->sample_count);
}

// The nodes of the sum that a rank has.
static choir__sum_tree_t nodes_of(const choir__leaves_t* leaves) {
  return choir__sum_tree_of(leaves->all, leaves->first, leaves->end, 0);
}

static bool is_half(const choir_dist_opt_t* dist) {
  return !dist->strategy->def->is_average;
}

typedef struct room_s {
  float* data;
  size_t bytes;
} room_t;

struct choir__sums_s {
  choir_dist_opt_t* dist;
  // [buckets][MOST_PARTS], of nodes 1 .., as the bucket's buffer.
  choir_buffer_t** buffers;
  choir_tensor_t** tensors;  // [params][MOST_PARTS]
  int32_t part_count;
  // Of the bucket at hand: they are exchanged one after the other.
  room_t sent, received;
  int64_t* splits;           // [2][ranks]: what is given to each, what came
  choir__leaves_t* leaves;   // [ranks]
  choir__sum_term_t* terms;  // [ranks][1 + MOST_PARTS]
  bool are_seen;             // see choir__sums_set_seen
};

static size_t tensors_bytes(const choir_dist_opt_t* dist) {
  return dist->params->count * MOST_PARTS * sizeof(choir_tensor_t*);
}
static size_t buffers_bytes(const choir_dist_opt_t* dist) {
  return (size_t)dist->bucket_count * MOST_PARTS * sizeof(choir_buffer_t*);
}
static size_t splits_bytes(const choir_dist_opt_t* dist) {
  return 2 * (size_t)choir_comm_size(dist->comm) * sizeof(int64_t);
}
static size_t leaves_bytes(const choir_dist_opt_t* dist) {
  return (size_t)choir_comm_size(dist->comm) * sizeof(choir__leaves_t);
}
static size_t terms_bytes(const choir_dist_opt_t* dist) {
  return (size_t)choir_comm_size(dist->comm) * (1 + MOST_PARTS) *
         sizeof(choir__sum_term_t);
}

void choir__sums_destroy(choir__sums_t* sums) {
  if (!sums) return;
  choir_dist_opt_t* dist = sums->dist;
  const choir_allocator_t allocator = dist->allocator;
  for (size_t i = 0; i < dist->params->count; ++i) {
    choir_param_t* param = dist->params->params[i];
    param->grad_parts = NULL;
    param->grad_part_count = 0;
    for (int32_t k = 0; sums->tensors && k < MOST_PARTS; ++k)
      choir_tensor_release(sums->tensors[i * MOST_PARTS + (size_t)k]);
  }
  for (int32_t i = 0; sums->buffers && i < dist->bucket_count * MOST_PARTS; ++i)
    choir_buffer_release(sums->buffers[i]);
  choir_deallocate(allocator, sums->sent.data, sums->sent.bytes);
  choir_deallocate(allocator, sums->received.data, sums->received.bytes);
  choir_deallocate(allocator, sums->tensors, tensors_bytes(dist));
  choir_deallocate(allocator, sums->buffers, buffers_bytes(dist));
  choir_deallocate(allocator, sums->splits, splits_bytes(dist));
  choir_deallocate(allocator, sums->leaves, leaves_bytes(dist));
  choir_deallocate(allocator, sums->terms, terms_bytes(dist));
  choir_deallocate(allocator, sums, sizeof(*sums));
}

static choir_status_t allocate(const choir_dist_opt_t* dist, size_t bytes,
                               void** out_memory) {
  return choir_allocate(dist->allocator, bytes, "sums over micro-shards",
                        out_memory);
}

static choir_status_t check(const choir_dist_opt_t* dist) {
  if (!choir_device_is_host(dist->device))
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "dist_opt: micro-shards on %s; needs a CPU",
                       choir_device_name(dist->device));
  if (!dist->strategy->def->is_average && !dist->strategy->def->encode)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "dist_opt: micro-shards with dist_option %s, whose "
                       "result follows from the number of workers; needs "
                       "fp32, fp16 or bf16",
                       choir_strategy_def_option(dist->strategy->def));
  if (dist->config.backward_passes_per_step > 1)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "dist_opt: micro-shards with several passes per step");
  if (dist->uses_shards && !choir_device_is_reproducible(dist->device))
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "dist_opt: micro-shards on a device that is not "
                       "reproducible (choir_device_options_t), where ranks "
                       "share out the update");
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    if (dist->buckets[b].dtype != CHOIR_DTYPE_F32)
      return CHOIR_ERROR(UNIMPLEMENTED,
                         "dist_opt: micro-shards with parameters of %s; needs "
                         "f32",
                         choir_dtype_name(dist->buckets[b].dtype));
  return NULL;
}

static choir_status_t create(choir_dist_opt_t* dist) {
  void* memory = NULL;
  CHOIR_TRY(allocate(dist, sizeof(choir__sums_t), &memory));
  choir__sums_t* sums = dist->sums = memory;
  sums->dist = dist;
  CHOIR_TRY(allocate(dist, buffers_bytes(dist), &memory));
  sums->buffers = memory;
  CHOIR_TRY(allocate(dist, tensors_bytes(dist), &memory));
  sums->tensors = memory;
  CHOIR_TRY(allocate(dist, splits_bytes(dist), &memory));
  sums->splits = memory;
  CHOIR_TRY(allocate(dist, leaves_bytes(dist), &memory));
  sums->leaves = memory;
  CHOIR_TRY(allocate(dist, terms_bytes(dist), &memory));
  sums->terms = memory;
  return NULL;
}

// ---- Places ----

// context: how many bytes they are.
static void release_bytes(void* context, void* data) {
  choir_deallocate(choir_allocator_default(), data, (size_t)(uintptr_t)context);
}

// Of zeros. A step may be recorded now, and the device's own memory would be
// the graph's.
static choir_status_t make_buffer(const choir_dist_opt_t* dist, size_t bytes,
                                  choir_buffer_t** out_buffer) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(choir_allocator_default(), bytes,
                           "parts of gradients", &memory));
  memset(memory, 0, bytes);
  choir_status_t status =
      choir_buffer_wrap(dist->device, memory, bytes, release_bytes,
                        (void*)(uintptr_t)bytes, out_buffer);
  if (status) release_bytes((void*)(uintptr_t)bytes, memory);
  return status;
}

static choir_status_t make_part(choir__sums_t* sums) {
  choir_dist_opt_t* dist = sums->dist;
  const int32_t part = sums->part_count;
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    const size_t bytes = (size_t)choir_comm_size(dist->comm) *
                         (size_t)dist->buckets[b].part * sizeof(float);
    choir_buffer_t** buffer = &sums->buffers[b * MOST_PARTS + part];
    if (*buffer) continue;  // of an attempt before
    if (part == 0 && dist->buckets[b].second)
      choir_buffer_retain(*buffer = dist->buckets[b].second);
    else
      CHOIR_TRY(make_buffer(dist, bytes, buffer));
  }
  for (size_t i = 0; i < dist->params->count; ++i) {
    if (dist->places[i].bucket < 0) continue;
    choir_tensor_t** tensor = &sums->tensors[i * MOST_PARTS + (size_t)part];
    choir_view_t view = *choir_tensor_view(dist->params->params[i]->value);
    view.buffer = sums->buffers[dist->places[i].bucket * MOST_PARTS + part];
    view.offset = dist->places[i].offset;
    if (!*tensor) CHOIR_TRY(choir_tensor_from_view(&view, tensor));
  }
  ++sums->part_count;
  return NULL;
}

bool choir__sums_are_rounded(const choir_dist_opt_t* dist) {
  return dist->has_sums && is_half(dist);
}

choir_status_t choir__sums_prepare(choir_dist_opt_t* dist,
                                   const choir_step_t* step) {
  dist->has_sums = step->micro_shard > 0;
  if (!dist->has_sums) return NULL;
  CHOIR_TRY(check(dist));
  choir_status_t status = dist->sums ? NULL : create(dist);
  if (status) {
    choir__sums_destroy(dist->sums);
    dist->sums = NULL;
    return status;
  }
  choir__sums_t* sums = dist->sums;
  const choir__leaves_t leaves = leaves_of(step);
  const int32_t parts = nodes_of(&leaves).count - 1;
  if (parts > MOST_PARTS)
    return CHOIR_ERROR(OUT_OF_RANGE, "dist_opt: %lld micro-shards in a step",
                       (long long)leaves.all);
  while (sums->part_count < parts) CHOIR_TRY(make_part(sums));
  for (size_t i = 0; i < dist->params->count; ++i) {
    if (dist->places[i].bucket < 0) continue;
    choir_param_t* param = dist->params->params[i];
    param->grad_parts = &sums->tensors[i * MOST_PARTS];
    param->grad_part_count = sums->part_count;
  }
  return NULL;
}

// ---- Records ----

typedef struct sum_attrs_s {
  choir__sums_t* sums;
  int64_t bucket;
  int64_t gathers;  // whether all ranks get the whole sum
  int64_t is_half;  // nodes from the tree's half level on have 16 bits
  choir__leaves_t leaves;
  choir_step_values_t values;
} sum_attrs_t;

// The strategy's 16 bits. self: the attributes.
static void encode(void* self, const float* src, int64_t count, uint16_t* dst) {
  const sum_attrs_t* attrs = self;
  choir_strategy_t* strategy = attrs->sums->dist->strategy;
  strategy->def->encode(strategy, (int32_t)attrs->bucket, &attrs->values, src,
                        count, dst);
}
static void decode(void* self, const uint16_t* src, int64_t count, float* dst) {
  const choir_strategy_t* strategy =
      ((const sum_attrs_t*)self)->sums->dist->strategy;
  strategy->def->decode(strategy, src, count, dst);
}

static void add_up(const sum_attrs_t* attrs, const choir__sum_term_t* terms,
                   int32_t count, float* dst, int64_t elements) {
  const choir__halves_t halves = {encode, decode, (void*)attrs};
  choir__sum_tree_add_up(terms, count, attrs->is_half ? &halves : NULL, dst,
                         elements);
}

static void sum_at_step(void* attrs, const choir_step_values_t* values) {
  ((sum_attrs_t*)attrs)->values = *values;
}

static float* elements_of(const choir__sums_t* sums, int32_t bucket,
                          int32_t part) {
  return choir_buffer_data(part == 0
                               ? sums->dist->buckets[bucket].buffer
                               : sums->buffers[bucket * MOST_PARTS + part - 1]);
}

// Room for what each rank can have: nodes of a step's tree.
static int64_t most_nodes(int64_t leaves) {
  int64_t levels = 1;
  while (levels < 62 && leaves >> levels > 0) ++levels;
  return 2 * levels;
}

static choir_status_t make_room(const choir_dist_opt_t* dist, room_t* room,
                                int64_t floats) {
  const size_t bytes = (size_t)floats * sizeof(float);
  if (room->bytes >= bytes) return NULL;
  choir_deallocate(dist->allocator, room->data, room->bytes);
  *room = (room_t){NULL, 0};
  void* memory = NULL;
  CHOIR_TRY(allocate(dist, bytes, &memory));
  *room = (room_t){memory, bytes};
  return NULL;
}

static bool travels_half(const sum_attrs_t* attrs, choir__node_t node) {
  return attrs->is_half && node.level >= choir__half_level(attrs->leaves.all);
}

// Of a node's elements of one rank's part, in a message.
static int64_t floats_of(const sum_attrs_t* attrs, choir__node_t node) {
  const int64_t part = attrs->sums->dist->buckets[attrs->bucket].part;
  return travels_half(attrs, node) ? part / 2 : part;
}

// ---- Rounded nodes ----

static choir_status_t run_round(const choir_record_t* record,
                                choir_stream_t* stream) {
  const choir_view_t* node = &record->operands[0];
  float* data = (float*)choir_buffer_data(node->buffer) + node->offset;
  const choir__sum_term_t term = {.at = data};
  (void)stream;
  add_up(record->attrs, &term, 1, data, choir_view_count(node));
  return NULL;
}

static const choir_kernel_t round_kernel = {.name = "round/dist_opt",
                                            .run = run_round};

choir_status_t choir__sums_round(choir__sums_t* sums, choir_param_t* param,
                                 choir_tensor_t* node, choir_stream_t* stream) {
  const choir_dist_opt_t* dist = sums->dist;
  size_t i = 0;
  while (dist->params->params[i] != param) ++i;
  const int32_t bucket = dist->places[i].bucket;
  if (bucket < 0) return NULL;  // who reports the gradient says so
  const sum_attrs_t attrs = {.sums = sums,
                             .bucket = bucket,
                             .is_half = true,
                             .values = dist->strategy->values};
  const choir_view_t operands[] = {*choir_tensor_view(node),
                                   *choir_tensor_view(node)};
  const choir_record_t record = {.kernel = &round_kernel,
                                 .operands = operands,
                                 .dst_count = 1,
                                 .src_count = 1,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = sum_at_step,
                                 .label = dist->buckets[bucket].name};
  return choir_stream_submit(stream, &record);
}

// ---- The exchange ----

// One rank's message after the other: head, and of each node its elements of
// that rank's part.
static int64_t pack(const sum_attrs_t* attrs, const choir__sum_tree_t* own) {
  const choir__sums_t* sums = attrs->sums;
  const int32_t bucket = (int32_t)attrs->bucket;
  const int64_t part = sums->dist->buckets[bucket].part;
  float* to = sums->sent.data;
  float* const start = to;
  for (int32_t r = 0; r < choir_comm_size(sums->dist->comm); ++r) {
    const float* const message = to;
    memcpy(to, &attrs->leaves, sizeof(attrs->leaves));
    to += HEAD;
    for (int32_t k = 0; k < own->count; ++k) {
      const float* from = elements_of(sums, bucket, k) + r * part;
      if (travels_half(attrs, own->nodes[k]))
        encode((void*)attrs, from, part, (uint16_t*)(void*)to);
      else
        memcpy(to, from, (size_t)part * sizeof(float));
      to += floats_of(attrs, own->nodes[k]);
    }
    sums->splits[r] = to - message;
  }
  return to - start;
}

static choir_status_t sum(const sum_attrs_t* attrs, const int64_t* counts) {
  const choir__sums_t* sums = attrs->sums;
  const choir_dist_opt_t* dist = sums->dist;
  const int64_t part = dist->buckets[attrs->bucket].part;
  const int32_t size = choir_comm_size(dist->comm);
  const float* message = sums->received.data;
  for (int32_t r = 0; r < size; message += counts[r++])
    memcpy(&sums->leaves[r], message, sizeof(sums->leaves[r]));
  CHOIR_TRY(choir__agree_on_leaves(dist->comm, sums->leaves));
  choir__sum_tree_t tree = {.leaves = attrs->leaves.all};
  int32_t count = 0;
  message = sums->received.data;
  for (int32_t r = 0; r < size; message += counts[r++]) {
    const choir__sum_tree_t own = nodes_of(&sums->leaves[r]);
    const float* from = message + HEAD;
    for (int32_t k = 0; k < own.count; ++k) {
      choir__sum_term_t* term = &sums->terms[count++];
      *term = choir__sum_tree_term(&tree, own.nodes[k], from);
      term->is_half = travels_half(attrs, own.nodes[k]);
      from += floats_of(attrs, own.nodes[k]);
    }
  }
  add_up(attrs, sums->terms, count,
         elements_of(sums, (int32_t)attrs->bucket, 0) +
             choir_comm_rank(dist->comm) * part,
         part);
  return NULL;
}

// All ranks get all of the sum: as it is, or with 16 bits.
static choir_status_t gather(const sum_attrs_t* attrs) {
  const choir__sums_t* sums = attrs->sums;
  const choir_dist_opt_t* dist = sums->dist;
  const choir__bucket_t* bucket = &dist->buckets[attrs->bucket];
  float* grads = elements_of(sums, (int32_t)attrs->bucket, 0);
  const float* own = grads + choir_comm_rank(dist->comm) * bucket->part;
  const bool half = attrs->is_half != 0;
  choir_collective_t all = {.kind = CHOIR_COLLECTIVE_ALL_GATHER,
                            .dtype = CHOIR_DTYPE_F32,
                            .count = half ? bucket->part / 2 : bucket->part,
                            .src = half ? sums->sent.data : own,
                            .dst = half ? sums->received.data : grads,
                            .weight = 1,
                            .in_host_memory = true,
                            .name = bucket->name};
  choir__comm_set_step(&all, &attrs->values);
  if (half)
    encode((void*)attrs, own, bucket->part, (uint16_t*)(void*)sums->sent.data);
  CHOIR_TRY(choir_comm_run(dist->comm, &all));
  if (half)
    decode((void*)attrs, (const uint16_t*)(const void*)sums->received.data,
           choir_comm_size(dist->comm) * bucket->part, grads);
  return NULL;
}

static choir_status_t run_sum(const choir_record_t* record,
                              choir_stream_t* stream) {
  const sum_attrs_t* attrs = record->attrs;
  choir__sums_t* sums = attrs->sums;
  const choir_dist_opt_t* dist = sums->dist;
  const choir__bucket_t* bucket = &dist->buckets[attrs->bucket];
  (void)stream;
  if (!attrs->is_half && dist->uses_shards && sums->are_seen) return NULL;
  const int32_t size = choir_comm_size(dist->comm);
  const choir__sum_tree_t own = nodes_of(&attrs->leaves);
  const int64_t capacity =
      size * (HEAD + most_nodes(attrs->leaves.all) * bucket->part);
  // Also for this rank's part of the sum.
  const int64_t given = own.count > 0 ? own.count : 1;
  CHOIR_TRY(make_room(dist, &sums->sent, size * (HEAD + given * bucket->part)));
  CHOIR_TRY(make_room(dist, &sums->received, capacity));
  choir_collective_t exchange = {.kind = CHOIR_COLLECTIVE_ALL_TO_ALL_V,
                                 .dtype = CHOIR_DTYPE_F32,
                                 .count = pack(attrs, &own),
                                 .src = sums->sent.data,
                                 .dst = sums->received.data,
                                 .weight = 1,
                                 .capacity = capacity,
                                 .splits = sums->splits,
                                 .counts = sums->splits + size,
                                 .in_host_memory = true,
                                 .name = bucket->name};
  choir__comm_set_step(&exchange, &attrs->values);
  CHOIR_TRY(choir_comm_run(dist->comm, &exchange));
  CHOIR_TRY(sum(attrs, sums->splits + size));
  return attrs->gathers ? gather(attrs) : NULL;
}

void choir__sums_set_seen(choir__sums_t* sums, bool are_seen) {
  sums->are_seen = are_seen;
}

static const choir_kernel_t sum_kernel = {.name = "sum/dist_opt",
                                          .run = run_sum};

choir_status_t choir__sums_submit(choir__sums_t* sums, const choir_step_t* step,
                                  int32_t bucket, choir_stream_t* stream) {
  const choir_dist_opt_t* dist = sums->dist;
  if (choir_comm_size(dist->comm) == 1) return NULL;
  const sum_attrs_t attrs = {.sums = sums,
                             .bucket = bucket,
                             .gathers = !dist->uses_shards || dist->clip,
                             .is_half = is_half(dist),
                             .leaves = leaves_of(step),
                             .values = dist->strategy->values};
  const choir_record_t record = {.kernel = &sum_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = sum_at_step,
                                 .label = dist->buckets[bucket].name};
  return choir_stream_submit(stream, &record);
}
