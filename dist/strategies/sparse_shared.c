// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/sparse_shared.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dist/compress_gpu_internal.h"
#include "dist/top_k_internal.h"

// Gradients are far below 1: times 2^7 they stay in f16's range, up to 512.
enum { F16_EXPONENT = 7 };

const char* const choir_strategy_value_names[] = {"fp32", "fp16", NULL};

choir__message_config_t choir__sparse_values(int32_t index) {
  if (index == 0) return (choir__message_config_t){.kind = CHOIR__VALUES_F32};
  return (choir__message_config_t){.kind = CHOIR__VALUES_F16,
                                   .exponent = F16_EXPONENT};
}

int64_t choir__sparse_k(int64_t count, double share) {
  const double k = ceil((double)count * share);
  if (k < 1) return 1;
  return k > (double)count ? count : (int64_t)k;
}

double choir__sparse_bytes(const choir__message_config_t* config, int64_t count,
                           double share) {
  // A gap has the entropy of its share, and a little more.
  const double p = share < 0.5 ? share : 0.5;
  const double gap = (-p * log2(p) - (1 - p) * log2(1 - p)) / p;
  double value = (double)config->kind;
  if (config->kind == CHOIR__VALUES_F32) value = 32;
  if (config->kind == CHOIR__VALUES_F16) value = 16;
  if (config->block > 0) value += 64 / (double)config->block;
  return 32 + (double)choir__sparse_k(count, share) * (gap + value) / 8;
}

// ---- One array ----

// Takes `bytes` of *place, in whole cache lines.
static size_t take(size_t* place, size_t bytes) {
  const size_t at = *place;
  *place += (bytes + 63) / 64 * 64;
  return at;
}

choir_status_t choir__sparse_create(const choir_strategy_t* strategy,
                                    const choir__message_config_t* config,
                                    int64_t count, int64_t most, bool has_top_k,
                                    choir__sparse_t* out_sparse) {
  if (count > INT32_MAX)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%lld elements; a sparse exchange takes up to 2^31 - 1",
                       (long long)count);
  const size_t ranks = (size_t)choir_comm_size(strategy->comm);
  const size_t room = choir__message_most_bytes(config, count, most);
  const size_t chosen = (size_t)(most + CHOIR__TOP_K_SLACK);
  size_t bytes = 0;
  const size_t indices = take(&bytes, chosen * sizeof(int32_t));
  const size_t values = take(&bytes, chosen * sizeof(float));
  const size_t scratch =
      take(&bytes, has_top_k ? choir__top_k_scratch_bytes(count, most) : 0);
  const size_t message = take(&bytes, room);
  const size_t received = take(&bytes, room * ranks);
  const size_t received_bytes = take(&bytes, ranks * sizeof(int64_t));
  // 64 more, to begin on a cache line.
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(strategy->allocator, bytes + 64, "sparse messages",
                           &memory));
  char* base = (char*)(((uintptr_t)memory + 63) / 64 * 64);
  *out_sparse = (choir__sparse_t){
      .count = count,
      .most = most,
      .config = *config,
      .memory = memory,
      .memory_bytes = bytes + 64,
      .indices = (int32_t*)(void*)(base + indices),
      .values = (float*)(void*)(base + values),
      .scratch = has_top_k ? base + scratch : NULL,
      .message = base + message,
      .received = base + received,
      .received_room = (int64_t)(room * ranks),
      .received_bytes = (int64_t*)(void*)(base + received_bytes)};
  return NULL;
}

void choir__sparse_destroy(const choir_strategy_t* strategy,
                           choir__sparse_t* sparse) {
  choir_deallocate(strategy->allocator, sparse->memory, sparse->memory_bytes);
  *sparse = (choir__sparse_t){0};
}

choir_status_t choir__sparse_choose_top_k(choir__sparse_t* sparse,
                                          const float* src, int64_t k) {
  return choir__top_k(src, sparse->count, k, sparse->scratch, sparse->indices,
                      sparse->values);
}

choir_status_t choir__sparse_encode(choir__sparse_t* sparse, int64_t k,
                                    double weight) {
  sparse->config.weight = weight;
  size_t bytes = 0;
  CHOIR_TRY(choir__message_encode(
      &sparse->config, sparse->count, k, sparse->indices, sparse->values,
      sparse->message, &bytes, sparse->values, NULL));
  sparse->message_bytes = (int64_t)bytes;
  return NULL;
}

choir_collective_t choir__sparse_collective(choir__sparse_t* sparse,
                                            const char* name) {
  return (choir_collective_t){.kind = CHOIR_COLLECTIVE_ALL_GATHER_V,
                              .dtype = CHOIR_DTYPE_U8,
                              .src = sparse->message,
                              .dst = sparse->received,
                              .weight = 1,
                              .capacity = sparse->received_room,
                              .count_at = &sparse->message_bytes,
                              .counts = sparse->received_bytes,
                              .name = name};
}

static choir_status_t open_message(const choir_strategy_t* strategy,
                                   const choir__sparse_t* sparse, int32_t rank,
                                   const char* place,
                                   choir__message_t* out_message) {
  CHOIR_TRY_NOTE(
      choir__message_open(place, (size_t)sparse->received_bytes[rank],
                          sparse->count, out_message),
      "message of %s", choir_comm_peer(strategy->comm, rank));
  return NULL;
}

// What came: all ranks' weights, the most elements that one of them sent, and
// how many they sent together.
typedef struct received_s {
  double weight;
  int64_t most;
  int64_t sum;
} received_t;

static choir_status_t look_at_received(const choir_strategy_t* strategy,
                                       const choir__sparse_t* sparse,
                                       received_t* out_received) {
  *out_received = (received_t){0};
  const char* place = sparse->received;
  choir__message_t message;
  for (int32_t r = 0; r < choir_comm_size(strategy->comm);
       place += sparse->received_bytes[r++]) {
    CHOIR_TRY(open_message(strategy, sparse, r, place, &message));
    out_received->weight += message.config.weight;
    if (message.k > out_received->most) out_received->most = message.k;
    out_received->sum += message.k;
  }
  return NULL;
}

// One message after the other, those that have something, in rank order.
typedef choir_status_t (*add_message_t)(void* self,
                                        const choir__message_t* message,
                                        float share);
static choir_status_t add_received(const choir_strategy_t* strategy,
                                   const choir__sparse_t* sparse, double weight,
                                   add_message_t add, void* self) {
  const char* place = sparse->received;
  choir__message_t message;
  for (int32_t r = 0; r < choir_comm_size(strategy->comm);
       place += sparse->received_bytes[r++]) {
    CHOIR_TRY(open_message(strategy, sparse, r, place, &message));
    if (message.k == 0) continue;
    CHOIR_TRY_NOTE(add(self, &message, (float)(message.config.weight / weight)),
                   "message of %s", choir_comm_peer(strategy->comm, r));
  }
  return NULL;
}

static choir_status_t add_here(void* dense, const choir__message_t* message,
                               float share) {
  return choir__message_add(message, share, dense);
}

choir_status_t choir__sparse_decode(const choir_strategy_t* strategy,
                                    const choir__sparse_t* sparse,
                                    float* dense) {
  received_t received;
  CHOIR_TRY(look_at_received(strategy, sparse, &received));
  memset(dense, 0, (size_t)sparse->count * sizeof(float));
  return add_received(strategy, sparse, received.weight, add_here, dense);
}

// ---- The same on a GPU ----

typedef struct gpu_sum_s {
  choir_stream_t* stream;
  const choir__sparse_t* sparse;
  choir__gpu_chosen_t room;
  float* dense;
} gpu_sum_t;

static choir_status_t add_there(void* self, const choir__message_t* message,
                                float share) {
  gpu_sum_t* sum = self;
  const choir__sparse_t* sparse = sum->sparse;
  // What this rank chose was sent: its place is free.
  if (message->k > sparse->most)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "sparse message: %lld elements; this rank sends %lld at "
                       "most",
                       (long long)message->k, (long long)sparse->most);
  CHOIR_TRY(choir__message_decode(message, sparse->indices, sparse->values));
  choir__gpu_chosen_t chosen = sum->room;
  chosen.k = message->k;
  CHOIR_TRY(choir__gpu_chosen_write(sum->stream, &chosen, sparse->indices,
                                    sparse->values));
  return choir__gpu_scatter_add(sum->stream, &chosen, share, sum->dense);
}

// A dense sum on its way up has fewer bytes than all ranks' indices and values.
static bool is_dense_less(const choir__sparse_t* sparse, int64_t sum) {
  return sum > sparse->count / 2;
}

static choir_status_t decode_there(const choir_strategy_t* strategy,
                                   const choir__sparse_part_t* part,
                                   choir_stream_t* stream, float* dense) {
  const choir__sparse_t* sparse = &part->sparse;
  received_t received;
  CHOIR_TRY(look_at_received(strategy, sparse, &received));
  if (part->dense && is_dense_less(sparse, received.sum)) {
    CHOIR_TRY(choir__sparse_decode(strategy, sparse, part->dense));
    return choir__gpu_write(stream, part->dense, sparse->count, dense);
  }
  gpu_sum_t sum = {.stream = stream, .sparse = sparse, .dense = dense};
  CHOIR_TRY(choir__gpu_chosen_create(stream, received.most, &sum.room));
  CHOIR_TRY(choir__gpu_clear(stream, sparse->count, dense));
  return add_received(strategy, sparse, received.weight, add_there, &sum);
}

// ---- Gradients ----

static choir__sparse_gradient_t* as_sparse(choir_strategy_t* strategy) {
  return (choir__sparse_gradient_t*)strategy;
}

static size_t dense_bytes(const choir__sparse_part_t* part) {
  return (size_t)part->sparse.count * sizeof(float);
}

static choir_status_t make_dense(const choir_strategy_t* strategy,
                                 choir__sparse_part_t* part) {
  const int64_t most = part->sparse.most * choir_comm_size(strategy->comm);
  if (choir_device_is_host(strategy->device) ||
      !is_dense_less(&part->sparse, most))
    return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(strategy->allocator, dense_bytes(part),
                           "sum of sparse messages", &memory));
  part->dense = memory;
  return NULL;
}

static choir_status_t make_part(choir__sparse_gradient_t* self, int32_t bucket,
                                const choir__sparse_setup_t* setup) {
  choir_strategy_t* strategy = &self->base;
  choir__sparse_part_t* part = &self->parts[bucket];
  const int64_t count = strategy->buckets[bucket].count;
  CHOIR_TRY(choir__sparse_create(
      strategy, &setup->values, count, choir__sparse_k(count, setup->share),
      setup->has_top_k && choir_device_is_host(strategy->device),
      &part->sparse));
  CHOIR_TRY(make_dense(strategy, part));
  static const char* const kinds[] = {"residual", "velocity"};
  const bool has[] = {setup->has_residual, setup->has_velocity};
  float** data[] = {&part->residual, &part->velocity};
  for (int i = 0; i < 2; ++i) {
    if (!has[i]) continue;
    snprintf(part->names[i], sizeof(part->names[i]), "%s/%s/%d",
             choir_strategy_def_option(strategy->def), kinds[i], bucket);
    void* place = NULL;
    CHOIR_TRY(choir__strategy_make_state(strategy, CHOIR_DTYPE_F32, count,
                                         &part->tensors[i], &place));
    *data[i] = place;
  }
  return NULL;
}

choir_status_t choir__sparse_gradient_attach(
    choir__sparse_gradient_t* self, const choir__sparse_setup_t* setup) {
  choir_strategy_t* strategy = &self->base;
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(
      strategy->allocator,
      (size_t)strategy->bucket_count * sizeof(choir__sparse_part_t),
      "list of sparse buckets", &memory));
  self->parts = memory;
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    CHOIR_TRY(make_part(self, b, setup));
  return NULL;
}

void choir__sparse_gradient_detach(choir_strategy_t* strategy) {
  choir__sparse_gradient_t* self = as_sparse(strategy);
  for (int32_t b = 0; self->parts && b < strategy->bucket_count; ++b) {
    choir_deallocate(strategy->allocator, self->parts[b].dense,
                     dense_bytes(&self->parts[b]));
    choir__sparse_destroy(strategy, &self->parts[b].sparse);
    for (int i = 0; i < 2; ++i) choir_tensor_release(self->parts[b].tensors[i]);
  }
  choir_deallocate(
      strategy->allocator, self->parts,
      (size_t)strategy->bucket_count * sizeof(choir__sparse_part_t));
  self->parts = NULL;
}

bool choir__sparse_gradient_works_on(const choir_strategy_t* strategy,
                                     const choir_device_t* device) {
  (void)strategy;
  return choir__gpu_compress_works(device);
}

size_t choir__sparse_gradient_states(const choir_strategy_t* strategy,
                                     choir_named_tensor_t* out_states) {
  const choir__sparse_gradient_t* self =
      (const choir__sparse_gradient_t*)strategy;
  size_t count = 0;
  for (int32_t b = 0; self->parts && b < strategy->bucket_count; ++b) {
    const choir__sparse_part_t* part = &self->parts[b];
    for (int i = 0; i < 2; ++i) {
      if (!part->tensors[i]) continue;
      if (out_states)
        out_states[count] =
            (choir_named_tensor_t){part->names[i], part->tensors[i], NULL};
      ++count;
    }
  }
  return count;
}

static choir_status_t choose_here(choir__sparse_t* sparse, const float* src,
                                  const choir__sparse_choice_t* choice,
                                  int64_t* out_k) {
  *out_k = choice->k;
  return choice->k >= 0
             ? choir__sparse_choose_top_k(sparse, src, choice->k)
             : choir__select_above(src, sparse->count, choice->threshold,
                                   sparse->most, sparse->indices,
                                   sparse->values, out_k);
}

static choir_status_t encode_here(choir__sparse_gradient_t* self,
                                  choir__sparse_part_t* part,
                                  const float* grads,
                                  const choir_step_values_t* values,
                                  choir_stream_t* stream) {
  if (self->keep)
    CHOIR_TRY(self->keep(self, part, grads, stream));
  else if (part->residual)
    choir__residual_add(1, grads, part->sparse.count, part->residual);
  // What a rank without samples sent would have no weight, and be lost.
  int64_t k = 0;
  const choir__sparse_choice_t choice = self->choice(self, part, values->step);
  if (values->sample_count > 0)
    CHOIR_TRY(choose_here(
        &part->sparse, part->residual ? part->residual : grads, &choice, &k));
  CHOIR_TRY(
      choir__sparse_encode(&part->sparse, k, (double)values->sample_count));
  if (part->residual)
    choir__residual_subtract(part->sparse.indices, part->sparse.values, k,
                             part->residual);
  if (part->velocity)
    choir__residual_mask(part->sparse.indices, k, part->velocity);
  return NULL;
}

static choir_status_t choose_there(choir_stream_t* stream,
                                   choir__sparse_t* sparse, const float* src,
                                   const choir__sparse_choice_t* choice,
                                   choir__gpu_chosen_t* out_chosen) {
  CHOIR_TRY(
      choice->k >= 0
          ? choir__gpu_top_k(stream, src, sparse->count, choice->k, out_chosen)
          : choir__gpu_select_above(stream, src, sparse->count,
                                    choice->threshold, out_chosen));
  return choir__gpu_chosen_read(stream, out_chosen, sparse->indices,
                                sparse->values);
}

// Gradients and residuals of a GPU stay there: what is chosen comes down.
static choir_status_t encode_there(choir__sparse_gradient_t* self,
                                   choir__sparse_part_t* part,
                                   const float* grads,
                                   const choir_step_values_t* values,
                                   choir_stream_t* stream) {
  choir__sparse_t* sparse = &part->sparse;
  if (self->keep)
    CHOIR_TRY(self->keep(self, part, grads, stream));
  else if (part->residual)
    CHOIR_TRY(choir__gpu_residual_add(stream, 1, grads, sparse->count,
                                      part->residual));
  choir__gpu_chosen_t chosen = {.k = 0};
  const choir__sparse_choice_t choice = self->choice(self, part, values->step);
  if (values->sample_count > 0)
    CHOIR_TRY(choose_there(stream, sparse,
                           part->residual ? part->residual : grads, &choice,
                           &chosen));
  CHOIR_TRY(
      choir__sparse_encode(sparse, chosen.k, (double)values->sample_count));
  if (!part->residual) return NULL;
  // As f32 all was sent as it is.
  if (sparse->config.kind != CHOIR__VALUES_F32)
    CHOIR_TRY(choir__gpu_chosen_write(stream, &chosen, NULL, sparse->values));
  CHOIR_TRY(choir__gpu_residual_subtract(stream, &chosen, part->residual));
  return part->velocity
             ? choir__gpu_residual_mask(stream, &chosen, part->velocity)
             : NULL;
}

static choir_status_t encode(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  choir__sparse_gradient_t* self = as_sparse(strategy);
  choir__sparse_part_t* part = &self->parts[bucket];
  const float* grads = strategy->buckets[bucket].grads;
  return choir_device_is_host(strategy->device)
             ? encode_here(self, part, grads, values, stream)
             : encode_there(self, part, grads, values, stream);
}

static choir_status_t decode(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  (void)values;
  const choir__sparse_part_t* part = &as_sparse(strategy)->parts[bucket];
  float* grads = strategy->buckets[bucket].grads;
  return choir_device_is_host(strategy->device)
             ? choir__sparse_decode(strategy, &part->sparse, grads)
             : decode_there(strategy, part, stream, grads);
}

choir_status_t choir__sparse_gradient_exchange(choir_strategy_t* strategy,
                                               int32_t bucket,
                                               choir_stream_t* stream) {
  const choir_collective_t gather =
      choir__sparse_collective(&as_sparse(strategy)->parts[bucket].sparse,
                               strategy->buckets[bucket].name);
  CHOIR_TRY(choir__strategy_submit(strategy, CHOIR_STRATEGY_ENCODE, encode,
                                   bucket, stream));
  CHOIR_TRY(choir__strategy_submit_collective(strategy, strategy->host, stream,
                                              &gather));
  return choir__strategy_submit(strategy, CHOIR_STRATEGY_DECODE, decode, bucket,
                                stream);
}
