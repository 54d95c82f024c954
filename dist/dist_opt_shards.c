// SPDX-License-Identifier: Apache-2.0
// The update as shards (Xu et al., "Automatic Cross-Replica Sharding of Weight
// Update in Data-Parallel Training", 2020; Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", 2020, stage 1):
// each rank keeps the optimizer's states of its part of every bucket, steps the
// parameters of that part, and the ranks give each other what they stepped. The
// data go one of two ways: through memory that ranks see of each other
// (dist_opt_peers.c), or by reduce_scatter and all_gather, here. Both leave the
// bits of an update of everything on every rank.
#include "dist/dist_opt_shards_internal.h"

#include <string.h>

#include "core/status_backend.h"
#include "dist/comm_shared_def.h"
#include "tensor/tensor_def.h"

#define LINE_BYTES 64

static int32_t size_of(const choir__shards_t* shards) {
  return choir_comm_size(shards->dist->comm);
}

static int32_t rank_of(const choir__shards_t* shards) {
  return choir_comm_rank(shards->dist->comm);
}

// ---- Who has what ----

static size_t part_bytes(const choir__bucket_t* bucket) {
  return (size_t)bucket->part * choir_dtype_bytes(bucket->dtype);
}

static size_t state_bytes(const choir__bucket_t* bucket, int64_t elements) {
  return (size_t)elements *
         choir_dtype_bytes(choir__optimizer_state_dtype(bucket->dtype));
}

// Bytes from the start of a rank's states to those of `number` of its part of
// the bucket; of the one behind the last: of all.
static size_t place_of_states(const choir__shards_t* shards, int32_t number,
                              int32_t bucket) {
  const choir__bucket_t* buckets = shards->dist->buckets;
  size_t place = LINE_BYTES;
  for (int32_t b = 0; b < bucket; ++b)
    place +=
        (size_t)shards->state_count * state_bytes(&buckets[b], buckets[b].part);
  return bucket < shards->dist->bucket_count
             ? place + (size_t)number *
                           state_bytes(&buckets[bucket], buckets[bucket].part)
             : place;
}

const void* choir__shards_states(const choir__shards_t* shards) {
  return (const char*)choir_buffer_data(shards->states) +
         place_of_states(shards, 0, 0);
}

static const choir__place_t* place_of(const choir__shards_t* shards,
                                      const choir_param_t* param) {
  const choir_dist_opt_t* dist = shards->dist;
  size_t i = 0;
  while (dist->params->params[i] != param) ++i;
  return &dist->places[i];
}

// Elements of the parameter, from *out_start, that are of a rank's part.
static int64_t part_of(const choir__shards_t* shards,
                       const choir_param_t* param, int32_t rank,
                       int64_t* out_start) {
  const choir__place_t* place = place_of(shards, param);
  return choir__bucket_part_of(&shards->dist->buckets[place->bucket], rank,
                               place->offset, choir_tensor_count(param->value),
                               out_start);
}

static void own_part_of(void* self, const choir_param_t* param,
                        int64_t* out_start, int64_t* out_count) {
  const choir__shards_t* shards = self;
  *out_count = part_of(shards, param, rank_of(shards), out_start);
}

// Bytes from the start of a rank's states to those of its part of `param`.
static size_t state_of(const choir__shards_t* shards,
                       const choir_param_t* param, int32_t rank, int32_t number,
                       int64_t start) {
  const choir__place_t* place = place_of(shards, param);
  const choir__bucket_t* bucket = &shards->dist->buckets[place->bucket];
  return place_of_states(shards, number, place->bucket) +
         state_bytes(bucket, place->offset + start - rank * bucket->part);
}

static choir_status_t place_state(void* self, const choir_param_t* param,
                                  int32_t number, choir_tensor_t** out_state) {
  const choir__shards_t* shards = self;
  int64_t start;
  const int64_t count = part_of(shards, param, rank_of(shards), &start);
  choir_view_t view;
  CHOIR_TRY(choir_view_make(
      choir__optimizer_state_dtype(choir_tensor_dtype(param->value)), 1, &count,
      &view));
  view.buffer = shards->states;
  if (count > 0)
    view.offset =
        (int64_t)(state_of(shards, param, rank_of(shards), number, start) /
                  choir_dtype_bytes(view.dtype));
  return choir_tensor_from_view(&view, out_state);
}

// ---- Life ----

// A bucket's parameters become one range of memory, in the order of their
// gradients.
static choir_status_t move_params(const choir_dist_opt_t* dist) {
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    choir__bucket_t* bucket = &dist->buckets[b];
    CHOIR_TRY(choir_comm_buffer_create(
        dist->comm, dist->device,
        (size_t)choir_comm_size(dist->comm) * part_bytes(bucket),
        &bucket->values));
    for (size_t i = 0; i < dist->params->count; ++i)
      if (dist->places[i].bucket == b)
        CHOIR_TRY(choir__tensor_move(dist->params->params[i]->value,
                                     bucket->values, dist->places[i].offset));
  }
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(dist->device)));
  choir_device_trim(dist->device);
  return NULL;
}

static choir_status_t fill(choir__shards_t* shards) {
  const choir_dist_opt_t* dist = shards->dist;
  const size_t bytes = place_of_states(shards, 0, dist->bucket_count);
  CHOIR_TRY(move_params(dist));
  if (!shards->peers)
    return choir_buffer_create(dist->device, bytes, &shards->states);
  CHOIR_TRY(choir_comm_buffer_create(dist->comm, dist->device, bytes,
                                     &shards->states));
  return choir__peers_look(shards->peers, shards);
}

// The answer is the same on every rank.
static choir_status_t check(const choir_dist_opt_t* dist, bool* out_can) {
  *out_can = choir__optimizer_is_elementwise(dist->optimizer);
  if (*out_can || !dist->config.shard) return NULL;
  return CHOIR_ERROR(
      FAILED_PRECONDITION,
      "dist_opt: shard: some parameters have memory in common, so that one is "
      "updated from what the other left; needs parameters of their own memory");
}

choir_status_t choir__shards_create(const choir_dist_opt_t* dist,
                                    choir__shards_t** out_shards) {
  *out_shards = NULL;
  if (choir_comm_size(dist->comm) == 1 || dist->bucket_count == 0) return NULL;
  bool can = false;
  CHOIR_TRY(check(dist, &can));
  if (!can) return NULL;
  choir__peers_t* peers = NULL;
  CHOIR_TRY(choir__peers_create(dist, &peers));
  if (!peers && !dist->config.shard) return NULL;
  void* memory = NULL;
  choir_status_t status = choir_allocate(
      dist->allocator, sizeof(choir__shards_t), "shards", &memory);
  if (status) {
    choir__peers_destroy(peers);
    return status;
  }
  choir__shards_t* shards = memory;
  shards->dist = dist;
  shards->peers = peers;
  shards->sharding = (choir__sharding_t){own_part_of, place_state, shards};
  shards->state_count = choir__optimizer_state_count(dist->optimizer);
  shards->span.start = -1;
  status = fill(shards);
  if (status)
    choir__shards_destroy(shards);
  else
    *out_shards = shards;
  return status;
}

void choir__shards_drop_plan(choir__shards_t* shards) {
  for (size_t i = 0; i < shards->count; ++i)
    choir__param_shard_destroy(shards->items[i].update);
  choir_deallocate(shards->dist->allocator, shards->items,
                   shards->room * sizeof(choir__shard_t));
  shards->items = NULL;
  shards->room = 0;
  shards->count = 0;
}

void choir__shards_destroy(choir__shards_t* shards) {
  if (!shards) return;
  choir__shards_drop_plan(shards);
  choir__optimizer_set_sharding(shards->dist->optimizer, NULL);
  choir__peers_destroy(shards->peers);
  choir_buffer_release(shards->states);
  choir_deallocate(shards->dist->allocator, shards, sizeof(*shards));
}

void choir__shards_use(choir__shards_t* shards) {
  choir__optimizer_set_sharding(shards->dist->optimizer, &shards->sharding);
}

// ---- The plan ----

// The strategy leaves the average, or the sum over micro-shards, to who
// updates.
static bool averages(const choir__shards_t* shards) {
  return shards->dist->strategy->def->is_average;
}

// Each stretch is updated from its average at once; else all are averaged
// before, where the gradients are. On a reproducible device steps with
// micro-shards and without have one plan.
static bool is_apart(const choir__shards_t* shards) {
  return shards->peers && averages(shards) && !shards->dist->clip &&
         !choir_device_is_reproducible(shards->dist->device);
}

static choir_status_t add_item(choir__shards_t* shards, choir_param_t* param,
                               int32_t bucket, int64_t start, int64_t count) {
  choir__shard_t* item = &shards->items[shards->count++];
  const int64_t piece = place_of(shards, param)->offset;
  *item = (choir__shard_t){
      .bucket = bucket, .start = piece + start, .count = count};
  choir_view_t view;
  CHOIR_TRY(
      choir_view_make(choir_tensor_dtype(param->value), 1, &count, &view));
  const bool apart = is_apart(shards);
  view.buffer = apart ? choir__peers_averages(shards->peers)
                      : shards->dist->buckets[bucket].buffer;
  view.offset = apart ? 0 : item->start;
  choir_tensor_t* grad = NULL;
  CHOIR_TRY(choir_tensor_from_view(&view, &grad));
  choir_status_t status = choir__param_shard_create(
      shards->dist->optimizer, param, start, count, grad, &item->update);
  choir_tensor_release(grad);
  return status;
}

static choir_status_t add_items(choir__shards_t* shards, choir_param_t* param,
                                int32_t bucket, int64_t stretch) {
  int64_t start;
  int64_t left = part_of(shards, param, rank_of(shards), &start);
  for (; left > 0; start += stretch, left -= stretch)
    CHOIR_TRY(add_item(shards, param, bucket, start,
                       left < stretch ? left : stretch));
  return NULL;
}

choir_status_t choir__shards_plan(choir__shards_t* shards) {
  const choir_dist_opt_t* dist = shards->dist;
  choir__shards_drop_plan(shards);
  const int64_t stretch =
      shards->peers ? choir__peers_stretch(shards->peers) : INT64_MAX / 2;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    shards->room += (size_t)dist->buckets[b].param_count +
                    (size_t)(dist->buckets[b].part / stretch) + 1;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator,
                           shards->room * sizeof(choir__shard_t), "shards",
                           &memory));
  shards->items = memory;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    for (size_t i = dist->params->count; i-- > 0;)
      if (dist->places[i].bucket == b)
        CHOIR_TRY(add_items(shards, dist->params->params[i], b, stretch));
  return NULL;
}

// ---- A step ----

bool choir__shards_reduce_late(const choir__shards_t* shards) {
  return shards->peers && averages(shards);
}

choir_status_t choir__shards_reduce(const choir__shards_t* shards,
                                    int32_t index, choir_stream_t* stream) {
  const choir_strategy_t* strategy = shards->dist->strategy;
  if (!averages(shards))
    return strategy->def->exchange(shards->dist->strategy, index, stream);
  const choir_strategy_bucket_t* bucket = &strategy->buckets[index];
  const choir__bucket_t* own = &shards->dist->buckets[index];
  const choir_collective_t average = {
      .kind = CHOIR_COLLECTIVE_REDUCE_SCATTER,
      .op = CHOIR_REDUCE_AVERAGE,
      .dtype = bucket->dtype,
      .count = own->part,
      .src = bucket->grads,
      .dst = (char*)bucket->grads + (size_t)rank_of(shards) * part_bytes(own),
      .weight = (double)strategy->values.sample_count,
      .weight_is_samples = true,
      .name = bucket->name};
  return choir__strategy_submit_collective(strategy, strategy->device, stream,
                                           &average);
}

static choir_status_t give_bucket(const choir__shards_t* shards, int32_t index,
                                  choir_stream_t* stream) {
  const choir_dist_opt_t* dist = shards->dist;
  const choir__bucket_t* bucket = &dist->buckets[index];
  char* values = choir_buffer_data(bucket->values);
  const choir_collective_t give = {
      .kind = CHOIR_COLLECTIVE_ALL_GATHER,
      .dtype = bucket->dtype,
      .count = bucket->part,
      .src = values + (size_t)rank_of(shards) * part_bytes(bucket),
      .dst = values,
      .weight = 1,
      .name = "updated parameters"};
  choir__dist_opt_trace_values(dist, index, stream);
  choir_status_t status = choir__strategy_submit_collective(
      dist->strategy, dist->device, stream, &give);
  choir__dist_opt_trace_nothing(stream);
  return status;
}

static choir_status_t update_by_messages(choir__shards_t* shards, int64_t step,
                                         choir_stream_t* stream) {
  const choir_dist_opt_t* dist = shards->dist;
  for (size_t i = 0; i < shards->count; ++i)
    CHOIR_TRY(choir__param_shard_update(shards->items[i].update, stream, step));
  if (dist->holders)
    CHOIR_TRY(choir__holders_submit(dist->holders, step, stream));
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    CHOIR_TRY(give_bucket(shards, b, stream));
  return NULL;
}

static choir_status_t begin_span(void* self) {
  ((choir__shards_t*)self)->span = choir_span_begin(CHOIR_SPAN_PHASE);
  return NULL;
}

static choir_status_t end_span(void* self) {
  choir__shards_t* shards = self;
  choir_span_end(&shards->span, "update", NULL, NULL);
  shards->span.start = -1;
  return NULL;
}

// Of micro-shards that not all peers see: else the records do nothing.
static choir_status_t sum_by_messages(const choir__shards_t* shards,
                                      choir_stream_t* stream) {
  const choir_dist_opt_t* dist = shards->dist;
  for (int32_t b = 0; dist->has_sums && b < dist->bucket_count; ++b) {
    choir__dist_opt_trace_grads(dist, b, stream);
    choir_status_t status =
        choir__sums_submit(dist->sums, dist->scope_step, b, stream);
    choir__dist_opt_trace_nothing(stream);
    CHOIR_TRY(status);
  }
  return NULL;
}

static choir_status_t update(choir__shards_t* shards,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  const choir_dist_opt_t* dist = shards->dist;
  const bool apart = is_apart(shards);
  if (choir__shards_reduce_late(shards) && !apart) {
    CHOIR_TRY(sum_by_messages(shards, stream));
    CHOIR_TRY(choir__peers_average(shards, values, stream));
  }
  if (dist->clip)
    CHOIR_TRY(choir__clip_submit(dist->clip, !dist->has_sums, stream));
  return shards->peers
             ? choir__peers_update(shards, apart, values->step, stream)
             : update_by_messages(shards, values->step, stream);
}

choir_status_t choir__shards_update(choir__shards_t* shards,
                                    const choir_step_values_t* values,
                                    choir_stream_t* stream) {
  if (choir__shards_reduce_late(shards))
    CHOIR_TRY(choir__peers_open(shards, values, stream));
  CHOIR_TRY(choir_stream_call(stream, begin_span, shards));
  choir_status_t status = update(shards, values, stream);
  CHOIR_TRY(
      choir_status_join(status, choir_stream_call(stream, end_span, shards)));
  return shards->peers ? choir__peers_close(shards, values, stream) : NULL;
}

// ---- Whole states ----

static choir_status_t gather_from_peers(const choir__shards_t* shards,
                                        const choir_param_t* param,
                                        int32_t number, char* whole) {
  const size_t element = choir_dtype_bytes(
      choir__optimizer_state_dtype(choir_tensor_dtype(param->value)));
  for (int32_t r = 0; r < size_of(shards); ++r) {
    const void* states;
    int64_t start;
    const int64_t count = part_of(shards, param, r, &start);
    if (count == 0) continue;
    CHOIR_TRY(choir__peers_states_of(shards, r, &states));
    memcpy(whole + (size_t)start * element,
           (const char*)states + state_of(shards, param, r, number, start),
           (size_t)count * element);
  }
  return NULL;
}

// Parts follow one another in the order of ranks.
static choir_status_t gather_by_messages(const choir__shards_t* shards,
                                         const choir_named_tensor_t* state,
                                         int32_t root, char* own, char* whole) {
  const choir_dtype_t dtype = choir_tensor_dtype(state->tensor);
  const int64_t count = choir_tensor_count(state->tensor);
  CHOIR_TRY(choir_tensor_read(state->tensor, own,
                              (size_t)count * choir_dtype_bytes(dtype)));
  const int64_t all = choir_view_count(&state->shard->whole);
  return root < 0
             ? choir_comm_all_gather_v(shards->dist->comm, own, count, whole,
                                       all, NULL, dtype, state->name)
             : choir_comm_gather_v(shards->dist->comm, own, count, whole, all,
                                   NULL, dtype, root, state->name);
}

static choir_status_t gather(const choir__shards_t* shards,
                             const choir_named_tensor_t* state, int32_t root,
                             char* memory, choir_tensor_t* whole) {
  const size_t bytes = (size_t)choir_tensor_count(whole) *
                       choir_dtype_bytes(choir_tensor_dtype(whole));
  int32_t number = 0;
  const choir_param_t* param = choir__optimizer_find_state(
      shards->dist->optimizer, state->tensor, &number);
  if (!param)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: gather: %s is no state of this optimizer",
                       state->name);
  CHOIR_TRY(shards->peers ? gather_from_peers(shards, param, number, memory)
                          : gather_by_messages(shards, state, root,
                                               memory + bytes, memory));
  if (root >= 0 && root != rank_of(shards)) return NULL;
  choir_device_t* device = choir_tensor_device(whole);
  return choir_buffer_write(choir_tensor_view(whole)->buffer,
                            choir_device_stream(device), 0, memory, bytes);
}

choir_status_t choir__shards_gather(const choir__shards_t* shards,
                                    const choir_named_tensor_t* state,
                                    int32_t root, choir_tensor_t** out_whole) {
  choir_tensor_t* whole = NULL;
  CHOIR_TRY(choir_named_tensor_make_whole(state, &whole));
  // The whole, and this rank's part for others.
  const size_t room = 2 * (size_t)choir_tensor_count(whole) *
                      choir_dtype_bytes(choir_tensor_dtype(whole));
  const choir_allocator_t allocator = shards->dist->allocator;
  void* memory = NULL;
  choir_status_t status =
      choir_allocate(allocator, room, "elements of a state", &memory);
  if (!status) status = gather(shards, state, root, memory, whole);
  choir_deallocate(allocator, memory, room);
  if (!status && (root < 0 || root == rank_of(shards)))
    *out_whole = whole;
  else
    choir_tensor_release(whole);
  return status;
}
