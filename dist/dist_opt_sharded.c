// SPDX-License-Identifier: Apache-2.0
// The sharded update, for ranks that see each other's memory (Xu et al.,
// "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel
// Training", 2020, on one host): parameters lie in memory of the communicator,
// each rank keeps the optimizer's states of its part there, and
//   - waits until all have their gradients,
//   - averages its part of them, steps that part and writes the parameters into
//     every rank's memory, stretch by stretch, as long as they are in the
//     cache,
//   - waits until all have.
// That moves little more than half the bytes of an all-reduce and an update of
// everything on every rank; the bits are the same. It is for ranks of one
// thread: several would divide the update among them, and have time to exchange
// gradients beside backward.
#include <string.h>

#include "core/device_backend.h"
#include "core/status_backend.h"
#include "dist/comm_shared_def.h"
#include "dist/dist_opt_kept_internal.h"
#include "opt/optimizer_def.h"

// Elements of a stretch: gradients of two ranks, parameter and a state are half
// a MiB, which stays in a core's second-level cache.
#define STRETCH (32 << 10)
// Up to here a rank's parameters may still be in its caches when the next step
// reads them; what is larger goes past them.
#define CACHED_BYTES ((size_t)8 << 20)
#define LINE 64

typedef struct shard_s {
  choir__param_shard_t* stretch;
  int32_t bucket;
  int64_t start;         // in the bucket, elements
  choir_view_t average;  // of `averages`
  size_t place;          // of the parameter's elements in the region
} shard_t;

struct choir__sharded_s {
  choir_allocator_t allocator;
  choir_comm_t* comm;
  choir_optimizer_t* optimizer;
  choir_buffer_t* region;  // parameters, then kept states
  choir__kept_t* kept;
  choir__comm_reader_t reader;
  choir_event_t* worked;     // the stream's work is done
  choir_buffer_t* averages;  // of the gradients of one stretch
  void** regions;            // [size] of the ranks
  void** buckets;            // [bucket_count][size]
  int32_t bucket_count;
  shard_t* shards;
  size_t shard_room;
  size_t shard_count;
  int64_t samples;        // this rank's, of the step
  int64_t* all_samples;   // [size]
  float* shares;          // [size] of ranks with samples, one after the other
  const float** sources;  // [size] scratch
  bool copies_away;
  choir_span_t span;  // of the update
};

static int32_t size_of(const choir__sharded_t* sharded) {
  return choir_comm_size(sharded->comm);
}

static choir_status_t allocate(const choir__sharded_t* sharded, size_t bytes,
                               void* out_memory) {
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(sharded->allocator, bytes, "sharded update", &memory));
  *(void**)out_memory = memory;
  return NULL;
}

// ---- The region ----

// Buffers that move into it, each once.
typedef struct moves_s {
  choir_buffer_t** buffers;
  size_t room;
  size_t count;
  size_t bytes;  // of all
} moves_t;

static size_t padded(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static void list_buffer(moves_t* moves, const choir_tensor_t* tensor) {
  choir_buffer_t* buffer = choir_tensor_view(tensor)->buffer;
  for (size_t i = 0; i < moves->count; ++i)
    if (moves->buffers[i] == buffer) return;
  moves->buffers[moves->count++] = buffer;
  moves->bytes += padded(choir_buffer_bytes(buffer));
}

static choir_status_t list_buffers(const choir__sharded_t* sharded,
                                   const choir_param_set_t* params,
                                   moves_t* moves) {
  *moves = (moves_t){.room = params->count};
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(sharded->allocator,
                           moves->room * sizeof(choir_buffer_t*),
                           "buffers to be moved", &memory));
  moves->buffers = memory;
  for (size_t i = 0; i < params->count; ++i)
    if (params->params[i]->trainable)
      list_buffer(moves, params->params[i]->value);
  return NULL;
}

static void release_region(void* region, void* data) {
  (void)data;
  choir_buffer_release(region);
}

// The buffer's memory is `place` from now on, which keeps the region.
static choir_status_t move(const choir__sharded_t* sharded,
                           choir_buffer_t* buffer, char* place) {
  const size_t bytes = choir_buffer_bytes(buffer);
  choir_buffer_t* other = NULL;
  CHOIR_TRY(choir_buffer_wrap(choir_buffer_device(buffer), place, bytes,
                              release_region, sharded->region, &other));
  choir_buffer_retain(sharded->region);
  memcpy(place, choir_buffer_data(buffer), bytes);
  choir__buffer_swap(buffer, other);
  choir_buffer_release(other);
  return NULL;
}

static choir_status_t move_all(const choir__sharded_t* sharded,
                               const moves_t* moves) {
  char* place = choir_buffer_data(sharded->region);
  for (size_t i = 0; i < moves->count; ++i) {
    CHOIR_TRY(move(sharded, moves->buffers[i], place));
    place += padded(choir_buffer_bytes(moves->buffers[i]));
  }
  return NULL;
}

static choir_status_t fill_region(choir__sharded_t* sharded,
                                  const choir_dist_opt_t* dist,
                                  const moves_t* moves) {
  sharded->copies_away = moves->bytes > CACHED_BYTES;
  const size_t kept = (size_t)choir__kept_count(sharded->kept) * sizeof(float);
  CHOIR_TRY(choir_comm_buffer_create(sharded->comm, dist->device,
                                     moves->bytes + kept, &sharded->region));
  bool seen = false;
  CHOIR_TRY(choir__comm_shared_look(sharded->comm, &sharded->region, 1,
                                    sharded->regions, &seen));
  if (!seen)
    return CHOIR_ERROR(INTERNAL,
                       "sharded update: buckets are seen, parameters not");
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(dist->device)));
  CHOIR_TRY(move_all(sharded, moves));
  choir_device_trim(dist->device);
  choir__kept_place(sharded->kept, sharded->region,
                    (int64_t)(moves->bytes / sizeof(float)), sharded->regions);
  choir__comm_reader_add(sharded->comm, &sharded->reader);
  return NULL;
}

static choir_status_t make_region(choir__sharded_t* sharded,
                                  const choir_dist_opt_t* dist) {
  moves_t moves;
  choir_status_t status = list_buffers(sharded, dist->params, &moves);
  if (!status) status = fill_region(sharded, dist, &moves);
  choir_deallocate(sharded->allocator, moves.buffers,
                   moves.room * sizeof(choir_buffer_t*));
  return status;
}

// ---- Shards ----

static size_t place_of(const choir__sharded_t* sharded,
                       choir_tensor_t* tensor) {
  size_t bytes;
  const char* data = choir__tensor_bytes(tensor, &bytes);
  return (size_t)(data - (const char*)choir_buffer_data(sharded->region));
}

static choir_status_t create_stretch(const choir__sharded_t* sharded,
                                     choir_param_t* param, int64_t piece,
                                     choir_tensor_t* grad, shard_t* shard) {
  const int64_t count = choir_tensor_count(grad);
  choir_tensor_t* states[CHOIR_OPTIMIZER_MAX_STATES] = {NULL};
  choir_tensor_t* const* all = NULL;
  const int32_t state_count =
      choir__optimizer_states_of(sharded->optimizer, param, &all);
  choir_status_t status = choir__kept_stretch(
      sharded->kept, shard->bucket, shard->start, count, state_count, states);
  if (!status)
    status = choir__param_shard_create(sharded->optimizer, param,
                                       shard->start - piece, count, grad,
                                       states, &shard->stretch);
  for (int32_t k = 0; k < state_count; ++k) choir_tensor_release(states[k]);
  return status;
}

static choir_status_t add_shard(choir__sharded_t* sharded, choir_param_t* param,
                                int32_t bucket, int64_t piece, int64_t from,
                                int64_t count) {
  shard_t* shard = &sharded->shards[sharded->shard_count++];
  *shard = (shard_t){.bucket = bucket,
                     .start = from,
                     .place = place_of(sharded, param->value) +
                              (size_t)(from - piece) * sizeof(float)};
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 1, &count, &shard->average));
  shard->average.buffer = sharded->averages;
  choir_tensor_t* grad = NULL;
  CHOIR_TRY(choir_tensor_from_view(&shard->average, &grad));
  choir_status_t status = create_stretch(sharded, param, piece, grad, shard);
  choir_tensor_release(grad);
  return status;
}

// Those of `param`, which is at `piece` of its bucket, within [begin, end).
static choir_status_t add_shards(choir__sharded_t* sharded,
                                 choir_param_t* param, int32_t bucket,
                                 int64_t piece, int64_t begin, int64_t end) {
  const int64_t last = piece + choir_tensor_count(param->value);
  int64_t from = piece > begin ? piece : begin;
  const int64_t to = last < end ? last : end;
  for (; from < to; from += STRETCH)
    CHOIR_TRY(add_shard(sharded, param, bucket, piece, from,
                        to - from < STRETCH ? to - from : STRETCH));
  return NULL;
}

static choir_status_t make_shards(choir__sharded_t* sharded,
                                  const choir_dist_opt_t* dist) {
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    sharded->shard_room += (size_t)dist->strategy_buckets[b].piece_count +
                           (size_t)(dist->buckets[b].count / STRETCH) + 1;
  CHOIR_TRY(allocate(sharded, sharded->shard_room * sizeof(shard_t),
                     &sharded->shards));
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    const choir_strategy_bucket_t* bucket = &dist->strategy_buckets[b];
    int64_t begin, end;
    choir__sharded_part(bucket->count, choir_comm_rank(sharded->comm),
                        size_of(sharded), &begin, &end);
    int32_t piece = 0;
    for (size_t i = dist->params->count; i-- > 0;)
      if (dist->bucket_of[i] == b)
        CHOIR_TRY(add_shards(sharded, dist->params->params[i], b,
                             bucket->pieces[piece++].offset, begin, end));
  }
  return NULL;
}

// ---- Life ----

// Also where it fails; an event leaves failures to who asks the stream.
static void wait_for_work(const choir__sharded_t* sharded) {
  choir_stream_t* stream =
      choir_device_stream(choir_buffer_device(sharded->region));
  choir_status_t status = choir_event_record(sharded->worked, stream);
  if (!status) status = choir_event_synchronize(sharded->worked);
  choir_status_free(status);
}

static void fill_states(void* self) {
  const choir__sharded_t* sharded = self;
  wait_for_work(sharded);
  choir__kept_fill(sharded->kept);
}

// Where all ranks' buckets are; false on every rank where they are not seen, or
// one of them has several threads.
static choir_status_t look_at_buckets(choir__sharded_t* sharded,
                                      const choir_dist_opt_t* dist,
                                      bool* out_seen) {
  const size_t bytes = (size_t)dist->bucket_count * sizeof(choir_buffer_t*);
  void* memory = NULL;
  CHOIR_TRY(allocate(sharded, bytes, &memory));
  choir_buffer_t** buffers = memory;
  const bool shows = choir_device_threads(dist->device) == 1;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    buffers[b] = shows ? dist->buckets[b].buffer : NULL;
  choir_status_t status = choir__comm_shared_look(
      sharded->comm, buffers, dist->bucket_count, sharded->buckets, out_seen);
  choir_deallocate(sharded->allocator, buffers, bytes);
  return status;
}

static choir_status_t make_lists(choir__sharded_t* sharded) {
  const size_t size = (size_t)size_of(sharded);
  CHOIR_TRY(allocate(sharded,
                     (size_t)sharded->bucket_count * size * sizeof(void*),
                     &sharded->buckets));
  CHOIR_TRY(allocate(sharded, size * sizeof(void*), &sharded->regions));
  CHOIR_TRY(allocate(sharded, size * sizeof(int64_t), &sharded->all_samples));
  CHOIR_TRY(allocate(sharded, size * sizeof(float), &sharded->shares));
  return allocate(sharded, size * sizeof(float*), &sharded->sources);
}

static choir_status_t fill(choir__sharded_t* sharded,
                           const choir_dist_opt_t* dist, bool* out_seen) {
  CHOIR_TRY(make_lists(sharded));
  CHOIR_TRY(look_at_buckets(sharded, dist, out_seen));
  if (!*out_seen) return NULL;
  CHOIR_TRY(choir_event_create(dist->device, &sharded->worked));
  CHOIR_TRY(choir__kept_create(dist, &sharded->kept));
  CHOIR_TRY(make_region(sharded, dist));
  CHOIR_TRY(choir_buffer_create(dist->device, STRETCH * sizeof(float),
                                &sharded->averages));
  return make_shards(sharded, dist);
}

// The answer is the same on every rank.
static bool is_wanted(const choir_dist_opt_t* dist) {
  if (!dist->config.sharded_update || choir_comm_size(dist->comm) == 1 ||
      !choir__optimizer_is_elementwise(dist->optimizer))
    return false;
  for (int32_t b = 0; b < dist->bucket_count; ++b)
    if (dist->buckets[b].dtype != CHOIR_DTYPE_F32) return false;
  return dist->bucket_count > 0;
}

choir_status_t choir__sharded_create(const choir_dist_opt_t* dist,
                                     choir__sharded_t** out_sharded) {
  *out_sharded = NULL;
  if (!is_wanted(dist)) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, sizeof(choir__sharded_t),
                           "sharded update", &memory));
  choir__sharded_t* sharded = memory;
  sharded->allocator = dist->allocator;
  sharded->comm = dist->comm;
  sharded->optimizer = dist->optimizer;
  sharded->bucket_count = dist->bucket_count;
  sharded->span.start = -1;
  sharded->reader = (choir__comm_reader_t){fill_states, sharded, NULL};
  bool seen = false;
  choir_status_t status = fill(sharded, dist, &seen);
  if (status || !seen)
    choir__sharded_destroy(sharded);
  else
    *out_sharded = sharded;
  return status;
}

void choir__sharded_destroy(choir__sharded_t* sharded) {
  if (!sharded) return;
  const choir_allocator_t allocator = sharded->allocator;
  const size_t size = (size_t)size_of(sharded);
  if (sharded->region) fill_states(sharded);
  choir__comm_reader_remove(sharded->comm, &sharded->reader);
  choir__kept_destroy(sharded->kept);
  choir_event_release(sharded->worked);
  for (size_t i = 0; i < sharded->shard_count; ++i)
    choir__param_shard_destroy(sharded->shards[i].stretch);
  choir_buffer_release(sharded->region);
  choir_buffer_release(sharded->averages);
  choir_deallocate(allocator, sharded->shards,
                   sharded->shard_room * sizeof(shard_t));
  choir_deallocate(allocator, sharded->buckets,
                   (size_t)sharded->bucket_count * size * sizeof(void*));
  choir_deallocate(allocator, sharded->regions, size * sizeof(void*));
  choir_deallocate(allocator, sharded->all_samples, size * sizeof(int64_t));
  choir_deallocate(allocator, sharded->shares, size * sizeof(float));
  choir_deallocate(allocator, sharded->sources, size * sizeof(float*));
  choir_deallocate(allocator, sharded, sizeof(*sharded));
}

// ---- A step ----

typedef struct work_attrs_s {
  choir__sharded_t* sharded;
  int64_t value;  // samples, or which shard
} work_attrs_t;

static const shard_t* shard_of(const choir_record_t* record) {
  const work_attrs_t* attrs = record->attrs;
  return &attrs->sharded->shards[attrs->value];
}

static choir_status_t run_count(const choir_record_t* record,
                                choir_stream_t* stream) {
  const work_attrs_t* attrs = record->attrs;
  (void)stream;
  attrs->sharded->samples = attrs->value;
  return NULL;
}

static void count_at_step(void* attrs, const choir_step_values_t* values) {
  ((work_attrs_t*)attrs)->value = values->sample_count;
}

static choir_status_t run_weigh(const choir_record_t* record,
                                choir_stream_t* stream) {
  choir__sharded_t* sharded = ((const work_attrs_t*)record->attrs)->sharded;
  (void)stream;
  double sum = 0;
  for (int32_t r = 0; r < size_of(sharded); ++r)
    sum += (double)sharded->all_samples[r];
  if (!(sum > 0))
    return choir__status_mark_shared(
        CHOIR_ERROR(INVALID_ARGUMENT,
                    "dist_opt: the weights of all ranks add to 0; one must "
                    "have a sample"),
        sharded->comm);
  float* share = sharded->shares;
  for (int32_t r = 0; r < size_of(sharded); ++r)
    if (sharded->all_samples[r] > 0)
      *share++ = (float)((double)sharded->all_samples[r] / sum);
  return NULL;
}

static choir_status_t run_take(const choir_record_t* record,
                               choir_stream_t* stream) {
  (void)stream;
  choir__kept_take(((const work_attrs_t*)record->attrs)->sharded->kept);
  return NULL;
}

static choir_status_t run_put_off(const choir_record_t* record,
                                  choir_stream_t* stream) {
  (void)stream;
  choir__kept_put_off(((const work_attrs_t*)record->attrs)->sharded->kept);
  return NULL;
}

static float* elements_in(const choir__sharded_t* sharded, int32_t rank,
                          const shard_t* shard) {
  return (float*)(void*)((char*)sharded->regions[rank] + shard->place);
}

// The parameter's elements to ranks [first, size).
static void give(const choir__sharded_t* sharded, const shard_t* shard,
                 int32_t first) {
  const int32_t rank = choir_comm_rank(sharded->comm);
  const float* src = elements_in(sharded, rank, shard);
  const size_t bytes =
      (size_t)choir_view_count(&shard->average) * sizeof(float);
  for (int32_t r = first; r < size_of(sharded); ++r) {
    if (r == rank) continue;
    if (sharded->copies_away)
      choir__comm_copy_away(elements_in(sharded, r, shard), src, bytes);
    else
      memcpy(elements_in(sharded, r, shard), src, bytes);
  }
}

// The shard whose parameters go to other ranks beside the average of this one:
// that before it, where they go past the caches. NULL: none.
static const shard_t* given_beside(const choir__sharded_t* sharded,
                                   const shard_t* shard) {
  return sharded->copies_away && shard > sharded->shards ? shard - 1 : NULL;
}

static choir_status_t run_average(const choir_record_t* record,
                                  choir_stream_t* stream) {
  choir__sharded_t* sharded = ((const work_attrs_t*)record->attrs)->sharded;
  (void)stream;
  const shard_t* shard = shard_of(record);
  void* const* bucket =
      sharded->buckets + (size_t)shard->bucket * (size_t)size_of(sharded);
  int32_t count = 0;
  for (int32_t r = 0; r < size_of(sharded); ++r)
    if (sharded->all_samples[r] > 0)
      sharded->sources[count++] = (const float*)bucket[r] + shard->start;
  float* average = choir_buffer_data(sharded->averages);
  const int64_t length = choir_view_count(&shard->average);
  const shard_t* before = given_beside(sharded, shard);
  if (!before) {
    choir__comm_average(sharded->sources, sharded->shares, count, average,
                        length);
    return NULL;
  }
  const int32_t rank = choir_comm_rank(sharded->comm);
  const int32_t first = rank == 0 ? 1 : 0;
  choir__comm_average_and_copy(
      sharded->sources, sharded->shares, count, average, length,
      elements_in(sharded, first, before), elements_in(sharded, rank, before),
      choir_view_count(&before->average));
  give(sharded, before, first + 1);
  return NULL;
}

static choir_status_t run_give(const choir_record_t* record,
                               choir_stream_t* stream) {
  choir__sharded_t* sharded = ((const work_attrs_t*)record->attrs)->sharded;
  (void)stream;
  give(sharded, shard_of(record), 0);
  return NULL;
}

static double bytes_given(const choir__sharded_t* sharded,
                          const shard_t* shard) {
  return size_of(sharded) * (double)choir_view_count(&shard->average) *
         sizeof(float);
}

static void cost_average(const choir_record_t* record, choir_cost_t* out_cost) {
  const choir__sharded_t* sharded =
      ((const work_attrs_t*)record->attrs)->sharded;
  const shard_t* shard = shard_of(record);
  const shard_t* before = given_beside(sharded, shard);
  const double ranks = size_of(sharded);
  const double count = (double)choir_view_count(&shard->average);
  *out_cost = (choir_cost_t){.flops = (2 * ranks - 1) * count,
                             .bytes = (ranks + 1) * count * sizeof(float)};
  if (before) out_cost->bytes += bytes_given(sharded, before);
}

static void cost_give(const choir_record_t* record, choir_cost_t* out_cost) {
  *out_cost = (choir_cost_t){
      .bytes = bytes_given(((const work_attrs_t*)record->attrs)->sharded,
                           shard_of(record))};
}

static const choir_kernel_t count_kernel = {.name = "count/dist_opt",
                                            .run = run_count};
static const choir_kernel_t weigh_kernel = {.name = "weigh/dist_opt",
                                            .run = run_weigh};
static const choir_kernel_t take_kernel = {.name = "take/dist_opt",
                                           .run = run_take};
static const choir_kernel_t put_off_kernel = {.name = "put_off/dist_opt",
                                              .run = run_put_off};
static const choir_kernel_t average_kernel = {
    .name = "average/dist_opt", .run = run_average, .cost = cost_average};
static const choir_kernel_t give_kernel = {
    .name = "give/dist_opt", .run = run_give, .cost = cost_give};

static choir_status_t submit(choir__sharded_t* sharded,
                             const choir_kernel_t* kernel, int64_t value,
                             choir_stream_t* stream) {
  const work_attrs_t attrs = {sharded, value};
  const bool is_average = kernel == &average_kernel;
  const choir_record_t record = {
      .kernel = kernel,
      .operands = is_average ? &sharded->shards[value].average : NULL,
      .dst_count = is_average,
      .attrs = &attrs,
      .attrs_bytes = sizeof(attrs),
      .at_step = kernel == &count_kernel ? count_at_step : NULL};
  return choir_stream_submit(stream, &record);
}

static choir_status_t begin_span(void* self) {
  ((choir__sharded_t*)self)->span = choir_span_begin(CHOIR_SPAN_PHASE);
  return NULL;
}

static choir_status_t end_span(void* self) {
  choir__sharded_t* sharded = self;
  choir_span_end(&sharded->span, "update", NULL, NULL);
  sharded->span.start = -1;
  return NULL;
}

static choir_status_t submit_shards(choir__sharded_t* sharded,
                                    choir_stream_t* stream, int64_t step) {
  CHOIR_TRY(submit(sharded, &weigh_kernel, 0, stream));
  CHOIR_TRY(submit(sharded, &take_kernel, 0, stream));
  for (size_t i = 0; i < sharded->shard_count; ++i) {
    CHOIR_TRY(submit(sharded, &average_kernel, (int64_t)i, stream));
    CHOIR_TRY(
        choir__param_shard_update(sharded->shards[i].stretch, stream, step));
    // What goes past the caches goes beside the next average.
    if (!sharded->copies_away || i + 1 == sharded->shard_count)
      CHOIR_TRY(submit(sharded, &give_kernel, (int64_t)i, stream));
  }
  return submit(sharded, &put_off_kernel, 0, stream);
}

choir_status_t choir__sharded_open(choir__sharded_t* sharded,
                                   const choir_step_values_t* values,
                                   choir_stream_t* stream) {
  choir_collective_t open = {.kind = CHOIR_COLLECTIVE_ALL_GATHER,
                             .dtype = CHOIR_DTYPE_I64,
                             .count = 1,
                             .src = &sharded->samples,
                             .dst = sharded->all_samples,
                             .weight = 1,
                             .in_host_memory = true,
                             .name = "gradients"};
  choir__comm_set_step(&open, values);
  CHOIR_TRY(submit(sharded, &count_kernel, values->sample_count, stream));
  return choir_comm_submit(sharded->comm, stream, &open);
}

choir_status_t choir__sharded_update(choir__sharded_t* sharded,
                                     const choir_step_values_t* values,
                                     choir_stream_t* stream) {
  choir_collective_t close = {.kind = CHOIR_COLLECTIVE_BARRIER,
                              .weight = 1,
                              .in_host_memory = true,
                              .name = "updated parameters"};
  choir__comm_set_step(&close, values);
  CHOIR_TRY(choir_stream_call(stream, begin_span, sharded));
  choir_status_t status = submit_shards(sharded, stream, values->step);
  CHOIR_TRY(
      choir_status_join(status, choir_stream_call(stream, end_span, sharded)));
  return choir_comm_submit(sharded->comm, stream, &close);
}
