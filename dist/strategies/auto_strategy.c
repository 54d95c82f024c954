// SPDX-License-Identifier: Apache-2.0
// Measures the link and, in local steps, the step; then another strategy goes
// on.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "dist/plan.h"
#include "dist/strategies/flat_shared.h"

CHOIR_STRATEGY_CONFIG(auto, "auto", CHOIR_AUTO_FIELDS,
                      "the strategy that suits link and step best");

enum { MOST_STEPS = 1000, CHUNK = 262144 };

typedef struct auto_s {
  choir_strategy_t base;  // first
  choir_buffer_t* buffer;
  choir_link_t link;
  int64_t begun;               // steps that were asked for
  double last;                 // when the last step ended
  int64_t ended;               // steps that ended
  double seconds[MOST_STEPS];  // between the ends of steps
  // What sparseThreshold with its defaults would have kept, and sent.
  float* kept;
  double limit;
  int64_t sent;
} auto_t;

static choir_status_t check(const void* config_) {
  const choir_auto_config_t* config = config_;
  if (config->ranks == 0 || config->bandwidth > 0) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "ranks is %lld and bandwidth is 0; a link that is given "
                     "needs one",
                     (long long)config->ranks);
}

static size_t kept_bytes(const choir_strategy_t* strategy) {
  int64_t count = 0;
  for (int32_t b = 0; b < strategy->bucket_count; ++b)
    count += strategy->buckets[b].count;
  return (size_t)count * sizeof(float);
}

static choir_status_t attach(choir_strategy_t* strategy) {
  auto_t* self = (auto_t*)strategy;
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  self->begun = 0;
  self->ended = 0;
  const choir_auto_config_t* config = &strategy->config.as_auto;
  if (config->ranks > 0)
    self->link = (choir_link_t){.ranks = (int32_t)config->ranks,
                                .latency = 1e-3 * config->latency,
                                .bytes_per_second = 1e6 * config->bandwidth};
  else
    CHOIR_TRY(choir_link_measure(strategy->comm, &self->link));
  CHOIR_TRY(choir_comm_buffer_create(strategy->comm, strategy->device,
                                     CHUNK * sizeof(float), &self->buffer));
  choir_sparse_threshold_config_t threshold;
  choir_struct_init(choir_strategy_def_sparse_threshold.config, &threshold);
  self->limit = threshold.spars;
  self->sent = 0;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(strategy->allocator, kept_bytes(strategy),
                           "gradients of auto", &memory));
  self->kept = memset(memory, 0, kept_bytes(strategy));
  return NULL;
}

static void detach(choir_strategy_t* strategy) {
  auto_t* self = (auto_t*)strategy;
  choir_deallocate(strategy->allocator, self->kept, kept_bytes(strategy));
  self->kept = NULL;
  choir_buffer_release(self->buffer);
  self->buffer = NULL;
}

// What of `grads` and of what was kept is large goes.
static int64_t count_large(const float* grads, int64_t count, float limit,
                           float* kept) {
  int64_t large = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float sum = kept[i] + grads[i];
    const bool goes = !(fabsf(sum) < limit);  // NaN too
    large += goes;
    kept[i] = goes ? 0 : sum;
  }
  return large;
}

static void watch_gradients(auto_t* self) {
  float* kept = self->kept;
  for (int32_t b = 0; b < self->base.bucket_count; ++b) {
    const choir_strategy_bucket_t* bucket = &self->base.buckets[b];
    self->sent +=
        count_large(bucket->grads, bucket->count, (float)self->limit, kept);
    kept += bucket->count;
  }
}

// At the end of a step.
static choir_status_t combine(choir_strategy_t* strategy,
                              const choir_step_values_t* values) {
  auto_t* self = (auto_t*)strategy;
  (void)values;
  const double now = choir_clock_seconds();
  if (self->ended > 0 && self->ended <= MOST_STEPS)
    self->seconds[self->ended - 1] = now - self->last;
  ++self->ended;
  watch_gradients(self);
  self->last = choir_clock_seconds();
  return NULL;
}

static choir_status_t consolidate(choir_strategy_t* strategy) {
  auto_t* self = (auto_t*)strategy;
  return choir__flat_average(strategy, NULL, 0, choir__flat_count(strategy),
                             CHUNK, choir_buffer_data(self->buffer));
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

// The first steps are recorded and planned; of the others the median, of the
// slowest rank.
static choir_status_t step_seconds(auto_t* self, double* out_seconds) {
  enum { FIRST = 4 };
  const int64_t count = self->ended - 1 - FIRST;
  qsort(self->seconds + FIRST, (size_t)count, sizeof(double), compare);
  *out_seconds = self->seconds[FIRST + count / 2];
  return choir_comm_all_reduce(self->base.comm, out_seconds, out_seconds, 1,
                               CHOIR_DTYPE_F64, CHOIR_REDUCE_MAX,
                               "seconds of a step");
}

// Reads the gradients and writes them somewhere, bucket by bucket.
static choir_status_t pass_seconds(auto_t* self, double* out_seconds) {
  const choir_strategy_t* strategy = &self->base;
  float* place = choir_buffer_data(self->buffer);
  const double start = choir_clock_seconds();
  for (int32_t b = 0; b < strategy->bucket_count; ++b) {
    const choir_strategy_bucket_t* bucket = &strategy->buckets[b];
    for (int64_t i = 0; i < bucket->count; i += CHUNK) {
      const int64_t rest = bucket->count - i;
      memcpy(place, (const float*)bucket->grads + i,
             (size_t)(rest < CHUNK ? rest : CHUNK) * sizeof(float));
    }
  }
  *out_seconds = choir_clock_seconds() - start;
  return choir_comm_all_reduce(strategy->comm, out_seconds, out_seconds, 1,
                               CHOIR_DTYPE_F64, CHOIR_REDUCE_MAX,
                               "seconds of a pass");
}

static choir_status_t large_share(const auto_t* self, double* out_share) {
  const double all =
      (double)self->ended * (double)choir__flat_count(&self->base);
  *out_share = (double)self->sent / all;
  return choir_comm_all_reduce(self->base.comm, out_share, out_share, 1,
                               CHOIR_DTYPE_F64, CHOIR_REDUCE_AVERAGE,
                               "share of large gradients");
}

static choir_status_t measure(choir_strategy_t* strategy,
                              choir_link_t* out_link,
                              choir_workload_t* out_workload, bool* out_done) {
  auto_t* self = (auto_t*)strategy;
  const choir_auto_config_t* config = &strategy->config.as_auto;
  *out_done = self->begun++ >= config->steps;
  if (!*out_done) return NULL;
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(strategy->device)));
  *out_link = self->link;
  *out_workload = (choir_workload_t){.params = choir__flat_count(strategy),
                                     .buckets = strategy->bucket_count};
  CHOIR_TRY(step_seconds(self, &out_workload->compute));
  CHOIR_TRY(pass_seconds(self, &out_workload->pass));
  return large_share(self, &out_workload->large_share);
}

const choir_strategy_def_t choir_strategy_def_auto = {
    .config = &config_def,
    .bytes = sizeof(auto_t),
    .check = check,
    .attach = attach,
    .detach = detach,
    .combine = combine,
    .reads_grads = true,
    .consolidate = consolidate,
    .measure = measure,
};
