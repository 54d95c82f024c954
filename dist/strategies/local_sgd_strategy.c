// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/local_shared.h"

CHOIR_STRATEGY_CONFIG(local_sgd, "localSGD", CHOIR_LOCAL_SGD_FIELDS,
                      "local steps, then averages of parameters");

static choir_status_t check(const void* config_) {
  const choir_local_sgd_config_t* config = config_;
  return choir__local_check(config->period, config->delay, config->nesterov,
                            config->outer_momentum);
}

static choir_status_t encode(choir__local_t* self, double weight,
                             choir_collective_t* out_collective) {
  *out_collective = (choir_collective_t){.kind = CHOIR_COLLECTIVE_ALL_REDUCE,
                                         .op = CHOIR_REDUCE_AVERAGE,
                                         .dtype = CHOIR_DTYPE_F32,
                                         .count = self->count,
                                         .src = self->delta,
                                         .dst = self->average,
                                         .weight = weight,
                                         .name = "change of parameters"};
  return NULL;
}

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_local_sgd_config_t* config = &strategy->config.as_local_sgd;
  choir__local_t* self = (choir__local_t*)strategy;
  self->period = config->period;
  self->delay = config->delay;
  self->outer_lr = (float)config->outer_lr;
  self->outer_momentum = (float)config->outer_momentum;
  self->nesterov = config->nesterov;
  self->encode = encode;
  return choir__local_attach(self);
}

static bool cost(const void* config_, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  const choir_local_sgd_config_t* config = config_;
  *out_cost = (choir_strategy_cost_t){.reduced = 4 * (double)workload->params,
                                      .operations = 1,
                                      .period = config->period,
                                      .delay = config->delay,
                                      .passes = 8 / (double)config->period,
                                      .effort = 1};
  return true;
}

const choir_strategy_def_t choir_strategy_def_local_sgd = {
    .config = &config_def,
    .bytes = sizeof(choir__local_t),
    .check = check,
    .attach = attach,
    .detach = choir__local_detach,
    .take_params = choir__local_take_params,
    .combine = choir__local_combine,
    .consolidate = choir__local_consolidate,
    .states = choir__local_states,
    .cost = cost,
};
