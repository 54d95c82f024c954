// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "dist/strategies/flat_shared.h"

CHOIR_STRATEGY_CONFIG(partial_update, "partialUpdate",
                      CHOIR_PARTIAL_UPDATE_FIELDS,
                      "local steps; a part of the parameters is averaged in "
                      "each, in turn");

typedef struct partial_update_s {
  choir_strategy_t base;   // first
  choir_buffer_t* buffer;  // a chunk, in the communicator's memory
  int64_t count;
  int64_t chunk;
} partial_update_t;

static choir_status_t attach(choir_strategy_t* strategy) {
  partial_update_t* self = (partial_update_t*)strategy;
  const choir_partial_update_config_t* config =
      &strategy->config.as_partial_update;
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  self->count = choir__flat_count(strategy);
  self->chunk = config->chunk < self->count ? config->chunk : self->count;
  return choir_comm_buffer_create(strategy->comm, strategy->device,
                                  (size_t)self->chunk * sizeof(float),
                                  &self->buffer);
}

static void detach(choir_strategy_t* strategy) {
  partial_update_t* self = (partial_update_t*)strategy;
  choir_buffer_release(self->buffer);
  self->buffer = NULL;
}

static choir_status_t average(partial_update_t* self,
                              const choir_step_values_t* step, int64_t begin,
                              int64_t end) {
  return choir__flat_average(&self->base, step, begin,
                             end < self->count ? end : self->count, self->chunk,
                             choir_buffer_data(self->buffer));
}

static choir_status_t combine(choir_strategy_t* strategy,
                              const choir_step_values_t* values) {
  partial_update_t* self = (partial_update_t*)strategy;
  const int64_t chunks = (self->count + self->chunk - 1) / self->chunk;
  const int64_t begin = values->step % chunks * self->chunk;
  return average(self, values, begin, begin + self->chunk);
}

static choir_status_t consolidate(choir_strategy_t* strategy) {
  partial_update_t* self = (partial_update_t*)strategy;
  return average(self, NULL, 0, self->count);
}

static bool cost(const void* config_, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  const choir_partial_update_config_t* config = config_;
  *out_cost = (choir_strategy_cost_t){
      .reduced = 4 * fmin((double)config->chunk, (double)workload->params),
      .operations = 1,
      .period = 1,
      .effort = 1};
  return true;
}

const choir_strategy_def_t choir_strategy_def_partial_update = {
    .config = &config_def,
    .bytes = sizeof(partial_update_t),
    .attach = attach,
    .detach = detach,
    .combine = combine,
    .consolidate = consolidate,
    .cost = cost,
};
