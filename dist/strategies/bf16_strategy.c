// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/half_shared.h"

CHOIR_STRATEGY_CONFIG(bf16, "bf16", CHOIR_DENSE_FIELDS,
                      "averages of gradients as bf16");

// The exponents are those of f32: nothing has to be scaled.
static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_bf16_config_t* config = &strategy->config.as_bf16;
  strategy->overlaps = config->overlap;
  return choir__half_attach(strategy, CHOIR_DTYPE_BF16, 0, 0);
}

static bool cost(const void* config, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  choir__half_cost(((const choir_bf16_config_t*)config)->overlap, workload,
                   out_cost);
  return true;
}

const choir_strategy_def_t choir_strategy_def_bf16 = {
    .config = &config_def,
    .bytes = sizeof(choir__half_strategy_t),
    .attach = attach,
    .detach = choir__half_detach,
    .exchange = choir__half_exchange,
    .encode = choir__half_encode_part,
    .decode = choir__half_decode_part,
    .cost = cost,
    .works_on = choir__half_works_on,
};
