// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/flat_shared.h"

CHOIR_STRATEGY_CONFIG(partial_update, CHOIR_PARTIAL_UPDATE_FIELDS,
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
  const choir_partial_update_config_t* config = strategy->config;
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

static choir_status_t average_chunk(partial_update_t* self, int64_t chunk) {
  choir_strategy_t* strategy = &self->base;
  float* data = choir_buffer_data(self->buffer);
  const int64_t begin = chunk * self->chunk;
  const int64_t rest = self->count - begin;
  const int64_t count = rest < self->chunk ? rest : self->chunk;
  choir__flat_read(strategy, begin, begin + count, data);
  CHOIR_TRY(choir_comm_all_reduce(strategy->comm, data, data, count,
                                  CHOIR_DTYPE_F32, CHOIR_REDUCE_AVERAGE,
                                  "chunk of parameters"));
  choir__flat_write(strategy, begin, begin + count, data);
  return NULL;
}

static int64_t chunk_count(const partial_update_t* self) {
  return (self->count + self->chunk - 1) / self->chunk;
}

static choir_status_t combine(choir_strategy_t* strategy,
                              const choir_step_values_t* values) {
  partial_update_t* self = (partial_update_t*)strategy;
  return average_chunk(self, values->step % chunk_count(self));
}

static choir_status_t consolidate(choir_strategy_t* strategy) {
  partial_update_t* self = (partial_update_t*)strategy;
  for (int64_t c = 0; c < chunk_count(self); ++c)
    CHOIR_TRY(average_chunk(self, c));
  return NULL;
}

const choir_strategy_def_t choir_strategy_def_partial_update = {
    .option = "partialUpdate",
    .config = &config_def,
    .bytes = sizeof(partial_update_t),
    .attach = attach,
    .detach = detach,
    .combine = combine,
    .consolidate = consolidate,
};
