// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/half_shared.h"

#include <math.h>

#include "core/log.h"
#include "dist/compress_gpu_internal.h"
#include "dist/compress_internal.h"

static choir__half_strategy_t* as_half(choir_strategy_t* strategy) {
  return (choir__half_strategy_t*)strategy;
}

choir_status_t choir__half_attach(choir_strategy_t* strategy,
                                  choir_dtype_t dtype, int32_t exponent,
                                  double clip) {
  choir__half_strategy_t* half = as_half(strategy);
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  half->dtype = dtype;
  half->exponent = exponent;
  half->most = clip > 0 ? (float)clip : INFINITY;
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(strategy->allocator,
                     (size_t)strategy->bucket_count * sizeof(choir_buffer_t*),
                     "list of 16-bit buckets", &memory));
  half->buffers = memory;
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    CHOIR_TRY(choir_comm_buffer_create(
        strategy->comm, strategy->host,
        (size_t)strategy->buckets[b].count * sizeof(uint16_t),
        &half->buffers[b]));
  return NULL;
}

void choir__half_detach(choir_strategy_t* strategy) {
  choir__half_strategy_t* half = as_half(strategy);
  for (int32_t b = 0; half->buffers && b < strategy->bucket_count; ++b)
    choir_buffer_release(half->buffers[b]);
  choir_deallocate(strategy->allocator, half->buffers,
                   (size_t)strategy->bucket_count * sizeof(choir_buffer_t*));
  half->buffers = NULL;
}

static void tell(choir__half_strategy_t* half, int32_t bucket,
                 const choir_step_values_t* values, int64_t clipped) {
  const bool is_wanted = half->most < INFINITY;
  if (clipped > 0 && !is_wanted && !atomic_exchange(&half->has_told, true))
    choir_log(CHOIR_LOG_WARNING, "dist",
              "%s: step %lld: gradients of %s, %lld of them at once, are too "
              "large and were clipped (told once); a smaller exponent holds "
              "larger ones",
              choir_strategy_def_option(half->base.def),
              (long long)values->step, half->base.buckets[bucket].name,
              (long long)clipped);
}

void choir__half_encode_part(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             const float* src, int64_t count, uint16_t* dst) {
  choir__half_strategy_t* half = as_half(strategy);
  tell(half, bucket, values,
       choir__half_encode(half->dtype, src, count, half->exponent, half->most,
                          dst));
}

void choir__half_decode_part(const choir_strategy_t* strategy,
                             const uint16_t* src, int64_t count, float* dst) {
  const choir__half_strategy_t* half = (const choir__half_strategy_t*)strategy;
  choir__half_decode(half->dtype, src, count, half->exponent, dst);
}

// Gradients of a GPU are rounded there: the 16-bit elements are all that goes
// to the host, whose communicator adds them up in f32, and back.
static choir_status_t encode(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  choir__half_strategy_t* half = as_half(strategy);
  const choir_strategy_bucket_t* from = &strategy->buckets[bucket];
  uint16_t* data = choir_buffer_data(half->buffers[bucket]);
  int64_t clipped = 0;
  if (choir_device_is_host(strategy->device))
    clipped = choir__half_encode(half->dtype, from->grads, from->count,
                                 half->exponent, half->most, data);
  else
    CHOIR_TRY(choir__gpu_half_encode(stream, half->dtype, from->grads,
                                     from->count, half->exponent, half->most,
                                     data, &clipped));
  tell(half, bucket, values, clipped);
  return NULL;
}

static choir_status_t decode(choir_strategy_t* strategy, int32_t bucket,
                             const choir_step_values_t* values,
                             choir_stream_t* stream) {
  (void)values;
  const choir__half_strategy_t* half = as_half(strategy);
  const choir_strategy_bucket_t* to = &strategy->buckets[bucket];
  const uint16_t* data = choir_buffer_data(half->buffers[bucket]);
  if (!choir_device_is_host(strategy->device))
    return choir__gpu_half_decode(stream, half->dtype, data, to->count,
                                  half->exponent, to->grads);
  choir__half_decode(half->dtype, data, to->count, half->exponent, to->grads);
  return NULL;
}

choir_status_t choir__half_exchange(choir_strategy_t* strategy, int32_t bucket,
                                    choir_stream_t* stream) {
  const choir__half_strategy_t* half = as_half(strategy);
  void* data = choir_buffer_data(half->buffers[bucket]);
  const choir_collective_t average = {
      .kind = CHOIR_COLLECTIVE_ALL_REDUCE,
      .op = CHOIR_REDUCE_AVERAGE,
      .dtype = half->dtype,
      .count = strategy->buckets[bucket].count,
      .src = data,
      .dst = data,
      .weight = (double)strategy->values.sample_count,
      .weight_is_samples = true,
      .name = strategy->buckets[bucket].name};
  CHOIR_TRY(choir__strategy_submit(strategy, CHOIR_STRATEGY_ENCODE, encode,
                                   bucket, stream));
  CHOIR_TRY(choir__strategy_submit_collective(strategy, strategy->host, stream,
                                              &average));
  return choir__strategy_submit(strategy, CHOIR_STRATEGY_DECODE, decode, bucket,
                                stream);
}

bool choir__half_works_on(const choir_strategy_t* strategy,
                          const choir_device_t* device) {
  (void)strategy;
  return choir__gpu_compress_works(device);
}

void choir__half_cost(bool overlaps, const choir_workload_t* workload,
                      choir_strategy_cost_t* out_cost) {
  *out_cost = (choir_strategy_cost_t){.reduced = 2 * (double)workload->params,
                                      .operations = workload->buckets,
                                      .period = 1,
                                      .overlaps = overlaps,
                                      .passes = 3,
                                      .effort = 1};
}
