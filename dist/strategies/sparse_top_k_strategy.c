// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/sparse_shared.h"

CHOIR_STRATEGY_CONFIG(sparse_top_k, "sparseTopK", CHOIR_SPARSE_TOP_K_FIELDS,
                      "the largest gradients, the rest kept for later");

static choir__sparse_choice_t choice(const choir__sparse_gradient_t* self,
                                     const choir__sparse_part_t* part,
                                     int64_t step) {
  (void)self;
  (void)step;
  return (choir__sparse_choice_t){.k = part->sparse.most};
}

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_sparse_top_k_config_t* config = &strategy->config.as_sparse_top_k;
  choir__sparse_gradient_t* self = (choir__sparse_gradient_t*)strategy;
  self->choice = choice;
  const choir__sparse_setup_t setup = {
      .values = choir__sparse_values(config->values),
      .share = config->spars,
      .has_residual = config->feedback,
      .has_top_k = true};
  return choir__sparse_gradient_attach(self, &setup);
}

static bool cost(const void* config_, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  const choir_sparse_top_k_config_t* config = config_;
  const choir__message_config_t values = choir__sparse_values(config->values);
  *out_cost = (choir_strategy_cost_t){
      .gathered = choir__sparse_bytes(&values, workload->params, config->spars),
      .operations = workload->buckets,
      .period = 1,
      .overlaps = true,
      .passes = 6,
      .effort = 1};
  return true;
}

const choir_strategy_def_t choir_strategy_def_sparse_top_k = {
    .config = &config_def,
    .bytes = sizeof(choir__sparse_gradient_t),
    .attach = attach,
    .detach = choir__sparse_gradient_detach,
    .exchange = choir__sparse_gradient_exchange,
    .has_own_states = true,
    .states = choir__sparse_gradient_states,
    .cost = cost,
    .works_on = choir__sparse_gradient_works_on,
};
