// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/strategy_internal.h"

CHOIR_STRATEGY_CONFIG(fp32, "fp32", CHOIR_DENSE_FIELDS,
                      "averages of gradients");

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_fp32_config_t* config = &strategy->config.as_fp32;
  strategy->overlaps = config->overlap;
  return NULL;
}

static choir_status_t exchange(choir_strategy_t* strategy, int32_t index,
                               choir_stream_t* stream) {
  const choir_strategy_bucket_t* bucket = &strategy->buckets[index];
  const choir_collective_t average = {
      .kind = CHOIR_COLLECTIVE_ALL_REDUCE,
      .op = CHOIR_REDUCE_AVERAGE,
      .dtype = bucket->dtype,
      .count = bucket->count,
      .src = bucket->grads,
      .dst = bucket->grads,
      .weight = (double)strategy->values.sample_count,
      .weight_is_samples = true,
      .name = bucket->name};
  return choir__strategy_submit_collective(strategy, strategy->device, stream,
                                           &average);
}

// Gradients are handed to a collective, and that takes any memory.
static bool works_on(const choir_strategy_t* strategy,
                     const choir_device_t* device) {
  (void)strategy;
  (void)device;
  return true;
}

static bool cost(const void* config, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  *out_cost = (choir_strategy_cost_t){
      .reduced = 4 * (double)workload->params,
      .operations = workload->buckets,
      .period = 1,
      .overlaps = ((const choir_fp32_config_t*)config)->overlap,
      .effort = 1};
  return true;
}

const choir_strategy_def_t choir_strategy_def_fp32 = {
    .alias = "plain",
    .config = &config_def,
    .bytes = sizeof(choir_strategy_t),
    .attach = attach,
    .is_average = true,
    .exchange = exchange,
    .cost = cost,
    .works_on = works_on,
};
