// SPDX-License-Identifier: Apache-2.0
// Sarfi et al.: "Communication Efficient LLM Pre-training with SparseLoCo",
// 2025: local steps, then the largest changes in a few bits each, with what was
// not sent kept for the next round.
#include "dist/strategies/local_shared.h"
#include "dist/strategies/sparse_shared.h"

CHOIR_STRATEGY_CONFIG(sparse_local, "sparseLocal", CHOIR_SPARSE_LOCAL_FIELDS,
                      "local steps, then the largest changes of parameters");

typedef struct sparse_local_s {
  choir__local_t base;  // first
  choir__sparse_t sparse;
  choir_tensor_t* residual_tensor;
  float* residual;
  int64_t k;
  float decay;
} sparse_local_t;

enum { BLOCK = 256 };  // values that share a scale

const char* const choir_sparse_local_value_names[] = {"2bit", "3bit", "4bit",
                                                      "fp16", "fp32", NULL};
static choir__message_config_t values_of(int32_t index) {
  static const choir__value_kind_t kinds[] = {
      CHOIR__VALUES_BITS2, CHOIR__VALUES_BITS3, CHOIR__VALUES_BITS4,
      CHOIR__VALUES_F16, CHOIR__VALUES_F32};
  return (choir__message_config_t){.kind = kinds[index],
                                   .block = index < 3 ? BLOCK : 0,
                                   .exponent = index == 3 ? 7 : 0};
}

static choir_status_t check(const void* config_) {
  const choir_sparse_local_config_t* config = config_;
  return choir__local_check(config->period, config->delay, config->nesterov,
                            config->outer_momentum);
}

static choir_status_t encode(choir__local_t* local, double weight,
                             choir_collective_t* out_collective) {
  sparse_local_t* self = (sparse_local_t*)local;
  choir__residual_add(self->decay, local->delta, local->count, self->residual);
  // What a rank without samples sent would have no weight, and be lost.
  const int64_t k = weight > 0 ? self->k : 0;
  CHOIR_TRY(choir__sparse_choose_top_k(&self->sparse, self->residual, k));
  CHOIR_TRY(choir__sparse_encode(&self->sparse, k, weight));
  choir__residual_subtract(self->sparse.indices, self->sparse.values, k,
                           self->residual);
  *out_collective =
      choir__sparse_collective(&self->sparse, "change of parameters");
  return NULL;
}

static choir_status_t decode(choir__local_t* local) {
  return choir__sparse_decode(&local->base, &((sparse_local_t*)local)->sparse,
                              local->average);
}

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_sparse_local_config_t* config = &strategy->config.as_sparse_local;
  sparse_local_t* self = (sparse_local_t*)strategy;
  choir__local_t* local = &self->base;
  local->period = config->period;
  local->delay = config->delay;
  local->outer_lr = (float)config->outer_lr;
  local->outer_momentum = (float)config->outer_momentum;
  local->nesterov = config->nesterov;
  local->encode = encode;
  local->decode = decode;
  CHOIR_TRY(choir__local_attach(local));
  self->decay = (float)config->decay;
  self->k = choir__sparse_k(local->count, config->spars);
  const choir__message_config_t values = values_of(config->values);
  CHOIR_TRY(choir__sparse_create(strategy, &values, local->count, self->k, true,
                                 &self->sparse));
  void* residual = NULL;
  CHOIR_TRY(choir__strategy_make_state(strategy, CHOIR_DTYPE_F32, local->count,
                                       &self->residual_tensor, &residual));
  self->residual = residual;
  return NULL;
}

static void detach(choir_strategy_t* strategy) {
  sparse_local_t* self = (sparse_local_t*)strategy;
  choir__local_detach(strategy);  // first: it ends the exchange
  choir__sparse_destroy(strategy, &self->sparse);
  choir_tensor_release(self->residual_tensor);
  self->residual_tensor = NULL;
}

static size_t states(const choir_strategy_t* strategy,
                     choir_named_tensor_t* out_states) {
  const sparse_local_t* self = (const sparse_local_t*)strategy;
  const size_t count = choir__local_states(strategy, out_states);
  if (out_states)
    out_states[count] = (choir_named_tensor_t){"sparseLocal/residual",
                                               self->residual_tensor, NULL};
  return count + 1;
}

static bool cost(const void* config_, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  const choir_sparse_local_config_t* config = config_;
  const choir__message_config_t values = values_of(config->values);
  *out_cost = (choir_strategy_cost_t){
      .gathered = choir__sparse_bytes(&values, workload->params, config->spars),
      .operations = 1,
      .period = config->period,
      .delay = config->delay,
      .passes = 16 / (double)config->period,
      .effort = 1};
  return true;
}

const choir_strategy_def_t choir_strategy_def_sparse_local = {
    .config = &config_def,
    .bytes = sizeof(sparse_local_t),
    .check = check,
    .attach = attach,
    .detach = detach,
    .take_params = choir__local_take_params,
    .combine = choir__local_combine,
    .consolidate = choir__local_consolidate,
    .states = states,
    .cost = cost,
};
