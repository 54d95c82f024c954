// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/half_shared.h"

CHOIR_STRATEGY_CONFIG(fp16, "fp16", CHOIR_FP16_FIELDS,
                      "averages of gradients as f16");

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_fp16_config_t* config = &strategy->config.as_fp16;
  strategy->overlaps = config->overlap;
  return choir__half_attach(strategy, CHOIR_DTYPE_F16,
                            (int32_t)config->exponent, config->clip);
}

static bool cost(const void* config, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  choir__half_cost(((const choir_fp16_config_t*)config)->overlap, workload,
                   out_cost);
  return true;
}

const choir_strategy_def_t choir_strategy_def_fp16 = {
    .alias = "half",
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
